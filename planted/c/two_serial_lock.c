/* Two causes: a serial phase, then a phase bound by one mutex. With n = 2 the wall time
 * is 7 parts, serial loses 4 of 14 and the lock 2.5 of 14. */
#include "planted.h"

enum { SERIAL = 300000, OPS = 225, LOCKED = 1000, ALONE = 167 };

static pthread_mutex_t till = PTHREAD_MUTEX_INITIALIZER;
static long taken;

NOINLINE static void open_the_shop(void) { burn(SERIAL); }

NOINLINE static double queue_at_the_till(void)
{
    double since = wall_now();
    pthread_mutex_lock(&till);
    return wall_now() - since;
}

NOINLINE static void pay_at_the_till(void) { burn(LOCKED); }
NOINLINE static void look_around(void) { burn(ALONE); }

static void customer(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += queue_at_the_till();
        pay_at_the_till();
        pthread_mutex_unlock(&till);
        look_around();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    double since = wall_now();
    open_the_shop();
    double serial = (n - 1) * (wall_now() - since);
    double lock = run_crew(n, customer, 1).seconds;
    tell("serial", serial);
    tell("lock-wait", lock);
}
