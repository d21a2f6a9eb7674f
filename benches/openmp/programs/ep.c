// The shape of NAS EP: pairs of normally distributed numbers (Marsaglia's polar method), counted and added up. One
// loop with a reduction, nothing else to wait for.
#include <math.h>

#include "kernel.h"

static int64_t pairs;

static void prepare(int cpus)
{
    pairs = (int64_t)cpus << 19;
}

static double run(void)
{
    double sum = 0;
    int64_t count = 0;
#pragma omp parallel for reduction(+ : sum, count)
    for (int64_t i = 0; i < pairs; i++) {
        double x = 2 * fraction(2 * i) - 1, y = 2 * fraction(2 * i + 1) - 1, t = x * x + y * y;
        if (t > 0 && t <= 1) {
            double scale = sqrt(-2 * log(t) / t);
            sum += fabs(x * scale) + fabs(y * scale);
            count++;
        }
    }
    return sum + (double)count;
}

const struct kernel ep = {"ep", 0, prepare, run};
