/* Trees of tasks of all kinds by chance, short ones and long ones, in regions of all sizes: none is lost, none waits for ever. many_tasks SEED ROUNDS KINDS; of 4 kinds the last has events. */
#include <omp.h>

#include "check.h"

static _Atomic long made, done;
static unsigned kinds;

static void works(unsigned turns)
{
    for (volatile unsigned i = 0; i < turns; i++)
        ;
}

static unsigned next(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 4;
}

static void tree(unsigned seed, int depth)
{
    unsigned state = seed;
    int below = depth > 0 ? (int)(next(&state) % 5) : 0;
    int in_turn = 0;
    done++;
    switch (next(&state) % kinds) {
    case 0:
#pragma omp taskgroup
        for (int i = 0; i < below; i++) {
            unsigned other = next(&state);
            made++;
#pragma omp task firstprivate(other)
            {
                works(other % 300 == 0 ? 20000 : other % 100);
                tree(other, depth - 1);
            }
        }
        break;
    case 1:
        for (int i = 0; i < below; i++) {
            unsigned other = next(&state);
            made++;
#pragma omp task firstprivate(other) priority(other % 3)
            {
                works(other % 64);
                tree(other, depth - 1);
            }
        }
#pragma omp taskwait
        break;
    case 2:
        for (int i = 0; i < below; i++) {
            unsigned other = next(&state);
            made++;
#pragma omp task firstprivate(other) depend(inout : in_turn) shared(in_turn)
            {
                works(other % 200);
                tree(other, depth - 2);
                in_turn++;
            }
        }
#pragma omp taskwait depend(in : in_turn)
        CHECK(in_turn == below);
#pragma omp taskwait
        break;
    default:
        for (int i = 0; i < below; i++) {
            unsigned other = next(&state);
            omp_event_handle_t event;
            made += 2;
#pragma omp task firstprivate(other) detach(event)
            {
                works(other % 50);
                tree(other, depth - 1);
            }
#pragma omp task firstprivate(other, event)
            {
                works(other % 300);
                done++;
                omp_fulfill_event(event);
            }
        }
        if (seed & 1) {
#pragma omp taskwait
        }
    }
}

/* All threads begin trees while one of them makes many short tasks, and then a few long ones. */
static void trees(unsigned seed)
{
#pragma omp parallel num_threads(1 + seed % 12)
    {
        unsigned own = seed + (unsigned)omp_get_thread_num() * 77777u;
#pragma omp single nowait
        {
            for (int i = 0; i < 3000; i++) {
                made++;
#pragma omp task
                done++;
            }
            for (int i = 0; i < 20; i++) {
                made++;
#pragma omp task
                {
                    works(20000);
                    done++;
                }
            }
        }
        made++;
        tree(own, 9);
#pragma omp barrier
        CHECK(done == made);
#pragma omp barrier
        made++;
        tree(own * 31 + 7, 8);
    }
    CHECK(done == made);
}

/* Regions whose size changes from one to the next, with a task at their end. */
static void regions(unsigned seed)
{
    for (int i = 0; i < 200; i++) {
        int threads = 1 + (int)((seed >> i % 13) % 9);
        made += threads + 1;
#pragma omp parallel num_threads(threads)
        {
            done++;
#pragma omp single nowait
            {
#pragma omp task
                done++;
            }
        }
        CHECK(done == made);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    kinds = (unsigned)atoi(argv[3]);
    unsigned state = (unsigned)atoi(argv[1]);
    for (int round = 0; round < atoi(argv[2]); round++) {
        unsigned seed = next(&state);
        trees(seed);
        regions(seed);
    }
    puts("ok");
    return 0;
}
