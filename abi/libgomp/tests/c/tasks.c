/* Tasks in all forms that the compiler has calls for. Prints ok, or what is wrong. */
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
/* GCC 12's library hangs, or may hang, in some of this. */
static int is_gccs;

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            printf("line %d: %s\n", __LINE__, #condition);                                                            \
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);                                                       \
        }                                                                                                             \
    } while (0)

static long fibonacci(int n)
{
    long a, b;
    if (n < 2)
        return n;
#pragma omp task shared(a) if (n > 5)
    a = fibonacci(n - 1);
#pragma omp task shared(b) final(n < 8)
    b = fibonacci(n - 2);
#pragma omp taskwait
    return a + b;
}

static void trees(void)
{
    long result = 0;
#pragma omp parallel
#pragma omp single
    result = fibonacci(18);
    CHECK(result == 2584);
    result = fibonacci(10);
    CHECK(result == 55);
}

static void data(void)
{
    enum { N = 500 };
    struct large {
        __attribute__((aligned(64))) char bytes[1500];
    } large;
    int seen[N] = {0};
    memset(large.bytes, 7, sizeof large.bytes);
#pragma omp parallel
#pragma omp master
    for (int i = 0; i < N; i++) {
        int length = i % 7 + 1;
        char name[length];
        memset(name, i, length);
#pragma omp task firstprivate(large, name) untied
        {
            CHECK((uintptr_t)&large % 64 == 0);
            CHECK(large.bytes[1499] == 7);
            CHECK(name[length - 1] == (char)i);
            large.bytes[0] = 1;
            __atomic_fetch_add(&seen[i], 1, __ATOMIC_RELAXED);
        }
    }
    CHECK(large.bytes[0] == 7);
    for (int i = 0; i < N; i++)
        CHECK(seen[i] == 1);
}

static void dependences(void)
{
    enum { N = 16, STEPS = 12 };
    static int grid[N + 2];
    int expected[N + 2];
    omp_depend_t object;
    int x = 0, y = 0;
    for (int i = 0; i < N + 2; i++)
        grid[i] = expected[i] = i * i % 11;
    for (int step = 0; step < STEPS; step++)
        for (int i = 1; i <= N; i++)
            expected[i] = (expected[i - 1] + 3 * expected[i] + expected[i + 1]) % 1009;
#pragma omp parallel
#pragma omp single
    for (int step = 0; step < STEPS; step++)
        for (int i = 1; i <= N; i++)
#pragma omp task depend(in : grid[i - 1], grid[i + 1]) depend(out : grid[i])
            grid[i] = (grid[i - 1] + 3 * grid[i] + grid[i + 1]) % 1009;
    CHECK(memcmp(grid, expected, sizeof expected) == 0);

#pragma omp parallel
#pragma omp single
    {
#pragma omp depobj(object) depend(inout : x)
#pragma omp task depend(out : x)
        x = 1;
#pragma omp task depend(depobj : object)
        {
            CHECK(x == 1);
            x = 2;
        }
        for (int i = 0; i < 8; i++)
#pragma omp task depend(in : x) depend(mutexinoutset : y)
        {
            CHECK(x == 2);
            y++;
        }
#pragma omp task depend(in : y) depend(inout : x) if (0)
        {
            CHECK(y == 8);
            x = 3;
        }
        CHECK(x == 3);
#pragma omp task depend(out : y)
        y = 100;
#pragma omp taskwait depend(in : y)
        CHECK(y == 100);
#pragma omp depobj(object) destroy
    }
}

static void loops(void)
{
    enum { N = 1000 };
    static int hits[N];
    int last = 0;
    long sum = 0;
    unsigned long long far = 0;
    memset(hits, 0, sizeof hits);
#pragma omp parallel
#pragma omp single
    {
#pragma omp taskloop grainsize(7) lastprivate(last)
        for (int i = 0; i < N; i++) {
            hits[i]++;
            last = i;
        }
        CHECK(last == N - 1);
#pragma omp taskloop num_tasks(13)
        for (int i = N - 1; i >= 0; i -= 3)
            hits[i]++;
#pragma omp taskloop grainsize(strict : 9) collapse(2)
        for (int i = 0; i < 10; i++)
            for (int j = 0; j < 100; j++)
                hits[i * 100 + j]++;
#pragma omp taskloop reduction(+ : sum)
        for (int i = 0; i < N; i++)
            sum += i;
        CHECK(sum == (long)N * (N - 1) / 2);
#pragma omp taskloop num_tasks(5) reduction(+ : far)
        for (unsigned long long i = ~0ULL - 10; i < ~0ULL - 1; i++)
            far += ~0ULL - i;
        CHECK(far == 10 + 9 + 8 + 7 + 6 + 5 + 4 + 3 + 2);
#pragma omp taskloop nogroup if (0)
        for (int i = 0; i < N; i++)
            hits[i]++;
#pragma omp taskloop
        for (int i = 10; i < 10; i++)
            hits[i] = -1000;
    }
    for (int i = 0; i < N; i++)
        CHECK(hits[i] == 3 + (i % 3 == 0));
    if (is_gccs)
        return;
    sum = 0;
#pragma omp taskloop reduction(+ : sum)
    for (int i = 0; i < N; i++)
        sum += i;
    CHECK(sum == (long)N * (N - 1) / 2);
}

static void groups_and_reductions(void)
{
    long sum = 5, product = 1, inner = 0;
#pragma omp parallel
#pragma omp single
    {
#pragma omp taskgroup task_reduction(+ : sum) task_reduction(* : product)
        {
            for (int i = 1; i <= 20; i++)
#pragma omp task in_reduction(+ : sum)
            {
                sum += i;
                if (i <= 10)
#pragma omp task in_reduction(* : product)
                    product *= i;
            }
#pragma omp taskgroup task_reduction(+ : inner)
            {
                for (int i = 0; i < 30; i++)
#pragma omp task in_reduction(+ : inner, sum)
                {
                    inner++;
                    sum++;
                }
            }
            CHECK(inner == 30);
        }
    }
    CHECK(sum == 5 + 210 + 30);
    CHECK(product == 3628800);

    long parallel_sum = 0;
    int threads = 0;
#pragma omp parallel reduction(task, + : parallel_sum)
    {
#pragma omp master
        threads = omp_get_num_threads();
#pragma omp task in_reduction(+ : parallel_sum)
        parallel_sum += 10;
        parallel_sum++;
    }
    CHECK(parallel_sum == 11 * threads);

    long loop_sum = 0;
#pragma omp parallel
#pragma omp for reduction(task, + : loop_sum)
    for (int i = 0; i < 100; i++) {
#pragma omp task in_reduction(+ : loop_sum)
        loop_sum += i;
        loop_sum += 1;
    }
    CHECK(loop_sum == 4950 + 100);
}

static void *fulfill(void *event)
{
    omp_fulfill_event((omp_event_handle_t)(uintptr_t)event);
    return NULL;
}

static void events(void)
{
    pthread_t other;
    omp_event_handle_t event;
    int x = 0, after = 0;
    if (is_gccs)
        return;
#pragma omp parallel
#pragma omp single
    {
#pragma omp task detach(event) depend(out : x)
        {
            x = 1;
            CHECK(pthread_create(&other, NULL, fulfill, (void *)(uintptr_t)event) == 0);
        }
#pragma omp task depend(in : x)
        after = x;
#pragma omp taskwait
        CHECK(after == 1);
        pthread_join(other, NULL);
        for (int i = 0; i < 50; i++) {
#pragma omp task detach(event)
            __atomic_fetch_add(&x, 1, __ATOMIC_RELAXED);
            omp_fulfill_event(event);
        }
    }
    CHECK(x == 51);
}

static void cancellation(void)
{
    int begun = 0, after = 0;
    if (!omp_get_cancellation())
        return;
#pragma omp parallel
#pragma omp single
    {
#pragma omp taskgroup
        {
            for (int i = 0; i < 1000; i++)
#pragma omp task shared(begun, after)
            {
                __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED);
#pragma omp cancel taskgroup
                __atomic_fetch_add(&after, 1, __ATOMIC_RELAXED);
            }
        }
        CHECK(after == 0);
        CHECK(begun >= 1 && begun <= omp_get_num_threads());
        begun = 0;
#pragma omp taskgroup
        {
#pragma omp task shared(begun)
            __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED);
        }
        CHECK(begun == 1);
    }
    begun = 0;
#pragma omp parallel
    {
        for (int i = 0; i < 10; i++)
#pragma omp task shared(begun)
            __atomic_fetch_add(&begun, 1, __ATOMIC_RELAXED);
#pragma omp cancel parallel
#pragma omp barrier
        CHECK(0);
    }
}

static void priorities(void)
{
    int order[10], next = 0;
    if (omp_get_max_task_priority() < 10)
        return;
#pragma omp parallel num_threads(1)
    {
        for (int i = 0; i < 10; i++)
#pragma omp task priority(i) shared(order, next)
            order[next++] = i;
        CHECK(next == 0);
    }
    for (int i = 0; i < 10; i++)
        CHECK(order[i] == 9 - i);
}

static void questions(void)
{
    CHECK(!omp_in_final());
#pragma omp parallel
    {
        int here = omp_get_thread_num();
        CHECK(!omp_in_final());
#pragma omp task final(1) firstprivate(here)
        {
            (void)here;
            CHECK(omp_in_final());
            int inner = omp_get_thread_num();
            int ran = 0;
#pragma omp task shared(ran)
            {
                CHECK(omp_in_final());
                CHECK(omp_get_thread_num() == inner);
                ran = 1;
            }
            CHECK(ran);
        }
        /* Variables belong to the task. */
        int before = omp_get_max_threads();
#pragma omp task firstprivate(before)
        {
            CHECK(omp_get_max_threads() == before);
            omp_set_num_threads(before + 3);
            CHECK(omp_get_max_threads() == before + 3);
#pragma omp taskyield
#pragma omp task firstprivate(before)
            CHECK(omp_get_max_threads() == before + 3);
        }
#pragma omp taskwait
        CHECK(omp_get_max_threads() == before);
    }
}

static int stop, polls;

static void poll_again(void)
{
    polls++;
    if (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
#pragma omp task
        poll_again();
    }
}

/* Children that have ended elsewhere are not awaited until no descendant is left; and the oldest child has its turn
   although there always is a newer task. */
static void waits_for_children_only(int is_starved)
{
    omp_event_handle_t event;
    int is_there = 0;
    stop = polls = 0;
#pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 0) {
            if (is_starved) {
#pragma omp task shared(stop)
                __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
            }
#pragma omp task
            poll_again();
            if (!is_starved) {
#pragma omp task detach(event)
                __atomic_store_n(&is_there, 1, __ATOMIC_RELEASE);
            }
#pragma omp taskwait
            __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
        } else {
            /* Takes no task meanwhile. */
            if (!is_starved) {
                while (!__atomic_load_n(&is_there, __ATOMIC_ACQUIRE) || !__atomic_load_n(&polls, __ATOMIC_ACQUIRE))
                    sched_yield();
                omp_fulfill_event(event);
            }
            while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
                sched_yield();
        }
    }
    CHECK(polls > 0);
}

static void large(int level)
{
    volatile char frame[160 << 10];
    frame[0] = frame[sizeof frame - 1] = (char)level;
    if (level) {
#pragma omp task firstprivate(level)
        large(level - 1);
    }
    CHECK(frame[0] == (char)level && frame[sizeof frame - 1] == (char)level);
}

/* Tasks within tasks are not run within each other until the stack is full. */
static void large_frames(void)
{
#pragma omp parallel num_threads(1)
    large(200);
}

/* GCC 13 calls it for taskwait with depend and nowait. */
extern void GOMP_taskwait_depend_nowait(void **) __attribute__((weak));

static void waits_as_tasks(void)
{
    int x = 0, y = 0;
    if (!GOMP_taskwait_depend_nowait)
        return;
#pragma omp parallel
#pragma omp single
    {
        void *depend[] = {(void *)2, (void *)1, &y, &x};
#pragma omp task depend(out : x)
        x = 1;
        GOMP_taskwait_depend_nowait(depend);
#pragma omp task depend(in : y)
        CHECK(x == 1);
    }
}

int main(void)
{
    is_gccs = getenv("IS_GCCS") != NULL;
    for (int round = 0; round < 20; round++) {
        trees();
        data();
        dependences();
        loops();
        groups_and_reductions();
        events();
        priorities();
        questions();
        waits_as_tasks();
        waits_for_children_only(0);
        waits_for_children_only(1);
        large_frames();
    }
    cancellation();
    if (!failures)
        puts("ok");
    return failures != 0;
}
