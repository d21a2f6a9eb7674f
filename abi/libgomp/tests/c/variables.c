/* What a program can ask about the control variables, a line for each. */
#include <omp.h>
#include <stdio.h>

int main(void) {
    omp_sched_t kind;
    int chunk;
    omp_get_schedule(&kind, &chunk);
    printf("schedule %x %d\n", (unsigned)kind, chunk);
    printf("max threads %d\n", omp_get_max_threads());
    printf("procs %d\n", omp_get_num_procs());
    printf("dynamic %d\n", omp_get_dynamic());
    printf("thread limit %d\n", omp_get_thread_limit());
    printf("active levels %d of %d\n", omp_get_max_active_levels(), omp_get_supported_active_levels());
    printf("cancellation %d\n", omp_get_cancellation());
    printf("priority %d\n", omp_get_max_task_priority());
    printf("bind %d\n", (int)omp_get_proc_bind());
    printf("device %d of %d\n", omp_get_default_device(), omp_get_num_devices());
    printf("teams %d threads %d\n", omp_get_max_teams(), omp_get_teams_thread_limit());
    printf("allocator %d\n", (int)omp_get_default_allocator());
    printf("place %d of %d, partition of %d\n", omp_get_place_num(), omp_get_num_places(),
           omp_get_partition_num_places());
    for (int place = 0; place < omp_get_num_places(); place++) {
        int cpus = omp_get_place_num_procs(place), ids[1024];
        omp_get_place_proc_ids(place, ids);
        printf("place %d:", place);
        for (int i = 0; i < cpus; i++)
            printf(" %d", ids[i]);
        printf("\n");
    }
    char format[256];
    size_t len = omp_get_affinity_format(format, sizeof format);
    printf("format %zu %s\n", len, format);
    return 0;
}
