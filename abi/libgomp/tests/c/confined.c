/* A thread that may run on one CPU is the first to use OpenMP. An argument is the number of threads that it asks for. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof(all), &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &one);
            break;
        }
    sched_setaffinity(0, sizeof(one), &one);
    if (argc > 1)
        omp_set_num_threads(atoi(argv[1]));
    printf("%d of %d\n", omp_get_max_threads(), CPU_COUNT(&all));
    return 0;
}
