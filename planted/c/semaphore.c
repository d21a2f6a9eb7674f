/* A pool of n/2 licences guarded by a POSIX semaphore; the work needs one 5/6 of the time. */
#include "planted.h"
#include <semaphore.h>

enum { OPS = 400, LICENSED = 1200, ALONE = 240 };

static sem_t licences;
static long taken;

NOINLINE static double borrow_a_licence(void)
{
    double since = wall_now();
    while (sem_wait(&licences) != 0)
        ;
    return wall_now() - since;
}

NOINLINE static void use_the_licence(void) { burn(LICENSED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void engineer(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += borrow_a_licence();
        use_the_licence();
        sem_post(&licences);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    sem_init(&licences, 0, n > 1 ? (unsigned)n / 2 : 1);
    tell("lock-wait", run_crew(n, engineer, 1).seconds);
}
