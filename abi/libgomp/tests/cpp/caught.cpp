// Exceptions that are thrown and caught within one construct: whatever is held is given back, and what comes after is right. Says "ok".
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>
#include <omp.h>

#include "../c/check.h"

static std::atomic<int> alive;

struct Object {
    Object() { alive++; }
    Object(const Object &) { alive++; }
    Object &operator=(const Object &) = default;
    ~Object() { alive--; }
};

class Guard {
    omp_lock_t &lock;

  public:
    explicit Guard(omp_lock_t &of) : lock(of) { omp_set_lock(&lock); }
    ~Guard() { omp_unset_lock(&lock); }
};

class NestGuard {
    omp_nest_lock_t &lock;

  public:
    explicit NestGuard(omp_nest_lock_t &of) : lock(of) { omp_set_nest_lock(&lock); }
    ~NestGuard() { omp_unset_nest_lock(&lock); }
};

[[gnu::noinline]] static void fail_at(int number, int depth = 3) {
    Object local;
    if (depth > 0)
        return fail_at(number, depth - 1);
    if (number % 2)
        throw std::runtime_error(std::to_string(number));
}

// Each schedule, with others in between that do not throw.
static void loops() {
    std::atomic<int> caught{0}, done{0};
    auto body = [&](int i) {
        try {
            fail_at(i);
            done++;
        } catch (const std::runtime_error &error) {
            CHECK(error.what() == std::to_string(i));
            caught++;
        }
    };
#pragma omp parallel num_threads(4)
    {
#pragma omp for schedule(static)
        for (int i = 0; i < 100; i++)
            body(i);
#pragma omp for schedule(static, 3) nowait
        for (int i = 0; i < 100; i++)
            body(i);
#pragma omp for schedule(dynamic, 3) nowait
        for (int i = 0; i < 100; i++)
            body(i);
#pragma omp for schedule(guided)
        for (int i = 0; i < 100; i++)
            body(i);
#pragma omp for schedule(runtime)
        for (int i = 0; i < 100; i++)
            body(i);
#pragma omp for schedule(dynamic) ordered
        for (int i = 0; i < 100; i++) {
#pragma omp ordered
            body(i);
        }
#pragma omp for schedule(dynamic) ordered(1)
        for (int i = 0; i < 100; i++) {
#pragma omp ordered depend(sink : i - 1)
            body(i);
#pragma omp ordered depend(source)
        }
#pragma omp sections
        {
#pragma omp section
            body(1);
#pragma omp section
            body(2);
#pragma omp section
            body(3);
        }
#pragma omp single
        body(5);
#pragma omp masked
        body(7);
    }
    CHECK(caught == 7 * 50 + 2 + 2 && done == 7 * 50 + 1 && alive == 0);
}

static void locks() {
    omp_lock_t lock;
    omp_nest_lock_t nest;
    omp_init_lock(&lock);
    omp_init_nest_lock(&nest);
    int under_lock = 0, in_critical = 0, in_named = 0;
#pragma omp parallel num_threads(4)
    for (int i = 0; i < 200; i++) {
        try {
            Guard guard(lock);
            under_lock++;
            fail_at(i);
        } catch (const std::exception &) {
        }
        try {
            NestGuard outer(nest);
            NestGuard inner(nest);
            fail_at(i);
        } catch (const std::exception &) {
        }
#pragma omp critical
        try {
            in_critical++;
#pragma omp critical(named)
            try {
                fail_at(i);
                in_named++;
            } catch (const std::exception &) {
                in_named++;
            }
            fail_at(i + 1);
        } catch (const std::exception &) {
            in_critical++;
        }
    }
    CHECK(under_lock == 800 && in_critical == 1200 && in_named == 800 && alive == 0);
    CHECK(omp_test_lock(&lock) && omp_test_nest_lock(&nest) == 1);
    omp_unset_lock(&lock);
    omp_unset_nest_lock(&nest);
    omp_destroy_lock(&lock);
    omp_destroy_nest_lock(&nest);
}

// A thread that waits runs other tasks in the middle of a `catch` or of destructors: neither's exception is the other's.
struct WaitsForTasks {
    std::atomic<int> &ran;
    int uncaught;
    ~WaitsForTasks() {
        CHECK(std::uncaught_exceptions() == uncaught);
        for (int i = 0; i < 10; i++) {
#pragma omp task firstprivate(i)
            try {
                fail_at(2 * i + 1);
                CHECK(false);
            } catch (const std::runtime_error &error) {
                CHECK(error.what() == std::to_string(2 * i + 1));
                ran++;
            }
        }
#pragma omp taskwait
        int sum = 0;
#pragma omp parallel for num_threads(2) reduction(+ : sum)
        for (int i = 0; i < 10; i++)
            sum += i;
        CHECK(sum == 45 && std::uncaught_exceptions() == uncaught);
    }
};

static void tasks() {
    std::atomic<int> ran{0}, caught{0};
    omp_set_max_active_levels(2);
#pragma omp parallel num_threads(4)
#pragma omp single
    {
        for (int i = 0; i < 40; i++) {
#pragma omp task shared(ran, caught) firstprivate(i)
            try {
                WaitsForTasks last{ran, 1};
                throw i;
            } catch (int number) {
                CHECK(number == i);
                WaitsForTasks within{ran, 0};
                caught++;
                try {
                    throw;
                } catch (int again) {
                    CHECK(again == i);
                }
            }
        }
#pragma omp taskgroup
        for (int i = 0; i < 40; i++) {
#pragma omp task if (0) shared(caught)
            try {
                fail_at(1);
            } catch (const std::exception &) {
                caught++;
            }
        }
#pragma omp taskloop num_tasks(7) shared(caught)
        for (int i = 0; i < 40; i++)
            try {
                fail_at(i);
            } catch (const std::exception &) {
                caught++;
            }
    }
    CHECK(ran == 800 && caught == 40 + 40 + 20 && alive == 0);
}

// Carried out of the region as programs do it.
static void carried_out() {
    for (int round = 0; round < 20; round++) {
        std::exception_ptr first;
#pragma omp parallel for num_threads(4) schedule(dynamic)
        for (int i = 0; i < 50; i++)
            try {
                fail_at(i);
            } catch (...) {
#pragma omp critical
                if (!first)
                    first = std::current_exception();
            }
        bool is_there = false;
        try {
            std::rethrow_exception(first);
        } catch (const std::runtime_error &error) {
            is_there = std::stoi(error.what()) % 2 == 1;
        }
        CHECK(is_there);
    }
    CHECK(alive == 0);
}

static void caught_across_regions() {
    std::atomic<int> caught{0};
    omp_set_max_active_levels(2);
    // Around a region that is begun and ended by who throws.
    for (int round = 0; round < 20; round++)
        try {
            int sum = 0;
#pragma omp parallel for num_threads(3) reduction(+ : sum)
            for (int i = 0; i < 10; i++)
                sum += i;
            CHECK(sum == 45);
            throw sum;
        } catch (int sum) {
            caught += sum;
        }
#pragma omp parallel num_threads(2)
    try {
#pragma omp parallel num_threads(2)
        try {
            fail_at(1);
        } catch (const std::exception &) {
            caught++;
        }
        fail_at(1);
    } catch (const std::exception &) {
        caught++;
    }
    CHECK(caught == 20 * 45 + 4 + 2 && alive == 0);
}

// Cancelled constructs are left as by a jump: what lives in them is destroyed.
static void cancelled() {
    CHECK(omp_get_cancellation());
    std::atomic<int> begun{0};
#pragma omp parallel num_threads(4)
    {
        Object of_thread;
        std::vector<std::string> texts(10, "long enough to be somewhere else");
        begun++;
        if (omp_get_thread_num() == 2) {
            Object of_block;
#pragma omp cancel parallel
        }
#pragma omp barrier
        CHECK(false);
    }
    CHECK(begun == 4 && alive == 0);
#pragma omp parallel num_threads(4)
    {
        Object of_thread;
#pragma omp for schedule(dynamic)
        for (int i = 0; i < 1000; i++) {
            Object of_turn;
            try {
                fail_at(i);
            } catch (const std::exception &) {
                Object of_handler;
                if (i == 101) {
#pragma omp cancel for
                }
            }
#pragma omp cancellation point for
        }
#pragma omp sections
        {
#pragma omp section
            {
                Object of_section;
#pragma omp cancel sections
            }
#pragma omp section
            {
                Object of_section;
#pragma omp cancellation point sections
            }
        }
#pragma omp barrier
    }
    CHECK(alive == 0);
    std::atomic<int> ran{0};
#pragma omp parallel num_threads(4)
#pragma omp single
    {
        Object kept;
#pragma omp taskgroup
        for (int i = 0; i < 200; i++) {
#pragma omp task firstprivate(kept) shared(ran)
            {
                Object of_task(kept);
                ran++;
                if (i == 20) {
#pragma omp cancel taskgroup
                }
#pragma omp cancellation point taskgroup
            }
        }
    }
    // The code of a task destroys its copies: those of tasks that were never begun stay, with GCC's library too. No others do.
    CHECK(ran >= 1 && alive >= 0 && alive <= 200 - ran);
    alive = 0;
    int sum = 0;
#pragma omp parallel for num_threads(4) reduction(+ : sum)
    for (int i = 0; i < 100; i++)
        sum += i;
    CHECK(sum == 4950);
}

int main() {
    for (int round = 0; round < 3; round++) {
        loops();
        locks();
        tasks();
        carried_out();
        caught_across_regions();
        cancelled();
    }
    std::puts("ok");
}
