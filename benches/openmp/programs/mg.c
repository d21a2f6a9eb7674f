// The shape of NAS MG: V-cycles over levels of grids, each operation on each level a parallel region of its own;
// on the coarse ones there is next to nothing to do.
#include "kernel.h"

enum { CYCLES = 20, LEVELS = 4, SIDE = 48 };

// Points of a level with a rim of zeros around: side x side x depth.
struct level {
    int side, depth;
    double *v, *r, *t;
};

static struct level levels[LEVELS];
static double *right, *norms;

static size_t at(const struct level *l, int z, int y, int x)
{
    return ((size_t)z * (l->side + 2) + y) * (l->side + 2) + x;
}

static size_t size(const struct level *l)
{
    return (size_t)(l->side + 2) * (l->side + 2) * (l->depth + 2);
}

static void prepare(int cpus)
{
    for (int i = 0; i < LEVELS; i++) {
        struct level *l = levels + i;
        l->side = SIDE >> i;
        l->depth = (SIDE >> i) * ((cpus + 1) / 2);
        l->v = zeroed(size(l) * sizeof *l->v);
        l->r = zeroed(size(l) * sizeof *l->r);
        l->t = zeroed(size(l) * sizeof *l->t);
    }
    struct level *fine = levels;
    right = zeroed(size(fine) * sizeof *right);
    norms = zeroed((fine->depth + 1) * sizeof *norms);
    for (int z = 1; z <= fine->depth; z++)
        for (int y = 1; y <= fine->side; y++)
            for (int x = 1; x <= fine->side; x++)
                right[at(fine, z, y, x)] = fraction(at(fine, z, y, x)) - 0.5;
}

static double around(const struct level *l, const double *v, size_t i)
{
    size_t row = l->side + 2, plane = row * row;
    return v[i - 1] + v[i + 1] + v[i - row] + v[i + row] + v[i - plane] + v[i + plane];
}

// One step of Jacobi's method, weighted, from v to t and back.
static void smooth(struct level *l, const double *b)
{
#pragma omp parallel for
    for (int z = 1; z <= l->depth; z++)
        for (int y = 1; y <= l->side; y++)
            for (int x = 1; x <= l->side; x++) {
                size_t i = at(l, z, y, x);
                l->t[i] = 0.2 * l->v[i] + 0.8 / 6 * (b[i] + around(l, l->v, i));
            }
    double *other = l->v;
    l->v = l->t;
    l->t = other;
}

static void residual(struct level *l, const double *b)
{
#pragma omp parallel for
    for (int z = 1; z <= l->depth; z++)
        for (int y = 1; y <= l->side; y++)
            for (int x = 1; x <= l->side; x++) {
                size_t i = at(l, z, y, x);
                l->t[i] = b[i] + around(l, l->v, i) - 6 * l->v[i];
            }
}

// The residual of a level is the right side of the next coarser one.
static void restrict_to(struct level *coarse, const struct level *l)
{
#pragma omp parallel for
    for (int z = 1; z <= coarse->depth; z++)
        for (int y = 1; y <= coarse->side; y++)
            for (int x = 1; x <= coarse->side; x++) {
                double sum = 0;
                for (int corner = 0; corner < 8; corner++)
                    sum += l->t[at(l, 2 * z - (corner & 1), 2 * y - (corner >> 1 & 1), 2 * x - (corner >> 2))];
                size_t i = at(coarse, z, y, x);
                // What lets constant interpolation converge: the product of the three operators (Galerkin).
                coarse->r[i] = sum / 4;
                coarse->v[i] = 0;
            }
}

static void prolong(struct level *l, const struct level *coarse)
{
#pragma omp parallel for
    for (int z = 1; z <= l->depth; z++)
        for (int y = 1; y <= l->side; y++)
            for (int x = 1; x <= l->side; x++)
                l->v[at(l, z, y, x)] += coarse->v[at(coarse, (z + 1) / 2, (y + 1) / 2, (x + 1) / 2)];
}

static double run(void)
{
    struct level *fine = levels;
#pragma omp parallel for
    for (int z = 1; z <= fine->depth; z++)
        for (int y = 1; y <= fine->side; y++)
            for (int x = 1; x <= fine->side; x++)
                fine->v[at(fine, z, y, x)] = 0;
    for (int cycle = 0; cycle < CYCLES; cycle++) {
        for (int i = 0; i + 1 < LEVELS; i++) {
            const double *b = i ? levels[i].r : right;
            smooth(levels + i, b);
            residual(levels + i, b);
            restrict_to(levels + i + 1, levels + i);
        }
        smooth(levels + LEVELS - 1, levels[LEVELS - 1].r);
        smooth(levels + LEVELS - 1, levels[LEVELS - 1].r);
        for (int i = LEVELS - 2; i >= 0; i--) {
            prolong(levels + i, levels + i + 1);
            smooth(levels + i, i ? levels[i].r : right);
        }
    }
    residual(fine, right);
    // A sum for each plane, and then of the planes in order: the same for every team.
#pragma omp parallel for
    for (int z = 1; z <= fine->depth; z++) {
        double sum = 0;
        for (int y = 1; y <= fine->side; y++)
            for (int x = 1; x <= fine->side; x++) {
                double d = fine->t[at(fine, z, y, x)];
                sum += d * d;
            }
        norms[z] = sum;
    }
    double sum = 0;
    for (int z = 1; z <= fine->depth; z++)
        sum += norms[z];
    return sum;
}

const struct kernel mg = {"mg", 1, prepare, run};
