/* Opens a library (the same source, compiled with PLUGIN) whose constructor waits for another thread. The dynamic linker
   keeps its lock meanwhile. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#ifdef PLUGIN

extern atomic_int is_opening, is_ready;

__attribute__((constructor)) static void constructor(void)
{
    atomic_store(&is_opening, 1);
    while (!atomic_load(&is_ready))
        sched_yield();
}

#else

atomic_int is_opening, is_ready;

/* Calls a function that nobody has called before. */
static void *thread(void *argument)
{
    static pthread_spinlock_t lock;
    pthread_spin_init(&lock, 0);
    while (!atomic_load(&is_opening))
        sched_yield();
    pthread_spin_lock(&lock);
    atomic_store(&is_ready, 1);
    return argument;
}

int main(int argc, char **argv)
{
    pthread_t other;
    /* Who waits for each other would do so for ever. */
    alarm(60);
    if (argc != 2 || pthread_create(&other, NULL, thread, NULL))
        return 1;
    if (!dlopen(argv[1], RTLD_NOW)) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    pthread_join(other, NULL);
    puts("ok");
    return 0;
}

#endif
