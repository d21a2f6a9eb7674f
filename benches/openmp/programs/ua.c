// The shape of NAS UA: elements of different sizes on an unstructured mesh, worked on in dynamic loops; they add
// to the points that they share by atomic operations, as whole numbers, so that the order does not matter.
#include "kernel.h"

enum { STEPS = 40, CORNERS = 8 };

static int elements, mesh_points;
static int *corner, *order;
static int64_t *flux;
static double *level;

static void prepare(int cpus)
{
    elements = 1000 * cpus;
    mesh_points = 700 * cpus;
    corner = zeroed((size_t)elements * CORNERS * sizeof *corner);
    order = zeroed(elements * sizeof *order);
    flux = zeroed(mesh_points * sizeof *flux);
    level = zeroed(mesh_points * sizeof *level);
    for (int e = 0; e < elements; e++) {
        order[e] = 4 + (int)(mixed(e) % 7);
        for (int c = 0; c < CORNERS; c++) {
            // Most corners are near, some are anywhere.
            uint64_t chance = mixed((uint64_t)e * CORNERS + c);
            int near = (int)((int64_t)e * mesh_points / elements) + (int)(chance % 16);
            corner[e * CORNERS + c] = (chance >> 32) % 8 ? near % mesh_points : (int)((chance >> 8) % mesh_points);
        }
    }
}

static double run(void)
{
    for (int step = 0; step < STEPS; step++) {
#pragma omp parallel
        {
            if (step == 0) {
#pragma omp for
                for (int i = 0; i < mesh_points; i++) {
                    level[i] = fraction(i);
                    flux[i] = 0;
                }
            }
#pragma omp for schedule(dynamic, 8)
            for (int e = 0; e < elements; e++) {
                const int *at = corner + e * CORNERS;
                double sum = 0;
                for (int c = 0; c < CORNERS; c++)
                    sum += level[at[c]];
                double inside = sum / CORNERS;
                for (int i = order[e] * order[e] * order[e] / 4; i > 0; i--)
                    inside += (level[at[i % CORNERS]] - inside) * 0.1;
                for (int c = 0; c < CORNERS; c++) {
                    int64_t amount = (int64_t)((inside - level[at[c]]) * 0x1p40);
#pragma omp atomic
                    flux[at[c]] += amount;
                }
            }
#pragma omp for schedule(guided)
            for (int i = 0; i < mesh_points; i++) {
                level[i] += (double)flux[i] * 0x1p-40 * 0.05;
                flux[i] = 0;
            }
        }
    }
    double sum = 0;
    for (int i = 0; i < mesh_points; i++)
        sum += level[i] * (1 + i % 3);
    return sum;
}

const struct kernel ua = {"ua", 1, prepare, run};
