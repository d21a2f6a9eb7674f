// Regions of 20 phases with a barrier after each, and serial work between regions.
//
//   phases PHASE_US DIFFER MODE SERIAL_US SECONDS
//
// MODE random: each thread's phase is up to DIFFER percent longer or shorter; static: the first thread's are DIFFER percent
// shorter; regions: a region for each phase, without a barrier of its own. Prints microseconds a phase.
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void work(long n)
{
    uint64_t x = 1;
    for (long i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(x));
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **words)
{
    if (count != 6) {
        fprintf(stderr, "usage: phases PHASE_US DIFFER MODE SERIAL_US SECONDS\n");
        return 2;
    }
    // About a nanosecond a turn.
    long phase = atol(words[1]) * 1000, differ = atol(words[2]), serial = atol(words[4]) * 1000;
    int is_random = !strcmp(words[3], "random"), are_regions = !strcmp(words[3], "regions");
    int phases = are_regions ? 1 : 20;
    double begun = now(), end = begun + atof(words[5]);
    long done = 0;
    do {
#pragma omp parallel
        {
            unsigned seed = omp_get_thread_num() * 7919 + done + 1;
            for (int i = 0; i < phases; i++) {
                long turns = phase;
                if (is_random)
                    turns += turns * ((long)(rand_r(&seed) % (2 * differ + 1)) - differ) / 100;
                else if (omp_get_thread_num() == 0)
                    turns -= turns * differ / 100;
                work(turns);
                if (!are_regions) {
#pragma omp barrier
                }
            }
        }
        work(serial);
        done += phases;
    } while (now() < end);
    printf("%.3f\n", (now() - begun) / done * 1e6);
    return 0;
}
