/* What ends the program with `omp_invalid_device`: the case is the first argument. With "none" it does what does not end
   it, and says which cases there are. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

/* Not the name: headers before GCC 13 do not have it. */
static const int invalid = -4;
static char a[4], b[4];
static const size_t one[] = {1}, zero[] = {0};

static void region(void) {
#pragma omp target device(invalid)
    a[0]++;
}
static void data(void) {
#pragma omp target data map(a) device(invalid)
    a[0]++;
}
static void enter(void) {
#pragma omp target enter data map(to : a) device(invalid)
}
static void leave(void) {
#pragma omp target exit data map(from : a) device(invalid)
}
static void update(void) {
#pragma omp target update to(a) device(invalid)
}
static void allocation(void) { omp_target_alloc(1, invalid); }
static void freeing(void) { omp_target_free(a, invalid); }
static void freeing_null(void) { omp_target_free(NULL, invalid); }
static void present(void) { omp_target_is_present(a, invalid); }
static void copy_to(void) { omp_target_memcpy(a, b, 1, 0, 0, invalid, omp_get_initial_device()); }
static void copy_from(void) { omp_target_memcpy(a, b, 1, 0, 0, omp_get_initial_device(), invalid); }
static void rectangle(void) {
    omp_target_memcpy_rect(a, b, 1, 1, one, zero, zero, one, one, invalid, omp_get_initial_device());
}
static void associate(void) { omp_target_associate_ptr(a, b, 1, 0, invalid); }
static void disassociate(void) { omp_target_disassociate_ptr(a, invalid); }
static void pause_it(void) { omp_pause_resource(omp_pause_soft, invalid); }

/* Functions that headers before GCC 13 do not declare. */
static int (*is_accessible)(const void *, size_t, int);
static void *(*mapped)(const void *, int);
static void (*interop)(int, int, uintptr_t **, const int *, const char **, int, uintptr_t *, int, uintptr_t **,
                       unsigned, void **);
static const char *(*uid)(int);
static void find(void) {
    is_accessible = dlsym(RTLD_DEFAULT, "omp_target_is_accessible");
    mapped = dlsym(RTLD_DEFAULT, "omp_get_mapped_ptr");
    interop = dlsym(RTLD_DEFAULT, "GOMP_interop");
    uid = dlsym(RTLD_DEFAULT, "omp_get_uid_from_device");
    CHECK(is_accessible && mapped && interop && uid);
}
static void accessible(void) { is_accessible(a, 1, invalid); }
static void address(void) { mapped(a, invalid); }
static void object(void) {
    uintptr_t made = 0, *objects[] = {&made};
    const int kinds[] = {1};
    interop(invalid, 1, objects, kinds, NULL, 0, NULL, 0, NULL, 0, NULL);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"region", region},         {"data", data},           {"enter", enter},
    {"leave", leave},           {"update", update},       {"allocation", allocation},
    {"freeing", freeing},       {"freeing-null", freeing_null}, {"present", present},
    {"copy-to", copy_to},       {"copy-from", copy_from}, {"rectangle", rectangle},
    {"associate", associate},   {"disassociate", disassociate}, {"pause", pause_it},
    {"accessible", accessible}, {"address", address},     {"object", object},
};

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    find();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(what, cases[i].name)) {
            cases[i].run();
            printf("%s: it went on\n", what);
            return 0;
        }
    CHECK(!strcmp(what, "none"));

    /* The host, whatever device is named. */
    int never = argc > 100;
#pragma omp target device(invalid) if (never)
    a[0] = 5;
    CHECK(a[0] == 5);
#pragma omp target update to(a) device(invalid) if (never)
    /* Nothing is asked of the device. */
    omp_target_is_present(NULL, invalid);
    CHECK(!is_accessible(NULL, 1, invalid) && !is_accessible(a, 0, invalid) && !mapped(NULL, invalid));
    CHECK(uid(invalid) == NULL);
    /* Others that are not there are no mistake. */
    for (int other = -6; other < 3; other++) {
        if (other == invalid)
            continue;
#pragma omp target device(other)
        a[1]++;
        omp_target_free(omp_target_alloc(1, other), other);
        omp_target_is_present(a, other);
        omp_target_memcpy(a, b, 1, 0, 0, other, other);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        printf("%s\n", cases[i].name);
    return 0;
}
