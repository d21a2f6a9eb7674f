/* Every thread asks the kernel for the same data, however many threads there are. */
#include "planted.h"

enum { ASKS = 160000, WORK = 260000, ANSWER = 64 << 10 };

static int source;

NOINLINE static double ask_the_kernel_again(char *answer, long times)
{
    double since = cpu_now();
    for (; times > 0; times--)
        if (read(source, answer, ANSWER) != ANSWER)
            die("read");
    return cpu_now() - since;
}

NOINLINE static void do_my_share(uint64_t units) { burn(units); }

static void petitioner(Member *me)
{
    char *answer = (char *)malloc(ANSWER);
    for (int i = 0; i < 20; i++) {
        me->seconds += ask_the_kernel_again(answer, ASKS / 20);
        do_my_share((uint64_t)(WORK / 20 / me->n));
    }
    free(answer);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    source = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (source < 0)
        die("/dev/zero");
    tell("extra-kernel", run_crew(n, petitioner, 1).seconds);
}
