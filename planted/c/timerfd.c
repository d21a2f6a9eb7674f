/* Each thread paces itself with a timerfd: 2 parts of work, 1 part of waiting for it. */
#include "planted.h"
#include <sys/timerfd.h>

enum { BEATS = 140, BEAT = 3000, REST_US = 1500 };

static long taken;

NOINLINE static double rest_until_the_beat(int timer)
{
    struct itimerspec rest = {.it_value = {.tv_sec = 0, .tv_nsec = REST_US * 1000L}};
    uint64_t ticks;
    double since = wall_now();
    timerfd_settime(timer, 0, &rest, NULL);
    if (read(timer, &ticks, sizeof ticks) != sizeof ticks)
        die("read");
    return wall_now() - since;
}

NOINLINE static void play_a_bar(void) { burn(BEAT); }

static void drummer(Member *me)
{
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    while (another(&taken, BEATS)) {
        play_a_bar();
        me->seconds += rest_until_the_beat(timer);
    }
    close(timer);
}

int main(int argc, char **argv)
{
    int n = begin(argc, argv);
    tell("sleep", run_crew(n, drummer, 1).seconds);
}
