// The main thread pins itself to one CPU and its threads inherit that, as happens to
// users of libraries that pin "only themselves".
#include "../c/planted.h"
#include <sched.h>
#include <thread>
#include <vector>

enum { WORK = 500000 };

NOINLINE static void work_where_i_was_born(uint64_t units) { burn(units); }

static void pin_to_first_allowed_cpu()
{
    const size_t most = 8 * CPU_SETSIZE, bytes = CPU_ALLOC_SIZE(most);
    cpu_set_t *set = CPU_ALLOC(most);
    if (sched_getaffinity(0, bytes, set) != 0)
        die("sched_getaffinity");
    size_t cpu = 0;
    while (!CPU_ISSET_S(cpu, bytes, set))
        cpu++;
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(cpu, bytes, set);
    if (sched_setaffinity(0, bytes, set) != 0)
        die("sched_setaffinity");
    CPU_FREE(set);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    pin_to_first_allowed_cpu();
    double since = wall_now();
    std::vector<std::thread> crew;
    for (int id = 0; id < n; id++)
        crew.emplace_back([=] { work_where_i_was_born(uint64_t(share(WORK, id, n))); });
    for (auto &thread : crew)
        thread.join();
    tell("placement", (n - 1) * (wall_now() - since));
}
