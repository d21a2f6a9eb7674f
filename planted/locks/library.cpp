// Rounds with a known wait for what the C++ library builds on futexes by itself; see rounds.h. Its mutexes are those
// of pthreads.
#include "rounds.h"
#include <barrier>
#include <semaphore>

/* Beside others who waits comes to sleep late. */
enum { LONG = 5 * HOLD_UNITS };

static std::counting_semaphore<> tickets(0);
static std::barrier<> gate(2);

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

static const struct family families[] = {
    { "semaphore", none, hold_tickets, want_ticket, YIELDS },
    { "barrier", none, hold_gate, want_gate, YIELDS },
};

int main(int argc, char **argv) { return RUN_ROUNDS(families, argc, argv); }
