// A std::mutex held for 5/6 of the work.
#include "../c/planted.h"
#include <mutex>
#include <thread>
#include <vector>

enum { OPS = 400, LOCKED = 1200, ALONE = 240 };

static long taken;

class Inventory {
  public:
    NOINLINE double lock_the_inventory()
    {
        double since = wall_now();
        mutex_.lock();
        return wall_now() - since;
    }
    NOINLINE void recount() { burn(LOCKED); }
    void unlock() { mutex_.unlock(); }

  private:
    std::mutex mutex_;
};

NOINLINE static void think_alone() { burn(ALONE); }

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    Inventory inventory;
    std::vector<double> waited(n);
    std::vector<std::thread> crew;
    for (int id = 0; id < n; id++)
        crew.emplace_back([&, id] {
            double sum = 0;
            while (another(&taken, OPS)) {
                sum += inventory.lock_the_inventory();
                inventory.recount();
                inventory.unlock();
                think_alone();
            }
            waited[id] = sum;
        });
    for (auto &thread : crew)
        thread.join();
    double sum = 0;
    for (double one : waited)
        sum += one;
    tell("lock-wait", sum);
}
