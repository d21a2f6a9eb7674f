// A smith hands pieces over a condition variable; the polishers need a third of his time.
#include "../c/planted.h"
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

enum { PIECES = 200, FORGING = 2100, POLISHING = 700 };

static std::mutex bench;
static std::condition_variable something_on_it;
static int on_the_bench = 0;
static bool closed = false;

// False when there will be no more.
NOINLINE static bool wait_for_a_piece(double &waited)
{
    std::unique_lock<std::mutex> held(bench);
    double since = wall_now();
    something_on_it.wait(held, [] { return on_the_bench > 0 || closed; });
    waited += wall_now() - since;
    if (on_the_bench == 0)
        return false;
    on_the_bench--;
    return true;
}

NOINLINE static void forge_a_piece() { burn(FORGING); }
NOINLINE static void polish_a_piece() { burn(POLISHING); }

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    std::vector<double> waited(n);
    std::vector<std::thread> polishers;
    for (int id = 1; id < n; id++)
        polishers.emplace_back([&, id] {
            double sum = 0;
            while (wait_for_a_piece(sum))
                polish_a_piece();
            waited[id] = sum;
        });
    for (int i = 0; i < PIECES; i++) {
        forge_a_piece();
        if (n == 1) {
            polish_a_piece();
        } else {
            std::lock_guard<std::mutex> held(bench);
            on_the_bench++;
            something_on_it.notify_one();
        }
    }
    {
        std::lock_guard<std::mutex> held(bench);
        closed = true;
        something_on_it.notify_all();
    }
    for (auto &thread : polishers)
        thread.join();
    double sum = 0;
    for (double one : waited)
        sum += one;
    tell("partner", sum);
}
