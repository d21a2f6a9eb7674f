// Waits whose begin and end are known by construction. Every wait is announced on
// standard output as "wait KIND OBJECT TID FROM TO FUNCTION": the thread TID was seen
// asleep in it at FROM, and what it waited for was withheld until TO.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
            abort();                                                             \
        }                                                                        \
    } while (0)

static long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}

static struct timespec far(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    at.tv_sec += 1000;
    return at;
}

static volatile int waiter;

static void announce(void) { waiter = (int)syscall(SYS_gettid); }

// Returns once `tid` sleeps in a futex of `object` (anywhere if `object` is null).
static void asleep(int tid, const void *object) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    for (;; sched_yield()) {
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        ssize_t len = read(fd, text, sizeof text - 1);
        close(fd);
        if (len <= 0) continue;
        text[len] = 0;
        long number;
        unsigned long address;
        if (sscanf(text, "%ld 0x%lx", &number, &address) != 2 || number != SYS_futex) continue;
        uintptr_t offset = address - (uintptr_t)object;
        if (!object || offset < 64) return;
    }
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;
static sem_t sem;
static pthread_t sleeper;

static void *in_mutex(void *_) {
    announce();
    errno = 77;
    pthread_mutex_lock(&mutex);
    CHECK(errno == 77);
    pthread_mutex_unlock(&mutex);
    return _;
}
static void *in_timedlock(void *_) {
    struct timespec until = far(CLOCK_REALTIME);
    announce();
    CHECK(pthread_mutex_timedlock(&mutex, &until) == 0);
    pthread_mutex_unlock(&mutex);
    return _;
}
static void *in_clocklock(void *_) {
    struct timespec until = far(CLOCK_MONOTONIC);
    announce();
    CHECK(pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &until) == 0);
    pthread_mutex_unlock(&mutex);
    return _;
}
static void *in_rdlock(void *_) {
    announce();
    pthread_rwlock_rdlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
    return _;
}
static void *in_wrlock(void *_) {
    announce();
    pthread_rwlock_wrlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
    return _;
}
static int signalled;
static void *in_cond(void *_) {
    pthread_mutex_lock(&mutex);
    announce();
    while (!signalled) pthread_cond_wait(&cond, &mutex);
    pthread_mutex_unlock(&mutex);
    return _;
}
static void *in_timedwait(void *_) {
    struct timespec until = far(CLOCK_REALTIME);
    pthread_mutex_lock(&mutex);
    announce();
    while (!signalled) CHECK(pthread_cond_timedwait(&cond, &mutex, &until) == 0);
    pthread_mutex_unlock(&mutex);
    return _;
}
static void *in_sem(void *_) {
    announce();
    errno = 77;
    CHECK(sem_wait(&sem) == 0);
    CHECK(errno == 77);
    return _;
}
static void *in_sem_timed(void *_) {
    struct timespec until = far(CLOCK_REALTIME);
    announce();
    CHECK(sem_timedwait(&sem, &until) == 0);
    return _;
}
static void *in_barrier(void *_) {
    announce();
    pthread_barrier_wait(&barrier);
    return _;
}
static void *in_spin(void *_) {
    announce();
    pthread_spin_lock(&spin);
    pthread_spin_unlock(&spin);
    return _;
}
static void *in_join(void *_) {
    announce();
    CHECK(pthread_join(sleeper, NULL) == 0);
    return _;
}
static void *in_pipe(void *fd) {
    char byte;
    CHECK(read((int)(intptr_t)fd, &byte, 1) == 1);
    return NULL;
}

static void take_mutex(void) { pthread_mutex_lock(&mutex); }
static void give_mutex(void) { pthread_mutex_unlock(&mutex); }
static void take_rwlock(void) { pthread_rwlock_wrlock(&rwlock); }
static void give_rwlock(void) { pthread_rwlock_unlock(&rwlock); }
static void take_signal(void) { signalled = 0; }
static void give_signal(void) {
    pthread_mutex_lock(&mutex);
    signalled = 1;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
}
static void take_sem(void) {}
static void give_sem(void) { sem_post(&sem); }
static void give_barrier(void) { pthread_barrier_wait(&barrier); }
static void take_spin(void) { pthread_spin_lock(&spin); }
static void give_spin(void) { pthread_spin_unlock(&spin); }
static int ends[2];
static void take_sleeper(void) {
    CHECK(pipe(ends) == 0);
    CHECK(pthread_create(&sleeper, NULL, in_pipe, (void *)(intptr_t)ends[0]) == 0);
}
static void give_sleeper(void) { CHECK(write(ends[1], "x", 1) == 1); }

static void tell(const char *kind, uintptr_t object, long from, long to, void *function) {
    printf("wait %s %lu %d %ld %ld %lu\n", kind, (unsigned long)object, waiter, from, to,
           (unsigned long)(uintptr_t)function);
    fflush(stdout);
}

// Withholds something from a thread that waits for it, and says from when to when.
static void one(const char *kind, void *object, void (*take)(void), void (*give)(void),
                void *(*function)(void *)) {
    pthread_t thread;
    waiter = 0;
    take();
    CHECK(pthread_create(&thread, NULL, function, NULL) == 0);
    while (!waiter) sched_yield();
    uintptr_t name = object ? (uintptr_t)object : (uintptr_t)sleeper;
    if (function == in_spin) {
        // It does not sleep; but whoever burns that much there has found the lock taken.
        clockid_t clock;
        struct timespec ran = {0, 0};
        pthread_getcpuclockid(thread, &clock);
        while (ran.tv_sec == 0 && ran.tv_nsec < 20000000) clock_gettime(clock, &ran);
    } else {
        asleep(waiter, object);
    }
    long from = now();
    long to = now();
    give();
    CHECK(pthread_join(thread, NULL) == 0);
    tell(kind, name, from, to, function);
}

static void mutex_once(void) { one("mutex", &mutex, take_mutex, give_mutex, in_mutex); }

static void all(void) {
    mutex_once();
    one("mutex", &mutex, take_mutex, give_mutex, in_timedlock);
    one("mutex", &mutex, take_mutex, give_mutex, in_clocklock);
    one("rwlock-read", &rwlock, take_rwlock, give_rwlock, in_rdlock);
    one("rwlock-write", &rwlock, take_rwlock, give_rwlock, in_wrlock);
    one("condition", &cond, take_signal, give_signal, in_cond);
    one("condition", &cond, take_signal, give_signal, in_timedwait);
    one("semaphore", &sem, take_sem, give_sem, in_sem);
    one("semaphore", &sem, take_sem, give_sem, in_sem_timed);
    one("barrier", &barrier, take_sem, give_barrier, in_barrier);
    one("join", NULL, take_sleeper, give_sleeper, in_join);
    one("spin", (void *)&spin, take_spin, give_spin, in_spin);
}

// What the functions promise must hold through the library too.
static void meaning(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutex_t lock;
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
    CHECK(pthread_mutex_lock(&lock) == 0 && pthread_mutex_lock(&lock) == 0);
    CHECK(pthread_mutex_unlock(&lock) == 0 && pthread_mutex_unlock(&lock) == 0);
    CHECK(pthread_mutex_unlock(&lock) == EPERM);

    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&lock, &kind);
    CHECK(pthread_mutex_lock(&lock) == 0 && pthread_mutex_lock(&lock) == EDEADLK);
    CHECK(pthread_mutex_unlock(&lock) == 0);

    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_NORMAL);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutex_t *shared = aligned_alloc(64, 128);
    extern void *share(size_t);
    shared = share(sizeof *shared);
    pthread_mutex_init(shared, &kind);
    pid_t child = fork();
    if (child == 0) {
        pthread_mutex_lock(shared);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(pthread_mutex_lock(shared) == EOWNERDEAD);
    CHECK(pthread_mutex_consistent(shared) == 0 && pthread_mutex_unlock(shared) == 0);

    CHECK(pthread_rwlock_wrlock(&rwlock) == 0);
    CHECK(pthread_rwlock_rdlock(&rwlock) == EDEADLK);
    CHECK(pthread_rwlock_unlock(&rwlock) == 0);

    struct timespec past = {1, 0};
    errno = 0;
    CHECK(sem_timedwait(&sem, &past) == -1 && errno == ETIMEDOUT);
    sem_post(&sem);
    CHECK(sem_timedwait(&sem, &past) == 0);
    pthread_mutex_lock(&mutex);
    CHECK(pthread_cond_timedwait(&cond, &mutex, &past) == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);

    pthread_barrier_t alone;
    pthread_barrier_init(&alone, NULL, 1);
    CHECK(pthread_barrier_wait(&alone) == PTHREAD_BARRIER_SERIAL_THREAD);
    CHECK(pthread_join(pthread_self(), NULL) == EDEADLK);
    puts("ok");
}

#include <sys/mman.h>
void *share(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int cleaned;
static void clean(void *is_locked) {
    cleaned++;
    if (is_locked) pthread_mutex_unlock(&mutex);
}
static void *cancelled_cond(void *_) {
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(clean, &mutex);
    announce();
    for (;;) pthread_cond_wait(&cond, &mutex);
    pthread_cleanup_pop(0);
    return _;
}
static void *cancelled_sem(void *_) {
    pthread_cleanup_push(clean, NULL);
    announce();
    for (;;) sem_wait(&sem);
    pthread_cleanup_pop(0);
    return _;
}
static void *cancelled_join(void *_) {
    pthread_cleanup_push(clean, NULL);
    announce();
    pthread_join(sleeper, NULL);
    pthread_cleanup_pop(0);
    return _;
}
static void *cancelled_before(void *_) {
    pthread_cleanup_push(clean, NULL);
    pthread_cancel(pthread_self());
    sem_wait(&sem); // has one to take, and must act on the cancellation all the same
    CHECK(!"sem_wait is a cancellation point");
    pthread_cleanup_pop(0);
    return _;
}

static void cancel(void) {
    void *(*functions[])(void *) = {cancelled_cond, cancelled_sem, cancelled_join};
    take_sleeper();
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *result;
        waiter = 0;
        CHECK(pthread_create(&thread, NULL, functions[i], NULL) == 0);
        while (!waiter) sched_yield();
        asleep(waiter, NULL);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    pthread_t thread;
    void *result;
    sem_post(&sem);
    CHECK(pthread_create(&thread, NULL, cancelled_before, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(cleaned == 4);
    give_sleeper();
    CHECK(pthread_join(sleeper, NULL) == 0);
    mutex_once();
}

static void *forever(void *_) {
    for (;;) pause();
    return _;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    sem_init(&sem, 0, 0);
    if (!strcmp(what, "all")) {
        all();
    } else if (!strcmp(what, "mutex")) {
        mutex_once();
    } else if (!strcmp(what, "meaning")) {
        meaning();
    } else if (!strcmp(what, "cancel")) {
        cancel();
    } else if (!strcmp(what, "free")) {
        for (int i = 0; i < 1000; i++) {
            pthread_mutex_lock(&mutex);
            pthread_mutex_unlock(&mutex);
        }
    } else if (!strcmp(what, "many")) {
        struct timespec past = {1, 0};
        pthread_mutex_lock(&mutex);
        for (int i = 0; i < 5000; i++) CHECK(pthread_mutex_timedlock(&mutex, &past) == ETIMEDOUT);
    } else if (!strcmp(what, "objects")) {
        // More objects than the table has room for.
        struct timespec past = {1, 0};
        for (int i = 0; i < 3000; i++) {
            pthread_mutex_t *lock = malloc(sizeof *lock);
            pthread_mutex_init(lock, NULL);
            pthread_mutex_lock(lock);
            CHECK(pthread_mutex_timedlock(lock, &past) == ETIMEDOUT);
        }
    } else if (!strcmp(what, "fork")) {
        pthread_t other;
        CHECK(pthread_create(&other, NULL, forever, NULL) == 0);
        mutex_once();
        pid_t child = fork();
        mutex_once();
        if (child == 0) {
            fflush(stdout);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    } else if (!strcmp(what, "exec")) {
        mutex_once();
        execl(argv[0], argv[0], "mutex", NULL);
        abort();
    } else if (!strcmp(what, "kill")) {
        pthread_t thread;
        mutex_once();
        waiter = 0;
        take_mutex();
        CHECK(pthread_create(&thread, NULL, in_mutex, NULL) == 0);
        while (!waiter) sched_yield();
        asleep(waiter, &mutex);
        long at = now();
        tell("mutex", (uintptr_t)&mutex, at, at, in_mutex);
        raise(SIGKILL);
    } else {
        return 2;
    }
    return 0;
}
