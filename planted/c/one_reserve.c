/* All threads reserve and give back space in one file: both hold the inode's lock throughout. */
#include "planted.h"
#include <linux/falloc.h>

enum { RESERVATIONS = 700 };
static const off_t SPACE = 4 << 20;

static int granary;
static long taken;

NOINLINE static void reserve_in_the_one_granary(off_t from)
{
    double since = wall_now();
    if (fallocate(granary, FALLOC_FL_KEEP_SIZE, from, SPACE) != 0 ||
        fallocate(granary, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, from, SPACE) != 0)
        die("fallocate");
    stayed_since(since);
}

static void farmer(Member *me)
{
    while (another(&taken, RESERVATIONS))
        reserve_in_the_one_granary(me->id * SPACE);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    granary = memfd_create("granary", MFD_CLOEXEC);
    if (granary < 0)
        die("memfd_create");
    begin_stays(RESERVATIONS);
    run_crew(n, farmer, 1);
    tell("kernel-lock", waited_for_each_other());
}
