/* A pthread mutex held for 3/4 of the work: T(n) = N * LOCKED for n >= 2. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300 };

static pthread_mutex_t ledger = PTHREAD_MUTEX_INITIALIZER;
static long taken;

NOINLINE static double take_the_ledger_lock(void)
{
    double since = wall_now();
    pthread_mutex_lock(&ledger);
    return wall_now() - since;
}

NOINLINE static void write_the_ledger(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void clerk(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += take_the_ledger_lock();
        write_the_ledger();
        pthread_mutex_unlock(&ledger);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("lock-wait", run_crew(n, clerk, 1).seconds);
}
