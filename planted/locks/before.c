/* Waits that begin before anybody watches.
 *
 *   PROGRAM HOW
 *
 * HOW is what is waited for: `deadlock`, two threads wait for each other's mutex for ever; `mutex`, `semaphore`, `flock`: a
 * thread waits until there is a line to read, then it is let go on and all end; `busy`: some threads take a mutex in turn until then.
 * Who is about to wait, and meets no other lock before, is named "stuck". */
/* Who waits and who lets go stay on the stack. */
#pragma GCC optimize("no-optimize-sibling-calls")

#include "../c/planted.h"
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/sem.h>

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER, right = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both_have_one;
static int file = -1, other_file = -1, set = -1;
static int is_over;

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(2);
    }
}

static void await_a_line(void)
{
    char line[16];
    check(!fgets(line, sizeof line, stdin), "a line");
}

static void be_stuck_next(void) { prctl(PR_SET_NAME, "stuck"); }

NOINLINE static void want_right(void)
{
    pthread_mutex_lock(&right);
    pthread_mutex_unlock(&right);
}

NOINLINE static void want_left(void)
{
    pthread_mutex_lock(&left);
    pthread_mutex_unlock(&left);
}

static void *have_left(void *arg)
{
    pthread_mutex_lock(&left);
    pthread_barrier_wait(&both_have_one);
    be_stuck_next();
    want_right();
    return arg;
}

static void *have_right(void *arg)
{
    pthread_mutex_lock(&right);
    pthread_barrier_wait(&both_have_one);
    be_stuck_next();
    want_left();
    return arg;
}

static void operate(int by)
{
    struct sembuf change = { 0, (short)by, 0 };
    check(semop(set, &change, 1), "semop");
}

NOINLINE static void want_set(void)
{
    operate(-1);
    __asm__ volatile("");
}

NOINLINE static void want_flock(void)
{
    check(flock(other_file, LOCK_EX), "flock");
    __asm__ volatile("");
}

static void *wait_once(void *want)
{
    be_stuck_next();
    ((void (*)(void))want)();
    return 0;
}

NOINLINE static void let_go(void (*want)(void))
{
    if (want == want_left)
        pthread_mutex_unlock(&left);
    else if (want == want_set)
        operate(1);
    else
        check(flock(file, LOCK_UN), "flock");
}

static void *take_turns(void *arg)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&left);
        burn(50);
        pthread_mutex_unlock(&left);
    }
    return arg;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    void *(*all[6])(void *) = { 0 };
    void (*want)(void) = 0;
    pthread_t threads[6];
    int n = 0;
    if (!strcmp(how, "deadlock")) {
        check(pthread_barrier_init(&both_have_one, 0, 2), "pthread_barrier_init");
        all[n++] = have_left;
        all[n++] = have_right;
    } else if (!strcmp(how, "busy")) {
        while (n < 6)
            all[n++] = take_turns;
    } else {
        all[n++] = wait_once;
        if (!strcmp(how, "mutex")) {
            pthread_mutex_lock(&left);
            want = want_left;
        } else if (!strcmp(how, "semaphore")) {
            set = semget(IPC_PRIVATE, 1, 0600);
            check(set < 0, "semget");
            want = want_set;
        } else if (!strcmp(how, "flock")) {
            file = open("flocked", O_RDWR | O_CREAT, 0600);
            other_file = open("flocked", O_RDWR);
            check(file < 0 || other_file < 0 || flock(file, LOCK_EX), "flock");
            want = want_flock;
        } else {
            fprintf(stderr, "usage: %s deadlock|mutex|semaphore|flock|busy\n", argv[0]);
            return 2;
        }
    }
    for (int i = 0; i < n; i++)
        check(pthread_create(&threads[i], 0, all[i], (void *)want), "pthread_create");
    if (strcmp(how, "deadlock")) {
        await_a_line();
        __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
        if (want)
            let_go(want);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], 0);
    if (set >= 0)
        semctl(set, 0, IPC_RMID);
    return 0;
}
