/* A lock that is tried and, when taken, tried again after a nap: the wait is a timer. */
#include "planted.h"

enum { OPS = 300, HELD = 1500, ALONE = 500, NAP_US = 100 };

static int occupied;
static long taken;

NOINLINE static double back_off_a_little(void)
{
    double since = wall_now();
    usleep(NAP_US);
    return wall_now() - since;
}

NOINLINE static void use_the_booth(void) { burn(HELD); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void caller(Member *me)
{
    while (another(&taken, OPS)) {
        while (__atomic_exchange_n(&occupied, 1, __ATOMIC_ACQUIRE))
            me->seconds += back_off_a_little();
        use_the_booth();
        __atomic_store_n(&occupied, 0, __ATOMIC_RELEASE);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("sleep", run_crew(n, caller, 1).seconds);
}
