/* One server process, n - 1 clients on Unix sockets. A client thinks while the server
 * answers, but the answer takes three times as long. */
#include "planted.h"
#include <sys/socket.h>

enum { REQUESTS = 180, ANSWERING = 2400, THINKING = 800 };

static int requests[2];
static int (*answers)[2];

NOINLINE static double await_the_answer(int fd)
{
    int answer;
    double since = wall_now();
    if (recv(fd, &answer, sizeof answer, 0) != sizeof answer)
        die("recv");
    return wall_now() - since;
}

NOINLINE static double await_a_request(int *from)
{
    double since = wall_now();
    if (recv(requests[0], from, sizeof *from, 0) != sizeof *from)
        die("recv");
    return wall_now() - since;
}

static void post(int fd, int value)
{
    if (send(fd, &value, sizeof value, 0) != sizeof value)
        die("send");
}

NOINLINE static void answer_a_request(void) { burn(ANSWERING); }
NOINLINE static void think_meanwhile(void) { burn(THINKING); }

static void server(Member *me)
{
    for (int i = 0; i < REQUESTS; i++) {
        int from;
        me->seconds += await_a_request(&from);
        answer_a_request();
        post(answers[from][0], i);
    }
}

static void client(Member *me)
{
    for (long i = share(REQUESTS, me->id - 1, me->n - 1); i > 0; i--) {
        post(requests[1], me->id);
        think_meanwhile();
        me->seconds += await_the_answer(answers[me->id][1]);
    }
}

static void actor(Member *me)
{
    if (me->n == 1) {
        for (int i = 0; i < REQUESTS; i++) {
            think_meanwhile();
            answer_a_request();
        }
    } else if (me->id == 0) {
        server(me);
    } else {
        client(me);
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    raise_open_files();
    answers = (int(*)[2])calloc((size_t)n, sizeof *answers);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, requests) != 0)
        die("socketpair");
    for (int i = 1; i < n; i++)
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, answers[i]) != 0)
            die("socketpair");
    tell("partner", run_children(n, actor).seconds);
}
