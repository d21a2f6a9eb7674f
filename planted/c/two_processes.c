/* Two causes in processes: a bare futex in shared memory, then naps between the work. */
#include "planted.h"
#include "raw_futex.h"

enum { OPS = 150, LOCKED = 1500, ALONE = 250, CHUNKS = 48, CHUNK = 1250, NAP_US = 2000 };

static uint32_t *scales;
static long *weighed, *carried;

NOINLINE static double lock_the_common_scales(void)
{
    double since = wall_now();
    raw_lock(scales, 0);
    return wall_now() - since;
}

NOINLINE static double nap_between_loads(void)
{
    double since = wall_now();
    usleep(NAP_US);
    return wall_now() - since;
}

NOINLINE static void weigh_a_load(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }
NOINLINE static void carry_a_load(void) { burn(CHUNK); }

static void porter(Member *me)
{
    while (another(weighed, OPS)) {
        me->seconds += lock_the_common_scales();
        weigh_a_load();
        raw_unlock(scales, 0);
        think_alone();
    }
    while (another(carried, CHUNKS)) {
        carry_a_load();
        me->more += nap_between_loads();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    scales = (uint32_t *)shared_memory(4096);
    weighed = (long *)shared_memory(4096);
    carried = (long *)shared_memory(4096);
    Sums sums = run_children(n, porter);
    tell("lock-wait", sums.seconds);
    tell("sleep", sums.more);
}
