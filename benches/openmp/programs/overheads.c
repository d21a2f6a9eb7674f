#define _GNU_SOURCE
// What the constructs of OpenMP cost, after the EPCC microbenchmarks (J. M. Bull 1999; Bull, Reid and McDonnell
// 2012): each construct around a short delay many times, less the same delays without it. A line of JSON each.
//
//   overheads SAMPLES
#include <dlfcn.h>
#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PER_THREAD = 16, SAMPLE_NS = 3000000 };

static int threads;
static omp_lock_t lock;
static double shared_sum;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// About 0.1 us.
static void delay(void)
{
    uint64_t x = 1;
    for (int i = 0; i < 100; i++) {
        x = x * 3 + 1;
        __asm__ volatile("" : "+r"(x));
    }
}

static void reference(long n)
{
    for (long i = 0; i < n; i++)
        delay();
}

static void parallel(long n)
{
    for (long i = 0; i < n; i++) {
#pragma omp parallel
        delay();
    }
}

static void parallel_for(long n)
{
    for (long i = 0; i < n; i++) {
#pragma omp parallel for
        for (int k = 0; k < threads; k++)
            delay();
    }
}

static void reduction(long n)
{
    for (long i = 0; i < n; i++) {
        double sum = 0;
#pragma omp parallel reduction(+ : sum)
        {
            delay();
            sum += 1;
        }
        shared_sum = sum;
    }
}

static void barrier(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
        delay();
#pragma omp barrier
    }
}

static void for_static(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
#pragma omp for schedule(static)
        for (int k = 0; k < threads; k++)
            delay();
    }
}

static void for_dynamic(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
#pragma omp for schedule(dynamic, 1)
        for (int k = 0; k < threads * PER_THREAD; k++)
            delay();
    }
}

static void for_guided(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
#pragma omp for schedule(guided)
        for (int k = 0; k < threads * PER_THREAD; k++)
            delay();
    }
}

static void single(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
#pragma omp single
        delay();
    }
}

static void critical(long n)
{
#pragma omp parallel
    for (long i = 0; i < n / threads; i++) {
#pragma omp critical
        delay();
    }
}

static void locked(long n)
{
#pragma omp parallel
    for (long i = 0; i < n / threads; i++) {
        omp_set_lock(&lock);
        delay();
        omp_unset_lock(&lock);
    }
}

static void ordered(long n)
{
#pragma omp parallel for ordered schedule(static, 1)
    for (long i = 0; i < n; i++) {
#pragma omp ordered
        delay();
    }
}

// All threads make tasks.
static void task(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
#pragma omp task
        delay();
    }
}

// One thread makes tasks for all.
static void task_of_one(long n)
{
#pragma omp parallel
#pragma omp master
    for (long i = 0; i < n; i++) {
#pragma omp task
        delay();
    }
}

static void taskwait(long n)
{
#pragma omp parallel
    for (long i = 0; i < n; i++) {
#pragma omp task
        delay();
#pragma omp taskwait
    }
}

// How many delays of one thread a repetition is: those which are not overhead.
static const struct construct {
    const char *name;
    void (*repeat)(long);
    int delays;
} constructs[] = {
    {"parallel", parallel, 1},
    {"parallel for", parallel_for, 1},
    {"reduction", reduction, 1},
    {"barrier", barrier, 1},
    {"for static", for_static, 1},
    {"for dynamic,1", for_dynamic, PER_THREAD},
    {"for guided", for_guided, PER_THREAD},
    {"single", single, 1},
    {"critical", critical, 1},
    {"lock", locked, 1},
    {"ordered", ordered, 1},
    {"task", task, 1},
    {"task of one thread", task_of_one, 0},
    {"taskwait", taskwait, 1},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Nanoseconds of a repetition: the median of the samples.
static double measured(void (*repeat)(long), int samples)
{
    long n = 16;
    for (uint64_t least = 0; least < SAMPLE_NS / 2 && n < 1 << 24; n *= 2) {
        least = UINT64_MAX;
        // The fastest of three: one that was interrupted says nothing of how many fit into a sample.
        for (int i = 0; i < 3; i++) {
            uint64_t begun = now();
            repeat(n);
            uint64_t took = now() - begun;
            least = took < least ? took : least;
        }
    }
    double ns[64];
    int taken = 0;
    // Less samples of what suddenly became much slower.
    for (uint64_t begun = now(); taken < samples && now() - begun < 20ull * samples * SAMPLE_NS; taken++) {
        uint64_t from = now();
        repeat(n);
        ns[taken] = (double)(now() - from) / n;
    }
    qsort(ns, taken, sizeof *ns, by_value);
    return ns[taken / 2];
}

int main(int count, char **words)
{
    int samples = count == 2 ? atoi(words[1]) : 0;
    if (samples < 1 || samples > 64) {
        fprintf(stderr, "usage: overheads SAMPLES (1 to 64)\n");
        return 2;
    }
    threads = omp_get_max_threads();
    omp_init_lock(&lock);
    static char path[PATH_MAX];
    Dl_info info;
    if (dladdr((void *)omp_get_max_threads, &info) && !realpath(info.dli_fname, path))
        snprintf(path, sizeof path, "%s", info.dli_fname);
    for (size_t i = 0; i < sizeof constructs / sizeof *constructs; i++) {
        const struct construct *c = constructs + i;
        // Beside each construct anew: clock rates change.
        double delays = measured(reference, samples) * c->delays, ns = measured(c->repeat, samples);
        printf("{\"construct\": \"%s\", \"ns\": %.3f, \"delays_ns\": %.3f, \"runtime\": \"%s\"}\n", c->name,
               ns - delays, delays, path);
    }
    return 0;
}
