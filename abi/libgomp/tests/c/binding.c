/* Which place and partition each thread of a nest of regions gets: a line for each. Arguments: threads of the outer
   and of the inner region, and which clause (0: none). */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void place(char *text) {
    sprintf(text + strlen(text), " on %d of", omp_get_place_num());
    int nums[64];
    omp_get_partition_place_nums(nums);
    for (int i = 0; i < omp_get_partition_num_places(); i++)
        sprintf(text + strlen(text), " %d", nums[i]);
    sprintf(text + strlen(text), " bind %d", (int)omp_get_proc_bind());
}

static char text[16][16][256];

static void inner(int outer) {
    char *mine = text[outer][omp_get_thread_num() + 1];
    sprintf(mine, "%d.%d", outer, omp_get_thread_num());
    place(mine);
}

static void outer(int threads, int clause) {
    int me = omp_get_thread_num();
    sprintf(text[me][0], "%d", me);
    place(text[me][0]);
    switch (clause) {
    case 0:
#pragma omp parallel num_threads(threads)
        inner(me);
        break;
    case 2:
#pragma omp parallel num_threads(threads) proc_bind(primary)
        inner(me);
        break;
    case 3:
#pragma omp parallel num_threads(threads) proc_bind(close)
        inner(me);
        break;
    case 4:
#pragma omp parallel num_threads(threads) proc_bind(spread)
        inner(me);
        break;
    }
    place(text[me][0]);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int threads = atoi(argv[1]), threads_inner = atoi(argv[2]), clause = atoi(argv[3]);
    omp_set_max_active_levels(2);
    /* Twice: the second region has the threads of the first. */
    for (int round = 0; round < 2; round++) {
        memset(text, 0, sizeof text);
        switch (clause) {
        case 0:
#pragma omp parallel num_threads(threads)
            outer(threads_inner, clause);
            break;
        case 2:
#pragma omp parallel num_threads(threads) proc_bind(primary)
            outer(threads_inner, clause);
            break;
        case 3:
#pragma omp parallel num_threads(threads) proc_bind(close)
            outer(threads_inner, clause);
            break;
        case 4:
#pragma omp parallel num_threads(threads) proc_bind(spread)
            outer(threads_inner, clause);
            break;
        }
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++)
                if (text[i][j][0])
                    puts(text[i][j]);
        threads = threads > 2 ? threads - 1 : threads + 1;
    }
    return 0;
}
