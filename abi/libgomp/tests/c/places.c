/* Where threads are, with OMP_PLACES={0},{1} or the like: a line for each question. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
extern void omp_get_partition_place_nums_8_(int64_t *);
extern void omp_get_place_proc_ids_8_(const int64_t *, int64_t *);
#ifdef __cplusplus
}
#endif

int main(void) {
    int places[64];
    int64_t places_8[64], ids[64], first = 0;
    printf("%d places, on %d, partition of %d:", omp_get_num_places(), omp_get_place_num(),
           omp_get_partition_num_places());
    omp_get_partition_place_nums(places);
    omp_get_partition_place_nums_8_(places_8);
    for (int i = 0; i < omp_get_partition_num_places(); i++)
        printf(" %d=%d", places[i], (int)places_8[i]);
    omp_get_place_proc_ids_8_(&first, ids);
    printf("\nfirst CPU of the first place: %d\n", (int)ids[0]);
    printf("no such place: %d %d\n", omp_get_place_num_procs(-1), omp_get_place_num_procs(omp_get_num_places()));
    char text[200];
    omp_capture_affinity(text, sizeof text, "affinity %A");
    printf("%s, %d CPUs\n", text, omp_get_num_procs());
    return 0;
}
