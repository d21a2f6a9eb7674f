/* What the planted C and C++ programs share: work of an exactly known size, a
 * crew of threads, and the line that says what was planted.
 *
 * Work is counted in units of a fixed number of dependent ALU operations, about a
 * microsecond each. Ratios between phases are therefore exact on every machine;
 * nothing is calibrated by a clock. */
#ifndef PLANTED_H
#define PLANTED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The functions that a report must name keep their own frame and their own name. */
#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline, unused))
#define MAYBE_UNUSED __attribute__((unused))

#define STEPS_PER_UNIT 500u

/* Pure ALU work: no memory, no system call, nothing to share. */
ALWAYS_INLINE void burn(uint64_t units)
{
    uint64_t x = 88172645463325252u;
    for (uint64_t i = units * STEPS_PER_UNIT; i != 0; i--) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    __asm__ volatile("" : : "r"(x));
}

static inline MAYBE_UNUSED double clock_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
#define wall_now() clock_seconds(CLOCK_MONOTONIC)
#define cpu_now() clock_seconds(CLOCK_THREAD_CPUTIME_ID)

/* Seconds that this thread has stood in a run queue: after a wake-up that is no longer the wait. */
static inline double queued_now(void)
{
    unsigned long long ran = 0, queued = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (file) {
        if (fscanf(file, "%llu %llu", &ran, &queued) != 2)
            queued = 0;
        fclose(file);
    }
    return queued * 1e-9;
}

static MAYBE_UNUSED int crew_size;
static MAYBE_UNUSED double started_at;

static MAYBE_UNUSED void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Reads the number of threads from the command line and starts the clock. */
static MAYBE_UNUSED int begin(int argc, char **argv)
{
    started_at = wall_now();
    crew_size = argc > 1 ? atoi(argv[1]) : 0;
    if (crew_size < 1 || crew_size > 4096) {
        fprintf(stderr, "usage: %s THREADS\n", argv[0]);
        exit(2);
    }
    return crew_size;
}

/* Says what was planted: one line of JSON, appended to $PLANTED_OUT or to standard error. */
static MAYBE_UNUSED void tell(const char *cause, double seconds)
{
    char line[256];
    int length = snprintf(line, sizeof line,
                          "{\"cause\": \"%s\", \"seconds\": %.6f, \"wall\": %.6f, \"cpus\": %d}\n",
                          cause, seconds, wall_now() - started_at, crew_size);
    const char *path = getenv("PLANTED_OUT");
    int fd = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : 2;
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        die("PLANTED_OUT");
}

/* Takes the next of `total` pieces of work. Common to the crew, so that all end together
 * even when a stranger slows one of them down. `taken` starts at 0. */
ALWAYS_INLINE int another(long *taken, long total)
{
    return __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED) < total;
}

/* Member `id`'s share of `total` pieces, where it has to be fixed. */
ALWAYS_INLINE long share(long total, int id, int n)
{
    return total * (id + 1) / n - total * id / n;
}

/* Stays at a place where only one thread at a time gets on. */
typedef struct {
    double since, until;
} Stay;
static MAYBE_UNUSED Stay *stays;
static MAYBE_UNUSED long stays_written;

/* Makes room for `most` stays. */
static MAYBE_UNUSED void begin_stays(long most)
{
    stays = (Stay *)calloc((size_t)most, sizeof *stays);
    if (!stays)
        die("calloc");
}

/* Notes a stay from `since` until now; at most as often as there is room for. */
static MAYBE_UNUSED void stayed_since(double since)
{
    Stay *stay = &stays[__atomic_fetch_add(&stays_written, 1, __ATOMIC_RELAXED)];
    stay->since = since;
    stay->until = wall_now();
}

static MAYBE_UNUSED int in_order_of_arrival(const void *a, const void *b)
{
    double one = ((const Stay *)a)->since, other = ((const Stay *)b)->since;
    return (one > other) - (one < other);
}

/* Seconds that the stays lasted in all, less those in which somebody was there: of k who stay
 * at one time, k - 1 wait. How long the work itself takes beside others (caches) is no part. */
static MAYBE_UNUSED double waited_for_each_other(void)
{
    double waited = 0, until = 0;
    qsort(stays, (size_t)stays_written, sizeof *stays, in_order_of_arrival);
    for (long i = 0; i < stays_written; i++) {
        double earliest_end = stays[i].until < until ? stays[i].until : until;
        if (stays[i].since < earliest_end)
            waited += earliest_end - stays[i].since;
        if (stays[i].until > until)
            until = stays[i].until;
    }
    return waited;
}

/* One thread or process of the crew; `seconds` and `more` are what it measured itself. */
typedef struct {
    int id, n;
    double seconds, more;
    void (*job)(void *);
} Member;
typedef void (*Job)(Member *);

static MAYBE_UNUSED void *member_main(void *arg)
{
    ((Member *)arg)->job(arg);
    return NULL;
}

typedef struct {
    double seconds, more;
} Sums;

/* Runs `job` on n threads and adds up what they measured. With `main_works`, the
 * calling thread is member 0; else it does nothing but join. */
static MAYBE_UNUSED Sums run_crew(int n, Job job, int main_works)
{
    Member *crew = (Member *)calloc((size_t)n, sizeof *crew);
    pthread_t *threads = (pthread_t *)calloc((size_t)n, sizeof *threads);
    Sums sums = {0, 0};
    for (int id = 0; id < n; id++) {
        crew[id].id = id;
        crew[id].n = n;
        crew[id].job = (void (*)(void *))job;
        if ((id > 0 || !main_works) && pthread_create(&threads[id], NULL, member_main, &crew[id]))
            die("pthread_create");
    }
    if (main_works)
        job(&crew[0]);
    for (int id = main_works ? 1 : 0; id < n; id++)
        pthread_join(threads[id], NULL);
    for (int id = 0; id < n; id++) {
        sums.seconds += crew[id].seconds;
        sums.more += crew[id].more;
    }
    free(threads);
    free(crew);
    return sums;
}

/* Allows as many open files as may be had: a ring of 512 processes needs two each. */
static MAYBE_UNUSED void raise_open_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* Memory that forked children share with their parent. */
static MAYBE_UNUSED void *shared_memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    return at;
}

/* Runs `job` in n child processes, waits for them and adds up what they measured. */
static MAYBE_UNUSED Sums run_children(int n, Job job)
{
    Member *crew = (Member *)shared_memory((size_t)n * sizeof *crew);
    Sums sums = {0, 0};
    for (int id = 0; id < n; id++) {
        crew[id].id = id;
        crew[id].n = n;
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody stays behind */
            job(&crew[id]);
            _exit(0);
        }
    }
    for (int id = 0; id < n; id++) {
        int status;
        if (wait(&status) < 0 || status != 0)
            die("a child failed");
    }
    for (int id = 0; id < n; id++) {
        sums.seconds += crew[id].seconds;
        sums.more += crew[id].more;
    }
    return sums;
}

/* `name` in the folder of this executable. */
static MAYBE_UNUSED void beside_me(const char *name, char *path, size_t room)
{
    ssize_t length = readlink("/proc/self/exe", path, room - 1);
    if (length < 0)
        die("/proc/self/exe");
    path[length] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash + 1, room - (size_t)(slash + 1 - path), "%s", name);
}

#endif
