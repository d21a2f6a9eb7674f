/* Threads draw numbers from one counter and add them up: the same draws in total, but its cache line travels. No thread counts
 * its own draws: what it holds moves on as fast as all of them together. */
#include "planted.h"

enum { WORK = 320000, PIECE = 200 };
static const uint64_t TICKETS = 40000000;

static uint64_t __attribute__((aligned(64))) next_ticket;
static long __attribute__((aligned(64))) taken;
static volatile uint64_t __attribute__((aligned(64))) sink;

NOINLINE static double draw_all_tickets(void)
{
    double since = cpu_now();
    uint64_t ticket, sum = 0;
    while ((ticket = __atomic_fetch_add(&next_ticket, 1, __ATOMIC_RELAXED)) < TICKETS)
        sum += ticket;
    sink = sum;
    return cpu_now() - since;
}

NOINLINE static void do_my_share(void)
{
    while (another(&taken, WORK / PIECE))
        burn(PIECE);
}

static void visitor(Member *me)
{
    me->seconds = draw_all_tickets();
    do_my_share();
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("slow-work", run_crew(n, visitor, 1).seconds);
}
