/* What omp_* promise, and the compiler's calls for target regions, leagues and allocate clauses. Says "ok". */
#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Fortran's names. */
#ifdef __cplusplus
extern "C" {
#endif
extern void omp_set_num_threads_(const int32_t *), omp_set_num_threads_8_(const int64_t *);
extern int32_t omp_get_max_threads_(void), omp_get_thread_num_(void), omp_get_num_threads_(void), omp_get_level_(void);
extern void omp_set_dynamic_8_(const int64_t *), omp_set_nested_(const int32_t *);
extern int32_t omp_get_dynamic_(void), omp_get_nested_(void), omp_in_parallel_(void);
extern void omp_set_schedule_8_(const int32_t *, const int64_t *), omp_get_schedule_(int32_t *, int32_t *);
extern void omp_get_schedule_8_(int32_t *, int64_t *);
extern int32_t omp_get_ancestor_thread_num_8_(const int64_t *), omp_get_team_size_(const int32_t *);
extern void omp_set_affinity_format_(const char *, size_t);
extern int32_t omp_get_affinity_format_(char *, size_t);
extern int32_t omp_capture_affinity_(char *, const char *, size_t, size_t);
extern double omp_get_wtime_(void), omp_get_wtick_(void);
extern intptr_t omp_init_allocator_(const intptr_t *, const int32_t *, const omp_alloctrait_t *);
extern void omp_destroy_allocator_(const intptr_t *), omp_set_default_allocator_(const intptr_t *);
extern intptr_t omp_get_default_allocator_(void);
extern int32_t omp_pause_resource_(const int32_t *, const int32_t *);
extern void omp_set_num_teams_8_(const int64_t *), omp_set_default_device_(const int32_t *);
extern void omp_get_partition_place_nums_8_(int64_t *);
#ifdef __cplusplus
}
#endif

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void variables(void) {
    omp_set_num_threads(5);
    CHECK(omp_get_max_threads() == 5);
    omp_set_num_threads(0);
    CHECK(omp_get_max_threads() == 1);
    int64_t many = INT64_C(1) << 40;
    omp_set_num_threads_8_(&many);
    CHECK(omp_get_max_threads() == INT_MAX);
    int32_t three = 3;
    omp_set_num_threads_(&three);
    CHECK(omp_get_max_threads_() == 3);

    omp_set_dynamic(7);
    CHECK(omp_get_dynamic() == 1);
    int64_t no = 0;
    omp_set_dynamic_8_(&no);
    CHECK(omp_get_dynamic_() == 0);

    omp_set_max_active_levels(2);
    CHECK(omp_get_max_active_levels() == 2 && omp_get_nested() == 1);
    omp_set_max_active_levels(-1);
    CHECK(omp_get_max_active_levels() == 2);
    omp_set_max_active_levels(INT_MAX);
    CHECK(omp_get_max_active_levels() == omp_get_supported_active_levels());
    omp_set_nested(0);
    CHECK(omp_get_max_active_levels() == 1 && omp_get_nested() == 0);
    omp_set_max_active_levels(0);
    omp_set_nested(0);
    CHECK(omp_get_max_active_levels() == 0);
    omp_set_nested_(&three);
    CHECK(omp_get_nested_() == 1);
    omp_set_nested(0);

    omp_sched_t kind;
    int chunk;
    omp_set_schedule(omp_sched_static, -4);
    omp_get_schedule(&kind, &chunk);
    CHECK(kind == omp_sched_static && chunk == 0);
    omp_set_schedule((omp_sched_t)(omp_sched_dynamic | omp_sched_monotonic), 0);
    omp_get_schedule(&kind, &chunk);
    CHECK(kind == (omp_sched_dynamic | omp_sched_monotonic) && chunk == 1);
    omp_set_schedule((omp_sched_t)77, 9);
    omp_get_schedule(&kind, &chunk);
    CHECK(kind == (omp_sched_dynamic | omp_sched_monotonic) && chunk == 1);
    int32_t kind_4, chunk_4;
    omp_get_schedule_(&kind_4, &chunk_4);
    CHECK(kind_4 == 2 && chunk_4 == 1);
    int64_t chunk_8 = 6;
    kind_4 = 3;
    omp_set_schedule_8_(&kind_4, &chunk_8);
    chunk_8 = 0;
    omp_get_schedule_8_(&kind_4, &chunk_8);
    CHECK(kind_4 == 3 && chunk_8 == 6);

    omp_set_num_teams(4);
    omp_set_num_teams(-1);
    CHECK(omp_get_max_teams() == 4);
    int64_t none = 0;
    omp_set_num_teams_8_(&none);
    CHECK(omp_get_max_teams() == 0);
    omp_set_teams_thread_limit(3);
    omp_set_teams_thread_limit(-5);
    CHECK(omp_get_teams_thread_limit() == 3);
    omp_set_teams_thread_limit(0);

    omp_set_default_device(2);
    CHECK(omp_get_default_device() == 2);
    int32_t negative = -7;
    omp_set_default_device_(&negative);
    CHECK(omp_get_default_device() == 0);
    CHECK(omp_get_num_devices() == 0 && omp_get_initial_device() == 0 && omp_is_initial_device() == 1);
    CHECK(omp_get_device_num() == 0);

    double before = omp_get_wtime();
    CHECK(omp_get_wtime_() >= before && omp_get_wtick() > 0 && omp_get_wtick_() < 1);
}

static void nest(void) {
    CHECK(omp_get_thread_num() == 0 && omp_get_num_threads() == 1 && omp_in_parallel() == 0);
    CHECK(omp_get_level() == 0 && omp_get_active_level() == 0);
    CHECK(omp_get_ancestor_thread_num(0) == 0 && omp_get_team_size(0) == 1);
    CHECK(omp_get_ancestor_thread_num(1) == -1 && omp_get_team_size(-1) == -1);
    omp_set_max_active_levels(3);
#pragma omp parallel num_threads(3)
    {
        int outer = omp_get_thread_num();
        CHECK(omp_in_parallel_() == 1 && omp_get_num_threads_() == 3);
        omp_set_num_threads(10 + outer);
#pragma omp parallel num_threads(1)
        {
            CHECK(omp_get_level_() == 2 && omp_get_active_level() == 1);
            CHECK(omp_get_max_threads() == 10 + outer);
#pragma omp parallel num_threads(2)
            {
                CHECK(omp_get_level() == 3 && omp_get_active_level() == 2);
                int64_t one = 1;
                int32_t two = 2;
                CHECK(omp_get_ancestor_thread_num(0) == 0);
                CHECK(omp_get_ancestor_thread_num_8_(&one) == outer);
                CHECK(omp_get_ancestor_thread_num(2) == 0);
                CHECK(omp_get_ancestor_thread_num(3) == omp_get_thread_num_());
                CHECK(omp_get_team_size(1) == 3 && omp_get_team_size_(&two) == 1 && omp_get_team_size(3) == 2);
                CHECK(omp_get_team_size(0) == 1 && omp_get_team_size(4) == -1);
                omp_set_num_threads(99);
                CHECK(omp_get_max_threads() == 99);
            }
            CHECK(omp_get_max_threads() == 10 + outer);
        }
        CHECK(omp_get_max_threads() == 10 + outer);
        CHECK(omp_pause_resource_all(omp_pause_soft) == -1);
    }
    omp_set_max_active_levels(1);
    CHECK(omp_get_max_threads() == 3);
    CHECK(omp_pause_resource(omp_pause_hard, omp_get_initial_device()) == 0);
    int32_t kind = 1, device = 5;
    CHECK(omp_pause_resource_(&kind, &device) == -1);
    CHECK(omp_pause_resource_all(omp_pause_soft) == 0);
#pragma omp parallel num_threads(2)
    CHECK(omp_get_num_threads() == 2);
}

static void affinity(void) {
    char text[64];
    omp_set_affinity_format("%n of %{num_threads}");
    CHECK(omp_get_affinity_format(NULL, 0) == 20);
    CHECK(omp_get_affinity_format(text, 5) == 20 && strcmp(text, "%n o") == 0);
    CHECK(omp_capture_affinity(text, sizeof text, NULL) == 6 && strcmp(text, "0 of 1") == 0);
    CHECK(omp_capture_affinity(text, sizeof text, "") == 6 && strcmp(text, "0 of 1") == 0);
    CHECK(omp_capture_affinity(text, 3, "%0.5L|%.3a|%3t|") == 14 && strcmp(text, "00") == 0);
    CHECK(omp_capture_affinity(text, sizeof text, "%0.5L|%.3a|%3t|") == 14 && strcmp(text, "00000| -1|0  |") == 0);
    CHECK(omp_get_affinity_format_(text, 24) == 20 && memcmp(text, "%n of %{num_threads}    ", 24) == 0);
    omp_set_affinity_format_("%Nxyz", 2);
    CHECK(omp_get_affinity_format(text, sizeof text) == 2 && strcmp(text, "%N") == 0);
    CHECK(omp_capture_affinity_(text, "%L-%n", 8, 5) == 3 && memcmp(text, "0-0     ", 8) == 0);
    CHECK(omp_capture_affinity_(text, "", 1, 0) == 1 && text[0] == '1');
    omp_display_affinity("shown %n");
#pragma omp parallel num_threads(4)
    {
        char mine[64], expected[64];
        sprintf(expected, "1 %d 4 0", omp_get_thread_num());
        omp_capture_affinity(mine, sizeof mine, "%L %n %N %a");
        CHECK(strcmp(mine, expected) == 0);
    }
}

static void allocators(void) {
    CHECK(omp_get_default_allocator() == omp_default_mem_alloc);
    omp_alloctrait_t traits[] = {
        {omp_atk_alignment, 128}, {omp_atk_pool_size, 4096}, {omp_atk_fallback, omp_atv_null_fb}};
    omp_allocator_handle_t pool = omp_init_allocator(omp_default_mem_space, 3, traits);
    CHECK(pool != omp_null_allocator);
    char *a = (char *)omp_alloc(1000, pool), *b = (char *)omp_alloc(1000, pool), *c = (char *)omp_alloc(1000, pool);
    CHECK(a && b && c && (uintptr_t)a % 128 == 0 && (uintptr_t)b % 128 == 0);
    CHECK(omp_alloc(1000, pool) == NULL);
    memset(a, 1, 1000);
    omp_free(b, pool);
    CHECK((b = (char *)omp_aligned_alloc(256, 500, pool)) && (uintptr_t)b % 256 == 0);
    omp_free(b, omp_null_allocator);
    a = (char *)omp_realloc(a, 1500, pool, pool);
    CHECK(a && a[0] == 1 && a[999] == 1 && (uintptr_t)a % 128 == 0);
    CHECK(omp_realloc(a, 0, pool, pool) == NULL);
    omp_free(c, pool);
    omp_set_default_allocator(pool);
    CHECK(omp_get_default_allocator() == pool);
    CHECK(omp_alloc(5000, omp_null_allocator) == NULL);
    int *zeros = (int *)omp_calloc(100, sizeof(int), omp_null_allocator);
    CHECK(zeros && (uintptr_t)zeros % 128 == 0);
    for (int i = 0; i < 100; i++)
        CHECK(zeros[i] == 0);
    omp_free(zeros, omp_null_allocator);
#pragma omp parallel num_threads(2)
    CHECK(omp_get_default_allocator() == pool);
    omp_set_default_allocator(omp_null_allocator);
    CHECK(omp_get_default_allocator() == omp_default_mem_alloc);
    omp_destroy_allocator(pool);

    CHECK(omp_alloc(0, omp_default_mem_alloc) == NULL && omp_calloc(0, 4, omp_default_mem_alloc) == NULL);
    volatile size_t half = SIZE_MAX / 2;
    CHECK(omp_calloc(half, 4, omp_default_mem_alloc) == NULL);
    CHECK((a = (char *)omp_aligned_calloc(64, 3, 7, omp_large_cap_mem_alloc)) && (uintptr_t)a % 64 == 0 && a[20] == 0);
    omp_free(a, omp_large_cap_mem_alloc);
    omp_free(NULL, omp_default_mem_alloc);
    CHECK((a = (char *)omp_realloc(NULL, 10, omp_default_mem_alloc, omp_null_allocator)) != NULL);
    strcpy(a, "kept");
    CHECK((a = (char *)omp_realloc(a, 100000, omp_null_allocator, omp_null_allocator)) && strcmp(a, "kept") == 0);
    omp_free(a, omp_null_allocator);

    omp_alloctrait_t odd = {omp_atk_alignment, 24};
    CHECK(omp_init_allocator(omp_default_mem_space, 1, &odd) == omp_null_allocator);
    CHECK(omp_init_allocator((omp_memspace_handle_t)99, 0, NULL) == omp_null_allocator);
    omp_alloctrait_t chain[] = {
        {omp_atk_pool_size, 10}, {omp_atk_fallback, omp_atv_allocator_fb}, {omp_atk_fb_data, omp_large_cap_mem_alloc}};
    omp_allocator_handle_t first = omp_init_allocator(omp_const_mem_space, 3, chain);
    CHECK((a = (char *)omp_alloc(100, first)) != NULL);
    omp_free(a, first);
    omp_destroy_allocator(first);

    intptr_t space = 0, made;
    int32_t none = 0;
    made = omp_init_allocator_(&space, &none, NULL);
    CHECK(made != 0);
    omp_set_default_allocator_(&made);
    CHECK(omp_get_default_allocator_() == made);
    intptr_t null = 0;
    omp_set_default_allocator_(&null);
    omp_destroy_allocator_(&made);

    int own = 3;
#pragma omp parallel num_threads(2) firstprivate(own) allocate(omp_default_mem_alloc : own)
    CHECK(own++ == 3);
}

static void target(void) {
    int device = omp_get_initial_device(), x = 1, sum = 0;
#pragma omp target map(tofrom : sum) firstprivate(x)
    {
        x += 10;
        sum += x;
        CHECK(omp_get_level() == 0 && omp_get_num_threads() == 1 && omp_is_initial_device());
    }
    CHECK(x == 1 && sum == 11);
    struct {
        long first, second[5];
    } large = {1, {2, 3, 4, 5, 6}};
#pragma omp target map(tofrom : sum) firstprivate(large)
    {
        sum = (int)(large.first + large.second[4]);
        large.second[4] = 99;
    }
    CHECK(sum == 7 && large.second[4] == 6);
#pragma omp parallel num_threads(2)
    {
#pragma omp target map(tofrom : sum)
        {
            CHECK(omp_get_level() == 0 && omp_get_thread_num() == 0 && omp_in_parallel() == 0);
#pragma omp parallel num_threads(2)
            CHECK(omp_get_level() == 1 && omp_get_num_threads() == 2);
        }
        CHECK(omp_get_level() == 1 && omp_get_num_threads() == 2);
    }
    /* What a region has taken is there again for the next one, and others' threads do not count. */
#pragma omp parallel num_threads(4)
#pragma omp target thread_limit(3)
    for (int round = 0; round < 3; round++) {
        int inner = 0;
        omp_set_max_active_levels(2);
#pragma omp parallel num_threads(8)
        CHECK(omp_get_num_threads() == 3);
#pragma omp parallel num_threads(2)
#pragma omp parallel num_threads(2) reduction(max : inner)
        inner = omp_get_num_threads();
        CHECK(inner <= 2);
    }
#pragma omp target thread_limit(1) map(tofrom : sum)
    sum = omp_get_thread_limit();
    CHECK(sum == 1);
#pragma omp target data map(tofrom : sum)
    {
        sum = 5;
#pragma omp target update to(sum)
    }
#pragma omp target enter data map(to : sum)
#pragma omp target exit data map(from : sum)
    int teams = 0;
#pragma omp target teams num_teams(1) map(tofrom : teams)
    teams += omp_get_num_teams();
    CHECK(teams == 1);

    char *a = (char *)omp_target_alloc(100, device), *b = (char *)omp_target_alloc(100, device);
    CHECK(a && b && omp_target_alloc(1, device + 1) == NULL);
    memset(a, 7, 100);
    CHECK(omp_target_memcpy(b, a, 50, 10, 20, device, device) == 0 && b[10] == 7 && b[59] == 7);
    CHECK(omp_target_memcpy(b, a, 50, 0, 0, device + 1, device) != 0);
    size_t volume[2] = {2, 3}, to[2] = {1, 2}, from[2] = {0, 1}, to_size[2] = {4, 10}, from_size[2] = {5, 8};
    for (int i = 0; i < 40; i++)
        a[i] = (char)i, b[i] = 0;
    CHECK(omp_target_memcpy_rect(b, a, 1, 2, volume, to, from, to_size, from_size, device, device) == 0);
    CHECK(b[12] == 1 && b[14] == 3 && b[22] == 9 && b[24] == 11 && b[11] == 0 && b[15] == 0 && b[32] == 0);
    CHECK(omp_target_memcpy_rect(NULL, NULL, 1, 2, volume, to, from, to_size, from_size, device, device) >= 3);
    CHECK(omp_target_is_present(a, device) && omp_target_is_present(NULL, device + 1));
    CHECK(!omp_target_is_present(a, device + 1));
    CHECK(omp_target_associate_ptr(a, b, 10, 0, device) != 0 && omp_target_disassociate_ptr(a, device) != 0);
    omp_target_free(a, device);
    omp_target_free(b, device);
    omp_target_free(NULL, device);
}

static int begun, league_of, limit;

/* Only these two may be asked right inside of a league, as far as the compiler sees. */
static int __attribute__((noipa)) thread_limit(void) { return omp_get_thread_limit(); }

static void leagues(void) {
    CHECK(omp_get_num_teams() == 1 && omp_get_team_num() == 0);
    begun = 0;
#pragma omp teams num_teams(3) thread_limit(2)
    {
        CHECK(omp_get_num_teams() == 3 && omp_get_team_num() == begun);
        begun++;
        CHECK(thread_limit() == 2);
#pragma omp parallel num_threads(2)
        CHECK(omp_get_num_teams() == 3 && omp_get_team_num() == begun - 1);
    }
    CHECK(begun == 3 && omp_get_num_teams() == 1 && omp_get_team_num() == 0);
    CHECK(omp_get_thread_limit() == INT_MAX);
    omp_set_num_teams(2);
    omp_set_teams_thread_limit(5);
    begun = 0;
#pragma omp teams
    {
        begun++;
        league_of = omp_get_num_teams();
        limit = thread_limit();
    }
    CHECK(begun == 2 && league_of == 2 && limit == 5);
    omp_set_num_teams(0);
    omp_set_teams_thread_limit(0);
}

int main(void) {
    variables();
    nest();
    affinity();
    allocators();
    target();
    leagues();
    printf("ok\n");
    return 0;
}
