/* A spin lock that is tested before it is tried and backs off in a loop of growing length, without
 * PAUSE; held for 3/4 of the work. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300, DELAY_MAX = 1024 };

static int pier;
static long taken;

NOINLINE static double moor_at_the_pier(void)
{
    double since = cpu_now();
    int delay = 4;
    do {
        while (__atomic_load_n(&pier, __ATOMIC_RELAXED)) {
            for (volatile int i = 0; i < delay; i++)
                ;
            if (delay < DELAY_MAX)
                delay *= 2;
        }
    } while (__atomic_exchange_n(&pier, 1, __ATOMIC_ACQUIRE));
    return cpu_now() - since;
}

NOINLINE static void unload_the_ship(void) { burn(LOCKED); }
NOINLINE static void sail_alone(void) { burn(ALONE); }

static void skipper(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += moor_at_the_pier();
        unload_the_ship();
        __atomic_store_n(&pier, 0, __ATOMIC_RELEASE);
        sail_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("user-spin", run_crew(n, skipper, 1).seconds);
}
