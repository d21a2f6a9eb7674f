/* A test-and-set spin lock with PAUSE, held for 3/4 of the work. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300 };

static char latch;
static long taken;

NOINLINE static double grab_the_latch(void)
{
    double since = cpu_now();
    while (__atomic_test_and_set(&latch, __ATOMIC_ACQUIRE)) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    return cpu_now() - since;
}

NOINLINE static void change_the_table(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void editor(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += grab_the_latch();
        change_the_table();
        __atomic_clear(&latch, __ATOMIC_RELEASE);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("user-spin", run_crew(n, editor, 1).seconds);
}
