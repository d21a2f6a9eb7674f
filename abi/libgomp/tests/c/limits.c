/* What becomes of a program that gets no memory, or no threads. Whatever it says is the runtime's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void use_up(void)
{
    /* Less than there is already: the address space does not grow. */
    struct rlimit limit = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_AS, &limit))
        exit(3);
    /* What has been got before, down to the smallest pieces. */
    for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2)
        for (void *volatile piece = &limit; piece;)
            piece = malloc(bytes);
}

/* RLIMIT_NPROC does not hold for root. */
static void refuse_threads(void)
{
#define REFUSED(number)                                                                                                \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSED(SYS_clone),
        REFUSED(SYS_clone3),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        exit(3);
}

static int sum;

static void region(int threads)
{
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum++;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "first") == 0) {
        use_up();
        region(1);
    } else if (strcmp(what, "larger") == 0) {
        region(2);
        use_up();
        region(64);
    } else if (strcmp(what, "tasks") == 0) {
#pragma omp parallel num_threads(2)
#pragma omp single
        {
            use_up();
            for (int i = 0; i < 1000; i++)
#pragma omp task firstprivate(i)
                sum += i < 0;
        }
    } else if (strcmp(what, "threads") == 0) {
        refuse_threads();
        /* Nobody else is needed for this one. */
        region(1);
        if (sum != 1)
            return 4;
        region(4);
    }
    puts("went on");
    return 0;
}
