/* Every thread computes the same table for itself before its share of the rest. */
#include "planted.h"

enum { COMMON = 250000, PARALLEL = 300000, PIECE = 200 };

NOINLINE static double redo_the_common_table(void)
{
    double since = cpu_now();
    burn(COMMON);
    return cpu_now() - since;
}

static long taken;

NOINLINE static void do_my_share(void)
{
    while (another(&taken, PARALLEL / PIECE))
        burn(PIECE);
}

static void student(Member *me)
{
    me->seconds = redo_the_common_table();
    do_my_share();
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("extra-work", run_crew(n, student, 1).seconds);
}
