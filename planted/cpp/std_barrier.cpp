// std::barrier between phases of which one thread has three times its part.
#include "../c/planted.h"
#include <barrier>
#include <thread>
#include <vector>

enum { PHASES = 150, PHASE = 4000, HEAVY = 3 };

NOINLINE static double line_up_again(std::barrier<> &line)
{
    double since = wall_now();
    line.arrive_and_wait();
    return wall_now() - since;
}

NOINLINE static void swim_a_lane(bool heavy, int n)
{
    burn(uint64_t(PHASE) * (heavy ? HEAVY : 1) / uint64_t(n - 1 + HEAVY));
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    std::barrier<> line(n);
    std::vector<double> waited(n);
    std::vector<std::thread> crew;
    for (int id = 0; id < n; id++)
        crew.emplace_back([&, id] {
            double sum = 0;
            for (int phase = 0; phase < PHASES; phase++) {
                swim_a_lane(phase % n == id, n);
                sum += line_up_again(line);
            }
            waited[id] = sum;
        });
    for (auto &thread : crew)
        thread.join();
    double sum = 0;
    for (double one : waited)
        sum += one;
    tell("barrier", sum);
}
