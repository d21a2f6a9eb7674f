/* A ring of processes that pass one token through pipes: only who holds it works. */
#include "planted.h"

enum { HOPS = 512, HOP = 1200 };

static int (*pipes)[2];

NOINLINE static double await_the_token(int fd)
{
    char token;
    double since = wall_now();
    if (read(fd, &token, 1) != 1)
        die("read");
    return wall_now() - since;
}

NOINLINE static void pass_the_token(int fd)
{
    if (write(fd, "t", 1) != 1)
        die("write");
}

NOINLINE static void run_my_lap(void) { burn(HOP); }

static void runner(Member *me)
{
    for (int hop = me->id; hop < HOPS; hop += me->n) {
        me->seconds += await_the_token(pipes[me->id][0]);
        run_my_lap();
        pass_the_token(pipes[(me->id + 1) % me->n][1]);
    }
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    raise_open_files();
    pipes = (int(*)[2])calloc((size_t)n, sizeof *pipes);
    for (int i = 0; i < n; i++)
        if (pipe(pipes[i]) != 0)
            die("pipe");
    pass_the_token(pipes[0][1]);
    tell("partner", run_children(n, runner).seconds);
}
