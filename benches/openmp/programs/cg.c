// The shape of NAS CG: conjugate gradients on a sparse matrix whose rows point far away. One parallel region; a
// handful of loops and two sums of all threads in each iteration.
#include "kernel.h"

enum { ITERATIONS = 60, DISTANCES = 5, PER_ROW = 2 * DISTANCES + 1 };

static int n;
static int *column;
static double *value, *x, *r, *p, *q, *b;

static void prepare(int cpus)
{
    static const int distance[DISTANCES] = {1, 37, 411, 1733, 3991};
    n = 16000 * cpus;
    column = zeroed((size_t)n * PER_ROW * sizeof *column);
    value = zeroed((size_t)n * PER_ROW * sizeof *value);
    x = zeroed(n * sizeof *x);
    r = zeroed(n * sizeof *r);
    p = zeroed(n * sizeof *p);
    q = zeroed(n * sizeof *q);
    b = zeroed(n * sizeof *b);
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * PER_ROW;
        column[at] = i;
        value[at] = 0.5;
        // Symmetric, and the diagonal outweighs the rest: conjugate gradients converge.
        for (int d = 0; d < DISTANCES; d++) {
            double weight = 1.0 / (d + 1);
            column[at + 1 + 2 * d] = (i + distance[d]) % n;
            column[at + 2 + 2 * d] = (i + n - distance[d]) % n;
            value[at + 1 + 2 * d] = value[at + 2 + 2 * d] = -weight;
            value[at] += 2 * weight;
        }
        b[i] = fraction(i) - 0.5;
    }
}

static double run(void)
{
    double rho = 0, pq = 0, next = 0, result = 0;
#pragma omp parallel
    {
#pragma omp for reduction(+ : rho)
        for (int i = 0; i < n; i++) {
            x[i] = 0;
            r[i] = p[i] = b[i];
            rho += b[i] * b[i];
        }
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
#pragma omp for nowait
            for (int i = 0; i < n; i++) {
                double sum = 0;
                for (size_t at = (size_t)i * PER_ROW; at < (size_t)(i + 1) * PER_ROW; at++)
                    sum += value[at] * p[column[at]];
                q[i] = sum;
            }
#pragma omp single
            pq = next = 0;
#pragma omp for reduction(+ : pq)
            for (int i = 0; i < n; i++)
                pq += p[i] * q[i];
            double alpha = rho / pq;
#pragma omp for reduction(+ : next)
            for (int i = 0; i < n; i++) {
                x[i] += alpha * p[i];
                r[i] -= alpha * q[i];
                next += r[i] * r[i];
            }
            double beta = next / rho;
#pragma omp for
            for (int i = 0; i < n; i++)
                p[i] = r[i] + beta * p[i];
#pragma omp single
            rho = next;
        }
#pragma omp for reduction(+ : result)
        for (int i = 0; i < n; i++)
            result += x[i] * b[i];
    }
    return result;
}

const struct kernel cg = {"cg", 0, prepare, run};
