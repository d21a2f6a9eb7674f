// Scales perfectly: std::thread, and the main thread only joins.
#include "../c/planted.h"
#include <thread>
#include <vector>

static long taken;

NOINLINE static void fold_my_rows()
{
    while (another(&taken, 5000))
        burn(120);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    std::vector<std::thread> crew;
    for (int id = 0; id < n; id++)
        crew.emplace_back(fold_my_rows);
    for (auto &thread : crew)
        thread.join();
    tell("none", 0);
}
