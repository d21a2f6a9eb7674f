/* A process that does what touch.c does: fills memory, says so by a file, waits for another one, touches every page once in
 * a scattered order, and writes how many ns each touch took. process READY GO TOOK */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef PAGES_LOG2
#define PAGES_LOG2 17
#endif
#define PAGES (1u << PAGES_LOG2)
#define WORDS 1024u

static uint32_t took[PAGES];

static uint32_t word(uint32_t page, uint32_t at)
{
    uint32_t x = (page * WORDS + at) * 2654435761u + 1;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int create(const char *path)
{
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0) {
        perror(path);
        exit(1);
    }
    return file;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    uint32_t *memory = mmap(NULL, (size_t)PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (uint32_t page = 0; page < PAGES; page++)
        for (uint32_t at = 0; at < WORDS; at++)
            memory[page * WORDS + at] = word(page, at);
    close(create(argv[1]));
    while (access(argv[2], F_OK) != 0)
        usleep(1000);
    /* Not to be measured: the pages of the notes. */
    for (uint32_t page = 0; page < PAGES; page += WORDS)
        took[page] = 1;
    uint32_t wrong = 0, page = 1;
    for (uint32_t i = 0; i < PAGES; i++) {
        page = (page * 1664525u + 1013904223u) % PAGES;
        uint32_t target = (page ^ page >> 7) % PAGES, at = page % WORDS;
        uint64_t since = now();
        uint32_t value = *(volatile uint32_t *)&memory[target * WORDS + at];
        took[i] = (uint32_t)(now() - since);
        wrong += value != word(target, at);
    }
    int file = create(argv[3]);
    for (size_t done = 0; done < sizeof took;) {
        ssize_t more = write(file, (char *)took + done, sizeof took - done);
        if (more <= 0)
            return 1;
        done += (size_t)more;
    }
    return wrong != 0;
}
