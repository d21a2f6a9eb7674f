/* A dispatcher prepares orders and posts them on an eventfd; n - 1 waiters sit in
 * epoll_wait and need a third of the dispatcher's time per order. */
#include "planted.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

enum { ORDERS = 200, PREPARING = 2100, SERVING = 700 };

static int bell;
static long served;

NOINLINE static double wait_for_the_bell(int epoll)
{
    struct epoll_event event;
    double since = wall_now();
    while (epoll_wait(epoll, &event, 1, -1) < 0 && errno == EINTR)
        ;
    return wall_now() - since;
}

NOINLINE static void prepare_an_order(void) { burn(PREPARING); }
NOINLINE static void serve_an_order(void) { burn(SERVING); }

static void ring(uint64_t times)
{
    if (write(bell, &times, sizeof times) != sizeof times)
        die("write");
}

static void kitchen(Member *me)
{
    for (int i = 0; i < ORDERS; i++) {
        prepare_an_order();
        if (me->n == 1)
            serve_an_order();
        else
            ring(1);
    }
    ring((uint64_t)me->n); /* one more for each waiter: go home */
}

static void waiter(Member *me)
{
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = bell}};
    uint64_t one;
    epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &event);
    for (;;) {
        me->seconds += wait_for_the_bell(epoll);
        if (read(bell, &one, sizeof one) != sizeof one)
            continue; /* another waiter was faster */
        if (!another(&served, ORDERS))
            break;
        serve_an_order();
    }
    close(epoll);
}

static void staff(Member *me)
{
    if (me->id == 0)
        kitchen(me);
    else
        waiter(me);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    bell = eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK);
    if (bell < 0)
        die("eventfd");
    tell("partner", run_crew(n, staff, 1).seconds);
}
