// A process that wants a CPU, always or in slots of time, and counts the work that it gets done.
//
//   load PAGE INDEX SLOT_MS LEVELS
//
// LEVELS are numbers with commas between: how many of such processes work in each slot since the measurement began,
// over and over. With slots of 0 ms it works all the time. The page is that of the kernels.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct line {
    volatile uint64_t a, b, rest[6];
};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// About 20 us.
static void work(void)
{
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(x));
    }
}

int main(int count, char **words)
{
    enum { MOST = 4096 };
    static long levels[MOST];
    if (count != 5) {
        fprintf(stderr, "usage: load PAGE INDEX SLOT_MS LEVELS\n");
        return 2;
    }
    long index = atol(words[2]), slots = 0;
    uint64_t slot_ns = (uint64_t)atol(words[3]) * 1000000u;
    for (char *at = words[4]; *at && slots < MOST; at += *at == ',')
        levels[slots++] = strtol(at, &at, 10);
    int file = open(words[1], O_RDWR);
    struct line *page = mmap(0, (2 + index) * sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || page == MAP_FAILED || !slots) {
        perror(words[1]);
        return 1;
    }
    volatile uint64_t *done = &page[1 + index].a;
    // It is there.
    *done = 1;
    for (;;) {
        uint64_t begun = __atomic_load_n(&page->a, __ATOMIC_ACQUIRE);
        if (slot_ns && !begun) {
            usleep(500);
            continue;
        }
        uint64_t slot = slot_ns ? (now() - begun) / slot_ns : 0;
        if (!slot_ns || index < levels[slot % slots]) {
            work();
            ++*done;
            continue;
        }
        uint64_t next = begun + (slot + 1) * slot_ns;
        struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    }
}
