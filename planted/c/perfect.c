/* Scales perfectly: each thread does its share of the work and meets nobody. */
#include "planted.h"

enum { PIECES = 5000 };

static long taken;

NOINLINE static void do_my_share(Member *me)
{
    (void)me;
    while (another(&taken, PIECES))
        burn(120);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    run_crew(n, do_my_share, 1);
    tell("none", 0);
}
