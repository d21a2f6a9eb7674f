/* Rounds with a known wait in each family of locks that C programs meet; see rounds.h. */
#include "rounds.h"
#include <linux/membarrier.h>
#include <linux/perf_event.h>
#include <semaphore.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static int is_ready, file = -1, other_file = -1, set = -1, list = -1;
static char *region, *page, *hole, *block;
static pid_t child;
static const size_t REGION = 512u << 20, BLOCK = 48u << 20;

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

/* One round is held eight times as long as the others. */
static void hold_unevenly(int round)
{
    pthread_mutex_lock(&mutex);
    announce(round);
    burn(round == 5 ? 8 * HOLD_UNITS : HOLD_UNITS);
    pthread_mutex_unlock(&mutex);
}

/* The lock of a FILE is of the C library alone. */
static void hold_stream(int round)
{
    flockfile(stdin);
    announce(round);
    burn(HOLD_UNITS);
    funlockfile(stdin);
}

NOINLINE static void want_stream(int round)
{
    (void)round;
    rewind(stdin);
}

static void prepare_inheriting(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    check(pthread_mutex_init(&mutex, &attr), "pthread_mutex_init");
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

/* What is done in odd turns by one line and in even turns by another, in functions with equal frames. */
#define BY_TURNS(does, ...)                                            \
    static volatile int does##_odds, does##_evens;                     \
    NOINLINE static void does##_odd(int round)                         \
    {                                                                  \
        (void)round;                                                   \
        __VA_ARGS__                                                    \
        does##_odds++;                                                 \
    }                                                                  \
    NOINLINE static void does##_even(int round)                        \
    {                                                                  \
        (void)round;                                                   \
        __VA_ARGS__                                                    \
        does##_evens++;                                                \
    }                                                                  \
    static void does##_by_turns(int round)                             \
    {                                                                  \
        if (is_odd_turn(round))                                        \
            does##_odd(round);                                         \
        else                                                           \
            does##_even(round);                                        \
    }

BY_TURNS(take_mutex, pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex);)
BY_TURNS(free_mutex, pthread_mutex_unlock(&mutex);)
BY_TURNS(take_to_read, pthread_rwlock_rdlock(&rwlock); pthread_rwlock_unlock(&rwlock);)
BY_TURNS(free_to_read, pthread_rwlock_unlock(&rwlock);)
BY_TURNS(await_word, pthread_mutex_lock(&mutex); while (is_ready != round) pthread_cond_wait(&cond, &mutex);
         pthread_mutex_unlock(&mutex);)
BY_TURNS(give_word, pthread_cond_signal(&cond);)

static void hold_mutex_by_turns(int round)
{
    pthread_mutex_lock(&mutex);
    announce(round);
    burn(HOLD_UNITS);
    free_mutex_by_turns(round);
}

static void hold_rwlock_by_turns(int round)
{
    pthread_rwlock_wrlock(&rwlock);
    announce(round);
    burn(HOLD_UNITS);
    free_to_read_by_turns(round);
}

static void hold_word_by_turns(int round)
{
    announce(round);
    burn(HOLD_UNITS);
    pthread_mutex_lock(&mutex);
    is_ready = round;
    pthread_mutex_unlock(&mutex);
    give_word_by_turns(round);
}

/* The holder of the outer mutex waits for the inner one, which a third thread holds. */
static int inner_held;

static void *hold_inner(void *arg)
{
    int round = (int)(intptr_t)arg;
    pthread_mutex_lock(&inner);
    reach(&inner_held, round);
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
    await(&inner_held, round);
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

/* The same, opened by its name: without one nobody guards the position. */
static void prepare_position(void)
{
    int nameless;
    char path[64];
    prepare_file();
    nameless = file;
    snprintf(path, sizeof path, "/proc/self/fd/%d", nameless);
    file = open(path, O_RDWR);
    check(file < 0 || close(nameless), path);
}

static void hold_position(int round)
{
    check(lseek(file, 0, SEEK_SET), "lseek");
    announce(round);
    check(write(file, block, BLOCK) != (ssize_t)BLOCK, "write");
}

/* Where the next call reads or writes: a mutex of the open file. */
NOINLINE static void want_position(int round)
{
    (void)round;
    check(lseek(file, 0, SEEK_CUR) < 0, "lseek");
}

static void *hold_the_inode(void *arg)
{
    reach(&inner_held, (int)(intptr_t)arg);
    check(pwrite(file, block, BLOCK, 0) != (ssize_t)BLOCK, "pwrite");
    return 0;
}

NOINLINE static void write_at_the_position(int round)
{
    char byte = (char)round;
    check(write(file, &byte, 1) != 1, "write");
}

/* The holder of the position waits for the inode, which a third thread holds. */
static void hold_position_nested(int round)
{
    pthread_t third;
    check(pthread_create(&third, 0, hold_the_inode, (void *)(intptr_t)round), "pthread_create");
    await(&inner_held, round);
    burn(100);
    announce(round);
    write_at_the_position(round);
    pthread_join(third, 0);
}

static void prepare_region(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    region = mmap(0, REGION, PROT_READ | PROT_WRITE, flags, -1, 0);
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    check(region == MAP_FAILED || page == MAP_FAILED, "mmap");
    madvise(region, REGION, MADV_NOHUGEPAGE);
    memset(region, 1, REGION);
    hole = region + REGION / 2;
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

static void hold_mmap_of_hole(int round)
{
    check(madvise(hole, 4096, MADV_DONTNEED), "madvise");
    hold_mmap(round);
}

/* A page fault where the mapping is being changed. */
NOINLINE static void want_hole(int round)
{
    (void)round;
    *(volatile char *)hole;
}

NOINLINE static void want_the_same_hole(int round)
{
    (void)round;
    ((volatile char *)hole)[1];
}

/* One time of four by the other function. */
NOINLINE static void want_hole_by_turns(int round)
{
    if (round % 4)
        want_hole(round);
    else
        want_the_same_hole(round);
    __asm__ volatile("");
}

static void prepare_direct(void)
{
    prepare_region();
    file = open("planted-direct", O_RDWR | O_CREAT | O_DIRECT, 0600);
    check(file < 0 || pwrite(file, page, 4096, 0) != 4096, "planted-direct");
}

static void hold_mmap_of_page(int round)
{
    check(madvise(page, 4096, MADV_DONTNEED), "madvise");
    hold_mmap(round);
}

/* Reads past the page cache into a page that is not there yet, and is wanted by the device. */
NOINLINE static void want_direct(int round)
{
    (void)round;
    check(pread(file, page, 4096, 0) != 4096, "pread");
}

/* A process that becomes another program is held until its old memory has been given back. */
static void hold_process(int round)
{
    child = fork();
    check(child < 0, "fork");
    if (!child) {
        execl("/bin/true", "true", (char *)0);
        _exit(3);
    }
    announce(round);
    check(waitpid(child, 0, 0) != child, "waitpid");
}

/* Its memory is looked at, which may be gone. */
NOINLINE static void want_process(int round)
{
    char byte;
    struct iovec here = { &byte, 1 }, there = { &rounds, 1 };
    (void)round;
    (void)process_vm_readv(child, &here, 1, &there, 1, 0);
    __asm__ volatile("");
}

/* A process is copied: probes are kept out of it meanwhile. */
static struct perf_event_attr probe = { .size = sizeof probe };

static void hold_copied(int round)
{
    announce(round);
    child = fork();
    check(child < 0, "fork");
    if (!child)
        _exit(0);
    check(waitpid(child, 0, 0) != child, "waitpid");
}

static void prepare_probes(void)
{
    int type;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    check(!file || fscanf(file, "%d", &type) != 1, "uprobe/type");
    fclose(file);
    probe.type = type;
    probe.uprobe_path = (uintptr_t)"/proc/self/exe";
    prepare_region();
}

/* It is not closed: the kernel takes its time to remove a probe. */
NOINLINE static void want_to_probe(int round)
{
    (void)round;
    check((int)syscall(SYS_perf_event_open, &probe, -1, 0, -1, 0) < 0, "perf_event_open");
}

/* Locks on files, by the thousand: who reads the list of them keeps the locks out. */
enum { FILES = 4, LISTED = 8000 };

static void lock_by_the_thousand(void)
{
    file = memfd_create("planted", 0);
    check(file < 0, "memfd");
    for (int i = 0; i < LISTED; i++) {
        struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1 };
        check(fcntl(file, F_OFD_SETLK, &range), "fcntl");
    }
}

/* Of all files. */
static void prepare_list(void)
{
    for (int i = 0; i < FILES; i++)
        lock_by_the_thousand();
    list = open("/proc/locks", O_RDONLY);
    check(list < 0, "/proc/locks");
}

/* Beyond its end, and not where the last read ended: it is gone through from its beginning. A lock that comes just then is read. */
static void hold_list(int round)
{
    char byte;
    announce(round);
    check(pread(list, &byte, 1, (1 << 30) + round) < 0, "pread");
}

NOINLINE static void want_to_be_listed(int round)
{
    (void)round;
    check(flock(file, LOCK_SH | LOCK_NB), "flock");
}

/* Of one file, under a spin lock. */
static void prepare_list_of_file(void)
{
    char path[64];
    lock_by_the_thousand();
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", file);
    list = open(path, O_RDONLY);
    check(list < 0, path);
}

static void hold_list_of_file(int round)
{
    char byte;
    announce(round);
    check(pread(list, &byte, 1, 0) != 1, "pread");
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

/* A wait for any of two futexes, of which the first is set. */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
struct awaited {
    uint64_t value, address;
    uint32_t flags, reserved;
};
static uint32_t several[2];

static void hold_several(int round)
{
    announce(round);
    burn(HOLD_UNITS);
    __atomic_store_n(&several[0], round, __ATOMIC_RELEASE);
    syscall(SYS_futex, &several[0], 1 | 128, 1, NULL, NULL, 0);
}

NOINLINE static void want_any(int round)
{
    enum { SIZE_32 = 2, PRIVATE = 128 };
    uint32_t seen;
    while ((seen = __atomic_load_n(&several[0], __ATOMIC_ACQUIRE)) != (uint32_t)round) {
        struct awaited both[2] = {
            { seen, (uintptr_t)&several[0], SIZE_32 | PRIVATE, 0 },
            { 0, (uintptr_t)&several[1], SIZE_32 | PRIVATE, 0 },
        };
        /* Before Linux 5.16 it can wait for the first alone. */
        if (syscall(SYS_futex_waitv, both, 2, 0, NULL, 0) < 0 && errno == ENOSYS)
            syscall(SYS_futex, &several[0], PRIVATE, seen, NULL, NULL, 0);
    }
}

static const struct family families[] = {
    { "mutex", none, hold_mutex, want_mutex, SLEEPS, &mutex },
    { "mutex-inheriting", prepare_inheriting, hold_mutex, want_mutex, SPINS_FIRST, &mutex },
    { "stream", none, hold_stream, want_stream, SLEEPS },
    { "uneven", none, hold_unevenly, want_mutex, SLEEPS, &mutex },
    { "rwlock-read", none, hold_writing, want_reading, SLEEPS },
    { "rwlock-write", none, hold_reading, want_writing, SLEEPS },
    { "semaphore", prepare_semaphore, hold_semaphore, want_semaphore, SLEEPS, &semaphore },
    { "barrier", prepare_barrier, hold_barrier, want_barrier, SLEEPS },
    { "condvar", none, hold_condition, want_condition, SLEEPS },
    { "several", none, hold_several, want_any, SLEEPS },
    { "mutex-by-turns", none, hold_mutex_by_turns, take_mutex_by_turns, SLEEPS, &mutex },
    { "rwlock-by-turns", none, hold_rwlock_by_turns, take_to_read_by_turns, SLEEPS },
    { "condvar-by-turns", none, hold_word_by_turns, await_word_by_turns, SLEEPS },
    { "nested", none, hold_nested, want_mutex, SLEEPS, &mutex },
    { "inode", prepare_file, hold_inode, want_inode, MAY_SPIN },
    { "position", prepare_position, hold_position, want_position, MAY_SPIN },
    { "position-nested", prepare_position, hold_position_nested, want_position, MAY_SPIN },
    { "mmap", prepare_region, hold_mmap, want_mmap, MAY_SPIN },
    { "fault", prepare_region, hold_mmap_of_hole, want_hole, MAY_SPIN },
    { "fault-by-turns", prepare_region, hold_mmap_of_hole, want_hole_by_turns, MAY_SPIN },
    { "direct", prepare_direct, hold_mmap_of_page, want_direct, SLEEPS },
    { "exec", prepare_region, hold_process, want_process, AGAIN },
    { "listed", prepare_list, hold_list, want_to_be_listed, AGAIN },
    { "spin", prepare_list_of_file, hold_list_of_file, want_to_be_listed, SPINS | AGAIN },
    { "sysv-semaphore", prepare_set, hold_set, want_set, SLEEPS },
    { "flock", prepare_locked, hold_flock, want_flock, SLEEPS },
    { "fcntl", prepare_locked, hold_range, want_range, SLEEPS },
    { "rcu", prepare_grace, hold_grace, want_grace, SLEEPS },
    { "probed", prepare_probes, hold_copied, want_to_probe, SLEEPS },
};

int main(int argc, char **argv) { return RUN_ROUNDS(families, argc, argv); }
