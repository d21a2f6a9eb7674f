/* Two processes with ids that are alike in the lower 16 bits wait for what never comes. They begin when a line comes
 * in on standard input. The program says `asleep` when both sleep, or `apart` where it may not choose ids or there are
 * not enough of them, and ends with its input. */
#include "../c/planted.h"
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

NOINLINE static void wait_in_vain(void)
{
    int never = 0;
    for (;;)
        syscall(SYS_futex, &never, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
}

/* A process of this id, or of any if it is 0. */
static pid_t start(pid_t id)
{
    struct clone_args args = { .exit_signal = SIGCHLD };
    if (id) {
        args.set_tid = (uintptr_t)&id;
        args.set_tid_size = 1;
    }
    pid_t child = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        wait_in_vain();
    }
    return child;
}

static int is_asleep(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        die("stat");
    fclose(file);
    const char *state = strrchr(line, ')');
    return state && state[1] == ' ' && state[2] == 'S';
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, 0, 0);
}

int main(void)
{
    while (getchar() != '\n' && !feof(stdin)) {
    }
    pid_t first = start(0);
    if (first < 0)
        die("clone3");
    pid_t second = start(first + (1 << 16));
    while (second > 0 && (!is_asleep(first) || !is_asleep(second)))
        sched_yield();
    puts(second > 0 ? "asleep" : "apart");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    end(first);
    if (second > 0)
        end(second);
    return 0;
}
