// Waits for the other's number with a time limit: the clock is read in each round, and takes most of the time.
#include "../c/planted.h"
#include <atomic>
#include <chrono>

enum { ROUNDS = 400, PREPARING = 900, SERVING = 300 };

static std::atomic<long> called;

NOINLINE static bool listen_for_the_number(long number)
{
    auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (called.load(std::memory_order_acquire) < number)
        if (std::chrono::steady_clock::now() > limit)
            return false;
    return true;
}

NOINLINE static void prepare_the_counter() { burn(PREPARING); }
NOINLINE static void serve_the_customer() { burn(SERVING); }

static void clerk(Member *me)
{
    for (long number = 1; number <= ROUNDS; number++) {
        prepare_the_counter();
        called.store(number, std::memory_order_release);
        if (me->n == 1)
            serve_the_customer();
    }
}

static void customer(Member *me)
{
    // All but one go home at once: the others' CPUs would be idle.
    if (me->id > 1)
        return;
    for (long number = 1; number <= ROUNDS; number++) {
        double since = cpu_now();
        if (!listen_for_the_number(number))
            die("nobody calls");
        me->seconds += cpu_now() - since;
        serve_the_customer();
    }
}

static void anybody(Member *me)
{
    if (me->id == 0)
        clerk(me);
    else
        customer(me);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("user-spin", run_crew(n, anybody, 1).seconds);
}
