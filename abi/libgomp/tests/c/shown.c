/* One region, for OMP_DISPLAY_AFFINITY; the first argument is how many threads it has. */
#include <stdlib.h>

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
#pragma omp parallel num_threads(threads) proc_bind(spread)
    ;
    return 0;
}
