/* Work in small pieces from a common counter, so that a CPU taken away by a stranger only
 * slows the thread on it: what is lost is exactly what the stranger takes. Run with
 * `hog` beside it, or under a quota. */
#include "planted.h"

enum { PIECES = 6000, PIECE = 130 };

static long taken;

NOINLINE static void work_while_others_take(void) { burn(PIECE); }

static void worker(Member *me)
{
    double wall = wall_now(), cpu = cpu_now();
    while (another(&taken, PIECES))
        work_while_others_take();
    me->seconds = (wall_now() - wall) - (cpu_now() - cpu);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("stolen", run_crew(n, worker, 1).seconds);
}
