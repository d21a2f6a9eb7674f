/* Every function of the header, as a C program uses it. */
#include "amdahl_range_alloc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is)                                                                                  \
    do {                                                                                           \
        if (!(is)) {                                                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, #is);                                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void count(void *context, uint64_t start, uint64_t size) {
    (void)start;
    *(uint64_t *)context += size;
}

/* A text that grows. */
struct text {
    char bytes[4096];
    size_t used;
    int pieces_left; /* before it wants no more */
};

static int put(void *context, const char *piece, size_t bytes) {
    struct text *text = context;
    if (text->pieces_left-- == 0) return 1;
    CHECK(text->used + bytes < sizeof text->bytes);
    memcpy(text->bytes + text->used, piece, bytes);
    text->used += bytes;
    text->bytes[text->used] = 0;
    return 0;
}

static void texts(void) {
    struct ara_arena *arena, *again;
    CHECK(ara_create(0x100, 0x500, 0x10, &arena) == ARA_OK);
    uint64_t start, end, granule;
    CHECK(ara_range(arena, &start, &end, &granule) == ARA_OK && start == 0x100 && end == 0x500 && granule == 0x10);
    CHECK(ara_range(arena, NULL, NULL, NULL) == ARA_OK && ara_range(NULL, &start, NULL, NULL) == ARA_NULL);
    CHECK(ara_alloc_at(arena, 0x100, 0x40) == ARA_OK && ara_alloc_at(arena, 0x180, 0x20) == ARA_OK);
    CHECK(ara_free_lazy(arena, 0x180, NULL) == ARA_OK);

    struct text layout = {.pieces_left = -1};
    CHECK(ara_layout(arena, put, &layout) == ARA_OK);
    CHECK(strcmp(layout.bytes, "amdahl-range-alloc 1\narena 0x100 0x500 granule 0x10\nbusy 0x100 0x40\nlazy 0x180 0x20\n") == 0);
    struct text stops = {.pieces_left = 2};
    CHECK(ara_layout(arena, put, &stops) == ARA_STOPPED && stops.used < layout.used);
    CHECK(ara_layout(arena, NULL, NULL) == ARA_NULL && ara_layout(NULL, put, &stops) == ARA_NULL);
    struct text map = {.pieces_left = -1}, segments = {.pieces_left = -1};
    CHECK(ara_map(arena, 0, put, &map) == ARA_OK && ara_map(arena, 1, put, &segments) == ARA_OK);
    CHECK(strstr(map.bytes, "64 of 1024 units in 1 allocations") && !strstr(map.bytes, "lazy  32"));
    CHECK(strstr(segments.bytes, "lazy  32") && strncmp(segments.bytes, map.bytes, map.used) == 0);

    uint64_t line = 99;
    CHECK(ara_parse(layout.bytes, layout.used, &again, &line) == ARA_OK && line == 99);
    struct text twice = {.pieces_left = -1};
    CHECK(ara_layout(again, put, &twice) == ARA_OK && strcmp(twice.bytes, layout.bytes) == 0);
    ara_destroy(again);
    const char *overlap = "amdahl-range-alloc 1\narena 0 100 granule 1\nbusy 5 5\nbusy 9 1\n";
    CHECK(ara_parse(overlap, strlen(overlap), &again, &line) == ARA_BAD_LAYOUT && line == 4);
    CHECK(ara_parse(overlap, 30, &again, NULL) == ARA_BAD_LAYOUT);
    CHECK(ara_parse("", 0, &again, &line) == ARA_BAD_LAYOUT && line == 0);
    CHECK(ara_parse("amdahl-range-alloc 1\n\xff", 22, &again, &line) == ARA_BAD_LAYOUT && line == 2);
    CHECK(ara_parse(NULL, 0, &again, NULL) == ARA_NULL && ara_parse(layout.bytes, layout.used, NULL, NULL) == ARA_NULL);

    /* 0x40 units, and the rest up to the end: 0x360. */
    struct ara_fragmentation sizes;
    CHECK(ara_fragmentation(arena, &sizes) == ARA_OK && ara_fragmentation(NULL, &sizes) == ARA_NULL);
    CHECK(sizes.gaps[6] == 1 && sizes.units[6] == 0x40 && sizes.gaps[9] == 1 && sizes.units[9] == 0x360);
    uint64_t gaps = 0;
    for (int at = 0; at < ARA_SIZE_CLASSES; at++) gaps += sizes.gaps[at];
    CHECK(gaps == 2);
    double unusable = ara_unusable(&sizes, 0x80);
    CHECK(unusable > 0.06 && unusable < 0.07 && ara_unusable(&sizes, 1) == 0 && ara_unusable(NULL, 1) == 0);
    ara_destroy(arena);
}

static void plain(void) {
    struct ara_arena *arena = NULL;
    CHECK(ara_create(16, 16, 1, &arena) == ARA_EMPTY && ara_create(16, 15, 1, &arena) == ARA_EMPTY);
    CHECK(ara_create(0, 1000, 3, &arena) == ARA_BAD_GRANULE && ara_create(0, 1000, 0, &arena) == ARA_BAD_GRANULE);
    CHECK(ara_create(0, UINT64_C(1) << 50, 2 * ARA_MAX_ALIGN, &arena) == ARA_BAD_GRANULE);
    CHECK(ara_create(8, 1024, 16, &arena) == ARA_UNEVEN && ara_create(0, 1000, 16, &arena) == ARA_UNEVEN);
    CHECK(ara_create(0, 1000, 1, NULL) == ARA_NULL);
    CHECK(ara_create(0x1000, 0x100000, 1, &arena) == ARA_OK);

    struct ara_request request = {.size = 0x30};
    uint64_t a, b, size;
    CHECK(ara_alloc(arena, &request, &a) == ARA_OK && a == 0x1000);
    request.size = 0x100;
    request.align = 0x1000;
    request.phase = 0x10;
    CHECK(ara_alloc(arena, &request, &b) == ARA_OK && b == 0x2010);
    request.zone_start = 0x5000;
    request.zone_end = 0x5050;
    uint64_t none;
    CHECK(ara_alloc(arena, &request, &none) == ARA_NO_SPACE);
    request.align = 3;
    CHECK(ara_alloc(arena, &request, &none) == ARA_BAD_ALIGN);
    request = (struct ara_request){.size = 1, .policy = 7};
    CHECK(ara_alloc(arena, &request, &none) == ARA_BAD_POLICY);
    request = (struct ara_request){.size = 1, .reserved = 1};
    CHECK(ara_alloc(arena, &request, &none) == ARA_BAD_RESERVED);
    CHECK(ara_alloc(NULL, &request, &none) == ARA_NULL);
    request = (struct ara_request){.size = 0};
    CHECK(ara_alloc(arena, &request, &none) == ARA_ZERO_SIZE);
    request = (struct ara_request){.size = 1, .policy = ARA_BEST_FIT};
    CHECK(ara_alloc(arena, &request, &none) == ARA_OK && none == 0x1030);
    CHECK(ara_free_sized(arena, none, 2) == ARA_WRONG_SIZE);
    CHECK(ara_free_sized(arena, none, 1) == ARA_OK);
    CHECK(ara_alloc_at(arena, 0x2000, 0x20) == ARA_OCCUPIED);
    CHECK(ara_alloc_at(arena, 0x3000, 0x300) == ARA_OK);
    CHECK(ara_free_part(arena, 0x3100, 0x100) == ARA_OK);
    CHECK(ara_free_part(arena, 0x3000, 0x200) == ARA_BAD_PART);
    CHECK(ara_reserve(arena, 1000) == ARA_OK);

    struct ara_block block;
    CHECK(ara_lookup(arena, 0x20ff, &block) == ARA_OK && block.start == 0x2010 && block.size == 0x100);
    CHECK(ara_lookup(arena, 0x1fff, &block) == ARA_NOT_ALLOCATED);
    uint64_t all = 0;
    int blocks = 0;
    for (uint64_t at = 0x1000; ara_next(arena, at, &block) == ARA_OK; at = block.start + block.size) {
        CHECK(block.start == at);
        all += block.size;
        blocks += !block.is_free;
    }
    CHECK(all == 0x100000 - 0x1000 && blocks == 4);

    CHECK(ara_prepare(arena, 1 << 12, 16) == ARA_OK && ara_prepare(arena, 0, 0) == ARA_BAD_ALIGN);
    CHECK(ara_free(arena, b + 1, &size) == ARA_INSIDE);
    CHECK(ara_free_lazy(arena, b, &size) == ARA_OK && size == 0x100);
    CHECK(ara_free_lazy(arena, b, NULL) == ARA_FREED_LAZILY);
    CHECK(ara_free(arena, b, &size) == ARA_FREED_LAZILY);
    uint64_t told = 0, units = 0;
    CHECK(ara_purge(arena, count, &told, &units) == ARA_OK && told == 0x100 && units == 0x100);
    CHECK(ara_free(arena, b, NULL) == ARA_NOT_ALLOCATED);
    CHECK(ara_free(arena, a, &size) == ARA_OK && size == 0x30);
    CHECK(ara_free(arena, 7, NULL) == ARA_OUTSIDE);
    struct ara_stats stats;
    CHECK(ara_stats(arena, &stats) == ARA_OK && stats.allocations == 2 && stats.busy_units == 0x200);
    CHECK(stats.levels == 1 && stats.leaves == 1 && stats.inner_nodes == 0 && stats.footprint_bytes > 0);
    CHECK(strcmp(ara_error_text(ARA_NO_SPACE), "no gap fits") == 0);

    /* Memory for 1000 more was reserved; of what more than a leaf has, this alignment is needed once. */
    request = (struct ara_request){.size = 1};
    for (int at = 0; at < 50; at++) CHECK(ara_alloc(arena, &request, &none) == ARA_OK);
    request.align = 1 << 15;
    CHECK(ara_alloc(arena, &request, &none) == ARA_OK && ara_stats(arena, &stats) == ARA_OK);
    uint64_t alignments = stats.alignments, bytes = stats.footprint_bytes;
    CHECK(ara_shrink_to_fit(arena) == ARA_OK && ara_shrink_to_fit(arena) == ARA_OK && ara_shrink_to_fit(NULL) == ARA_NULL);
    CHECK(ara_stats(arena, &stats) == ARA_OK && stats.allocations == 53);
    CHECK(stats.alignments < alignments && stats.alignments >= 1 && stats.footprint_bytes < bytes);
    ara_destroy(arena);
    ara_destroy(NULL);
}

static void *churn(void *arena) {
    for (int turn = 0; turn < 20000; turn++) {
        struct ara_request request = {.size = 1 + turn % 60, .align = 1u << turn % 9};
        uint64_t start, size;
        CHECK(ara_shared_alloc(arena, &request, &start) == ARA_OK);
        CHECK(start % request.align == 0);
        if (turn % 16 == 0) {
            CHECK(ara_shared_free_lazy(arena, start, &size) == ARA_OK && size == request.size);
        } else {
            CHECK(ara_shared_free(arena, start, &size) == ARA_OK && size == request.size);
        }
    }
    return NULL;
}

struct seen {
    struct ara_shared *arena;
    uint64_t at;
    int free, lazy, busy;
};

/* Uses the arena meanwhile. */
static void see(void *context, const struct ara_block *block) {
    struct seen *seen = context;
    struct ara_block found;
    CHECK(block->start == seen->at);
    seen->at += block->size;
    seen->free += block->is_free;
    seen->lazy += block->is_lazy;
    seen->busy += !block->is_free && !block->is_lazy;
    CHECK(ara_shared_lookup(seen->arena, block->start, &found) == (block->is_free ? ARA_NOT_ALLOCATED : ARA_OK));
}

static void shared(void) {
    struct ara_shared *arena = NULL;
    CHECK(ara_shared_create(0, 1 << 24, 1, 0, 0, &arena) == ARA_OK);
    pthread_t threads[4];
    for (int at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, churn, arena) == 0);
    for (int at = 0; at < 4; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(ara_shared_purge(arena, NULL, NULL, NULL) == ARA_OK);
    CHECK(ara_shared_prepare(arena, 512, 3) == ARA_OK && ara_shared_prepare(arena, 3, 0) == ARA_BAD_ALIGN);
    struct ara_shared_stats stats;
    CHECK(ara_shared_stats(arena, &stats) == ARA_OK && stats.units == 1 << 24 && stats.busy_units == 0 && stats.lazy_units == 0);
    CHECK(ara_shared_alloc_at(arena, 100, 50) == ARA_OK && ara_shared_free_lazy(arena, 100, NULL) == ARA_OK);
    CHECK(ara_shared_alloc_at(arena, 150, 10) == ARA_OK);
    struct seen seen = {arena, 0, 0, 0, 0};
    CHECK(ara_shared_each(arena, see, &seen) == ARA_OK);
    CHECK(seen.at == 1 << 24 && seen.free == 2 && seen.lazy == 1 && seen.busy == 1);
    uint64_t start, end, granule, largest;
    size_t slots;
    CHECK(ara_shared_range(arena, &start, &end, &granule, &slots) == ARA_OK && start == 0 && end == 1 << 24 && granule == 1 && slots >= 1);
    CHECK(ara_shared_largest_free(arena, &largest) == ARA_OK && largest == (1 << 24) - 160);
    struct ara_fragmentation sizes;
    CHECK(ara_shared_fragmentation(arena, &sizes) == ARA_OK && sizes.gaps[6] == 1 && sizes.units[6] == 100 && sizes.gaps[23] == 1);
    struct ara_arena *copy;
    CHECK(ara_shared_to_plain(arena, NULL) == ARA_NULL && ara_shared_to_plain(arena, &copy) == ARA_OK);
    struct text layout = {.pieces_left = -1};
    CHECK(ara_layout(copy, put, &layout) == ARA_OK && strstr(layout.bytes, "lazy 0x64 0x32\nbusy 0x96 0xa\n"));
    ara_destroy(copy);
    CHECK(ara_shared_each(arena, NULL, NULL) == ARA_NULL && ara_shared_each(NULL, see, &seen) == ARA_NULL);
    CHECK(ara_shared_stats(arena, &stats) == ARA_OK && stats.busy_units == 10 && stats.lazy_units == 50);
    CHECK(stats.free_units == (1 << 24) - 60 && stats.allocations == 1 && stats.lazy_allocations == 1);
    CHECK(stats.largest_free <= largest && stats.leaves >= 1 && stats.footprint_bytes > 0);
    CHECK(ara_shared_free(arena, 150, NULL) == ARA_OK && ara_shared_purge(arena, NULL, NULL, NULL) == ARA_OK);
    CHECK(ara_shared_alloc_at(arena, 0, 1 << 24) == ARA_OK);
    struct ara_block block;
    CHECK(ara_shared_lookup(arena, 5, &block) == ARA_OK && block.size == 1 << 24);
    CHECK(ara_shared_free_part(arena, 0, 1 << 23) == ARA_OK);
    CHECK(ara_shared_free_part(arena, 0, 1) == ARA_NOT_ALLOCATED);
    CHECK(ara_shared_free_sized(arena, 1 << 23, 1) == ARA_WRONG_SIZE);
    CHECK(ara_shared_free_sized(arena, 1 << 23, 1 << 23) == ARA_OK);
    ara_shared_destroy(arena);

    /* Two slots, whose addresses lie apart, however many CPUs there are. */
    CHECK(ara_shared_create(0, 1 << 20, 1, 2, 1 << 12, &arena) == ARA_OK);
    struct ara_request request = {.size = 8, .align = 8};
    uint64_t a, b, c;
    CHECK(ara_shared_alloc_in(arena, 0, &request, &a) == ARA_OK && ara_shared_alloc_in(arena, 1, &request, &b) == ARA_OK);
    CHECK(ara_shared_alloc_in(arena, 2, &request, &c) == ARA_OK && c == a + 8 && b >> 12 != a >> 12);
    CHECK(ara_shared_alloc_in(NULL, 0, &request, &c) == ARA_NULL && ara_shared_alloc_in(arena, 0, NULL, &c) == ARA_NULL);
    request.size = 0;
    CHECK(ara_shared_alloc_in(arena, 0, &request, &c) == ARA_ZERO_SIZE);
    ara_shared_destroy(arena);
}

/* What a later version may have more. */
struct longer {
    struct ara_shared_config config;
    uint64_t more;
};

static void configured(void) {
    struct ara_shared *arena;
    struct ara_shared_config config = {.bytes = sizeof config, .start = 0x1000, .end = 0x100000};
    struct ara_shared_stats stats;
    struct ara_request request = {.size = 16};
    uint64_t start, end, granule, a, b;
    size_t slots;
    CHECK(ara_shared_create_with(NULL, &arena) == ARA_NULL && ara_shared_create_with(&config, NULL) == ARA_NULL);
    CHECK(ara_shared_create_with(&config, &arena) == ARA_OK && ara_shared_range(arena, &start, &end, &granule, &slots) == ARA_OK);
    CHECK(start == 0x1000 && end == 0x100000 && granule == 1 && slots >= 1);
    CHECK(ara_shared_alloc(arena, &request, &a) == ARA_OK && ara_shared_free(arena, a, NULL) == ARA_OK);
    CHECK(ara_shared_stats(arena, &stats) == ARA_OK && stats.cached_units == 0 && stats.span_units == 65536);
    ara_shared_destroy(arena);

    config.bytes = 0;
    CHECK(ara_shared_create_with(&config, &arena) == ARA_BAD_CONFIG);
    config.bytes = sizeof config - 8;
    CHECK(ara_shared_create_with(&config, &arena) == ARA_BAD_CONFIG);
    config.bytes = UINT64_MAX;
    CHECK(ara_shared_create_with(&config, &arena) == ARA_BAD_CONFIG);
    config.bytes = sizeof config;
    config.end = config.start;
    CHECK(ara_shared_create_with(&config, &arena) == ARA_EMPTY && ara_shared_create(7, 6, 1, 0, 0, &arena) == ARA_EMPTY);
    config.end = 0x100008;
    config.granule = 12;
    CHECK(ara_shared_create_with(&config, &arena) == ARA_BAD_GRANULE && ara_shared_create(0, 16, 0, 0, 0, &arena) == ARA_BAD_GRANULE);
    config.granule = 16;
    CHECK(ara_shared_create_with(&config, &arena) == ARA_UNEVEN && ara_shared_create(0, 17, 16, 0, 0, &arena) == ARA_UNEVEN);

    config.end = 0x100000;
    config.slots = 2;
    config.span = 4096;
    config.magazine_largest = 64;
    config.magazine_depth = 4;
    struct longer later = {.config = config, .more = 1};
    later.config.bytes = sizeof later;
    CHECK(ara_shared_create_with(&later.config, &arena) == ARA_BAD_CONFIG);
    later.more = 0;
    CHECK(ara_shared_create_with(&later.config, &arena) == ARA_OK);
    CHECK(ara_shared_range(arena, NULL, NULL, &granule, &slots) == ARA_OK && granule == 16 && slots == 2);
    request.reserved = 1;
    CHECK(ara_shared_alloc_in(arena, 0, &request, &a) == ARA_BAD_RESERVED && ara_shared_alloc(arena, &request, &a) == ARA_BAD_RESERVED);
    request.reserved = 0;
    CHECK(ara_shared_alloc_in(arena, 0, &request, &a) == ARA_OK && ara_shared_alloc_in(arena, 0, &request, &b) == ARA_OK);
    CHECK(ara_shared_free(arena, a, NULL) == ARA_OK && ara_shared_stats(arena, &stats) == ARA_OK);
    CHECK(stats.cached_units == 16 && stats.busy_units == 16 && stats.span_units == 4096);
    CHECK(ara_shared_free(arena, a, NULL) == ARA_NOT_ALLOCATED);
    for (int at = 0; at < 50; at++) CHECK(ara_shared_alloc_in(arena, 0, &request, &b) == ARA_OK);
    CHECK(ara_shared_free(arena, b, NULL) == ARA_OK);
    request.align = 1 << 9;
    CHECK(ara_shared_alloc_in(arena, 0, &request, &a) == ARA_OK && ara_shared_stats(arena, &stats) == ARA_OK);
    uint64_t alignments = stats.alignments;
    CHECK(stats.cached_units == 16 && stats.allocations == 51);
    CHECK(ara_shared_shrink_to_fit(arena) == ARA_OK && ara_shared_shrink_to_fit(arena) == ARA_OK);
    CHECK(ara_shared_shrink_to_fit(NULL) == ARA_NULL && ara_shared_stats(arena, &stats) == ARA_OK);
    CHECK(stats.cached_units == 0 && stats.busy_units == 51 * 16 && stats.alignments < alignments && stats.alignments >= 1);
    ara_shared_destroy(arena);
}

int main(void) {
    CHECK(ara_abi_version() == ARA_ABI_VERSION);
    plain();
    texts();
    shared();
    configured();
    puts("ok");
    return 0;
}
