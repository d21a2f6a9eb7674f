/* A mutex with priority inheritance: while its holder runs, the kernel spins for it. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300 };

static pthread_mutex_t throne;
static long taken;

NOINLINE static double ask_for_the_throne(void)
{
    double since = wall_now();
    pthread_mutex_lock(&throne);
    return wall_now() - since;
}

NOINLINE static void rule(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void heir(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += ask_for_the_throne();
        rule();
        pthread_mutex_unlock(&throne);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pthread_mutexattr_t inherits;
    pthread_mutexattr_init(&inherits);
    if (pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT) != 0 ||
        pthread_mutex_init(&throne, &inherits) != 0)
        die("priority inheritance");
    tell("kernel-lock", run_crew(n, heir, 1).seconds);
}
