/* A guest without an operating system: fills memory, waits for a byte on the serial line, then touches every page
 * once in a scattered order and notes how long each touch took. Loaded as a multiboot kernel. */
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef PAGES_LOG2
#define PAGES_LOG2 17
#endif
#define PAGES (1u << PAGES_LOG2)
#define WORDS 1024u
/* Where the host finds them. */
static volatile u32 *const state = (u32 *)0x700000;  /* 0: how far; 1: pages with wrong content */
static u32 *const took = (u32 *)0x800000;            /* ticks of each touch */
static u32 *const memory = (u32 *)0x2000000;

__attribute__((section(".multiboot"), used)) static const u32 header[3] = {0x1badb002, 0, -0x1badb002};

static u32 word(u32 page, u32 at)
{
    u32 x = (page * WORDS + at) * 2654435761u + 1;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static inline u32 ticks(void)
{
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return low;
}

static inline unsigned char in(unsigned short port)
{
    unsigned char value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline void out(unsigned short port, unsigned char value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void say(unsigned char what)
{
    while (!(in(0x3fd) & 0x20))
        ;
    out(0x3f8, what);
}

static __attribute__((used)) void run(void)
{
    for (u32 page = 0; page < PAGES; page++)
        for (u32 at = 0; at < WORDS; at++)
            memory[page * WORDS + at] = word(page, at);
    for (u32 page = 0; page < PAGES; page++)
        took[page] = 0;
    state[0] = state[1] = 0;
    say('r');
    while (!(in(0x3fd) & 1))
        ;
    in(0x3f8);
    /* Not to be measured: the pages of the notes. */
    for (u32 page = 0; page < PAGES; page += WORDS)
        *(volatile u32 *)&took[page] = 0;
    u32 wrong = 0, page = 1;
    for (u32 i = 0; i < PAGES; i++) {
        page = (page * 1664525u + 1013904223u) % PAGES;
        u32 target = (page ^ page >> 7) % PAGES, at = page % WORDS;
        volatile u32 *touched = &memory[target * WORDS + at];
        u32 since = ticks();
        u32 value = *touched;
        took[i] = ticks() - since;
        wrong += value != word(target, at);
    }
    state[1] = wrong;
    state[0] = 1;
    say('d');
    for (;;)
        in(0x3fd);
}

__attribute__((naked, used, section(".text.start"))) void _start(void)
{
    __asm__ volatile("cli; mov $0x600000, %esp; call run");
}
