/* A thread that may run on one CPU is the first to use OpenMP. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <omp.h>
#include <sched.h>
#include <stdio.h>

int main(void)
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
    printf("%d of %d\n", omp_get_max_threads(), CPU_COUNT(&all));
    return 0;
}
