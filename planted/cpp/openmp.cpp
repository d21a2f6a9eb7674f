// An OpenMP loop whose iterations differ: the one with three times the work belongs to
// another thread each time. OMP_WAIT_POLICY decides whether the others sleep or spin.
#include "../c/planted.h"
#include <omp.h>

enum { PHASES = 150, PHASE = 4000, HEAVY = 3 };

NOINLINE static void smooth_a_row(bool heavy, int n)
{
    burn(uint64_t(PHASE) * (heavy ? HEAVY : 1) / uint64_t(n - 1 + HEAVY));
}

NOINLINE static double relax_the_grid(int n)
{
    double idle = 0;
#pragma omp parallel num_threads(n) reduction(+ : idle)
    for (int phase = 0; phase < PHASES; phase++) {
        double since = 0;
#pragma omp for schedule(static, 1)
        for (int row = 0; row < n; row++) {
            smooth_a_row(phase % n == row, n);
            since = wall_now();
        }
        idle += wall_now() - since;
    }
    return idle;
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    const char *policy = getenv("OMP_WAIT_POLICY");
    omp_set_dynamic(0);
    double idle = relax_the_grid(n);
    tell(policy && strcasecmp(policy, "active") == 0 ? "user-spin" : "barrier", idle);
}
