/* 40 % of the work in one process, then the rest in n children: Amdahl's law. */
#include "planted.h"

enum { SERIAL = 240000, PARALLEL = 360000, PIECE = 200 };

static long *taken;

NOINLINE static void read_the_whole_plan(void) { burn(SERIAL); }

NOINLINE static void build_my_part(Member *me)
{
    (void)me;
    while (another(taken, PARALLEL / PIECE))
        burn(PIECE);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    taken = (long *)shared_memory(sizeof *taken);
    double since = wall_now();
    read_the_whole_plan();
    double serial = wall_now() - since;
    run_children(n, build_my_part);
    tell("serial", (n - 1) * serial);
}
