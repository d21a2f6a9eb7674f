/* Small overwrites that wait for the device: O_DSYNC, one file per process. */
#include "planted.h"

enum { WRITES = 2500, RECORD = 4096, RECORDS = 64, COMPOSE = 40 };

static long *taken;

NOINLINE static double commit_a_record(int fd, const void *record, long slot)
{
    double since = wall_now() - cpu_now();
    if (pwrite(fd, record, RECORD, slot * RECORD) != RECORD)
        die("pwrite");
    return wall_now() - cpu_now() - since;
}

NOINLINE static void compose_a_record(void) { burn(COMPOSE); }

static void scribe(Member *me)
{
    static char record[RECORD];
    char name[64], path[4096];
    snprintf(name, sizeof name, "journal.%d.tmp", (int)getpid());
    beside_me(name, path, sizeof path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DSYNC, 0600);
    if (fd < 0 || unlink(path) != 0)
        die(path);
    for (long slot = 0; slot < RECORDS; slot++)
        me->seconds += commit_a_record(fd, record, slot);
    for (long i = 0; another(taken, WRITES); i++) {
        compose_a_record();
        me->seconds += commit_a_record(fd, record, i % RECORDS);
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    taken = (long *)shared_memory(sizeof *taken);
    tell("io", run_children(n, scribe).seconds);
}
