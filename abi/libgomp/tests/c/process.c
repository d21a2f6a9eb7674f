/* What becomes of teams when the process around them does something: the case is the first argument. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
    printf("%s\n", what);
    fflush(stdout);
    _exit(1);
}

/* A region of `threads` threads, a barrier in it and a task by each. */
static void region(int threads)
{
    int ran = 0, tasks = 0;
#pragma omp parallel num_threads(threads) reduction(+ : ran)
    {
#pragma omp barrier
#pragma omp task
        {
#pragma omp atomic
            tasks++;
        }
        ran++;
    }
    if (ran != threads || tasks != threads)
        fail("a region without some of its threads");
}

/* The child of a process with a live team has regions of its own. GCC's library waits there for threads that are
   not in the child. */
static void forks(void)
{
    for (int round = 0; round < 20; round++) {
        region(4);
        pid_t child = fork();
        if (child == 0) {
            region(4);
            region(7);
            _exit(0);
        }
        region(3);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            fail("a child that failed");
    }
}

/* A child of a thread within a region may at least end. */
static void forks_inside(void)
{
    int failed = 0;
#pragma omp parallel num_threads(3) reduction(+ : failed)
    {
        pid_t child = fork();
        if (child == 0)
            _exit(omp_get_thread_num() >= 0 ? 0 : 1);
        int status;
        failed += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    if (failed)
        fail("a child that failed");
}

static void sizes(void)
{
    const int threads[] = { 1, 2, 3, 8, 9, 64, 65, 1, 1024, 2, 500, 1024, 1 };
    for (unsigned i = 0; i < sizeof threads / sizeof *threads; i++)
        region(threads[i]);
}

static void *own_regions(void *argument)
{
    (void)argument;
    for (int round = 0; round < 5; round++)
        region(1 + round);
    return NULL;
}

/* Threads of the program come and go, each with teams of its own. */
static void owners(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t threads[6];
        for (int i = 0; i < 6; i++)
            if (pthread_create(&threads[i], NULL, own_regions, NULL))
                fail("no thread");
        for (int i = 0; i < 6; i++)
            pthread_join(threads[i], NULL);
    }
}

static void *own_and_inner_regions(void *argument)
{
    (void)argument;
#pragma omp parallel num_threads(4)
    region(1);
    return NULL;
}

/* A thread for each request, as servers have: what belonged to the workers of one that is gone serves others. The first
   thread has no regions, so that all workers end each time. */
static void requests(void)
{
    size_t before = 0;
    if (!mallopt(M_ARENA_MAX, 1))
        fail("no single arena");
    for (int round = 0; round < 2200; round++) {
        pthread_t thread;
        if (round == 200)
            before = mallinfo2().uordblks;
        if (pthread_create(&thread, NULL, own_and_inner_regions, NULL))
            fail("no thread");
        pthread_join(thread, NULL);
    }
    /* Some are still ending, and hold on to theirs. */
    if (mallinfo2().uordblks > before + (1 << 20))
        fail("memory of workers is lost");
}

/* The first two CPUs that this process may use, each in a set of its own. */
static cpu_set_t cpus[2];

static void find_cpus(void)
{
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0, found = 0; found < 2 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &cpus[found++]);
}

static int may_run_on(const cpu_set_t *wanted)
{
    cpu_set_t now;
    return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, wanted);
}

/* Regions in a thread that is kept on one CPU. */
static void *on_a_cpu_of_its_own(void *argument)
{
    const cpu_set_t *mine = (const cpu_set_t *)argument;
    int elsewhere = 0;
    sched_setaffinity(0, sizeof *mine, mine);
    omp_set_max_active_levels(2);
    for (int threads = 2; threads <= 3; threads++) {
#pragma omp parallel num_threads(threads) reduction(+ : elsewhere)
#pragma omp parallel num_threads(2) reduction(+ : elsewhere)
        elsewhere += !may_run_on(mine);
    }
    if (elsewhere)
        fail("a thread runs where another one's region was");
    return NULL;
}

/* One after the other, so that the workers of one serve the next. The first thread keeps them from ending. */
static void cpus_of_others(void)
{
    find_cpus();
    region(1);
    for (int round = 0; round < 10; round++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, on_a_cpu_of_its_own, &cpus[round % 2]))
            fail("no thread");
        pthread_join(thread, NULL);
    }
}

/* A program puts its threads on CPUs itself, by their numbers. */
static void cpus_of_the_program(void)
{
    find_cpus();
    int elsewhere = 0;
#pragma omp parallel num_threads(4)
    sched_setaffinity(0, sizeof cpus[0], &cpus[omp_get_thread_num() % 2]);
    for (int round = 0; round < 10; round++) {
        region(2);
#pragma omp parallel num_threads(4) reduction(+ : elsewhere)
        elsewhere += !may_run_on(&cpus[omp_get_thread_num() % 2]);
    }
    if (elsewhere)
        fail("a thread is not where the program has put it");
}

static volatile sig_atomic_t handled;

static void handle(int signal)
{
    (void)signal;
    handled++;
}

/* Signals interrupt sleeps of waiting threads. */
static void signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    sigaction(SIGALRM, &action, NULL);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGALRM;
    timer_t timer;
    struct itimerspec every = { { 0, 100000 }, { 0, 100000 } };
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &every, NULL))
        fail("no timer");
    for (int round = 0; round < 2000 || handled < 20; round++)
        region(4);
    timer_delete(timer);
}

/* The process ends while all others are in a region, at a barrier or at work. */
static void exits(void)
{
#pragma omp parallel num_threads(6)
    {
        if (omp_get_thread_num() == 3)
            exit(7);
        if (omp_get_thread_num() > 3) {
#pragma omp barrier
        }
        for (;;)
            pause();
    }
}

/* A library with regions comes late and goes; the runtime comes with it. */
static void plugins(const char *plugin)
{
    for (int round = 0; round < 10; round++) {
        void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            fail(dlerror());
        int (*count)(int);
        *(void **)&count = dlsym(library, "count_threads");
        if (!count || count(5) != 5)
            fail("a region of a plugin without some of its threads");
        dlclose(library);
    }
}

/* Regions deep in each other, with teams of one and of several. */
static int depth(int level)
{
    int inside = 0;
#pragma omp parallel num_threads(level % 2 + 1) reduction(+ : inside)
    {
        inside += level ? depth(level - 1) : 1;
#pragma omp barrier
    }
    return inside;
}

static int mine;
#pragma omp threadprivate(mine)

/* What is threadprivate stays with the number of a thread between regions of one size, whatever serial or smaller
   regions come between. */
static void threadprivates(void)
{
    for (int round = 0; round < 50; round++) {
        int wrong = 0;
#pragma omp parallel num_threads(8)
        mine = 100 * round + omp_get_thread_num();
#pragma omp parallel if (0)
        wrong += omp_get_num_threads() != 1;
        if (round % 2)
            region(1);
#pragma omp parallel num_threads(8) reduction(+ : wrong)
        wrong += mine != 100 * round + omp_get_thread_num();
        if (wrong)
            fail("threads that lost what is theirs");
    }
}

/* Teams become smaller while tasks are made at once: nobody who is left out takes part. */
static void shrinking(void)
{
    for (int round = 0; round < 300; round++) {
        int threads = 24 - round % 23, wrong = 0;
#pragma omp parallel num_threads(threads)
        {
            for (int i = 0; i < 4; i++) {
#pragma omp task
                if (omp_get_thread_num() >= threads || omp_get_num_threads() != threads) {
#pragma omp atomic
                    wrong++;
                }
            }
        }
        if (wrong)
            fail("a task run by a thread of an earlier team");
    }
}

static void *region_of_three(void *argument)
{
    (void)argument;
    region(3);
    return NULL;
}

/* The first thread ends before the process does: that ends with the last thread of the program. */
static void last_one(void)
{
    pthread_t thread;
    region(4);
    if (pthread_create(&thread, NULL, region_of_three, NULL))
        fail("no thread");
    pthread_detach(thread);
    printf("ok\n");
    fflush(stdout);
    pthread_exit(NULL);
}

static jmp_buf out;

/* Each of these is left by longjmp; OpenMP does not allow it, and programs do it. */
static void out_of_a_region(void)
{
#pragma omp parallel num_threads(1)
    longjmp(out, 1);
}

static void out_of_a_loop(void)
{
#pragma omp parallel num_threads(1)
#pragma omp for schedule(dynamic, 2)
    for (int i = 0; i < 10; i++)
        if (i == 5)
            longjmp(out, 1);
}

static void out_of_the_loop_of_a_region(void)
{
#pragma omp parallel for num_threads(1) schedule(guided)
    for (int i = 0; i < 10; i++)
        if (i == 5)
            longjmp(out, 1);
}

static void out_of_a_region_in_a_region(void)
{
#pragma omp parallel num_threads(1)
#pragma omp parallel num_threads(1)
    longjmp(out, 1);
}

static void out_of_a_target_region(void)
{
#pragma omp target
    longjmp(out, 1);
}

static __attribute__((noinline)) void leave_by_jump(void (*leave)(void))
{
    if (!setjmp(out))
        leave();
}

/* Overwrites what a frame may have left behind. */
static __attribute__((noinline)) void litter(void)
{
    volatile char stack[1 << 14];
    for (size_t i = 0; i < sizeof stack; i++)
        stack[i] = 0x55;
}

/* The thread stays where it was when it jumped, and goes on. */
static void jumps(void)
{
    static const struct {
        void (*leave)(void);
        int times, level;
    } cases[] = {
        {out_of_a_region, 1, 1},
        {out_of_a_region, 50, 50},
        {out_of_a_loop, 1, 1},
        {out_of_the_loop_of_a_region, 1, 1},
        {out_of_a_region_in_a_region, 1, 2},
        {out_of_a_target_region, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int is_late = 0; is_late < 2; is_late++) {
            /* A process for each: where it stays it cannot leave again. */
            pid_t child = fork();
            if (child == 0) {
                if (is_late)
                    region(4);
                for (int times = 0; times < cases[i].times; times++)
                    leave_by_jump(cases[i].leave);
                litter();
                if (omp_get_level() != cases[i].level || omp_get_active_level() != 0 || omp_get_num_threads() != 1)
                    fail("a thread that is somewhere else");
                for (int round = 0; round < 5; round++) {
                    region(1);
                    region(4);
                    int sum = 0;
#pragma omp parallel for num_threads(3) reduction(+ : sum) schedule(dynamic, 2)
                    for (int n = 0; n < 100; n++)
                        sum += n;
#pragma omp for schedule(dynamic, 3)
                    for (int n = 0; n < 100; n++)
                        sum += n;
#pragma omp single
                    sum++;
                    if (sum != 2 * 4950 + 1)
                        fail("loops without some of their iterations");
                    region(7);
                }
                if (omp_get_max_threads() < 1 || omp_get_max_threads() > 1024)
                    fail("variables of a task that is no more");
                _exit(0);
            }
            int status;
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
                printf("case %zu, %s\n", i, is_late ? "late" : "first");
                fail("a child that failed");
            }
        }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "forks"))
        forks();
    else if (!strcmp(what, "forks-inside"))
        forks_inside();
    else if (!strcmp(what, "sizes"))
        sizes();
    else if (!strcmp(what, "requests"))
        requests();
    else if (!strcmp(what, "owners"))
        owners();
    else if (!strcmp(what, "cpus-of-others"))
        cpus_of_others();
    else if (!strcmp(what, "cpus-of-the-program"))
        cpus_of_the_program();
    else if (!strcmp(what, "threadprivates"))
        threadprivates();
    else if (!strcmp(what, "shrinking"))
        shrinking();
    else if (!strcmp(what, "last-one"))
        last_one();
    else if (!strcmp(what, "jumps"))
        jumps();
    else if (!strcmp(what, "signals"))
        signals();
    else if (!strcmp(what, "exits"))
        exits();
    else if (!strcmp(what, "plugins"))
        plugins(argv[2]);
    else if (!strcmp(what, "nested")) {
        omp_set_max_active_levels(8);
        for (int round = 0; round < 20; round++)
            if (depth(8) != 16)
                fail("regions in regions without some of their threads");
    } else
        fail("which case?");
    printf("ok\n");
    return 0;
}
