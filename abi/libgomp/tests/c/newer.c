/* Functions that GCC's library has since GCC 13 and 14; where it has none of them the program says so. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("%s:%d: not %s\n", __FILE__, __LINE__, #what);                                                      \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

typedef int memcpy_async(void *, const void *, size_t, size_t, size_t, int, int, int, omp_depend_t *);
typedef int memcpy_rect_async(void *, const void *, size_t, int, const size_t *, const size_t *, const size_t *,
                              const size_t *, const size_t *, int, int, int, omp_depend_t *);

int main(void) {
    /* Keeps the library loaded. */
    int host = omp_get_initial_device();
    int (*is_accessible)(const void *, size_t, int) = dlsym(RTLD_DEFAULT, "omp_target_is_accessible");
    void *(*mapped)(const void *, int) = dlsym(RTLD_DEFAULT, "omp_get_mapped_ptr");
    memcpy_async *copy = dlsym(RTLD_DEFAULT, "omp_target_memcpy_async");
    memcpy_rect_async *copy_rect = dlsym(RTLD_DEFAULT, "omp_target_memcpy_rect_async");
    int (*in_explicit_task)(void) = dlsym(RTLD_DEFAULT, "omp_in_explicit_task");
    int (*in_explicit_task_fortran)(void) = dlsym(RTLD_DEFAULT, "omp_in_explicit_task_");
    void *(*function)(void *) = dlsym(RTLD_DEFAULT, "GOMP_target_map_indirect_ptr");
    if (!is_accessible || !mapped || !copy || !copy_rect || !in_explicit_task ||
        !in_explicit_task_fortran || !function) {
        printf("none\n");
        return 0;
    }
    char from[12] = "0123456789", to[12] = "..........";
    CHECK(is_accessible(from, 1, host) && mapped(from, host) == from);
    CHECK(mapped(from, host + 1) == NULL);
    CHECK(copy(to, from, 3, 1, 2, host, host, 0, NULL) == 0 && strcmp(to, ".234......") == 0);
    CHECK(copy(to, from, 3, 1, 2, host + 1, host, 0, NULL) != 0);
    size_t volume[2] = {2, 1}, begin[2] = {0, 0}, size[2] = {2, 5};
    CHECK(copy_rect(to, from, 1, 2, volume, begin, begin, size, size, host, host, 0, NULL) == 0);
    CHECK(strcmp(to, "0234.5....") == 0);
    CHECK(in_explicit_task() == 0 && in_explicit_task_fortran() == 0);
    CHECK(function(from) == from);

    /* Behind a task that it depends on. */
    omp_depend_t object;
    int gate = 0, failures = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
    {
        for (int round = 0; round < 200; round++) {
            memset(to, '.', 10);
            from[0] = 'x';
            gate = round;
#pragma omp task depend(out : gate) shared(from)
            {
                __atomic_store_n(&from[0], 'y', __ATOMIC_RELAXED);
                if (!in_explicit_task())
                    __atomic_store_n(&failures, 1000, __ATOMIC_RELAXED);
            }
#pragma omp depobj(object) depend(in : gate)
            failures += copy(to, from, 1, 0, 0, host, host, 1, &object) != 0 || to[0] != 'y';
#pragma omp depobj(object) destroy
        }
    }
    CHECK(failures == 0 && gate == 199);
    printf("ok\n");
    return 0;
}
