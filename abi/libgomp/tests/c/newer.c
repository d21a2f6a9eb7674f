/* Functions that GCC's library has since GCC 13, 14 and 15: says from which of them on it has all, or "none". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
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

/* 1 where something is wrong, 0 where all is right, -1 where there is no such function. */
static int of_13(int host) {
    int (*is_accessible)(const void *, size_t, int) = dlsym(RTLD_DEFAULT, "omp_target_is_accessible");
    void *(*mapped)(const void *, int) = dlsym(RTLD_DEFAULT, "omp_get_mapped_ptr");
    memcpy_async *copy = dlsym(RTLD_DEFAULT, "omp_target_memcpy_async");
    memcpy_rect_async *copy_rect = dlsym(RTLD_DEFAULT, "omp_target_memcpy_rect_async");
    int (*in_explicit_task)(void) = dlsym(RTLD_DEFAULT, "omp_in_explicit_task");
    int (*in_explicit_task_fortran)(void) = dlsym(RTLD_DEFAULT, "omp_in_explicit_task_");
    if (!is_accessible || !mapped || !copy || !copy_rect || !in_explicit_task || !in_explicit_task_fortran)
        return -1;
    char from[12] = "0123456789", to[12] = "..........";
    CHECK(is_accessible(from, 1, host) && mapped(from, host) == from);
    CHECK(mapped(from, host + 1) == NULL);
    CHECK(copy(to, from, 3, 1, 2, host, host, 0, NULL) == 0 && strcmp(to, ".234......") == 0);
    CHECK(copy(to, from, 3, 1, 2, host + 1, host, 0, NULL) != 0);
    size_t volume[2] = {2, 1}, begin[2] = {0, 0}, size[2] = {2, 5};
    CHECK(copy_rect(to, from, 1, 2, volume, begin, begin, size, size, host, host, 0, NULL) == 0);
    CHECK(strcmp(to, "0234.5....") == 0);
    CHECK(in_explicit_task() == 0 && in_explicit_task_fortran() == 0);

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
    return 0;
}

static int of_14(void) {
    void *(*function)(void *) = dlsym(RTLD_DEFAULT, "GOMP_target_map_indirect_ptr");
    void (*add)(void *) = dlsym(RTLD_DEFAULT, "GOMP_add_alloc");
    bool (*is_alloc)(void *) = dlsym(RTLD_DEFAULT, "GOMP_is_alloc");
    if (!function || !add || !is_alloc)
        return -1;
    char of_allocator, other;
    CHECK(function(&other) == &other);
    add(&of_allocator);
    add(NULL);
    CHECK(!is_alloc(&other) && !is_alloc(NULL));
    CHECK(is_alloc(&of_allocator) && !is_alloc(&of_allocator));
    /* Threads do it at once. */
    int failures = 0;
#pragma omp parallel num_threads(4) reduction(+ : failures)
    {
        char own[100];
        for (int round = 0; round < 20; round++) {
            for (int i = 0; i < 100; i++)
                add(own + i);
            for (int i = 0; i < 100; i++)
                failures += !is_alloc(own + i) || is_alloc(own + i);
        }
    }
    CHECK(failures == 0);
    return 0;
}

static int of_15(int host) {
    void (*interop)(int, int, uintptr_t **, const int *, const char **, int, uintptr_t *, int, uintptr_t **, unsigned,
                    void **) = dlsym(RTLD_DEFAULT, "GOMP_interop");
    int (*count)(uintptr_t) = dlsym(RTLD_DEFAULT, "omp_get_num_interop_properties");
    intptr_t (*number)(uintptr_t, int, int *) = dlsym(RTLD_DEFAULT, "omp_get_interop_int");
    void *(*address)(uintptr_t, int, int *) = dlsym(RTLD_DEFAULT, "omp_get_interop_ptr");
    const char *(*string)(uintptr_t, int, int *) = dlsym(RTLD_DEFAULT, "omp_get_interop_str");
    const char *(*name)(uintptr_t, int) = dlsym(RTLD_DEFAULT, "omp_get_interop_name");
    const char *(*type)(uintptr_t, int) = dlsym(RTLD_DEFAULT, "omp_get_interop_type_desc");
    const char *(*meaning)(uintptr_t, int) = dlsym(RTLD_DEFAULT, "omp_get_interop_rc_desc");
    void (*string_f)(const char **, size_t *, uintptr_t, int, int *) = dlsym(RTLD_DEFAULT, "omp_get_interop_str_");
    void (*name_f)(const char **, size_t *, uintptr_t, int) = dlsym(RTLD_DEFAULT, "omp_get_interop_name_");
    void (*type_f)(const char **, size_t *, uintptr_t, int) = dlsym(RTLD_DEFAULT, "omp_get_interop_type_desc_");
    void (*meaning_f)(const char **, size_t *, uintptr_t, int) = dlsym(RTLD_DEFAULT, "omp_get_interop_rc_desc_");
    int (*device)(const char *) = dlsym(RTLD_DEFAULT, "omp_get_device_from_uid");
    int (*device_f)(const char *, size_t) = dlsym(RTLD_DEFAULT, "omp_get_device_from_uid_");
    const char *(*uid)(int) = dlsym(RTLD_DEFAULT, "omp_get_uid_from_device");
    void (*uid_f)(const char **, size_t *, int32_t) = dlsym(RTLD_DEFAULT, "omp_get_uid_from_device_");
    void (*uid_f_8)(const char **, size_t *, int64_t) = dlsym(RTLD_DEFAULT, "omp_get_uid_from_device_8_");
    if (!interop || !count || !number || !address || !string || !name || !type || !meaning || !string_f || !name_f ||
        !type_f || !meaning_f || !device || !device_f || !uid || !uid_f || !uid_f_8)
        return -1;

    /* Objects are none, and nothing can be asked of them. */
    uintptr_t made = 7, ended = 0, *objects[] = {&made}, *last[] = {&ended};
    const int kinds[] = {2};
    interop(host, 1, objects, kinds, NULL, 1, &ended, 1, last, 0, NULL);
    CHECK(made == 0 && ended == 0 && count(made) == 0);
    static const char *const names[] = {"fr_id",    "fr_name", "vendor",         "vendor_name", "device_num",
                                        "platform", "device",  "device_context", "targetsync"};
    const char *text;
    size_t length;
    for (int property = -11; property < 3; property++) {
        int is_there = property >= -9 && property < 0, wanted = is_there ? -1 : -2, code = 9;
        CHECK(number(made, property, &code) == 0 && code == wanted);
        code = 9;
        CHECK(address(made, property, &code) == NULL && code == wanted);
        code = 9;
        CHECK(string(made, property, &code) == NULL && code == wanted);
        code = 9;
        string_f(&text, &length, made, property, &code);
        CHECK(text == NULL && length == 0 && code == wanted);
        CHECK(number(made, property, NULL) == 0 && !address(made, property, NULL) && !string(made, property, NULL));
        text = name(made, property);
        CHECK(is_there ? text && !strcmp(text, names[-1 - property]) : !text);
        const char *same;
        name_f(&same, &length, made, property);
        CHECK(same == text && length == (text ? strlen(text) : 0));
        CHECK(type(made, property) == NULL);
        type_f(&text, &length, made, property);
        CHECK(text == NULL && length == 0);
    }
    for (int code = -8; code < 4; code++) {
        const char *same;
        text = meaning(made, code);
        CHECK(code >= -5 && code <= 1 ? text && strlen(text) > 5 : !text);
        meaning_f(&same, &length, made, code);
        CHECK(same == text && length == (text ? strlen(text) : 0));
    }
    CHECK(!strcmp(meaning(made, -1), "provided interoperability object is equal to omp_interop_none"));
    CHECK(!strcmp(meaning(made, -2), "property ID is out of range"));

    /* The host has a name; others are not there. */
    for (int at = -6; at < host + 3; at++) {
        const char *same;
        text = uid(at);
        uid_f(&same, &length, at);
        CHECK(same == text && length == (text ? strlen(text) : 0));
        uid_f_8(&same, &length, at);
        CHECK(same == text);
        if (at == -1 || at == host) {
            CHECK(text && !strcmp(text, "OMP_INITIAL_DEVICE"));
            CHECK(device(text) == -1 || device(text) == host);
            CHECK(device_f("OMP_INITIAL_DEVICE, and more", 18) == device(text));
        } else if (at < -1 || at > host) {
            CHECK(!text);
        }
    }
    CHECK(device(NULL) == -4 && device("") == -4 && device("OMP_INITIAL") == -4 && device_f("OMP_INITIAL", 11) == -4);
    CHECK(device_f("OMP_INITIAL_DEVICE, and more", 19) == -4);
    return 0;
}

int main(void) {
    /* Keeps the library loaded. */
    int host = omp_get_initial_device();
    const int wrong[] = {of_13(host), of_14(), of_15(host)};
    const char *has = "none";
    static const char *const versions[] = {"13", "14", "15"};
    for (int i = 0; i < 3; i++) {
        if (wrong[i] > 0)
            return 1;
        if (wrong[i] == 0)
            has = versions[i];
    }
    printf("%s\n", has);
    return 0;
}
