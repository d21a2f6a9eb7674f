/* Half of the work with all threads pinned to one CPU, half with one thread per CPU. */
#include "planted.h"
#include <sched.h>

enum { CROWDED = 300000, SPREAD = 300000 };

static int *cpus, cpu_count;
static pthread_barrier_t half_time;

static void pin_to(int cpu)
{
    cpu_set_t *set = CPU_ALLOC(CPU_SETSIZE * 8);
    size_t bytes = CPU_ALLOC_SIZE(CPU_SETSIZE * 8);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(cpu, bytes, set);
    if (sched_setaffinity(0, bytes, set) != 0)
        die("sched_setaffinity");
    CPU_FREE(set);
}

NOINLINE static void work_in_the_crowd(uint64_t units) { burn(units); }
NOINLINE static void work_on_my_own_cpu(uint64_t units) { burn(units); }

static void worker(Member *me)
{
    pin_to(cpus[0]);
    pthread_barrier_wait(&half_time);
    double since = wall_now();
    work_in_the_crowd((uint64_t)share(CROWDED, me->id, me->n));
    pthread_barrier_wait(&half_time);
    if (me->id == 0)
        me->seconds = (me->n - 1) * (wall_now() - since);
    pin_to(cpus[me->id % cpu_count]);
    work_on_my_own_cpu((uint64_t)share(SPREAD, me->id, me->n));
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    cpu_set_t *set = CPU_ALLOC(CPU_SETSIZE * 8);
    size_t bytes = CPU_ALLOC_SIZE(CPU_SETSIZE * 8);
    if (sched_getaffinity(0, bytes, set) != 0)
        die("sched_getaffinity");
    cpus = (int *)calloc(CPU_SETSIZE * 8, sizeof *cpus);
    for (int cpu = 0; cpu < CPU_SETSIZE * 8; cpu++)
        if (CPU_ISSET_S(cpu, bytes, set))
            cpus[cpu_count++] = cpu;
    pthread_barrier_init(&half_time, NULL, (unsigned)n);
    tell("placement", run_crew(n, worker, 1).seconds);
}
