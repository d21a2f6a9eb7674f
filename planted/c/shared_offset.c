/* All threads read on through one open file: its offset has a lock, held while copying. */
#include "planted.h"

enum { READS = 14000, ALONE = 6 };
static const size_t CHUNK = 512u << 10;

static int tape;
static long taken;

NOINLINE static void read_on_from_the_tape(void *into)
{
    double since = wall_now();
    ssize_t got = read(tape, into, CHUNK);
    if (got == 0 && lseek(tape, 0, SEEK_SET) != 0)
        die("lseek");
    stayed_since(since);
}

NOINLINE static void think_alone(void) { burn(ALONE); }

static void reader(Member *me)
{
    (void)me;
    void *chunk = malloc(CHUNK);
    memset(chunk, 1, CHUNK);
    while (another(&taken, READS)) {
        read_on_from_the_tape(chunk);
        think_alone();
    }
    free(chunk);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    char *line = (char *)calloc(1, CHUNK);
    /* The offset of a memfd is not locked. */
    tape = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    if (tape < 0)
        die("/dev/shm");
    for (int i = 0; i < 8; i++)
        if (write(tape, line, CHUNK) != (ssize_t)CHUNK)
            die("write");
    lseek(tape, 0, SEEK_SET);
    begin_stays(READS);
    run_crew(n, reader, 1);
    tell("kernel-lock", waited_for_each_other());
}
