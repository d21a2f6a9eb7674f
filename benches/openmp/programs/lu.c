// The shape of NAS LU: two sweeps over a grid in which each cell needs its neighbours of the same sweep, so that
// only the cells of one diagonal can be done at once. One parallel region, a barrier after each diagonal.
#include <math.h>

#include "kernel.h"

enum { ITERATIONS = 4 };

static int n;      // cells of a side
static int points; // of a cell
static double *first, *grid;

static double *cell(int i, int j)
{
    return grid + ((size_t)i * n + j) * points;
}

static void prepare(int cpus)
{
    double side = sqrt(cpus / 2.0);
    n = (int)(32 * side + 0.5);
    points = (int)(256 * side + 0.5);
    size_t all = (size_t)n * n * points;
    first = zeroed(all * sizeof *first);
    grid = zeroed(all * sizeof *grid);
    for (size_t i = 0; i < all; i++)
        first[i] = fraction(i);
}

static void relax(double *to, const double *a, const double *b)
{
    double before = to[0];
    for (int k = 0; k < points; k++) {
        double sum = to[k];
        if (a)
            sum += 0.3 * a[k];
        if (b)
            sum += 0.3 * b[k];
        before = 0.5 * sum + 0.1 * before / (1.0 + before * before);
        to[k] = before;
    }
}

static double run(void)
{
    size_t all = (size_t)n * n * points;
#pragma omp parallel
    {
#pragma omp for
        for (size_t i = 0; i < all; i++)
            grid[i] = first[i];
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            for (int diagonal = 0; diagonal <= 2 * (n - 1); diagonal++) {
                int from = diagonal < n ? 0 : diagonal - n + 1;
                int to = diagonal < n ? diagonal : n - 1;
#pragma omp for schedule(static)
                for (int i = from; i <= to; i++) {
                    int j = diagonal - i;
                    relax(cell(i, j), i ? cell(i - 1, j) : 0, j ? cell(i, j - 1) : 0);
                }
            }
            for (int diagonal = 2 * (n - 1); diagonal >= 0; diagonal--) {
                int from = diagonal < n ? 0 : diagonal - n + 1;
                int to = diagonal < n ? diagonal : n - 1;
#pragma omp for schedule(static)
                for (int i = from; i <= to; i++) {
                    int j = diagonal - i;
                    relax(cell(i, j), i < n - 1 ? cell(i + 1, j) : 0, j < n - 1 ? cell(i, j + 1) : 0);
                }
            }
        }
    }
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += cell(i, n - 1 - i)[points / 2];
    return sum;
}

const struct kernel lu = {"lu", 1, prepare, run};
