/* A pthread mutex held for 3/4 of the work, while the main thread, which worked before, waits in a
 * condition variable until all is done: a join by other means, which takes no CPU from anybody. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300, ORDERS = 20000 };

static pthread_mutex_t parcel = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t office = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t closing_time = PTHREAD_COND_INITIALIZER;
static int n_packers, is_closed;
static long taken;
static Sums sums;

NOINLINE static double seize_the_parcel(void)
{
    double since = wall_now();
    pthread_mutex_lock(&parcel);
    return wall_now() - since;
}

NOINLINE static void pack_the_parcel(void) { burn(LOCKED); }
NOINLINE static void fetch_the_next(void) { burn(ALONE); }
NOINLINE static void read_the_orders(void) { burn(ORDERS); }

static void packer(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += seize_the_parcel();
        pack_the_parcel();
        pthread_mutex_unlock(&parcel);
        fetch_the_next();
    }
}

static void *foreman(void *unused)
{
    sums = run_crew(n_packers, packer, 0);
    pthread_mutex_lock(&office);
    is_closed = 1;
    pthread_cond_signal(&closing_time);
    pthread_mutex_unlock(&office);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    n_packers = begin(argc, argv);
    read_the_orders();
    if (pthread_create(&thread, NULL, foreman, NULL))
        die("pthread_create");
    pthread_mutex_lock(&office);
    while (!is_closed)
        pthread_cond_wait(&closing_time, &office);
    pthread_mutex_unlock(&office);
    pthread_join(thread, NULL);
    tell("lock-wait", sums.seconds);
}
