/* Loops, sections, single, ordered regions and critical ones as gcc compiles them: what each does is counted, and must
   be what the program says. Prints "ok". */

#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                     \
    do {                                                                                                \
        if (!(what)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                  \
            abort();                                                                                    \
        }                                                                                               \
    } while (0)

enum { MOST = 1000 };
static int done[MOST];

static void none_done(void) { memset(done, 0, sizeof done); }

static void all_done(int count, int times)
{
    for (int i = 0; i < MOST; i++)
        CHECK(done[i] == (i < count ? times : 0));
}

static void mark(int i)
{
    CHECK(0 <= i && i < MOST);
    __atomic_fetch_add(&done[i], 1, __ATOMIC_RELAXED);
}

/* Each kind of schedule, each with variables up and down, signed and not, near the ends of what they can be. */
#define LOOPS(schedule_clause)                                                                          \
    do {                                                                                                \
        none_done();                                                                                    \
        _Pragma("omp parallel num_threads(5)")                                                          \
        {                                                                                               \
            _Pragma(schedule_clause) for (int i = 0; i < 100; i++) mark(i);                             \
            _Pragma(schedule_clause) for (int i = 99; i >= 0; i--) mark(i);                             \
            _Pragma(schedule_clause) for (long i = -150; i < 150; i += 3) mark((i + 150) / 3);          \
            _Pragma(schedule_clause) for (long i = LONG_MAX - 100; i < LONG_MAX; i++)                   \
                mark(i - (LONG_MAX - 100));                                                             \
            _Pragma(schedule_clause) for (long i = LONG_MIN + 700; i > LONG_MIN; i -= 7)                \
                mark((i - LONG_MIN) / 7 - 1);                                                           \
            _Pragma(schedule_clause) for (unsigned long long i = ULLONG_MAX - 1000; i < ULLONG_MAX; i += 10) \
                mark((i - (ULLONG_MAX - 1000)) / 10);                                                   \
            _Pragma(schedule_clause) for (unsigned long long i = 300; i > 0; i -= 3) mark(i / 3 - 1);   \
            _Pragma(schedule_clause) for (unsigned long long i = ULLONG_MAX; i > ULLONG_MAX - 100; i--) \
                mark(ULLONG_MAX - i);                                                                   \
            _Pragma(schedule_clause) for (int i = 0; i < 0; i++) mark(i);                               \
            _Pragma(schedule_clause) for (unsigned long long i = 5; i < 5; i++) mark(0);                \
        }                                                                                               \
        all_done(100, 8);                                                                               \
    } while (0)

static void loops(void)
{
    LOOPS("omp for schedule(static)");
    LOOPS("omp for schedule(static, 3)");
    LOOPS("omp for schedule(dynamic)");
    LOOPS("omp for schedule(dynamic, 7)");
    LOOPS("omp for schedule(dynamic, 1000000)");
    LOOPS("omp for schedule(monotonic: dynamic, 2)");
    LOOPS("omp for schedule(nonmonotonic: dynamic, 2) nowait");
    LOOPS("omp for schedule(guided)");
    LOOPS("omp for schedule(guided, 9) nowait");
    LOOPS("omp for schedule(monotonic: guided)");
    LOOPS("omp for schedule(auto)");
    LOOPS("omp for schedule(runtime)");
    LOOPS("omp for schedule(monotonic: runtime)");
    LOOPS("omp for schedule(nonmonotonic: runtime) nowait");
}

static void combined(void)
{
    none_done();
    #pragma omp parallel for num_threads(3) schedule(dynamic, 2)
    for (int i = 0; i < MOST; i++) mark(i);
    #pragma omp parallel for num_threads(12) schedule(guided)
    for (int i = 0; i < MOST; i++) mark(i);
    #pragma omp parallel for num_threads(2) schedule(runtime)
    for (int i = 0; i < MOST; i++) mark(i);
    #pragma omp parallel for num_threads(20) schedule(nonmonotonic: dynamic)
    for (int i = MOST - 1; i >= 0; i--) mark(i);
    #pragma omp parallel for num_threads(4) collapse(3) schedule(dynamic)
    for (int i = 0; i < 10; i++)
        for (long j = 0; j < 10; j++)
            for (unsigned k = 0; k < 10; k++) mark(i * 100 + j * 10 + k);
    all_done(MOST, 5);

    int last = -1, sum = 0;
    #pragma omp parallel for num_threads(4) schedule(dynamic, 3) lastprivate(last) reduction(+ : sum)
    for (int i = 0; i < 500; i++) {
        last = i;
        sum += i;
    }
    CHECK(last == 499 && sum == 499 * 250);

    /* So many threads that they are given parts of their own; the last of them is done first. */
    for (int round = 0; round < 10; round++) {
        last = -1;
        #pragma omp parallel for num_threads(20) schedule(dynamic) lastprivate(last)
        for (int i = 0; i < 1000; i++) {
            last = i;
            for (volatile int work = i < 500 ? 2000 : 0; work > 0; work--) {}
        }
        CHECK(last == 999);
    }

    int greatest = 0;
    #pragma omp parallel num_threads(4)
    {
        #pragma omp for schedule(dynamic, 2) lastprivate(conditional : greatest)
        for (int i = 0; i < 500; i++)
            if (i % 7 == 3) greatest = i;
    }
    CHECK(greatest == 493);

    int prefix[200], total = 0;
    #pragma omp parallel for num_threads(4) reduction(inscan, + : total)
    for (int i = 0; i < 200; i++) {
        total += i;
        #pragma omp scan inclusive(total)
        prefix[i] = total;
    }
    for (int i = 0; i < 200; i++) CHECK(prefix[i] == i * (i + 1) / 2);
}

#define IN_ORDER(clause)                                                                                \
    do {                                                                                                \
        int next = 0;                                                                                   \
        _Pragma("omp parallel num_threads(6)")                                                          \
        {                                                                                               \
            _Pragma(clause) for (int i = 0; i < 300; i++)                                               \
            {                                                                                           \
                if (i % 5 == 4) continue;                                                               \
                _Pragma("omp ordered")                                                                  \
                {                                                                                       \
                    CHECK(next <= i);                                                                   \
                    next = i + 1;                                                                       \
                }                                                                                       \
            }                                                                                           \
            _Pragma(clause) for (unsigned long long i = 300; i > 0; i--)                                \
            {                                                                                           \
                _Pragma("omp ordered")                                                                  \
                {                                                                                       \
                    CHECK((int)i + next == (i == 300 ? 599 : 300));                                     \
                    next = 301 - (int)i;                                                                \
                }                                                                                       \
            }                                                                                           \
        }                                                                                               \
        CHECK(next == 300);                                                                             \
    } while (0)

static void in_order(void)
{
    IN_ORDER("omp for ordered");
    IN_ORDER("omp for ordered schedule(static, 2)");
    IN_ORDER("omp for ordered schedule(dynamic)");
    IN_ORDER("omp for ordered schedule(dynamic, 5)");
    IN_ORDER("omp for ordered schedule(guided)");
    IN_ORDER("omp for ordered schedule(runtime)");
}

/* Cells of a table that are the sums of those above and to the left: binomials, if each waits for both. */
#define ACROSS(clause)                                                                                  \
    do {                                                                                                \
        static long cell[20][9];                                                                        \
        memset(cell, 0, sizeof cell);                                                                   \
        _Pragma("omp parallel num_threads(5)")                                                          \
        _Pragma(clause) for (int i = 0; i < 20; i++)                                                    \
            for (int j = 0; j < 9; j++) {                                                               \
                _Pragma("omp ordered depend(sink: i - 1, j) depend(sink: i, j - 1)")                    \
                long above = i ? cell[i - 1][j] : 0, left = j ? cell[i][j - 1] : 0;                     \
                cell[i][j] = i || j ? above + left : 1;                                                 \
                _Pragma("omp ordered depend(source)")                                                   \
            }                                                                                           \
        CHECK(cell[19][0] == 1 && cell[19][1] == 20 && cell[19][2] == 210 && cell[19][8] == 2220075);   \
    } while (0)

static void across(void)
{
    ACROSS("omp for ordered(2)");
    ACROSS("omp for ordered(2) schedule(static, 1)");
    ACROSS("omp for ordered(2) schedule(dynamic)");
    ACROSS("omp for ordered(2) schedule(dynamic, 3)");
    ACROSS("omp for ordered(2) schedule(guided)");
    ACROSS("omp for ordered(2) schedule(runtime)");

    /* More loops than arguments in registers, and more numbers than fit into a word. */
    int run = 0;
    unsigned long long far = 1ull << 40;
    #pragma omp parallel num_threads(4)
    #pragma omp for ordered(10) schedule(static, 1)
    for (int a = 0; a < 12; a++)
        for (unsigned long long b = far; b < far + 1; b++)
            for (unsigned long long c = 0; c < 1; c++)
                for (unsigned long long d = 0; d < 1; d++)
                    for (unsigned long long e = 0; e < 1; e++)
                        for (unsigned long long f = 0; f < 1; f++)
                            for (unsigned long long g = 0; g < 1; g++)
                                for (unsigned long long h = 0; h < 2; h++)
                                    for (unsigned long long i = 0; i < 3; i++)
                                        for (unsigned long long j = 0; j < far; j += far / 2) {
                                            #pragma omp ordered depend(sink : a - 1, b, c, d, e, f, g, h, i, j)
                                            if (h == 1 && i == 2 && j == far / 2) CHECK(run++ == a);
                                            #pragma omp ordered depend(source)
                                        }
    CHECK(run == 12);
}

static void sections_and_singles(void)
{
    none_done();
    #pragma omp parallel num_threads(4)
    {
        for (int round = 0; round < 50; round++) {
            #pragma omp sections nowait
            {
                mark(0);
                #pragma omp section
                mark(1);
                #pragma omp section
                mark(2);
            }
            #pragma omp single nowait
            mark(3);
            #pragma omp single
            mark(4);
            int given = -1;
            #pragma omp single copyprivate(given)
            given = round;
            CHECK(given == round);
        }
    }
    all_done(5, 50);
    #pragma omp parallel sections num_threads(8)
    {
        #pragma omp section
        mark(0);
        #pragma omp section
        mark(1);
    }
    CHECK(done[0] == 51 && done[1] == 51);
    /* Outside of all regions. */
    #pragma omp sections
    {
        mark(0);
        #pragma omp section
        mark(1);
    }
    int alone = 0;
    #pragma omp single copyprivate(alone)
    alone = 1;
    CHECK(alone == 1 && done[0] == 52 && done[1] == 52);
}

static void one_at_a_time(void)
{
    int unnamed = 0, named = 0, locked = 0, nested = 0;
    _Complex double wide = 0;
    omp_lock_t lock;
    omp_nest_lock_t nest;
    omp_init_lock(&lock);
    omp_init_nest_lock(&nest);
    #pragma omp parallel num_threads(8)
    for (int i = 0; i < 500; i++) {
        #pragma omp critical
        unnamed++;
        #pragma omp critical(name)
        named++;
        #pragma omp critical(other)
        wide += 1;
        while (!omp_test_lock(&lock))
            omp_set_lock(&lock), omp_unset_lock(&lock);
        locked++;
        omp_unset_lock(&lock);
        omp_set_nest_lock(&nest);
        CHECK(omp_test_nest_lock(&nest) == 2);
        nested++;
        omp_unset_nest_lock(&nest);
        omp_unset_nest_lock(&nest);
    }
    omp_destroy_lock(&lock);
    omp_destroy_nest_lock(&nest);
    CHECK(unnamed == 4000 && named == 4000 && locked == 4000 && nested == 4000 && wide == 4000);
}

int main(void)
{
    loops();
    combined();
    in_order();
    across();
    sections_and_singles();
    one_at_a_time();
    puts("ok");
    return 0;
}
