/* Not a case: the stranger beside one. `hog --cpu N` keeps CPU N busy until it is killed,
 * its parent dies, or two minutes have passed. */
#include "planted.h"
#include <sched.h>

NOINLINE static void take_the_cpu_away(void) { burn(1000); }

int main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], "--cpu") != 0) {
        fprintf(stderr, "usage: %s --cpu N\n", argv[0]);
        return 2;
    }
    int cpu = atoi(argv[2]);
    cpu_set_t *set = CPU_ALLOC(CPU_SETSIZE * 8);
    size_t bytes = CPU_ALLOC_SIZE(CPU_SETSIZE * 8);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(cpu, bytes, set);
    if (sched_setaffinity(0, bytes, set) != 0)
        die("sched_setaffinity");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    for (;;)
        take_the_cpu_away();
}
