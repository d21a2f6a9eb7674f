// An exception that nobody has caught where its construct ends: the argument says in which one. It must not come back to `main`,
// where the same exception would have been caught.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <sys/resource.h>
#include <omp.h>

// Not known to the compiler, so that nothing is left out.
static volatile bool is_thrown = true;

[[gnu::noinline]] static void escape() {
    if (is_thrown)
        throw std::runtime_error("escaped");
}

struct Copied {
    Copied() = default;
    Copied(const Copied &) { escape(); }
    void use() const {}
};

static const struct {
    const char *name;
    void (*run)();
} CASES[] = {
    {"parallel",
     [] {
#pragma omp parallel num_threads(4)
         if (omp_get_thread_num() == 0)
             escape();
     }},
    {"parallel-worker",
     [] {
#pragma omp parallel num_threads(4)
         if (omp_get_thread_num() == 3)
             escape();
     }},
    {"parallel-of-one",
     [] {
#pragma omp parallel num_threads(1)
         escape();
     }},
    {"parallel-if",
     [] {
#pragma omp parallel if (!is_thrown)
         escape();
     }},
    {"nested",
     [] {
         omp_set_max_active_levels(2);
#pragma omp parallel num_threads(2)
#pragma omp parallel num_threads(2)
         if (omp_get_thread_num() == 1 && omp_get_ancestor_thread_num(1) == 1)
             escape();
     }},
    {"for",
     [] {
#pragma omp parallel for num_threads(4) schedule(dynamic)
         for (int i = 0; i < 100; i++)
             if (i == 50)
                 escape();
     }},
    {"for-static",
     [] {
#pragma omp parallel num_threads(4)
         try {
#pragma omp for schedule(static)
             for (int i = 0; i < 100; i++)
                 if (i == 99)
                     escape();
         } catch (const std::runtime_error &) {
         }
     }},
    {"for-outside",
     [] {
#pragma omp for schedule(dynamic, 3)
         for (int i = 0; i < 100; i++)
             if (i == 50)
                 escape();
     }},
    {"sections",
     [] {
#pragma omp parallel sections num_threads(2)
         {
#pragma omp section
             is_thrown = true;
#pragma omp section
             escape();
         }
     }},
    {"sections-outside",
     [] {
#pragma omp sections
         {
#pragma omp section
             escape();
         }
     }},
    {"single",
     [] {
#pragma omp parallel num_threads(4)
         try {
#pragma omp single
             escape();
         } catch (const std::runtime_error &) {
         }
     }},
    {"single-outside",
     [] {
#pragma omp single
         escape();
     }},
    {"critical",
     [] {
#pragma omp critical
         escape();
     }},
    {"critical-named",
     [] {
#pragma omp parallel num_threads(4)
         try {
#pragma omp critical(of_all)
             escape();
         } catch (const std::runtime_error &) {
         }
     }},
    {"masked",
     [] {
#pragma omp masked
         escape();
     }},
    {"ordered",
     [] {
#pragma omp parallel for num_threads(4) ordered schedule(dynamic)
         for (int i = 0; i < 100; i++)
             try {
#pragma omp ordered
                 if (i == 50)
                     escape();
             } catch (const std::runtime_error &) {
             }
     }},
    {"task",
     [] {
#pragma omp parallel num_threads(4)
#pragma omp single
#pragma omp task
         escape();
     }},
    {"task-undeferred",
     [] {
#pragma omp parallel num_threads(2)
#pragma omp single
         try {
#pragma omp task if (!is_thrown)
             escape();
         } catch (const std::runtime_error &) {
         }
     }},
    {"task-outside",
     [] {
#pragma omp task
         escape();
     }},
    {"task-at-taskwait",
     [] {
#pragma omp parallel num_threads(1)
         {
#pragma omp task depend(out : is_thrown)
             escape();
             try {
#pragma omp taskwait
             } catch (const std::runtime_error &) {
             }
         }
     }},
    {"taskgroup",
     [] {
         try {
#pragma omp taskgroup
             escape();
         } catch (const std::runtime_error &) {
         }
     }},
    // No function of its own: it is left, and what comes after it is right.
    {"taskgroup-and-on",
     [] {
         std::atomic<int> ran{0};
#pragma omp parallel num_threads(4)
         for (int round = 0; round < 20; round++)
             try {
#pragma omp taskgroup
                 {
#pragma omp task shared(ran)
                     ran++;
                     escape();
                 }
             } catch (const std::runtime_error &) {
             }
#pragma omp parallel num_threads(4)
#pragma omp single
         {
#pragma omp taskgroup
#pragma omp task shared(ran)
             ran++;
             std::printf("%d tasks ran\n", ran.load());
         }
     }},
    {"taskloop",
     [] {
#pragma omp parallel num_threads(4)
#pragma omp single
#pragma omp taskloop grainsize(3)
         for (int i = 0; i < 100; i++)
             if (i == 50)
                 escape();
     }},
    {"target",
     [] {
#pragma omp target
         escape();
     }},
    {"target-nowait",
     [] {
#pragma omp target nowait
         escape();
#pragma omp taskwait
     }},
    {"teams",
     [] {
#pragma omp teams num_teams(2)
         escape();
     }},
    {"rethrown",
     [] {
#pragma omp parallel num_threads(4)
         try {
             escape();
         } catch (const std::exception &) {
             if (omp_get_thread_num() == 2)
                 throw;
         }
     }},
    {"noexcept-within",
     [] {
#pragma omp parallel num_threads(4)
         if (omp_get_thread_num() == 1)
             []() noexcept { escape(); }();
     }},
    // A copy for a task is made by the runtime, on behalf of who makes the task.
    {"copy-for-a-task",
     [] {
         Copied copied;
#pragma omp parallel num_threads(2)
#pragma omp single
#pragma omp task firstprivate(copied)
         copied.use();
     }},
    {"copy-for-a-task-outside",
     [] {
         Copied copied;
#pragma omp task firstprivate(copied)
         copied.use();
     }},
};

int main(int argc, char **argv) {
    if (argc < 2) {
        for (const auto &one : CASES)
            std::puts(one.name);
        return 0;
    }
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (const auto &one : CASES) {
        if (std::strcmp(one.name, argv[1]))
            continue;
        try {
            one.run();
            std::puts("came to its end");
        } catch (const std::runtime_error &error) {
            std::printf("came out: %s\n", error.what());
        }
        return 0;
    }
    return 2;
}
