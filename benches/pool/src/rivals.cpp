// The rivals that are C++ libraries, each as its manual would have it.

#include <algorithm>
#include <cstddef>
#include <cstdint>

extern "C" typedef void (*piece)(void *with, size_t begin, size_t end);


static uint64_t *split(uint64_t *begin, uint64_t *end) {
    uint64_t a = *begin, b = begin[(end - begin) / 2], c = end[-1];
    uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    uint64_t *i = begin - 1, *j = end;
    for (;;) {
        do ++i; while (*i < pivot);
        do --j; while (*j > pivot);
        if (i >= j) return j + 1;
        std::swap(*i, *j);
    }
}

#ifdef HAS_OPENMP
#include <omp.h>

static uint64_t fib_openmp(uint64_t n) {
    if (n < 2) return n;
    uint64_t a, b;
#pragma omp task shared(a)
    a = fib_openmp(n - 1);
    b = fib_openmp(n - 2);
#pragma omp taskwait
    return a + b;
}

static void sort_openmp(uint64_t *begin, uint64_t *end) {
    if (end - begin <= 4096) { std::sort(begin, end); return; }
    uint64_t *middle = split(begin, end);
#pragma omp task
    sort_openmp(begin, middle);
    sort_openmp(middle, end);
#pragma omp taskwait
}

extern "C" uint64_t openmp_fib(uint64_t n) {
    uint64_t result = 0;
#pragma omp parallel
#pragma omp single
    result = fib_openmp(n);
    return result;
}

extern "C" void openmp_sort(uint64_t *data, size_t len) {
#pragma omp parallel
#pragma omp single
    sort_openmp(data, data + len);
}

#ifdef HAS_PARALLEL_MODE
#include <parallel/algorithm>

extern "C" void openmp_best_sort(uint64_t *data, size_t len) { __gnu_parallel::sort(data, data + len); }
#endif

extern "C" void openmp_loop(size_t len, size_t grain, piece call, void *with) {
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < (len + grain - 1) / grain; i++)
        call(with, i * grain, std::min(len, (i + 1) * grain));
}

extern "C" void openmp_static_loop(size_t len, piece call, void *with) {
#pragma omp parallel
    {
        size_t n = omp_get_num_threads(), t = omp_get_thread_num();
        call(with, len * t / n, len * (t + 1) / n);
    }
}
#endif

#ifdef HAS_TBB
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_invoke.h>
#include <tbb/parallel_sort.h>

static uint64_t fib_tbb(uint64_t n) {
    if (n < 2) return n;
    uint64_t a, b;
    tbb::parallel_invoke([&] { a = fib_tbb(n - 1); }, [&] { b = fib_tbb(n - 2); });
    return a + b;
}

static void sort_tbb(uint64_t *begin, uint64_t *end) {
    if (end - begin <= 4096) { std::sort(begin, end); return; }
    uint64_t *middle = split(begin, end);
    tbb::parallel_invoke([=] { sort_tbb(begin, middle); }, [=] { sort_tbb(middle, end); });
}

extern "C" uint64_t tbb_fib(uint64_t n) { return fib_tbb(n); }
extern "C" void tbb_sort(uint64_t *data, size_t len) { sort_tbb(data, data + len); }
extern "C" void tbb_best_sort(uint64_t *data, size_t len) { tbb::parallel_sort(data, data + len); }
extern "C" void tbb_loop(size_t len, size_t grain, piece call, void *with) {
    tbb::parallel_for(tbb::blocked_range<size_t>(0, len, grain),
                      [=](const tbb::blocked_range<size_t> &r) { call(with, r.begin(), r.end()); });
}
#endif
