// Nanoseconds of an uncontended lock and unlock, by kind.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

#define TIMED(name, take, give)                                      \
    do {                                                             \
        enum { ROUNDS = 5000000 };                                   \
        double from = now();                                         \
        for (int i = 0; i < ROUNDS; i++) {                           \
            take;                                                    \
            give;                                                    \
        }                                                            \
        printf("%s %.2f\n", name, (now() - from) / ROUNDS);          \
    } while (0)

int main(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
    static pthread_spinlock_t spin;
    static sem_t sem;
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    sem_init(&sem, 0, 0);
    TIMED("mutex", pthread_mutex_lock(&mutex), pthread_mutex_unlock(&mutex));
    TIMED("rwlock-read", pthread_rwlock_rdlock(&rwlock), pthread_rwlock_unlock(&rwlock));
    TIMED("rwlock-write", pthread_rwlock_wrlock(&rwlock), pthread_rwlock_unlock(&rwlock));
    TIMED("semaphore", sem_post(&sem), sem_wait(&sem));
    TIMED("spin", pthread_spin_lock(&spin), pthread_spin_unlock(&spin));
    return 0;
}
