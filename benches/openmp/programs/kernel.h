// What all kernels share.
#ifndef KERNEL_H
#define KERNEL_H

#include <stdint.h>
#include <stdlib.h>

// One unit of a kernel is a whole small problem, about 20 ms of one CPU for every two CPUs of the machine. It
// begins from the same state each time, so that each unit has the same result.
struct kernel {
    const char *name;
    // The result is the same bit for bit whatever the team is. Otherwise sums are added up in another order.
    int is_exact;
    // Makes the data for a machine with so many CPUs.
    void (*prepare)(int cpus);
    // Runs one unit and returns what stands for its result.
    double (*run)(void);
};

extern const struct kernel lu, cg, ua, mg, ft, ep, tasks;

void *zeroed(size_t bytes);

// SplitMix64 of a number (Steele, Lea and Flood 2014): the same data on each machine and for each team.
static inline uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// From 0 to below 1.
static inline double fraction(uint64_t x)
{
    return (double)(mixed(x) >> 11) * 0x1p-53;
}

#endif
