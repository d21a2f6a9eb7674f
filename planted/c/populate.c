/* Threads map and unmap populated memory: who populates holds the address-space lock for
 * reading, and who wants to map meanwhile sleeps. */
#include "planted.h"

enum { ROUNDS = 160, ALONE = 300 };
static const size_t ARENA = 8u << 20;
static long taken;

NOINLINE static double map_a_ready_arena(void)
{
    double since = wall_now() - cpu_now();
    void *arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (arena == MAP_FAILED || munmap(arena, ARENA) != 0)
        die("mmap");
    return wall_now() - cpu_now() - since;
}

NOINLINE static void think_alone(void) { burn(ALONE); }

static void tenant(Member *me)
{
    double queued = queued_now();
    while (another(&taken, ROUNDS)) {
        me->seconds += map_a_ready_arena();
        think_alone();
    }
    me->seconds -= queued_now() - queued;
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("mmap-lock", run_crew(n, tenant, 1).seconds);
}
