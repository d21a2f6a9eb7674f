// What C++ adds: objects that are copied for threads and tasks, reductions of them, exceptions within regions, loops with iterators.
// Says "ok".
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>
#include <omp.h>

#include "../c/check.h"

static std::atomic<int> alive;

struct Counted {
    std::string text;
    explicit Counted(const char *of = "made") : text(of) { alive++; }
    Counted(const Counted &other) : text(other.text + " copy") { alive++; }
    Counted &operator=(const Counted &other) {
        text = other.text;
        return *this;
    }
    ~Counted() { alive--; }
};

struct Sum {
    std::vector<int> parts;
    Sum &operator+=(const Sum &other) {
        parts.insert(parts.end(), other.parts.begin(), other.parts.end());
        return *this;
    }
};
#pragma omp declare reduction(+ : Sum : omp_out += omp_in)

static void copies() {
    {
        Counted first("first"), last;
#pragma omp parallel num_threads(4) firstprivate(first)
        {
            CHECK(first.text == "first copy");
            first.text = "changed";
        }
        CHECK(first.text == "first" && alive == 2);
#pragma omp parallel for num_threads(3) lastprivate(last) schedule(dynamic, 2)
        for (int i = 0; i < 50; i++)
            last.text = std::to_string(i);
        CHECK(last.text == "49" && alive == 2);
#pragma omp parallel num_threads(3)
        {
            Counted own("none");
#pragma omp single copyprivate(own)
            own.text = "told to all";
            CHECK(own.text == "told to all");
        }
        CHECK(alive == 2);
        std::atomic<int> right{0};
#pragma omp parallel num_threads(4)
#pragma omp single
        for (int i = 0; i < 300; i++) {
#pragma omp task firstprivate(first) shared(right)
            right += first.text.rfind("first copy", 0) == 0;
        }
        CHECK(right == 300 && alive == 2);
    }
    CHECK(alive == 0);
}

static void reductions() {
    Sum sum;
    std::vector<int> numbers(1000);
#pragma omp parallel for num_threads(4) reduction(+ : sum) schedule(guided)
    for (int i = 0; i < 1000; i++)
        sum.parts.push_back(i);
    CHECK(sum.parts.size() == 1000);
    long total = 0;
    for (int part : sum.parts)
        total += part;
    CHECK(total == 499500);
#pragma omp parallel for num_threads(4)
    for (auto number = numbers.begin(); number < numbers.end(); ++number)
        *number = int(number - numbers.begin());
    for (int i = 0; i < 1000; i++)
        CHECK(numbers[i] == i);
    Sum of_tasks;
#pragma omp parallel num_threads(4)
#pragma omp single
#pragma omp taskloop reduction(+ : of_tasks) grainsize(7)
    for (int i = 0; i < 200; i++)
        of_tasks.parts.push_back(i);
    CHECK(of_tasks.parts.size() == 200);
}

// What is thrown in a region is caught in it, in nested regions, sections, tasks and critical regions.
static void exceptions() {
    std::atomic<int> caught{0};
#pragma omp parallel num_threads(4)
    {
        try {
            if (omp_get_thread_num() % 2)
                throw std::runtime_error("odd");
        } catch (const std::runtime_error &) {
            caught++;
        }
#pragma omp for schedule(dynamic)
        for (int i = 0; i < 100; i++)
            try {
#pragma omp critical
                try {
                    throw i;
                } catch (int number) {
                    CHECK(number == i);
                    caught++;
                }
            } catch (...) {
                CHECK(false);
            }
#pragma omp single
        for (int i = 0; i < 50; i++)
#pragma omp task shared(caught) firstprivate(i)
            try {
                Counted local;
                throw std::to_string(i);
            } catch (const std::string &text) {
                CHECK(text == std::to_string(i));
                caught++;
            }
    }
    CHECK(caught == 2 + 100 + 50 && alive == 0);
}

int main() {
    copies();
    reductions();
    exceptions();
    std::puts("ok");
}
