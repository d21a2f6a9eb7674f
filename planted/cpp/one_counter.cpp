// One atomic counter for all threads: the same instructions, but its cache line travels.
#include "../c/planted.h"
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

enum { HITS = 60000000, RUN_OF_HITS = 20000, WORK = 320000, PIECE = 200 };

alignas(64) static std::atomic<uint64_t> visitors{0};
alignas(64) static long counted;
alignas(64) static long taken;

NOINLINE static double count_every_visitor()
{
    double since = cpu_now();
    while (another(&counted, HITS / RUN_OF_HITS))
        for (int i = 0; i < RUN_OF_HITS; i++)
            visitors.fetch_add(1, std::memory_order_relaxed);
    return cpu_now() - since;
}

NOINLINE static void do_my_share()
{
    while (another(&taken, WORK / PIECE))
        burn(PIECE);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    std::barrier<> together(n);
    std::vector<double> spent(n);
    std::vector<std::thread> crew;
    for (int id = 0; id < n; id++)
        crew.emplace_back([&, id] {
            together.arrive_and_wait();
            spent[id] = count_every_visitor();
            do_my_share();
        });
    for (auto &thread : crew)
        thread.join();
    double sum = 0;
    for (double one : spent)
        sum += one;
    tell("slow-work", sum);
}
