/* Busy threads for ever, or one that sleeps: busy THREADS [CPU], on that CPU alone. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static void *run(void *nothing)
{
    for (;;)
        __asm__ volatile("" ::: "memory");
    return nothing;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (argc > 2) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET(atoi(argv[2]), &cpus);
        if (sched_setaffinity(0, sizeof cpus, &cpus))
            return 1;
    }
    while (threads == 0)
        pause();
    for (int i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL))
            return 2;
    }
    run(NULL);
}
