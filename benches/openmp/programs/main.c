// Runs units of one kernel for a while and says how many that were.
//
//   kernels KERNEL SECONDS CPUS [PAGE LOADS COPIES COPY]
//
// The page is a file that all processes of a measurement share, in lines of 64 bytes:
//   0            when the measurement began, in ns of CLOCK_MONOTONIC, 0 before that; copies that are ready
//   1..LOADS     the work done by each process that loads the machine
//   1+LOADS..    when each copy began its first unit; units that it has done since the measurement began
//
// `share` is no kernel: each thread works for itself, which shows what share of the CPUs the threads are granted.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernel.h"

struct line {
    volatile uint64_t a, b, rest[6];
};

static const struct kernel *const all[] = {&lu, &cg, &ua, &mg, &ft, &ep, &tasks};

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void *zeroed(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memset(memory, 0, bytes);
}

static const char *runtime(void)
{
    static char path[PATH_MAX] = "none";
#ifdef _OPENMP
    Dl_info info;
    if (dladdr((void *)omp_get_max_threads, &info) && !realpath(info.dli_fname, path))
        snprintf(path, sizeof path, "%s", info.dli_fname);
#endif
    return path;
}

static uint64_t spun(void)
{
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

// Threads that need nothing of each other, until the time is over.
static uint64_t share(uint64_t end)
{
    uint64_t done = 0;
#pragma omp parallel reduction(+ : done)
    while (clock_ns(CLOCK_MONOTONIC) < end) {
        spun();
        done++;
    }
    return done;
}

static uint64_t sum_of(const struct line *page, long loads)
{
    uint64_t sum = 0;
    for (long i = 0; i < loads; i++)
        sum += __atomic_load_n(&page[1 + i].a, __ATOMIC_RELAXED);
    return sum;
}

int main(int count, char **words)
{
    if (count != 4 && count != 8) {
        fprintf(stderr, "usage: kernels KERNEL SECONDS CPUS [PAGE LOADS COPIES COPY]\n");
        return 2;
    }
    const struct kernel *kernel = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->name, words[1]))
            kernel = all[i];
    int is_share = !strcmp(words[1], "share");
    if (!kernel && !is_share) {
        fprintf(stderr, "%s: no such kernel\n", words[1]);
        return 2;
    }
    double seconds = atof(words[2]);
    int cpus = atoi(words[3]);
    struct line alone[2] = {{0}}, *page = alone;
    long loads = 0, copies = 1, copy = 0;
    if (count == 8) {
        loads = atol(words[5]);
        copies = atol(words[6]);
        copy = atol(words[7]);
        int file = open(words[4], O_RDWR);
        page = mmap(0, (1 + loads + copies) * sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file < 0 || page == MAP_FAILED) {
            perror(words[4]);
            return 1;
        }
    }
    struct line *own = page + 1 + loads + copy;

    if (kernel)
        kernel->prepare(cpus);
    own->a = clock_ns(CLOCK_MONOTONIC);
    double result = 0;
    // Not measured: makes the threads and touches the memory.
    if (kernel)
        result = kernel->run();
    else
        share(0);
    if (__atomic_add_fetch(&page->b, 1, __ATOMIC_SEQ_CST) == (uint64_t)copies)
        __atomic_store_n(&page->a, clock_ns(CLOCK_MONOTONIC), __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&page->a, __ATOMIC_SEQ_CST))
        usleep(100);

    uint64_t begun = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t load = sum_of(page, loads), end = begun + (uint64_t)(seconds * 1e9), now = begun, units = 0;
    double least = result, most = result;
    if (is_share) {
        units = share(end);
        now = clock_ns(CLOCK_MONOTONIC);
    }
    while (kernel && now < end) {
        double next = kernel->run();
        if (kernel->is_exact && memcmp(&next, &result, sizeof next)) {
            fprintf(stderr, "%s: %.17g, then %.17g\n", kernel->name, result, next);
            return 3;
        }
        least = next < least ? next : least;
        most = next > most ? next : most;
        own->b = ++units;
        now = clock_ns(CLOCK_MONOTONIC);
    }
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    load = sum_of(page, loads) - load;
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    printf("{\"units\": %" PRIu64 ", \"wall_ns\": %" PRIu64 ", \"cpu_ns\": %" PRIu64 ", \"load\": %" PRIu64
           ", \"least\": %.17g, \"most\": %.17g, \"is_exact\": %s, \"threads\": %d, \"runtime\": \"%s\"}\n",
           units, now - begun, cpu, load, least, most, kernel && kernel->is_exact ? "true" : "false", threads,
           runtime());
    return 0;
}
