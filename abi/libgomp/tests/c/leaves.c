/* Threads that end within a region or are asked to: the case is the first argument. What is said and how the process ends is the same
   with any runtime. */
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <omp.h>

#include "check.h"

static int cleaned, reached, locals;
static pthread_key_t key;

static void clean(void *by)
{
    (void)by;
    __atomic_fetch_add(&cleaned, 1, __ATOMIC_SEQ_CST);
}

static int sum_of(int threads)
{
    int sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(dynamic, 3)
    for (int i = 0; i < 100; i++)
        sum += i;
    return sum;
}

/* Starts `body`, asks it to end if `is_cancelled` as soon as it has told that it is there, and says how it ended. */
static int there[2], asked[2];

static const char *ended(void *(*body)(void *), int is_cancelled)
{
    pthread_t thread;
    void *result;
    char byte;
    CHECK(pipe(there) == 0 && pipe(asked) == 0);
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    if (is_cancelled) {
        CHECK(read(there[0], &byte, 1) == 1);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(write(asked[1], "", 1) == 1);
    }
    CHECK(pthread_join(thread, &result) == 0);
    for (int end = 0; end < 2; end++) {
        close(there[end]);
        close(asked[end]);
    }
    return result == PTHREAD_CANCELED ? "cancelled" : result == (void *)&cleaned ? "by itself" : "otherwise";
}

static void tell(void) { CHECK(write(there[1], "", 1) == 1); }

/* Ends where it is asked to in what follows, not here. */
static void wait_until_asked(void)
{
    char byte;
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    tell();
    CHECK(read(asked[0], &byte, 1) == 1);
    pthread_setcancelstate(state, NULL);
}

static void *exits_in_a_region_of_one(void *nothing)
{
    (void)nothing;
    CHECK(sum_of(3) == 4950);
    pthread_setspecific(key, &locals);
    pthread_cleanup_push(clean, NULL);
#pragma omp parallel num_threads(1)
    pthread_exit(&cleaned);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *exits_in_a_loop(void *nothing)
{
    (void)nothing;
    pthread_cleanup_push(clean, NULL);
#pragma omp parallel for num_threads(1) schedule(dynamic)
    for (int i = 0; i < 10; i++)
        if (i == 5)
            pthread_exit(&cleaned);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *exits_in_a_task(void *nothing)
{
    (void)nothing;
    pthread_cleanup_push(clean, NULL);
#pragma omp task
    pthread_exit(&cleaned);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *exits_after_regions(void *nothing)
{
    (void)nothing;
    CHECK(sum_of(4) == 4950);
    pthread_cleanup_push(clean, NULL);
    pthread_exit(&cleaned);
    pthread_cleanup_pop(0);
    return NULL;
}

/* In a call that waits for ever. */
static void *is_cancelled_in_a_region_of_one(void *nothing)
{
    int never[2];
    char byte;
    (void)nothing;
    CHECK(pipe(never) == 0);
    pthread_cleanup_push(clean, NULL);
#pragma omp parallel num_threads(1)
    {
        tell();
        byte = (char)read(never[0], &byte, 1);
        __atomic_fetch_add(&reached, 1, __ATOMIC_SEQ_CST);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

/* Nothing that the runtime does is where a thread ends: neither barriers, locks, critical regions nor tasks. */
static void *is_cancelled_in_a_team(void *nothing)
{
    omp_lock_t lock;
    int in_critical = 0, tasks = 0;
    (void)nothing;
    omp_init_lock(&lock);
    pthread_cleanup_push(clean, NULL);
#pragma omp parallel num_threads(4)
    {
#pragma omp master
        wait_until_asked();
#pragma omp barrier
        for (int i = 0; i < 100; i++) {
#pragma omp critical(of_all)
            in_critical++;
            omp_set_lock(&lock);
            omp_unset_lock(&lock);
#pragma omp barrier
#pragma omp task shared(tasks)
            {
#pragma omp atomic
                tasks++;
            }
#pragma omp taskwait
        }
#pragma omp for ordered schedule(dynamic)
        for (int i = 0; i < 100; i++) {
#pragma omp ordered
            in_critical++;
        }
    }
    CHECK(in_critical == 500 && tasks == 400);
    CHECK(sum_of(3) == 4950);
    __atomic_fetch_add(&reached, 1, __ATOMIC_SEQ_CST);
    pthread_testcancel();
    __atomic_fetch_add(&reached, 1, __ATOMIC_SEQ_CST);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *is_cancelled_while_regions_begin(void *nothing)
{
    (void)nothing;
    pthread_cleanup_push(clean, NULL);
    wait_until_asked();
    /* Threads are made and given back, memory is taken. */
    for (int threads = 1; threads < 12; threads++)
        CHECK(sum_of(threads) == 4950);
    __atomic_fetch_add(&reached, 1, __ATOMIC_SEQ_CST);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

/* One of a team ends, another ends the process: nobody waits for the one. */
static void worker_exits(void)
{
#pragma omp parallel num_threads(3)
    {
        if (omp_get_thread_num() == 1) {
            pthread_cleanup_push(clean, NULL);
            pthread_exit(NULL);
            pthread_cleanup_pop(0);
        }
        if (omp_get_thread_num() == 0) {
            while (!__atomic_load_n(&cleaned, __ATOMIC_SEQ_CST))
                usleep(100);
            printf("one has ended\n");
            exit(5);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void *(*body)(void *);
        int is_cancelled;
    } cases[] = {
        {"exits-in-a-region-of-one", exits_in_a_region_of_one, 0},
        {"exits-in-a-loop", exits_in_a_loop, 0},
        {"exits-in-a-task", exits_in_a_task, 0},
        {"exits-after-regions", exits_after_regions, 0},
        {"cancelled-in-a-region-of-one", is_cancelled_in_a_region_of_one, 1},
        {"cancelled-in-a-team", is_cancelled_in_a_team, 1},
        {"cancelled-while-regions-begin", is_cancelled_while_regions_begin, 1},
    };
    const char *what = argc > 1 ? argv[1] : "";
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(pthread_key_create(&key, clean) == 0);
    if (!strcmp(what, "worker-exits"))
        worker_exits();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(what, cases[i].name)) {
            /* Often: what the thread had is for others. */
            for (int round = 0; round < 20; round++) {
                cleaned = reached = 0;
                const char *how = ended(cases[i].body, cases[i].is_cancelled);
                CHECK(sum_of(4) == 4950 && omp_get_level() == 0);
                if (round == 0 || round == 19)
                    printf("%s, cleaned %d, reached %d\n", how, cleaned, reached);
            }
            return 0;
        }
    if (argc > 1)
        return 2;
    puts("worker-exits");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        puts(cases[i].name);
    return 0;
}
