/* libc's own spin lock, held for 4/5 of the work. */
#include "planted.h"

enum { OPS = 400, LOCKED = 1200, ALONE = 300 };

static pthread_spinlock_t turnstile;
static long taken;

NOINLINE static double push_the_turnstile(void)
{
    double since = cpu_now();
    pthread_spin_lock(&turnstile);
    return cpu_now() - since;
}

NOINLINE static void pass_the_turnstile(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void visitor(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += push_the_turnstile();
        pass_the_turnstile();
        pthread_spin_unlock(&turnstile);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pthread_spin_init(&turnstile, PTHREAD_PROCESS_PRIVATE);
    tell("user-spin", run_crew(n, visitor, 1).seconds);
}
