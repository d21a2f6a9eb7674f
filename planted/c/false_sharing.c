/* Each thread counts in a counter of its own, but the counters share cache lines. */
#include "planted.h"

enum { BUMPS = 40000000, RUN_OF_BUMPS = 20000, WORK = 350000, PIECE = 200 };

static uint64_t counters[4096] __attribute__((aligned(64)));
static pthread_barrier_t together;
static long bumped __attribute__((aligned(64))), taken __attribute__((aligned(64)));

NOINLINE static double bump_my_counter(uint64_t *counter)
{
    double since = cpu_now();
    while (another(&bumped, BUMPS / RUN_OF_BUMPS))
        for (int i = 0; i < RUN_OF_BUMPS; i++)
            __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    return cpu_now() - since;
}

NOINLINE static void do_my_share(void)
{
    while (another(&taken, WORK / PIECE))
        burn(PIECE);
}

static void teller(Member *me)
{
    pthread_barrier_wait(&together);
    me->seconds = bump_my_counter(&counters[me->id]);
    do_my_share();
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pthread_barrier_init(&together, NULL, (unsigned)n);
    tell("slow-work", run_crew(n, teller, 1).seconds);
}
