/* One known wait a round, in each family of locks: a holder takes the lock and keeps it while a
 * waiter, who starts when it is held, wants it too. The waiter times its calls itself and
 * tells how many of them waited, for how long together, and the longest.
 *
 *   families FAMILY [ROUNDS]
 *   {"family": "mutex", "times": 40, "seconds": 0.1234, "longest": 0.004}
 */
#include "../c/planted.h"
#include <fcntl.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>

enum { HOLD_UNITS = 4000 };         /* some 3 ms */
/* A call that waited slept; for a lock of the kernel it may also have spun. */
static const double SPUN = 0.0005;

static int rounds = 40;
static atomic_int round_held, round_done;
static long times;
static double seconds, longest;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static int is_ready, file = -1, other_file = -1, set = -1;
static char *region, *page, *block;
static const size_t REGION = 512u << 20, BLOCK = 48u << 20;

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(2);
    }
}

/* A family: prepare once, hold for a while, want it. */
struct family {
    const char *name;
    void (*prepare)(void);
    void (*hold)(int round);
    void (*want)(int round);
    int in_kernel;
};

static void announce(int round) { atomic_store(&round_held, round); }

static void none(void) {}

static void hold_mutex(int round)
{
    pthread_mutex_lock(&mutex);
    announce(round);
    burn(HOLD_UNITS);
    pthread_mutex_unlock(&mutex);
}

NOINLINE static void want_mutex(int round)
{
    (void)round;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void hold_writing(int round)
{
    pthread_rwlock_wrlock(&rwlock);
    announce(round);
    burn(HOLD_UNITS);
    pthread_rwlock_unlock(&rwlock);
}

static void hold_reading(int round)
{
    pthread_rwlock_rdlock(&rwlock);
    announce(round);
    burn(HOLD_UNITS);
    pthread_rwlock_unlock(&rwlock);
}

NOINLINE static void want_reading(int round)
{
    (void)round;
    pthread_rwlock_rdlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
}

NOINLINE static void want_writing(int round)
{
    (void)round;
    pthread_rwlock_wrlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
}

static void prepare_semaphore(void) { sem_init(&semaphore, 0, 0); }

static void hold_semaphore(int round)
{
    announce(round);
    burn(HOLD_UNITS);
    sem_post(&semaphore);
}

NOINLINE static void want_semaphore(int round)
{
    (void)round;
    while (sem_wait(&semaphore)) {
    }
}

static void prepare_barrier(void) { pthread_barrier_init(&barrier, 0, 2); }

static void hold_barrier(int round)
{
    announce(round);
    burn(HOLD_UNITS);
    pthread_barrier_wait(&barrier);
}

NOINLINE static void want_barrier(int round)
{
    (void)round;
    pthread_barrier_wait(&barrier);
    /* No jump out of here into the library. */
    __asm__ volatile("");
}

static void hold_condition(int round)
{
    announce(round);
    burn(HOLD_UNITS);
    pthread_mutex_lock(&mutex);
    is_ready = round;
    pthread_mutex_unlock(&mutex);
    pthread_cond_signal(&cond);
}

NOINLINE static void want_condition(int round)
{
    pthread_mutex_lock(&mutex);
    while (is_ready != round)
        pthread_cond_wait(&cond, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* The holder of the outer mutex waits for the inner one, which a third thread holds. */
static atomic_int inner_held;

static void *hold_inner(void *arg)
{
    int round = (int)(intptr_t)arg;
    pthread_mutex_lock(&inner);
    atomic_store(&inner_held, round);
    burn(HOLD_UNITS);
    pthread_mutex_unlock(&inner);
    return 0;
}

NOINLINE static void wait_for_the_inner_lock(void)
{
    pthread_mutex_lock(&inner);
    pthread_mutex_unlock(&inner);
}

static void hold_nested(int round)
{
    pthread_t third;
    check(pthread_create(&third, 0, hold_inner, (void *)(intptr_t)round), "pthread_create");
    while (atomic_load(&inner_held) != round)
        sched_yield();
    pthread_mutex_lock(&mutex);
    announce(round);
    wait_for_the_inner_lock();
    pthread_mutex_unlock(&mutex);
    pthread_join(third, 0);
}

/* Locks of the kernel: a call that holds one for milliseconds. */
static void prepare_file(void)
{
    file = memfd_create("planted", 0);
    block = malloc(BLOCK);
    check(file < 0 || !block || ftruncate(file, BLOCK), "memfd");
    memset(block, 1, BLOCK);
    check(pwrite(file, block, BLOCK, 0) != (ssize_t)BLOCK, "pwrite");
}

static void hold_inode(int round)
{
    announce(round);
    check(pwrite(file, block, BLOCK, 0) != (ssize_t)BLOCK, "pwrite");
}

NOINLINE static void want_inode(int round)
{
    char byte = (char)round;
    check(pwrite(file, &byte, 1, 0) != 1, "pwrite");
}

static void prepare_region(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    region = mmap(0, REGION, PROT_READ | PROT_WRITE, flags, -1, 0);
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    check(region == MAP_FAILED || page == MAP_FAILED, "mmap");
    madvise(region, REGION, MADV_NOHUGEPAGE);
    memset(region, 1, REGION);
}

static void hold_mmap(int round)
{
    announce(round);
    check(mprotect(region, REGION, round & 1 ? PROT_READ : PROT_READ | PROT_WRITE), "mprotect");
}

NOINLINE static void want_mmap(int round)
{
    check(mprotect(page, 4096, round & 1 ? PROT_READ : PROT_READ | PROT_WRITE), "mprotect");
}

/* Sleeps in system calls that are locks themselves. */
static void remove_set(void) { semctl(set, 0, IPC_RMID); }

static void prepare_set(void)
{
    set = semget(IPC_PRIVATE, 1, 0600);
    check(set < 0, "semget");
    atexit(remove_set);
}

static void operate(int by)
{
    struct sembuf operation = { .sem_op = (short)by };
    check(semop(set, &operation, 1), "semop");
}

static void hold_set(int round)
{
    announce(round);
    burn(HOLD_UNITS);
    operate(1);
}

NOINLINE static void want_set(int round)
{
    (void)round;
    operate(-1);
}

/* The same file, opened twice. */
static void prepare_locked(void)
{
    char path[64];
    file = memfd_create("planted", 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    other_file = open(path, O_RDWR);
    check(file < 0 || other_file < 0, "memfd");
}

static void hold_flock(int round)
{
    check(flock(file, LOCK_EX), "flock");
    announce(round);
    burn(HOLD_UNITS);
    check(flock(file, LOCK_UN), "flock");
}

NOINLINE static void want_flock(int round)
{
    (void)round;
    check(flock(other_file, LOCK_EX), "flock");
    check(flock(other_file, LOCK_UN), "flock");
}

static void lock_range(int fd, int type)
{
    struct flock range = { .l_type = (short)type, .l_whence = SEEK_SET, .l_len = 1 };
    check(fcntl(fd, F_OFD_SETLKW, &range), "fcntl");
}

static void hold_range(int round)
{
    lock_range(file, F_WRLCK);
    announce(round);
    burn(HOLD_UNITS);
    lock_range(file, F_UNLCK);
}

NOINLINE static void want_range(int round)
{
    (void)round;
    lock_range(other_file, F_WRLCK);
    lock_range(other_file, F_UNLCK);
}

static void prepare_grace(void)
{
    long known = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    check(known < 0 || !(known & MEMBARRIER_CMD_GLOBAL), "membarrier");
}

static void hold_grace(int round) { announce(round); }

/* A grace period of RCU: nobody holds it, and every CPU has to pass. */
NOINLINE static void want_grace(int round)
{
    (void)round;
    check((int)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0), "membarrier");
}

static const struct family families[] = {
    { "mutex", none, hold_mutex, want_mutex, 0 },
    { "rwlock-read", none, hold_writing, want_reading, 0 },
    { "rwlock-write", none, hold_reading, want_writing, 0 },
    { "semaphore", prepare_semaphore, hold_semaphore, want_semaphore, 0 },
    { "barrier", prepare_barrier, hold_barrier, want_barrier, 0 },
    { "condvar", none, hold_condition, want_condition, 0 },
    { "nested", none, hold_nested, want_mutex, 0 },
    { "inode", prepare_file, hold_inode, want_inode, 1 },
    { "mmap", prepare_region, hold_mmap, want_mmap, 1 },
    { "sysv-semaphore", prepare_set, hold_set, want_set, 0 },
    { "flock", prepare_locked, hold_flock, want_flock, 0 },
    { "fcntl", prepare_locked, hold_range, want_range, 0 },
    { "rcu", prepare_grace, hold_grace, want_grace, 0 },
};

static const struct family *chosen;

static long sleeps(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void *waiter(void *arg)
{
    prctl(PR_SET_NAME, "waiter");
    for (int round = 1; round <= rounds; round++) {
        while (atomic_load(&round_held) != round)
            sched_yield();
        burn(100);
        long slept = sleeps();
        double since = wall_now();
        chosen->want(round);
        double took = wall_now() - since;
        if (sleeps() > slept || (chosen->in_kernel && took > SPUN)) {
            times++;
            seconds += took;
            if (took > longest)
                longest = took;
        }
        atomic_store(&round_done, round);
    }
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    for (size_t i = 0; argc > 1 && i < sizeof(families) / sizeof(*families); i++)
        if (!strcmp(argv[1], families[i].name))
            chosen = &families[i];
    if (!chosen) {
        fprintf(stderr, "usage: families FAMILY [ROUNDS]\n");
        return 2;
    }
    if (argc > 2)
        rounds = atoi(argv[2]);
    chosen->prepare();
    prctl(PR_SET_NAME, "holder");
    check(pthread_create(&thread, 0, waiter, 0), "pthread_create");
    for (int round = 1; round <= rounds; round++) {
        chosen->hold(round);
        while (atomic_load(&round_done) != round)
            sched_yield();
    }
    pthread_join(thread, 0);
    const char *out = getenv("PLANTED_OUT");
    FILE *to = out ? fopen(out, "a") : stderr;
    check(!to, "PLANTED_OUT");
    fprintf(to, "{\"family\": \"%s\", \"times\": %ld, \"seconds\": %.6f, \"longest\": %.6f}\n",
            chosen->name, times, seconds, longest);
    return 0;
}
