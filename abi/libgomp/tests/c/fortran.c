/* The functions as Fortran calls them: a name with an underscore behind, which takes addresses; with _8_ behind, for
   integers of eight bytes. Says "ok"; with the argument "env" it shows the environment instead. */
#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#ifdef __cplusplus
extern "C" {
#endif
int32_t omp_get_num_procs_(void), omp_get_active_level_(void), omp_get_max_active_levels_(void);
int32_t omp_get_thread_limit_(void), omp_in_final_(void), omp_get_cancellation_(void), omp_get_default_device_(void);
int32_t omp_get_num_devices_(void), omp_get_num_teams_(void), omp_get_proc_bind_(void), omp_get_team_num_(void);
int32_t omp_is_initial_device_(void), omp_get_initial_device_(void), omp_get_max_task_priority_(void);
int32_t omp_get_num_places_(void), omp_get_partition_num_places_(void), omp_get_place_num_(void);
int32_t omp_get_supported_active_levels_(void), omp_get_device_num_(void), omp_get_max_teams_(void);
int32_t omp_get_teams_thread_limit_(void), omp_get_dynamic_(void), omp_get_nested_(void);
int32_t omp_get_ancestor_thread_num_(const int32_t *), omp_get_team_size_8_(const int64_t *);
int32_t omp_get_place_num_procs_(const int32_t *), omp_get_place_num_procs_8_(const int64_t *);
int32_t omp_pause_resource_all_(const int32_t *);
void omp_set_dynamic_(const int32_t *), omp_set_nested_8_(const int64_t *);
void omp_set_max_active_levels_(const int32_t *), omp_set_max_active_levels_8_(const int64_t *);
void omp_set_schedule_(const int32_t *, const int32_t *), omp_set_default_device_8_(const int64_t *);
void omp_set_num_teams_(const int32_t *), omp_set_teams_thread_limit_(const int32_t *);
void omp_set_teams_thread_limit_8_(const int64_t *);
void omp_get_partition_place_nums_(int32_t *), omp_get_place_proc_ids_(const int32_t *, int32_t *);
void omp_get_place_proc_ids_8_(const int64_t *, int64_t *), omp_get_partition_place_nums_8_(int64_t *);
void omp_display_affinity_(const char *, size_t), omp_fulfill_event_(intptr_t);
void omp_display_env_(const int32_t *), omp_display_env_8_(const int64_t *);
intptr_t omp_init_allocator_8_(const intptr_t *, const int64_t *, const omp_alloctrait_t *);
void omp_destroy_allocator_(const intptr_t *);
void omp_init_lock_(omp_lock_t *), omp_set_lock_(omp_lock_t *), omp_unset_lock_(omp_lock_t *);
int32_t omp_test_lock_(omp_lock_t *);
void omp_destroy_lock_(omp_lock_t *);
/* What Fortran has is an integer in which an address fits. */
void omp_init_nest_lock_(void **), omp_set_nest_lock_(void **), omp_unset_nest_lock_(void **);
int32_t omp_test_nest_lock_(void **);
void omp_destroy_nest_lock_(void **);
#ifdef __cplusplus
}
#endif

static const int64_t beyond = INT64_C(1) << 40;

static void variables(void) {
    int32_t four = 4, two = 2, one = 1, zero = 0;
    int64_t three_8 = 3, yes_8 = 1, no_8 = 0;
    omp_set_dynamic_(&one);
    CHECK(omp_get_dynamic() == 1);
    omp_set_dynamic_(&zero);
    CHECK(omp_get_dynamic_() == 0);
    omp_set_nested_8_(&yes_8);
    CHECK(omp_get_max_active_levels_() == omp_get_supported_active_levels_());
    omp_set_nested_8_(&no_8);
    CHECK(omp_get_nested_() == 0);
    omp_set_max_active_levels_(&four);
    CHECK(omp_get_max_active_levels_() == 4);
    omp_set_max_active_levels_8_(&three_8);
    CHECK(omp_get_max_active_levels_() == 3);
    omp_set_max_active_levels_8_(&beyond);
    CHECK(omp_get_max_active_levels_() == omp_get_supported_active_levels_());
    omp_sched_t kind;
    int chunk;
    omp_set_schedule_(&two, &four);
    omp_get_schedule(&kind, &chunk);
    CHECK(kind == omp_sched_dynamic && chunk == 4);

    omp_set_num_teams_(&four);
    CHECK(omp_get_max_teams_() == 4);
    omp_set_num_teams_(&zero);
    omp_set_teams_thread_limit_(&two);
    CHECK(omp_get_teams_thread_limit_() == 2);
    omp_set_teams_thread_limit_8_(&three_8);
    CHECK(omp_get_teams_thread_limit_() == 3);
    omp_set_teams_thread_limit_8_(&no_8);
    CHECK(omp_get_thread_limit_() == INT_MAX && omp_get_cancellation_() == omp_get_cancellation());

    omp_set_default_device_8_(&three_8);
    CHECK(omp_get_default_device_() == 3);
    omp_set_default_device_8_(&no_8);
    CHECK(omp_get_num_devices_() == 0 && omp_get_initial_device_() == 0 && omp_get_device_num_() == 0);
    CHECK(omp_is_initial_device_() == 1 && omp_get_max_task_priority_() == omp_get_max_task_priority());
    CHECK(omp_get_num_procs_() == omp_get_num_procs() && omp_get_num_procs_() > 0);
    CHECK(omp_pause_resource_all_(&one) == 0);
}

static void nest(void) {
    CHECK(omp_get_active_level_() == 0 && omp_in_final_() == 0);
    omp_set_max_active_levels(2);
#pragma omp parallel num_threads(3)
    {
        int32_t outer = omp_get_thread_num(), level = 1, none = -1;
#pragma omp parallel num_threads(2)
        {
            int64_t levels[] = {0, 1, 2, 3, beyond};
            CHECK(omp_get_active_level_() == 2 && omp_get_ancestor_thread_num_(&level) == outer);
            CHECK(omp_get_ancestor_thread_num_(&none) == -1 && omp_get_team_size_8_(&levels[0]) == 1);
            CHECK(omp_get_team_size_8_(&levels[1]) == 3 && omp_get_team_size_8_(&levels[2]) == 2);
            CHECK(omp_get_team_size_8_(&levels[3]) == -1 && omp_get_team_size_8_(&levels[4]) == -1);
        }
    }
    omp_set_max_active_levels(1);
    int is_final = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
#pragma omp task final(1) shared(is_final)
    is_final = omp_in_final_();
    CHECK(is_final == 1);
    int league = 0;
    CHECK(omp_get_num_teams_() == 1 && omp_get_team_num_() == 0);
#pragma omp teams num_teams(3)
    {
        CHECK(omp_get_num_teams() == 3 && omp_get_num_teams_() == 3);
        CHECK(omp_get_team_num_() == league);
        league++;
    }
    CHECK(league == 3);
}

/* With OMP_PLACES or without. */
static void places(void) {
    int count = omp_get_num_places_();
    CHECK(count == omp_get_num_places() && omp_get_place_num_() == omp_get_place_num());
    CHECK(omp_get_proc_bind_() == (int)omp_get_proc_bind());
    int own = omp_get_partition_num_places_();
    CHECK(own == omp_get_partition_num_places());
    int expected[1024], ids[1024];
    int64_t ids_8[1024];
    omp_get_partition_place_nums(expected);
    omp_get_partition_place_nums_(ids);
    omp_get_partition_place_nums_8_(ids_8);
    for (int i = 0; i < own; i++)
        CHECK(ids[i] == expected[i] && ids_8[i] == expected[i]);
    for (int place = -1; place <= count; place++) {
        int64_t place_8 = place;
        int cpus = omp_get_place_num_procs(place);
        CHECK(omp_get_place_num_procs_(&place) == cpus && omp_get_place_num_procs_8_(&place_8) == cpus);
        CHECK(cpus <= 1024);
        omp_get_place_proc_ids(place, expected);
        omp_get_place_proc_ids_(&place, ids);
        omp_get_place_proc_ids_8_(&place_8, ids_8);
        for (int i = 0; i < cpus; i++)
            CHECK(ids[i] == expected[i] && ids_8[i] == expected[i]);
    }
    CHECK(omp_get_place_num_procs_8_(&beyond) == 0);
}

static void locks(void) {
    omp_lock_t lock;
    void *nest = NULL;
    int sum = 0, nested = 0;
    omp_init_lock_(&lock);
    omp_init_nest_lock_(&nest);
#pragma omp parallel num_threads(4)
    for (int i = 0; i < 1000; i++) {
        if (!omp_test_lock_(&lock))
            omp_set_lock_(&lock);
        sum++;
        omp_unset_lock_(&lock);
        omp_set_nest_lock_(&nest);
        CHECK(omp_test_nest_lock_(&nest) == 2);
        nested++;
        omp_unset_nest_lock_(&nest);
        omp_unset_nest_lock_(&nest);
    }
    CHECK(sum == 4000 && nested == 4000);
    CHECK(omp_test_lock_(&lock) == 1 && omp_test_lock_(&lock) == 0);
    omp_unset_lock_(&lock);
    omp_destroy_lock_(&lock);
    omp_destroy_nest_lock_(&nest);
}

static void rest(void) {
    /* Cut at its length, as a text of Fortran is. */
    omp_display_affinity_("of fortran %nxyz", 13);
    intptr_t space = 0;
    int64_t traits = 1;
    omp_alloctrait_t alignment = {omp_atk_alignment, 256};
    intptr_t made = omp_init_allocator_8_(&space, &traits, &alignment);
    CHECK(made != 0);
    void *block = omp_alloc(10, (omp_allocator_handle_t)made);
    CHECK(block && (uintptr_t)block % 256 == 0);
    omp_free(block, omp_null_allocator);
    omp_destroy_allocator_(&made);
    int before = 0, after = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
    {
        omp_event_handle_t event;
#pragma omp task detach(event) depend(out : before)
        before = 1;
#pragma omp task depend(in : before) shared(after)
        after = before + 1;
#pragma omp task firstprivate(event)
        omp_fulfill_event_((intptr_t)event);
    }
    CHECK(after == 2);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "env") == 0) {
        int32_t no = 0;
        int64_t yes_8 = 1;
        omp_display_env(0);
        omp_display_env(7);
        omp_display_env_(&no);
        omp_display_env_8_(&yes_8);
        return 0;
    }
    variables();
    nest();
    places();
    locks();
    rest();
    printf("ok\n");
    return 0;
}
