/* All threads write to one file: the kernel holds the inode's lock while it copies. */
#include "planted.h"

enum { WRITES = 5000, ALONE = 30 };
static const size_t RECORD = 1u << 20;

static int chronicle;
static long taken;

NOINLINE static void write_to_the_one_file(const void *record, long slot)
{
    double since = wall_now();
    if (pwrite(chronicle, record, RECORD, (off_t)(slot * (long)RECORD)) != (ssize_t)RECORD)
        die("pwrite");
    stayed_since(since);
}

NOINLINE static void think_alone(void) { burn(ALONE); }

static void chronicler(Member *me)
{
    char *record = (char *)malloc(RECORD);
    memset(record, me->id, RECORD);
    while (another(&taken, WRITES)) {
        write_to_the_one_file(record, me->id);
        think_alone();
    }
    free(record);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    chronicle = memfd_create("chronicle", MFD_CLOEXEC);
    if (chronicle < 0)
        die("memfd_create");
    begin_stays(WRITES);
    run_crew(n, chronicler, 1);
    tell("kernel-lock", waited_for_each_other());
}
