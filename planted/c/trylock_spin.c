/* A mutex that is only ever tried: the loop is the program's, the instructions are mostly libc's. */
#include "planted.h"

enum { OPS = 480, LOCKED = 900, ALONE = 300 };

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static long taken;

NOINLINE static double rattle_at_the_door(void)
{
    double since = cpu_now();
    while (pthread_mutex_trylock(&door) != 0)
        ;
    return cpu_now() - since;
}

NOINLINE static void work_inside(void) { burn(LOCKED); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void guest(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += rattle_at_the_door();
        work_inside();
        pthread_mutex_unlock(&door);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("user-spin", run_crew(n, guest, 1).seconds);
}
