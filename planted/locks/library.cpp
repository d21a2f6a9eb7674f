// Rounds with a known wait for what the C++ library builds on futexes by itself; see rounds.h. Its mutexes are those
// of pthreads.
#include "rounds.h"
#include <barrier>
#include <semaphore>

static std::counting_semaphore<> tickets(0);
static std::barrier<> gate(2);

static void hold_tickets(int round)
{
    announce(round);
    burn(HOLD_UNITS);
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
    burn(HOLD_UNITS);
    gate.arrive_and_wait();
}

NOINLINE static void want_gate(int)
{
    gate.arrive_and_wait();
    __asm__ volatile("");
}

static const struct family families[] = {
    { "semaphore", none, hold_tickets, want_ticket, SLEEPS },
    { "barrier", none, hold_gate, want_gate, SLEEPS },
};

int main(int argc, char **argv) { return RUN_ROUNDS(families, argc, argv); }
