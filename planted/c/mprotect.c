/* Threads flip the protection of big mappings: each flip holds the address-space lock
 * for as long as it walks the pages. */
#include "planted.h"

enum { FLIPS = 1800, ALONE = 80 };
static const size_t ARENA = 16u << 20;

static long taken;

NOINLINE static void flip_the_protection(char *arena, int protection)
{
    double since = wall_now();
    if (mprotect(arena, ARENA, protection) != 0)
        die("mprotect");
    stayed_since(since);
}

NOINLINE static void think_alone(void) { burn(ALONE); }

static void collector(Member *me)
{
    (void)me;
    char *arena = (char *)mmap(NULL, ARENA + 4096, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED)
        die("mmap");
    madvise(arena, ARENA, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < ARENA; at += 4096)
        ((volatile char *)arena)[at] = 1;
    for (int flips = 0; another(&taken, FLIPS); flips++) {
        flip_the_protection(arena, flips % 2 ? PROT_READ | PROT_WRITE : PROT_READ);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    begin_stays(FLIPS);
    run_crew(n, collector, 1);
    tell("mmap-lock", waited_for_each_other());
}
