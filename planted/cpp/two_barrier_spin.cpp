// Two causes: rounds with a very unequal phase before a barrier, then a phase bound by a
// spin lock. With n = 2 the barrier loses 26 % and the spinning 17 %.
#include "../c/planted.h"
#include <atomic>
#include <thread>
#include <vector>

enum { ROUNDS = 50, PHASE = 7000, HEAVY = 7, OPS = 4, LOCKED = 950, ALONE = 106 };

static long written;

static pthread_barrier_t bell;
static std::atomic<bool> taken{false};

NOINLINE static double wait_for_the_bell()
{
    double since = wall_now();
    pthread_barrier_wait(&bell);
    return wall_now() - since;
}

NOINLINE static double snatch_the_chalk()
{
    double since = cpu_now();
    while (taken.exchange(true, std::memory_order_acquire))
        while (taken.load(std::memory_order_relaxed)) {
#ifdef __x86_64__
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
    return cpu_now() - since;
}

NOINLINE static void learn(bool heavy, int n)
{
    burn(uint64_t(PHASE) * (heavy ? HEAVY : 1) / uint64_t(n - 1 + HEAVY));
}
NOINLINE static void write_on_the_board() { burn(LOCKED); }
NOINLINE static void think_alone() { burn(ALONE); }

static void pupil(Member *me)
{
    for (int round = 0; round < ROUNDS; round++) {
        learn(round % me->n == me->id, me->n);
        me->seconds += wait_for_the_bell();
    }
    while (another(&written, ROUNDS * OPS)) {
        me->more += snatch_the_chalk();
        write_on_the_board();
        taken.store(false, std::memory_order_release);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pthread_barrier_init(&bell, nullptr, unsigned(n));
    Sums sums = run_crew(n, pupil, 0);
    tell("barrier", sums.seconds);
    tell("user-spin", sums.more);
}
