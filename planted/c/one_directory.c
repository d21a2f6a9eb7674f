/* All threads rename files in one directory, whose lock the kernel holds meanwhile. */
#include "planted.h"
#include <sys/stat.h>

enum { RENAMES = 110000 };

static int directory;
static long taken;

NOINLINE static double rename_in_the_one_directory(const char *from, const char *to)
{
    double since = wall_now();
    if (renameat(directory, from, directory, to) != 0)
        die(from);
    return wall_now() - since;
}

static void registrar(Member *me)
{
    char name[2][32];
    int turn = 0;
    snprintf(name[0], sizeof name[0], "entry-%d", me->id);
    snprintf(name[1], sizeof name[1], "renamed-%d", me->id);
    close(openat(directory, name[0], O_CREAT | O_EXCL | O_WRONLY, 0600));
    for (; another(&taken, RENAMES); turn = !turn) {
        me->seconds += rename_in_the_one_directory(name[turn], name[!turn]);
    }
    unlinkat(directory, name[turn], 0);
}

int main(int argc, char **argv)
{
    char folder[] = "/dev/shm/planted-XXXXXX";
    int n = begin(argc, argv);
    if (!mkdtemp(folder))
        die(folder);
    directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    double seconds = run_crew(n, registrar, 1).seconds;
    rmdir(folder);
    tell("kernel-lock", seconds);
}
