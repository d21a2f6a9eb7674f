/* Allocator of address ranges: lowest address first, alignment, zones.
 *
 * One arena may be used by one thread at a time (ara_*), or by any number (ara_shared_*).
 * Units are the caller's choice: bytes, pages. All functions but create and destroy return 0
 * or a code of enum ara_error; nothing has changed then. A null arena is ARA_NULL.
 * Freeing allocates no memory and fails for a wrong address only. A broken invariant, a bug, ends the process, and so does
 * a purge within a purge of the same arena; nothing else that is asked does.
 * In C++, too, types are named with struct: ara_stats is a function as well.
 *
 * Link with -lamdahl_range_alloc_c (shared or static; the static one also with -lpthread -ldl -lm).
 */
#ifndef AMDAHL_RANGE_ALLOC_H
#define AMDAHL_RANGE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every incompatible change of this file. */
#define ARA_ABI_VERSION 3

/* The largest alignment, and the largest granule. */
#define ARA_MAX_ALIGN (UINT64_C(1) << 40)

/* Size classes of struct ara_fragmentation. */
#define ARA_SIZE_CLASSES 64

enum ara_error {
    ARA_OK = 0,
    ARA_NULL = 1,          /* a pointer that must not be null is */
    ARA_NO_MEMORY = 2,     /* no memory for bookkeeping */
    ARA_BAD_LAYOUT = 4,    /* ara_parse: not a layout, or not one that is possible */
    ARA_STOPPED = 5,       /* the caller's function said so */
    ARA_EMPTY = 6,         /* create: no addresses between the ends */
    ARA_BAD_GRANULE = 7,   /* create: 0, no power of two, or above 2^40 */
    ARA_UNEVEN = 8,        /* create: an end is no multiple of the granule */
    ARA_BAD_CONFIG = 9,    /* bytes is not that of a struct ara_shared_config, or what this library does not know is not 0 */
    ARA_ZERO_SIZE = 10,
    ARA_TOO_LARGE = 11,    /* the size in granules exceeds 64 bits */
    ARA_BAD_ALIGN = 12,    /* 0, no power of two, or above 2^40 */
    ARA_BAD_PHASE = 13,    /* not below the alignment, or no multiple of the granule */
    ARA_BAD_ZONE = 14,     /* no address of the arena in it */
    ARA_OUTSIDE = 15,      /* not in the arena, or not at a multiple of the granule */
    ARA_OCCUPIED = 16,     /* alloc_at: an allocation is in the way */
    ARA_NO_SPACE = 17,     /* no gap fits; a purge might help if lazy_units is not 0 */
    ARA_BAD_POLICY = 18,
    ARA_BAD_RESERVED = 19,  /* reserved is not 0 */
    ARA_NOT_ALLOCATED = 20, /* free: nothing there; freed twice? */
    ARA_FREED_LAZILY = 21,  /* free: freed already, lazily */
    ARA_INSIDE = 22,        /* free: inside of an allocation that begins lower */
    ARA_WRONG_SIZE = 23,    /* free_sized: the allocation has another size */
    ARA_BAD_PART = 24,      /* free_part: not within one allocation */
    ARA_UNKNOWN = 99
};

enum ara_policy {
    ARA_LOWEST_ADDRESS = 0,
    ARA_NEXT_FIT = 1,
    ARA_BEST_FIT = 2
};

/* What to allocate. Zeroed but for size it is a plain request. */
struct ara_request {
    uint64_t size;
    uint64_t align;      /* power of two up to ARA_MAX_ALIGN; 0 is 1 */
    uint64_t phase;      /* start % align */
    uint64_t zone_start;
    uint64_t zone_end;   /* 0: no upper bound */
    uint32_t policy;     /* enum ara_policy */
    uint32_t reserved;   /* 0 */
};

struct ara_block {
    uint64_t start;
    uint64_t size;
    uint32_t is_lazy;    /* freed lazily, not purged */
    uint32_t is_free;    /* a gap; only from ara_next and ara_shared_each */
};

struct ara_stats {
    uint64_t units, busy_units, lazy_units, free_units;
    uint64_t allocations, lazy_allocations;
    uint64_t largest_free;
    uint64_t levels, leaves, inner_nodes; /* of the tree */
    uint64_t alignments; /* pairs of alignment and phase that are kept for searches */
    uint64_t footprint_bytes;
};

/* Exact while nobody changes anything; otherwise off by what changes meanwhile, spans that go from slot to slot among it. */
struct ara_shared_stats {
    uint64_t units, busy_units, lazy_units, free_units;
    uint64_t allocations, lazy_allocations;
    uint64_t largest_free; /* of one slot or of none; ara_shared_largest_free has those across borders */
    uint64_t levels, leaves, inner_nodes; /* of the highest tree, and of all */
    uint64_t alignments;   /* of the tree that keeps most */
    uint64_t held_units;   /* free, and held by slots */
    uint64_t cached_units; /* of them, in magazines */
    uint64_t spans;        /* held by slots, of span_units each */
    uint64_t span_units;
    uint64_t footprint_bytes;
};

/* How an arena for many threads is made. Zeroed but for bytes, start and end it is one with defaults. Later versions
 * may have more at the end, which is 0 for those who know nothing of it. */
struct ara_shared_config {
    uint64_t bytes;   /* sizeof(struct ara_shared_config) */
    uint64_t start, end;
    uint64_t granule; /* 0: 1 */
    uint64_t slots;   /* 0: one for each CPU that may be used */
    uint64_t span;    /* 0: 65536 units */
    /* Each slot keeps so many freed blocks of each size up to the largest for the next request of their size; 0: none.
     * Such a block comes before a gap that is lower; in all other respects it is free. For small ranges that come and go
     * quickly. More than 64 granules, an eighth of a span or 64 blocks is taken for that. */
    uint64_t magazine_largest;
    uint64_t magazine_depth;
};

/* Gaps by size: at [i] those of at least 2^i and less than 2^(i + 1) units. */
struct ara_fragmentation {
    uint64_t gaps[ARA_SIZE_CLASSES];  /* how many */
    uint64_t units[ARA_SIZE_CLASSES]; /* how many units they are together */
};

struct ara_arena;
struct ara_shared;

/* Told each range that a purge lets be used again. */
typedef void (*ara_retire)(void *context, uint64_t start, uint64_t size);
/* Told an allocation or gap. */
typedef void (*ara_visit)(void *context, const struct ara_block *block);
/* Given a piece of a text, in UTF-8 and without a zero at its end. Not 0: no more of it (ARA_STOPPED). */
typedef int (*ara_write)(void *context, const char *text, size_t bytes);

uint32_t ara_abi_version(void);
/* Text for a code; never null. */
const char *ara_error_text(int code);

/* Addresses start..end; granule 1 unless sizes and starts are multiples of more. */
int ara_create(uint64_t start, uint64_t end, uint64_t granule, struct ara_arena **arena);
/* The arena of a layout that ara_layout wrote. line may be null; else the line that is wrong, from 1, or 0. */
int ara_parse(const char *text, size_t bytes, struct ara_arena **arena, uint64_t *line);
void ara_destroy(struct ara_arena *arena);
/* What it was made with; each may be null. */
int ara_range(const struct ara_arena *arena, uint64_t *start, uint64_t *end, uint64_t *granule);
int ara_alloc(struct ara_arena *arena, const struct ara_request *request, uint64_t *start);
int ara_alloc_at(struct ara_arena *arena, uint64_t start, uint64_t size);
/* Takes the memory that so many more allocations need. */
int ara_reserve(struct ara_arena *arena, size_t allocations);
/* The first request of an alignment and phase takes longer, unless this was called for it. */
int ara_prepare(struct ara_arena *arena, uint64_t align, uint64_t phase);
/* Gives back memory for bookkeeping that is not needed, what was reserved included, and forgets alignments that were not
 * prepared and that no request has needed since the last call. */
int ara_shrink_to_fit(struct ara_arena *arena);
/* size may be null; else the size of what was freed. */
int ara_free(struct ara_arena *arena, uint64_t start, uint64_t *size);
int ara_free_sized(struct ara_arena *arena, uint64_t start, uint64_t size);
/* As munmap: cutting one allocation into two may take memory. */
int ara_free_part(struct ara_arena *arena, uint64_t start, uint64_t size);
/* Not to be used again before a purge. size as of ara_free. */
int ara_free_lazy(struct ara_arena *arena, uint64_t start, uint64_t *size);
/* retire may be null and must not use the arena; units may be null. */
int ara_purge(struct ara_arena *arena, ara_retire retire, void *context, uint64_t *units);
/* ARA_NOT_ALLOCATED if no allocation holds the address. */
int ara_lookup(const struct ara_arena *arena, uint64_t address, struct ara_block *block);
/* The allocation or gap that holds the address; go on at start + size. ARA_OUTSIDE at the end. */
int ara_next(const struct ara_arena *arena, uint64_t address, struct ara_block *block);
int ara_stats(const struct ara_arena *arena, struct ara_stats *stats);
int ara_fragmentation(const struct ara_arena *arena, struct ara_fragmentation *fragmentation);
/* Share of the free units in gaps too small for a size, from 0 to 1; sizes count by their power of two. 0 for null. */
double ara_unusable(const struct ara_fragmentation *fragmentation, uint64_t size);
/* The layout as text, a line for each allocation, which ara_parse reads. write must not use the arena. */
int ara_layout(const struct ara_arena *arena, ara_write write, void *context);
/* A map for people: a line of figures and a strip; with segments a line for each allocation and gap as well. */
int ara_map(const struct ara_arena *arena, int segments, ara_write write, void *context);

/* The same for any number of threads. slots 0: one for each CPU; span 0: 65536 units. */
int ara_shared_create(uint64_t start, uint64_t end, uint64_t granule, size_t slots, uint64_t span,
                      struct ara_shared **arena);
/* The same, with all that can be chosen. */
int ara_shared_create_with(const struct ara_shared_config *config, struct ara_shared **arena);
/* No other thread may be using it. */
void ara_shared_destroy(struct ara_shared *arena);
/* What it was made with; each may be null. */
int ara_shared_range(const struct ara_shared *arena, uint64_t *start, uint64_t *end, uint64_t *granule, size_t *slots);
int ara_shared_alloc(const struct ara_shared *arena, const struct ara_request *request, uint64_t *start);
/* From a slot of the caller's choice, modulo their number, in place of the CPU's: for who wants its addresses together. */
int ara_shared_alloc_in(const struct ara_shared *arena, size_t slot, const struct ara_request *request, uint64_t *start);
int ara_shared_alloc_at(const struct ara_shared *arena, uint64_t start, uint64_t size);
int ara_shared_free(const struct ara_shared *arena, uint64_t start, uint64_t *size);
int ara_shared_free_sized(const struct ara_shared *arena, uint64_t start, uint64_t size);
int ara_shared_free_part(const struct ara_shared *arena, uint64_t start, uint64_t size);
int ara_shared_free_lazy(const struct ara_shared *arena, uint64_t start, uint64_t *size);
/* retire may allocate and free, but not purge. */
int ara_shared_purge(const struct ara_shared *arena, ara_retire retire, void *context, uint64_t *units);
int ara_shared_lookup(const struct ara_shared *arena, uint64_t address, struct ara_block *block);
int ara_shared_prepare(const struct ara_shared *arena, uint64_t align, uint64_t phase);
/* As ara_shrink_to_fit, one slot after the other; magazines are emptied. Others wait for the slot whose turn it is. After
 * ARA_NO_MEMORY some slots may have given memory back; allocations are as they were. */
int ara_shared_shrink_to_fit(const struct ara_shared *arena);
/* All allocations and gaps by address, as they are at one time: a copy is made, which takes all locks, before the first is
 * told. visit may use the arena. */
int ara_shared_each(const struct ara_shared *arena, ara_visit visit, void *context);
/* Sums, each slot at its own time. */
int ara_shared_stats(const struct ara_shared *arena, struct ara_shared_stats *stats);
/* The largest gap, whichever slots hold its parts, at one time. Takes all locks. */
int ara_shared_largest_free(const struct ara_shared *arena, uint64_t *units);
/* At one time. Takes all locks. */
int ara_shared_fragmentation(const struct ara_shared *arena, struct ara_fragmentation *fragmentation);
/* An arena for one thread with the same allocations, as they are at one time: for ara_layout, ara_map and ara_next. Takes
 * all locks. To be destroyed by ara_destroy. */
int ara_shared_to_plain(const struct ara_shared *arena, struct ara_arena **plain);

#ifdef __cplusplus
}
#endif
#endif
