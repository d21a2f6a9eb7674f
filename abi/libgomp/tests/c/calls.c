/* Calls that compilers made once, make seldom, or would be free to make: loops do each iteration once, in order where
   that is asked for. Says "ok"; with an argument it comes to an error directive. */
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef unsigned long long ull;
typedef void body(void *);
#ifdef __cplusplus
extern "C" {
#endif
void GOMP_parallel_start(body *, void *, unsigned), GOMP_parallel_end(void);
void GOMP_parallel_loop_static_start(body *, void *, unsigned, long, long, long, long);
void GOMP_parallel_loop_dynamic_start(body *, void *, unsigned, long, long, long, long);
void GOMP_parallel_loop_guided_start(body *, void *, unsigned, long, long, long, long);
void GOMP_parallel_loop_runtime_start(body *, void *, unsigned, long, long, long);
void GOMP_parallel_loop_static(body *, void *, unsigned, long, long, long, long, unsigned);
void GOMP_parallel_loop_guided(body *, void *, unsigned, long, long, long, long, unsigned);
void GOMP_parallel_loop_runtime(body *, void *, unsigned, long, long, long, unsigned);
void GOMP_parallel_loop_nonmonotonic_runtime(body *, void *, unsigned, long, long, long, unsigned);
void GOMP_parallel_sections_start(body *, void *, unsigned, unsigned);
void GOMP_loop_end(void), GOMP_loop_end_nowait(void), GOMP_sections_end_nowait(void);
bool GOMP_loop_end_cancel(void), GOMP_sections_end_cancel(void), GOMP_cancellation_point(int), GOMP_cancel(int, bool);
bool GOMP_loop_static_start(long, long, long, long, long *, long *);
bool GOMP_loop_static_next(long *, long *), GOMP_loop_dynamic_next(long *, long *), GOMP_loop_guided_next(long *, long *);
bool GOMP_loop_runtime_next(long *, long *), GOMP_loop_nonmonotonic_runtime_next(long *, long *);
bool GOMP_loop_ordered_runtime_next(long *, long *);
bool GOMP_loop_ordered_start(long, long, long, long, long, long *, long *, uintptr_t *, void **);
bool GOMP_loop_doacross_start(unsigned, long *, long, long, long *, long *, uintptr_t *, void **);
bool GOMP_loop_ull_static_start(bool, ull, ull, ull, ull, ull *, ull *), GOMP_loop_ull_static_next(ull *, ull *);
bool GOMP_loop_ull_dynamic_next(ull *, ull *), GOMP_loop_ull_guided_next(ull *, ull *);
bool GOMP_loop_ull_runtime_next(ull *, ull *);
bool GOMP_loop_ull_start(bool, ull, ull, ull, long, ull, ull *, ull *, uintptr_t *, void **);
bool GOMP_loop_ull_ordered_start(bool, ull, ull, ull, long, ull, ull *, ull *, uintptr_t *, void **);
bool GOMP_loop_ull_ordered_static_start(bool, ull, ull, ull, ull, ull *, ull *);
bool GOMP_loop_ull_ordered_dynamic_start(bool, ull, ull, ull, ull, ull *, ull *);
bool GOMP_loop_ull_ordered_guided_start(bool, ull, ull, ull, ull, ull *, ull *);
bool GOMP_loop_ull_ordered_runtime_start(bool, ull, ull, ull, ull *, ull *);
bool GOMP_loop_ull_ordered_static_next(ull *, ull *), GOMP_loop_ull_ordered_dynamic_next(ull *, ull *);
bool GOMP_loop_ull_ordered_guided_next(ull *, ull *), GOMP_loop_ull_ordered_runtime_next(ull *, ull *);
bool GOMP_loop_ull_doacross_static_start(unsigned, ull *, ull, ull *, ull *);
bool GOMP_loop_ull_doacross_dynamic_start(unsigned, ull *, ull, ull *, ull *);
bool GOMP_loop_ull_doacross_guided_start(unsigned, ull *, ull, ull *, ull *);
bool GOMP_loop_ull_doacross_runtime_start(unsigned, ull *, ull *, ull *);
bool GOMP_loop_ull_doacross_start(unsigned, ull *, long, ull, ull *, ull *, uintptr_t *, void **);
void GOMP_doacross_post(long *), GOMP_doacross_wait(long, ...);
void GOMP_doacross_ull_post(ull *), GOMP_doacross_ull_wait(ull, ...);
void GOMP_ordered_start(void), GOMP_ordered_end(void);
unsigned GOMP_sections_start(unsigned), GOMP_sections_next(void), GOMP_sections2_start(unsigned, uintptr_t *, void **);
void *GOMP_alloc(size_t, size_t, uintptr_t);
void GOMP_free(void *, uintptr_t), GOMP_warning(const char *, size_t), GOMP_error(const char *, size_t);
void GOMP_target(int, body *, const void *, size_t, void **, size_t *, unsigned char *);
void GOMP_target_data(int, const void *, size_t, void **, size_t *, unsigned char *), GOMP_target_end_data(void);
void GOMP_target_update(int, const void *, size_t, void **, size_t *, unsigned char *), GOMP_teams(unsigned, unsigned);
#ifdef __cplusplus
}
#endif

enum { COUNT = 200, STATIC = 1, DYNAMIC = 2, GUIDED = 3, THREADS = 4 };

static int done[COUNT];
/* The iteration whose turn it is. */
static long turn;

static void begin(void) { memset(done, 0, sizeof done); }

static void all_are_done(void) {
    for (int i = 0; i < COUNT; i++)
        CHECK(done[i] == 1);
}

static void once(long first, long end) {
    for (long i = first; i < end; i++)
        __atomic_fetch_add(&done[i], 1, __ATOMIC_RELAXED);
}

/* Regions that the master begins, joins and ends. */

static void with(void (*start)(body *), body *loop) {
    begin();
    start(loop);
    loop(NULL);
    GOMP_parallel_end();
    all_are_done();
}

#define LOOP(name, next)                                                                                               \
    static void name(void *data) {                                                                                     \
        long first, end;                                                                                               \
        (void)data;                                                                                                    \
        while (next(&first, &end))                                                                                     \
            once(first, end);                                                                                          \
        GOMP_loop_end_nowait();                                                                                        \
    }
LOOP(static_loop, GOMP_loop_static_next)
LOOP(dynamic_loop, GOMP_loop_dynamic_next)
LOOP(guided_loop, GOMP_loop_guided_next)
LOOP(runtime_loop, GOMP_loop_runtime_next)
LOOP(any_order_loop, GOMP_loop_nonmonotonic_runtime_next)

static void count(void *data) { __atomic_fetch_add((int *)data, 1, __ATOMIC_RELAXED); }
static void start_static(body *loop) { GOMP_parallel_loop_static_start(loop, NULL, THREADS, 0, COUNT, 1, 7); }
static void start_dynamic(body *loop) { GOMP_parallel_loop_dynamic_start(loop, NULL, THREADS, 0, COUNT, 1, 3); }
static void start_guided(body *loop) { GOMP_parallel_loop_guided_start(loop, NULL, THREADS, 0, COUNT, 1, 2); }
static void start_runtime(body *loop) { GOMP_parallel_loop_runtime_start(loop, NULL, THREADS, 0, COUNT, 1); }

static void sections(void *data) {
    (void)data;
    for (unsigned section; (section = GOMP_sections_next()) != 0;)
        once(section - 1, section);
    GOMP_sections_end_nowait();
}
static void start_sections(body *of) { GOMP_parallel_sections_start(of, NULL, THREADS, COUNT); }

static void regions(void) {
    int threads = 0;
    GOMP_parallel_start(count, &threads, THREADS);
    count(&threads);
    GOMP_parallel_end();
    CHECK(threads == THREADS);
    omp_set_schedule(omp_sched_dynamic, 5);
    with(start_static, static_loop);
    with(start_dynamic, dynamic_loop);
    with(start_guided, guided_loop);
    with(start_runtime, runtime_loop);
    with(start_sections, sections);
    begin();
    GOMP_parallel_loop_static(static_loop, NULL, THREADS, 0, COUNT, 1, 0, 0);
    all_are_done();
    begin();
    GOMP_parallel_loop_guided(guided_loop, NULL, THREADS, 0, COUNT, 1, 1, 0);
    all_are_done();
    begin();
    GOMP_parallel_loop_runtime(runtime_loop, NULL, THREADS, 0, COUNT, 1, 0);
    all_are_done();
    begin();
    GOMP_parallel_loop_nonmonotonic_runtime(any_order_loop, NULL, THREADS, 0, COUNT, 1, 0);
    all_are_done();
}

/* Loops in regions. */

/* Down from COUNT to 1, since no number is below 0. */
static void once_ull(ull first, ull end, bool up) {
    for (ull i = first; i != end; up ? i++ : i--)
        __atomic_fetch_add(&done[up ? i : i - 1], 1, __ATOMIC_RELAXED);
}

static void in_turn(ull first, ull end, bool up) {
    for (ull i = first; i != end; up ? i++ : i--) {
        GOMP_ordered_start();
        CHECK(turn == (up ? (long)i : COUNT - (long)i));
        turn++;
        GOMP_ordered_end();
        done[up ? i : i - 1]++;
    }
}

#define IN_REGION(start, next, iterations)                                                                             \
    do {                                                                                                               \
        begin();                                                                                                       \
        turn = 0;                                                                                                      \
        _Pragma("omp parallel num_threads(THREADS)") {                                                                 \
            ull first, end;                                                                                            \
            if (start)                                                                                                 \
                do                                                                                                     \
                    iterations;                                                                                        \
                while (next(&first, &end));                                                                            \
            GOMP_loop_end();                                                                                           \
        }                                                                                                              \
        all_are_done();                                                                                                \
    } while (0)

static bool static_next(ull *first, ull *end) { return GOMP_loop_static_next((long *)first, (long *)end); }
static bool ordered_next(ull *first, ull *end) { return GOMP_loop_ordered_runtime_next((long *)first, (long *)end); }
static bool any_next(ull *first, ull *end) { return GOMP_loop_runtime_next((long *)first, (long *)end); }

static void loops(void) {
    ull const none = 0, all = COUNT, down = -1ull;
    for (int schedule = 0; schedule <= GUIDED; schedule++) {
        omp_set_schedule(omp_sched_guided, 2);
        IN_REGION(GOMP_loop_ull_start(true, 0, COUNT, 1, schedule, 3, &first, &end, NULL, NULL), GOMP_loop_ull_runtime_next,
                  once_ull(first, end, true));
        IN_REGION(GOMP_loop_ull_ordered_start(true, 0, COUNT, 1, schedule, 3, &first, &end, NULL, NULL),
                  GOMP_loop_ull_ordered_runtime_next, in_turn(first, end, true));
        IN_REGION(GOMP_loop_ordered_start(0, COUNT, 1, schedule, 3, (long *)&first, (long *)&end, NULL, NULL),
                  ordered_next, in_turn(first, end, true));
    }
    IN_REGION(GOMP_loop_static_start(0, COUNT, 1, 9, (long *)&first, (long *)&end), static_next,
              once_ull(first, end, true));
    for (int up = 0; up < 2; up++) {
        ull low = up ? none : all, high = up ? all : none, step = up ? 1 : down;
        IN_REGION(GOMP_loop_ull_static_start(up, low, high, step, 7, &first, &end), GOMP_loop_ull_static_next,
                  once_ull(first, end, up));
        IN_REGION(GOMP_loop_ull_ordered_static_start(up, low, high, step, 7, &first, &end),
                  GOMP_loop_ull_ordered_static_next, in_turn(first, end, up));
        IN_REGION(GOMP_loop_ull_ordered_dynamic_start(up, low, high, step, 7, &first, &end),
                  GOMP_loop_ull_ordered_dynamic_next, in_turn(first, end, up));
        IN_REGION(GOMP_loop_ull_ordered_guided_start(up, low, high, step, 7, &first, &end),
                  GOMP_loop_ull_ordered_guided_next, in_turn(first, end, up));
        IN_REGION(GOMP_loop_ull_ordered_runtime_start(up, low, high, step, &first, &end),
                  GOMP_loop_ull_ordered_runtime_next, in_turn(first, end, up));
    }
}

/* Each iteration waits for the one before it. */

static void behind(ull first, ull end) {
    for (ull i = first; i != end; i++) {
        if (i > 0) {
            GOMP_doacross_ull_wait(i - 1);
            CHECK(__atomic_load_n(&done[i - 1], __ATOMIC_RELAXED) == 1);
        }
        __atomic_fetch_add(&done[i], 1, __ATOMIC_RELAXED);
        GOMP_doacross_ull_post(&i);
    }
}

static void behind_long(long first, long end) {
    for (long i = first; i != end; i++) {
        if (i > 0) {
            GOMP_doacross_wait(i - 1);
            CHECK(__atomic_load_n(&done[i - 1], __ATOMIC_RELAXED) == 1);
        }
        __atomic_fetch_add(&done[i], 1, __ATOMIC_RELAXED);
        GOMP_doacross_post(&i);
    }
}

static void nests(void) {
    ull counts[1] = {COUNT};
    long counts_long[1] = {COUNT};
    omp_set_schedule(omp_sched_dynamic, 4);
    IN_REGION(GOMP_loop_ull_doacross_static_start(1, counts, 5, &first, &end), GOMP_loop_ull_static_next,
              behind(first, end));
    IN_REGION(GOMP_loop_ull_doacross_dynamic_start(1, counts, 5, &first, &end), GOMP_loop_ull_dynamic_next,
              behind(first, end));
    IN_REGION(GOMP_loop_ull_doacross_guided_start(1, counts, 5, &first, &end), GOMP_loop_ull_guided_next,
              behind(first, end));
    IN_REGION(GOMP_loop_ull_doacross_runtime_start(1, counts, &first, &end), GOMP_loop_ull_runtime_next,
              behind(first, end));
    for (int schedule = 0; schedule <= GUIDED; schedule++) {
        IN_REGION(GOMP_loop_ull_doacross_start(1, counts, schedule, 5, &first, &end, NULL, NULL),
                  GOMP_loop_ull_runtime_next, behind(first, end));
        IN_REGION(GOMP_loop_doacross_start(1, counts_long, schedule, 5, (long *)&first, (long *)&end, NULL, NULL),
                  any_next, behind_long((long)first, (long)end));
    }
}

/* The rest. */

static void cancels(void) {
    enum { REGION = 1, LOOP = 2, SECTIONS = 4 };
    begin();
    /* Nobody may cancel here, so that all is done. */
    int cancelled = 0;
#pragma omp parallel num_threads(THREADS) reduction(+ : cancelled)
    {
        ull first, end;
        if (GOMP_loop_ull_start(true, 0, COUNT, 1, DYNAMIC, 3, &first, &end, NULL, NULL))
            do {
                once_ull(first, end, true);
                cancelled += GOMP_cancellation_point(LOOP);
            } while (GOMP_loop_ull_dynamic_next(&first, &end));
        cancelled += GOMP_loop_end_cancel();
        cancelled += GOMP_cancellation_point(REGION);
    }
    all_are_done();
    CHECK(cancelled == 0);
    begin();
#pragma omp parallel num_threads(THREADS) reduction(+ : cancelled)
    {
        for (unsigned section = GOMP_sections2_start(COUNT, NULL, NULL); section; section = GOMP_sections_next()) {
            once(section - 1, section);
            cancelled += GOMP_cancellation_point(SECTIONS);
        }
        cancelled += GOMP_sections_end_cancel();
    }
    all_are_done();
    CHECK(cancelled == 0);
}

static void once_on_the_device(void *data) { ++**(int **)data; }

static void rest(void) {
    int sum = 0;
#pragma omp parallel num_threads(THREADS)
#pragma omp scope reduction(task, + : sum)
    {
#pragma omp task in_reduction(+ : sum)
        sum += 2;
        sum++;
    }
    CHECK(sum == 3 * THREADS);
    char *block = (char *)GOMP_alloc(128, 100, omp_default_mem_alloc);
    CHECK(block && (uintptr_t)block % 128 == 0);
    memset(block, 1, 100);
    GOMP_free(block, omp_default_mem_alloc);
    GOMP_free(GOMP_alloc(8, 1, omp_null_allocator), omp_null_allocator);

    /* The host is the device. */
    int calls = 0;
    void *address = &calls;
    size_t bytes = sizeof calls;
    unsigned char kind = 3;
    GOMP_target_data(-1, NULL, 1, &address, &bytes, &kind);
    GOMP_target(-1, once_on_the_device, NULL, 1, &address, &bytes, &kind);
    GOMP_target_update(-1, NULL, 1, &address, &bytes, &kind);
    GOMP_target_end_data();
    CHECK(calls == 1);
    GOMP_teams(3, 2);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        GOMP_warning("a warning", 9);
        GOMP_warning("one that is cut", 3);
        GOMP_warning(NULL, 0);
        GOMP_error(strcmp(argv[1], "silent") ? "an error" : NULL, strcmp(argv[1], "silent") ? 8 : 0);
        printf("went on\n");
        return 0;
    }
    regions();
    loops();
    nests();
    cancels();
    rest();
    printf("ok\n");
    return 0;
}
