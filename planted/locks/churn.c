/* Threads that live for one wait: batches of them come, wait for a lock that is held, and end. Each
 * times its call itself; the program tells how many waited and for how long together, how many threads
 * there were besides the first, and what CPU time all of them used.
 *
 *   churn THREADS BATCHES [leave]
 *   {"times": 400, "seconds": 1.2345, "threads": 400, "cpu_s": 0.123456}
 *
 * It begins when a line comes in on standard input, or its end. With `leave` the program ends while
 * the last batch waits. */
#include "../c/planted.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { HOLD_UNITS = 1000 };         /* some 0.7 ms */

struct guest {
    pthread_t thread;
    long tid;
    int way, slept;
    double since, took;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int arrived;
static long times, threads;
static double seconds;

static long sleeps(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

NOINLINE static void want_the_room(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

/* Ways to the same line, by stacks of equal and of different depth. */
NOINLINE static void even_guest(void)
{
    want_the_room();
    __asm__ volatile("");
}

NOINLINE static void third_guest(void)
{
    want_the_room();
    /* Not word for word the same, or the two were one function. */
    __asm__ volatile("/* third */");
}

NOINLINE static void odd_guest(void)
{
    char luggage[400];
    __asm__ volatile("" : : "r"(luggage) : "memory");
    want_the_room();
    __asm__ volatile("" : : "r"(luggage) : "memory");
}

static void *stay(void *arg)
{
    struct guest *guest = arg;
    guest->tid = syscall(SYS_gettid);
    long slept = sleeps();
    atomic_fetch_add(&arrived, 1);
    guest->since = wall_now();
    if (guest->way == 0)
        even_guest();
    else if (guest->way == 1)
        odd_guest();
    else
        third_guest();
    guest->took = wall_now() - guest->since;
    guest->slept = sleeps() > slept;
    return 0;
}

static int is_asleep(long tid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        die("stat");
    fclose(file);
    const char *state = strrchr(line, ')');
    return state && state[1] == ' ' && state[2] == 'S';
}

static void say(void)
{
    const char *out = getenv("PLANTED_OUT");
    FILE *to = out ? fopen(out, "a") : stderr;
    if (!to)
        die("PLANTED_OUT");
    fprintf(to, "{\"times\": %ld, \"seconds\": %.6f, \"threads\": %ld, \"cpu_s\": %.6f}\n", times, seconds,
            threads, clock_seconds(CLOCK_PROCESS_CPUTIME_ID));
    fflush(to);
}

static void leave(struct guest *guests, int n)
{
    for (int i = 0; i < n; i++)
        while (!is_asleep(guests[i].tid))
            sched_yield();
    double now = wall_now();
    for (int i = 0; i < n; i++)
        seconds += now - guests[i].since;
    times += n;
    say();
    _exit(0);
}

static void batch(struct guest *guests, int n, int is_last)
{
    atomic_store(&arrived, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n; i++) {
        guests[i].way = i % 3;
        if (pthread_create(&guests[i].thread, 0, stay, &guests[i]))
            die("pthread_create");
    }
    threads += n;
    while (atomic_load(&arrived) != n)
        sched_yield();
    burn(HOLD_UNITS);
    if (is_last)
        leave(guests, n);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n; i++) {
        pthread_join(guests[i].thread, 0);
        times += guests[i].slept;
        seconds += guests[i].slept ? guests[i].took : 0;
    }
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 0, batches = argc > 2 ? atoi(argv[2]) : 0;
    if (n < 1 || n > 4096 || batches < 1) {
        fprintf(stderr, "usage: churn THREADS BATCHES [leave]\n");
        return 2;
    }
    int leaves = argc > 3 && !strcmp(argv[3], "leave");
    struct guest *guests = calloc((size_t)n, sizeof *guests);
    if (!guests)
        die("calloc");
    while (getchar() != '\n' && !feof(stdin)) {
    }
    for (int i = 1; i <= batches; i++)
        batch(guests, n, leaves && i == batches);
    say();
    return 0;
}
