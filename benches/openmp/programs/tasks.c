// Tasks: how many ways there are to place queens, searched by a task for each branch near the root; and a merge
// sort whose halves are tasks.
#include <string.h>

#include "kernel.h"

enum { QUEENS = 12, CUTOFF = 3, LEAF = 2048 };

static int boards;
static int sorted;
static uint32_t *unsorted, *keys, *spare;

static void prepare(int cpus)
{
    boards = cpus;
    sorted = 32768 * cpus;
    unsorted = zeroed(sorted * sizeof *unsorted);
    keys = zeroed(sorted * sizeof *keys);
    spare = zeroed(sorted * sizeof *spare);
    for (int i = 0; i < sorted; i++)
        unsorted[i] = (uint32_t)mixed(i);
}

static int64_t queens(int row, uint32_t columns, uint32_t left, uint32_t right)
{
    if (row == QUEENS)
        return 1;
    uint32_t free = ~(columns | left | right) & ((1u << QUEENS) - 1);
    int64_t ways = 0;
    while (free) {
        uint32_t queen = free & -free;
        free ^= queen;
        ways += queens(row + 1, columns | queen, (left | queen) << 1, (right | queen) >> 1);
    }
    return ways;
}

static int64_t branches(int row, uint32_t columns, uint32_t left, uint32_t right)
{
    if (row == CUTOFF)
        return queens(row, columns, left, right);
    uint32_t free = ~(columns | left | right) & ((1u << QUEENS) - 1);
    int64_t ways[QUEENS] = {0};
    for (int i = 0; free; i++) {
        uint32_t queen = free & -free;
        free ^= queen;
#pragma omp task shared(ways)
        ways[i] = branches(row + 1, columns | queen, (left | queen) << 1, (right | queen) >> 1);
    }
#pragma omp taskwait
    int64_t sum = 0;
    for (int i = 0; i < QUEENS; i++)
        sum += ways[i];
    return sum;
}

static void merge(uint32_t *to, const uint32_t *a, const uint32_t *a_end, const uint32_t *b, const uint32_t *b_end)
{
    while (a < a_end && b < b_end)
        *to++ = *b < *a ? *b++ : *a++;
    memcpy(to, a, (size_t)(a_end - a) * sizeof *a);
    memcpy(to + (a_end - a), b, (size_t)(b_end - b) * sizeof *b);
}

// Sorts a; both arrays are used up. The result is in `other` if asked.
static void sort(uint32_t *a, uint32_t *other, int n, int into_other)
{
    if (n <= 16) {
        for (int i = 1; i < n; i++) {
            uint32_t key = a[i];
            int j = i;
            for (; j > 0 && key < a[j - 1]; j--)
                a[j] = a[j - 1];
            a[j] = key;
        }
        if (into_other)
            memcpy(other, a, n * sizeof *a);
        return;
    }
    int half = n / 2;
    if (n > LEAF) {
#pragma omp task
        sort(a, other, half, !into_other);
#pragma omp task
        sort(a + half, other + half, n - half, !into_other);
#pragma omp taskwait
    } else {
        sort(a, other, half, !into_other);
        sort(a + half, other + half, n - half, !into_other);
    }
    if (into_other)
        merge(other, a, a + half, a + half, a + n);
    else
        merge(a, other, other + half, other + half, other + n);
}

static double run(void)
{
    int64_t ways = 0;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int i = 0; i < sorted; i++)
            keys[i] = unsorted[i];
#pragma omp single
        {
            for (int i = 0; i < boards; i++) {
#pragma omp task shared(ways)
                {
                    int64_t found = branches(0, 0, 0, 0);
#pragma omp atomic
                    ways += found;
                }
            }
            sort(keys, spare, sorted, 0);
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < sorted; i++)
        sum = sum * 31 + keys[i];
    return (double)ways + (double)(sum >> 44);
}

const struct kernel tasks = {"tasks", 1, prepare, run};
