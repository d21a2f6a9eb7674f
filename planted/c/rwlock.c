/* A reader-writer lock that is mostly taken for writing: writers exclude each other. */
#include "planted.h"

enum { OPS = 400, WRITING = 1200, ALONE = 240 };

static pthread_rwlock_t catalogue = PTHREAD_RWLOCK_INITIALIZER;
static long taken;

NOINLINE static double lock_the_catalogue_for_writing(void)
{
    double since = wall_now();
    pthread_rwlock_wrlock(&catalogue);
    return wall_now() - since;
}

NOINLINE static void rewrite_the_catalogue(void) { burn(WRITING); }
NOINLINE static void think_alone(void) { burn(ALONE); }

static void librarian(Member *me)
{
    while (another(&taken, OPS)) {
        me->seconds += lock_the_catalogue_for_writing();
        rewrite_the_catalogue();
        pthread_rwlock_unlock(&catalogue);
        think_alone();
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("lock-wait", run_crew(n, librarian, 0).seconds);
}
