/* Regions of sizes that the program says itself: an argument is `clause`, `set` or `few`. */
#include <omp.h>
#include <stdio.h>
#include <string.h>

static int size(int threads)
{
    int had = 0;
    if (threads == 0) {
#pragma omp parallel
#pragma omp single
        had = omp_get_num_threads();
    } else {
#pragma omp parallel num_threads(threads)
#pragma omp single
        had = omp_get_num_threads();
    }
    return had;
}

int main(int argc, char **argv)
{
    int many = omp_get_num_procs() + 3;
    const char *how = argc > 1 ? argv[1] : "few";
    int had;
    if (!strcmp(how, "clause")) {
        size(1);
        size(many);
        had = size(many);
    } else if (!strcmp(how, "set")) {
        omp_set_num_threads(many);
        had = size(0);
    } else {
        had = size(1);
    }
    puts(had == many ? "many" : "few");
    return 0;
}
