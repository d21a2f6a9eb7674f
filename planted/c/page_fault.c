/* Every process touches the same amount of fresh memory, however many there are, so the
 * faults grow with the CPUs while the work proper is shared. Processes, because threads
 * would also share the address-space lock. */
#include "planted.h"

enum { ROUNDS = 80, WORK = 260000 };
static const size_t FRESH = 8u << 20, PAGE = 4096;

NOINLINE static double touch_fresh_pages(char *memory)
{
    double since = cpu_now();
    for (size_t at = 0; at < FRESH; at += PAGE)
        ((volatile char *)memory)[at] = 1;
    return cpu_now() - since;
}

NOINLINE static void do_my_share(uint64_t units) { burn(units); }

static void settler(Member *me)
{
    char *memory = (char *)mmap(NULL, FRESH, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    madvise(memory, FRESH, MADV_NOHUGEPAGE);
    for (int round = 0; round < ROUNDS; round++) {
        me->seconds += touch_fresh_pages(memory);
        madvise(memory, FRESH, MADV_DONTNEED);
        do_my_share((uint64_t)(WORK / ROUNDS / me->n));
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("page-fault", run_children(n, settler).seconds);
}
