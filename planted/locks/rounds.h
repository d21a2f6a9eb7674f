/* One known wait a round, in a family of locks: a holder takes the lock and keeps it while a
 * waiter, who starts when it is held, wants it too. The waiter times its calls itself and
 * tells how many of them waited, for how long together, and the longest.
 *
 *   PROGRAM FAMILY [ROUNDS]
 *   {"family": "mutex", "times": 40, "seconds": 0.1234, "queued": 0, "longest": 0.004,
 *    "p99": 0.003, "odd": {"times": 20, "seconds": 0.0617}, "lock": "0x55d0c0de"}
 *
 * `p99` is by nearest rank, of the first thousands; `odd` is what the odd turns have of all, of two rounds each (what
 * glibc keeps of a condition alternates from wait to wait, and would tell turns of one round apart); `lock` is where
 * the lock is, of families that know it.
 *
 * Of calls that spin, or may yield the CPU before they sleep, it tells how long they stood in a run queue, before
 * the sleep or after it.
 */
#ifndef ROUNDS_H
#define ROUNDS_H

/* Who lets go last of all stays on the stack. */
#pragma GCC optimize("no-optimize-sibling-calls")

#include "../c/planted.h"
#include <sched.h>

enum { HOLD_UNITS = 4000 };         /* some 3 ms */

/* How a family is wanted. */
enum call {
    SLEEPS = 0,     /* who waits sleeps */
    MAY_SPIN = 1,   /* or spins, in the kernel */
    SPINS = 2,      /* who waits spins in the kernel, and never sleeps */
    YIELDS = 4,     /* who waits yields the CPU before it sleeps, which others may want for long: that is no sleep */
    SPINS_FIRST = 16, /* who waits spins in the kernel as long as the holder runs, and sleeps then: the sleep is told */
    AGAIN = 8,      /* again and again until it is over, since only the kernel knows when it is held */
};
/* A call that took longer than these seconds, or this CPU time, spun. */
static const double SPUN = 0.0005, SPUN_CPU = 0.00005;

/* A family: prepare once, hold for a while, want it. */
struct family {
    const char *name;
    void (*prepare)(void);
    void (*hold)(int round);
    void (*want)(int round);
    int call;
    const void *lock;
};

static const struct family *chosen;
static int rounds = 40;
static int round_held, round_over, round_done;
static long times, odd_times;
static double seconds, odd_seconds, queued, longest;
enum { LENGTHS = 1 << 14 };
static double lengths[LENGTHS];

static MAYBE_UNUSED void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(2);
    }
}

static void reach(int *at, int round) { __atomic_store_n(at, round, __ATOMIC_SEQ_CST); }

static int has_reached(int *at, int round) { return __atomic_load_n(at, __ATOMIC_SEQ_CST) == round; }

static void await(int *at, int round)
{
    while (!has_reached(at, round))
        sched_yield();
}

static void announce(int round) { reach(&round_held, round); }

static MAYBE_UNUSED void none(void) {}

static long sleeps(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static int is_odd_turn(int round) { return round >> 1 & 1; }

static void want_and_time(int round)
{
    /* Who spins may be preempted before and after, which is no wait, but interrupts meanwhile are part of it. */
    int may_queue = chosen->call & (YIELDS | SPINS);
    double in_queue = may_queue ? queued_now() : 0;
    long slept = sleeps();
    double spent = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    double since = clock_seconds(CLOCK_MONOTONIC);
    chosen->want(round);
    double took = clock_seconds(CLOCK_MONOTONIC) - since;
    spent = clock_seconds(CLOCK_THREAD_CPUTIME_ID) - spent;
    if (chosen->call & SPINS_FIRST)
        took -= spent;
    int spun = chosen->call & SPINS ? spent > SPUN_CPU : chosen->call & MAY_SPIN && took > SPUN;
    if (spun || sleeps() > slept) {
        if (times < LENGTHS)
            lengths[times] = took;
        times++;
        seconds += took;
        if (is_odd_turn(round)) {
            odd_times++;
            odd_seconds += took;
        }
        if (may_queue)
            queued += queued_now() - in_queue;
        if (took > longest)
            longest = took;
    }
}

static void *waiter(void *arg)
{
    prctl(PR_SET_NAME, "waiter");
    for (int round = 1; round <= rounds; round++) {
        await(&round_held, round);
        burn(100);
        do
            want_and_time(round);
        while (chosen->call & AGAIN && !has_reached(&round_over, round));
        reach(&round_done, round);
    }
    return arg;
}

static int by_length(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double p99_of_lengths(void)
{
    size_t n = times < LENGTHS ? (size_t)times : LENGTHS;
    qsort(lengths, n, sizeof *lengths, by_length);
    return n ? lengths[(99 * n + 99) / 100 - 1] : 0;
}

/* What `main` does. */
static int run_rounds(const struct family *families, size_t n, int argc, char **argv)
{
    pthread_t thread;
    for (size_t i = 0; argc > 1 && i < n; i++)
        if (!strcmp(argv[1], families[i].name))
            chosen = &families[i];
    if (!chosen) {
        fprintf(stderr, "usage: %s FAMILY [ROUNDS]\n", argv[0]);
        return 2;
    }
    if (argc > 2)
        rounds = atoi(argv[2]);
    /* Who faults while the mappings are held waits for them. */
    memset(lengths, 1, sizeof lengths);
    chosen->prepare();
    prctl(PR_SET_NAME, "holder");
    check(pthread_create(&thread, 0, waiter, 0), "pthread_create");
    for (int round = 1; round <= rounds; round++) {
        chosen->hold(round);
        reach(&round_over, round);
        await(&round_done, round);
    }
    pthread_join(thread, 0);
    const char *out = getenv("PLANTED_OUT");
    FILE *to = out ? fopen(out, "a") : stderr;
    check(!to, "PLANTED_OUT");
    char lock[64] = "";
    if (chosen->lock)
        snprintf(lock, sizeof lock, ", \"lock\": \"%p\"", chosen->lock);
    fprintf(to, "{\"family\": \"%s\", \"times\": %ld, \"seconds\": %.6f, \"queued\": %.6f, \"longest\": %.6f, \"p99\": %.6f, \"odd\": {\"times\": %ld, \"seconds\": %.6f}%s}\n",
            chosen->name, times, seconds, queued, longest, p99_of_lengths(), odd_times, odd_seconds, lock);
    return 0;
}
#define RUN_ROUNDS(families, argc, argv) \
    run_rounds(families, sizeof(families) / sizeof(*(families)), argc, argv)

#endif
