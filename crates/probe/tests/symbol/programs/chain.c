// Blocks or runs at the end of a known chain of calls: main, outer, middle, (inlined)
// wrapped, inner. The first argument says how.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
// Keeps the compiler from making the call before it a jump.
#define NOT_A_TAIL_CALL __asm__ volatile("" ::: "memory")

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile long sink;

NOINLINE void inner(const char *how) {
    char byte;
    if (!strcmp(how, "read")) {
        sink = read(0, &byte, 1);
    } else if (!strcmp(how, "mutex")) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_lock(&mutex);
    } else if (!strcmp(how, "condition")) {
        pthread_mutex_lock(&mutex);
        pthread_cond_wait(&condition, &mutex);
    } else if (!strcmp(how, "stop")) {
        raise(SIGSTOP);
        struct timespec now;
        for (;;) {
            clock_gettime(CLOCK_MONOTONIC, &now);
            sink += now.tv_nsec;
        }
    }
    NOT_A_TAIL_CALL;
}

static inline __attribute__((always_inline)) void wrapped(const char *how) {
    inner(how);
    NOT_A_TAIL_CALL;
}

NOINLINE void middle(const char *how) {
    volatile char ballast[512];
    ballast[sink & 1] = 1;
    wrapped(how);
    sink += ballast[0];
}

NOINLINE void outer(const char *how) {
    middle(how);
    NOT_A_TAIL_CALL;
}

static const char *how_of_generated;

NOINLINE void called_by_generated(void) {
    outer(how_of_generated);
    NOT_A_TAIL_CALL;
}

// Calls outer("read") through code that is written at run time.
NOINLINE void generated(void) {
#ifdef __x86_64__
    // push rbp; mov rbp, rsp; call rdi; pop rbp; ret
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    char path[64];
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    fprintf(map, "%lx %zx generated_code\n", (unsigned long)page, sizeof code);
    fclose(map);
    how_of_generated = "read";
    ((void (*)(void (*)(void)))page)(called_by_generated);
    NOT_A_TAIL_CALL;
#endif
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "read";
    if (!strcmp(how, "generated"))
        generated();
    else
        outer(how);
    return (int)sink;
}
