// Rounds with a known wait for what the C++ library builds on futexes by itself, and for its locks around those of
// pthreads, of which the names are the library's where code is inlined; see rounds.h.
#include "rounds.h"
#include <barrier>
#include <chrono>
#include <deque>
#include <latch>
#include <mutex>
#include <semaphore>
#include <shared_mutex>

/* Beside others who waits comes to sleep late. */
enum { LONG = 5 * HOLD_UNITS };

static std::counting_semaphore<> tickets(0);
static std::barrier<> gate(2);
static std::deque<std::latch> latches;
static std::shared_mutex register_of_names;
static std::timed_mutex kiosk;

static void hold_tickets(int round)
{
    announce(round);
    burn(LONG);
    tickets.release();
}

NOINLINE static void want_ticket(int)
{
    tickets.acquire();
    __asm__ volatile("");
}

static void hold_gate(int round)
{
    announce(round);
    burn(LONG);
    gate.arrive_and_wait();
}

NOINLINE static void want_gate(int)
{
    gate.arrive_and_wait();
    __asm__ volatile("");
}

static void prepare_latches()
{
    for (int round = 0; round <= rounds; round++)
        latches.emplace_back(1);
}

static void hold_latch(int round)
{
    announce(round);
    burn(LONG);
    latches[round].count_down();
}

NOINLINE static void want_latch(int round)
{
    latches[round].wait();
    __asm__ volatile("");
}

static void hold_register_for_writing(int round)
{
    std::unique_lock writes(register_of_names);
    announce(round);
    burn(HOLD_UNITS);
}

NOINLINE static void want_to_read(int) { std::shared_lock reads(register_of_names); }

static void hold_register_for_reading(int round)
{
    std::shared_lock reads(register_of_names);
    announce(round);
    burn(HOLD_UNITS);
}

NOINLINE static void want_to_write(int) { std::unique_lock writes(register_of_names); }

static void hold_kiosk(int round)
{
    std::unique_lock serves(kiosk);
    announce(round);
    burn(HOLD_UNITS);
}

NOINLINE static void want_kiosk(int) { std::unique_lock waits(kiosk, std::chrono::minutes(1)); }

static const struct family families[] = {
    { "semaphore", none, hold_tickets, want_ticket, YIELDS },
    { "barrier", none, hold_gate, want_gate, YIELDS },
    { "latch", prepare_latches, hold_latch, want_latch, YIELDS },
    { "shared-read", none, hold_register_for_writing, want_to_read, SLEEPS },
    { "shared-write", none, hold_register_for_reading, want_to_write, SLEEPS },
    { "timed-mutex", none, hold_kiosk, want_kiosk, SLEEPS },
};

int main(int argc, char **argv) { return RUN_ROUNDS(families, argc, argv); }
