/* A flag is tried again after sched_yield: on CPUs of their own the threads never sleep. */
#include "planted.h"
#include <sched.h>

enum { OPS = 480, LOCKED = 900, ALONE = 300 };

static int desk;
static long taken;

NOINLINE static double yield_until_the_desk_is_free(void)
{
    double since = cpu_now();
    while (__atomic_exchange_n(&desk, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    return cpu_now() - since;
}

NOINLINE static void work_at_the_desk(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void clerk(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += yield_until_the_desk_is_free();
        work_at_the_desk();
        __atomic_store_n(&desk, 0, __ATOMIC_RELEASE);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("user-spin", run_crew(n, clerk, 1).seconds);
}
