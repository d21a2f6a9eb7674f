// The shape of NAS FT: Fourier transforms of all rows, a transposition, Fourier transforms of all columns. Few
// regions, all threads need what all others wrote.
#include <complex.h>
#include <math.h>

#include "kernel.h"

enum { ITERATIONS = 4, ROWS = 512, BLOCK = 16 };

static int columns;
static double complex *first, *a, *b, *roots; // roots of the longer transform

static void prepare(int cpus)
{
    columns = ROWS;
    while (columns < 256 * cpus)
        columns *= 2;
    size_t all = (size_t)ROWS * columns;
    first = zeroed(all * sizeof *first);
    a = zeroed(all * sizeof *a);
    b = zeroed(all * sizeof *b);
    roots = zeroed(columns / 2 * sizeof *roots);
    for (size_t i = 0; i < all; i++)
        first[i] = fraction(2 * i) + fraction(2 * i + 1) * I;
    for (int i = 0; i < columns / 2; i++) {
        double angle = -2 * acos(-1.0) * i / columns;
        roots[i] = cos(angle) + sin(angle) * I;
    }
}

// By halves, in place (Cooley and Tukey 1965).
static void transform(double complex *row, int n)
{
    for (int i = 1, j = 0; i < n; i++) {
        int bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            double complex kept = row[i];
            row[i] = row[j];
            row[j] = kept;
        }
    }
    for (int half = 1; half < n; half *= 2)
        for (int from = 0; from < n; from += 2 * half)
            for (int k = 0; k < half; k++) {
                double complex w = roots[(size_t)k * (columns / (2 * half))], *low = row + from + k;
                // By hand: the language's product asks about infinities.
                double re = creal(low[half]) * creal(w) - cimag(low[half]) * cimag(w);
                double im = creal(low[half]) * cimag(w) + cimag(low[half]) * creal(w);
                double complex product = re + im * I;
                low[half] = low[0] - product;
                low[0] += product;
            }
}

static void transforms(double complex *of, int rows, int n)
{
#pragma omp parallel for schedule(static)
    for (int i = 0; i < rows; i++)
        transform(of + (size_t)i * n, n);
}

static void transpose(double complex *to, const double complex *from, int rows, int n)
{
#pragma omp parallel for collapse(2)
    for (int i = 0; i < n; i += BLOCK)
        for (int j = 0; j < rows; j += BLOCK)
            for (int y = i; y < i + BLOCK; y++)
                for (int x = j; x < j + BLOCK; x++)
                    to[(size_t)y * rows + x] = from[(size_t)x * n + y];
}

static double run(void)
{
    size_t all = (size_t)ROWS * columns;
    double scale = 1 / sqrt((double)all);
#pragma omp parallel for
    for (size_t i = 0; i < all; i++)
        a[i] = first[i];
    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        transforms(a, ROWS, columns);
        transpose(b, a, ROWS, columns);
        transforms(b, columns, ROWS);
#pragma omp parallel for
        for (size_t i = 0; i < all; i++)
            b[i] *= scale;
        transpose(a, b, columns, ROWS);
    }
    double sum = 0;
    for (size_t i = 0; i < all; i += 61)
        sum += creal(a[i]) - cimag(a[i]);
    return sum;
}

const struct kernel ft = {"ft", 1, prepare, run};
