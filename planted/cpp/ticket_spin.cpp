// A ticket lock: first come, first served, everybody spins.
#include "../c/planted.h"
#include <atomic>
#include <thread>
#include <vector>

enum { OPS = 480, LOCKED = 1000, ALONE = 200 };

static long taken;

class TicketLock {
  public:
    NOINLINE double draw_a_ticket_and_wait()
    {
        double since = cpu_now();
        unsigned mine = next_.fetch_add(1, std::memory_order_relaxed);
        while (serving_.load(std::memory_order_acquire) != mine) {
#ifdef __x86_64__
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
        return cpu_now() - since;
    }
    void leave() { serving_.fetch_add(1, std::memory_order_release); }

  private:
    alignas(64) std::atomic<unsigned> next_{0};
    alignas(64) std::atomic<unsigned> serving_{0};
};

NOINLINE static void be_served() { burn(LOCKED); }
NOINLINE static void think_alone() { burn(ALONE); }

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    static TicketLock counter;
    std::vector<double> spun(n);
    std::vector<std::thread> crew;
    for (int id = 0; id < n; id++)
        crew.emplace_back([&, id] {
            double sum = 0;
            while (another(&taken, OPS)) {
                sum += counter.draw_a_ticket_and_wait();
                be_served();
                counter.leave();
                think_alone();
            }
            spun[id] = sum;
        });
    for (auto &thread : crew)
        thread.join();
    double sum = 0;
    for (double one : spun)
        sum += one;
    tell("user-spin", sum);
}
