/* A home-made lock on a bare futex: no libc symbol names it. Linked statically. */
#include "planted.h"
#include "raw_futex.h"

enum { OPS = 480, LOCKED = 1000, ALONE = 200 };

static uint32_t vault;
static long taken;

NOINLINE static double open_the_vault(void)
{
    double since = wall_now();
    raw_lock(&vault, FUTEX_PRIVATE_FLAG);
    return wall_now() - since;
}

NOINLINE static void close_the_vault(void)
{
    raw_unlock(&vault, FUTEX_PRIVATE_FLAG);
}

NOINLINE static void count_the_coins(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void guard(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += open_the_vault();
        count_the_coins();
        close_the_vault();
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("lock-wait", run_crew(n, guard, 1).seconds);
}
