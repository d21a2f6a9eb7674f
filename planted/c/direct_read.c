/* Reads of one device block each that bypass the page cache, with little work between. */
#include "planted.h"

enum { READS = 4000, BLOCK = 65536, BLOCKS = 256, DIGEST = 60 };

static int archive;
static long taken;

NOINLINE static double read_a_cold_block(void *into, long block)
{
    double since = wall_now() - cpu_now();
    if (pread(archive, into, BLOCK, block * BLOCK) != BLOCK)
        die("pread");
    return wall_now() - cpu_now() - since;
}

NOINLINE static void digest_the_block(void) { burn(DIGEST); }

static void archivist(Member *me)
{
    void *page;
    if (posix_memalign(&page, 4096, BLOCK) != 0)
        die("posix_memalign");
    for (long i = 0; another(&taken, READS); i++) {
        me->seconds += read_a_cold_block(page, (i * 97 + me->id * 31) % BLOCKS);
        digest_the_block();
    }
    free(page);
}

int main(int argc, char **argv)
{
    char path[4096];
    int n = begin(argc, argv);
    beside_me("blocks.dat", path, sizeof path);
    archive = open(path, O_RDONLY | O_DIRECT);
    if (archive < 0)
        die(path);
    tell("io", run_crew(n, archivist, 1).seconds);
}
