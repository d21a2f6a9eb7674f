/* A pthread barrier after each phase; one thread, another each time, has three times
 * the work of the others: T(n) = 3 / (n + 2) of the one-CPU time. */
#include "planted.h"

enum { PHASES = 200, PHASE = 3000, HEAVY = 3 };

static pthread_barrier_t gate;

NOINLINE static double wait_at_the_gate(void)
{
    double since = wall_now();
    pthread_barrier_wait(&gate);
    return wall_now() - since;
}

NOINLINE static void walk_a_leg(int heavy, int n)
{
    burn((uint64_t)PHASE * (heavy ? HEAVY : 1) / (uint64_t)(n - 1 + HEAVY));
}

static void walker(Member *me)
{
    for (int phase = 0; phase < PHASES; phase++) {
        walk_a_leg(phase % me->n == me->id, me->n);
        me->seconds += wait_at_the_gate();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pthread_barrier_init(&gate, NULL, (unsigned)n);
    tell("barrier", run_crew(n, walker, 1).seconds);
}
