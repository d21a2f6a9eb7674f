/* All threads create and remove files in one directory, whose lock the kernel holds meanwhile. */
#include "planted.h"
#include <sys/stat.h>

enum { FILES = 110000, ALONE = 0 };

static int directory;

NOINLINE static double rename_in_the_one_directory(const char *from, const char *to)
{
    double since = wall_now();
    if (renameat(directory, from, directory, to) != 0)
        die(from);
    return wall_now() - since;
}

NOINLINE static void think_alone(void) { burn(ALONE); }

static void registrar(Member *me)
{
    char name[2][32];
    snprintf(name[0], sizeof name[0], "entry-%d", me->id);
    snprintf(name[1], sizeof name[1], "renamed-%d", me->id);
    close(openat(directory, name[0], O_CREAT | O_EXCL | O_WRONLY, 0600));
    for (long i = share(FILES, me->id, me->n); i > 0; i--) {
        me->seconds += rename_in_the_one_directory(name[i&1], name[!(i&1)]);
        think_alone();
    }
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
