/* Threads poll a flag, with neither PAUSE nor system call, until a serial part is done. */
#include "planted.h"

enum { SERIAL = 240000, PARALLEL = 360000, PIECE = 200 };

static volatile int go_ahead;

NOINLINE static double stare_at_the_flag(void)
{
    double since = cpu_now();
    while (!go_ahead)
        ;
    return cpu_now() - since;
}

NOINLINE static void prepare_for_all(void) { burn(SERIAL); }
static long taken;

NOINLINE static void do_my_share(void)
{
    while (another(&taken, PARALLEL / PIECE))
        burn(PIECE);
}

static void racer(Member *me)
{
    if (me->id == 0) {
        prepare_for_all();
        go_ahead = 1;
    } else {
        me->seconds = stare_at_the_flag();
    }
    do_my_share();
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("user-spin", run_crew(n, racer, 1).seconds);
}
