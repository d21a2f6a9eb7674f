/* Processes, not threads, share a process-shared pthread mutex in shared memory. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300 };

static pthread_mutex_t *registry;
static long *taken;

NOINLINE static double lock_the_common_registry(void)
{
    double since = wall_now();
    pthread_mutex_lock(registry);
    return wall_now() - since;
}

NOINLINE static void update_the_registry(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void office(Member *me)
{
    while (another(taken, OPS)) {
        me->seconds += lock_the_common_registry();
        update_the_registry();
        pthread_mutex_unlock(registry);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pthread_mutexattr_t shared;
    registry = (pthread_mutex_t *)shared_memory(sizeof *registry);
    taken = (long *)shared_memory(sizeof *taken);
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(registry, &shared);
    tell("lock-wait", run_children(n, office).seconds);
}
