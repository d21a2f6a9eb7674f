/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * Which code called the function that a thread waits in, or wakes others from, without walking its
 * stack (see "Callers" in DESIGN.md of this crate).
 */
#pragma once

#include "stack.bpf.h"

/* The program's own code, without its libraries. */
struct mm_struct___code { unsigned long start_code, end_code; } CORE;

/* The calls of libc with the largest frames, those that wait for a condition, take thirty; locks of other libraries more. */
#define CALLER_WORDS 48
#define NEAR_TOP_WORDS 12
/* Return addresses that tell places apart; farther out there are more ways than anyone asks for. */
#define CALLERS 4
/* Words that may be addresses of code of a library, which only a look at that code tells. Who waits for a condition in a library
 * has a dozen below its caller: of the condition and its mutex, in registers that were saved on the way. */
#define CALLER_LOOKS 20
/* Of the last words that were looked at what they are, since most of them come again with the next wait. A power of two. */
#define KNOWN_BITS 6
#define KNOWN (1 << KNOWN_BITS)
/* In 2^27 ns (134 ms) on a CPU. */
#define NEW_PLACES 128

/* New places of late. */
struct newcomers {
	amdahl_u32 count, since;
};

struct callers {
	amdahl_u64 words[CALLER_WORDS];
	/* Here, since what the verifier knows of counters multiplies what it looks at. */
	amdahl_u32 found, looked;
	struct newcomers new;
	/* A number for the address space, and words in it: see `is_caller`. */
	amdahl_u64 space, known[KNOWN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct callers);
} callers_map SEC(".maps");

#if defined(__TARGET_ARCH_x86)
#define CODE_ADDRESS(word) (word)

/* FF /2, the byte before the one that tells the operand. */
#define CALLS_INDIRECTLY(bytes) (((bytes) & 0x38ff) == 0x10ff)

static __always_inline int follows_call(amdahl_u64 address)
{
	amdahl_u64 code;

	if (bpf_probe_read_user(&code, sizeof(code), (void *)(address - sizeof(code))))
		return 0;
	/* A call of a distance has five bytes; of what a register or memory tells two to seven, but for a prefix. */
	return (code >> 24 & 0xff) == 0xe8 || CALLS_INDIRECTLY(code >> 48) || CALLS_INDIRECTLY(code >> 40) ||
	       CALLS_INDIRECTLY(code >> 32) || CALLS_INDIRECTLY(code >> 16) || CALLS_INDIRECTLY(code >> 8);
}
#else
#define CODE_ADDRESS(word) ((word) & USER_ADDRESS_BITS)

static __always_inline int follows_call(amdahl_u64 address)
{
	amdahl_u32 code;

	if (bpf_probe_read_user(&code, sizeof(code), (void *)(address - sizeof(code))))
		return 0;
	/* BL; BLR and those that authenticate. */
	return (code & 0xfc000000) == 0x94000000 || (code & 0xfefff000) == 0xd63f0000;
}
#endif

/*
 * Whether a call stands before this address. An entry of `known` is the address and the address space, and in the last bit the
 * answer. Where a process has other code than before, or its number is that of an earlier one, a few answers are wrong until others
 * replace them: then lines are told apart otherwise, or not.
 *
 * Not static, as `callers_among`.
 */
__attribute__((noinline)) int is_caller(amdahl_u64 address)
{
	amdahl_u32 slot = address * HASH_FACTOR >> (64 - KNOWN_BITS) & (KNOWN - 1), zero = 0;
	struct callers *callers = bpf_map_lookup_elem(&callers_map, &zero);
	amdahl_u64 key, known;

	if (!callers)
		return 0;
	key = (address << 1) ^ callers->space;
	known = callers->known[slot];
	if ((known & ~1ull) == key)
		return known & 1;
	known = key | (follows_call(address) ? 1 : 0);
	callers->known[slot] = known;
	return known & 1;
}

/*
 * A hash of the return addresses among the words at the stack pointer; 0 if there are none. `begin` and `size` are of the
 * program's own code, `lr` is what the call left in the register for that.
 *
 * Words that are left over from earlier calls may be among them. Those within the program's own code are taken as they
 * are, others only where a call comes before: what is hashed is code and not data, so that a line of the program has a few places
 * and not one for each wait.
 *
 * Not static: the verifier looks once at a global function, and not again for each place where it is called from.
 */
__attribute__((noinline)) amdahl_u64 callers_among(amdahl_u64 ip, amdahl_u64 sp, amdahl_u64 lr, amdahl_u64 begin,
						   amdahl_u64 size)
{
	amdahl_u64 word, hash = 0;
	struct callers *callers;
	amdahl_u32 zero = 0;
	int i, is_static = ip - begin < size;

	callers = bpf_map_lookup_elem(&callers_map, &zero);
	if (!callers)
		return 0;
	if (bpf_probe_read_user(callers->words, sizeof(callers->words), (void *)sp)) {
		__builtin_memset(callers->words, 0, sizeof(callers->words));
		bpf_probe_read_user(callers->words, NEAR_TOP_WORDS * sizeof(word), (void *)sp);
	}
	callers->found = callers->looked = 0;
	for (i = -1; i < CALLER_WORDS; i++) {
		word = CODE_ADDRESS(i < 0 ? lr : callers->words[i]);
		if (word - begin >= size) {
			/* Libraries are where the call is, in the same 16 TiB, and no stack is code. */
			if (is_static || (word ^ ip) >> 44 || word - sp < 65536)
				continue;
			if (callers->looked++ >= CALLER_LOOKS)
				break;
			if (!is_caller(word))
				continue;
		}
		hash = (hash ^ word) * HASH_FACTOR;
		if (++callers->found >= CALLERS)
			break;
	}
	return hash;
}

static __always_inline amdahl_u64 callers_of(struct task_struct *t, struct pt_regs *regs)
{
	struct mm_struct___code *mm = (void *)t->mm;
	struct callers *callers;
	amdahl_u32 zero = 0;
	amdahl_u64 begin;

	if (!mm)
		return 0;
	begin = mm->start_code;
	callers = bpf_map_lookup_elem(&callers_map, &zero);
	if (callers)
		callers->space = ((amdahl_u64)t->tgid << 32 ^ begin) * HASH_FACTOR & ~1ull;
	return callers_among(REG_IP(regs), REG_SP(regs), REG_LR(regs), begin, mm->end_code - begin);
}

/* One more, and there were `most` already in this stretch of 2^27 ns. */
static __always_inline int are_too_many(struct newcomers *new, amdahl_u64 ts, amdahl_u32 most)
{
	amdahl_u32 now = ts >> 27;

	if (new->since != now) {
		new->since = now;
		new->count = 0;
	}
	return ++new->count > most;
}

/*
 * A place, by its callers too. Should ever so many new ones come, because what is left over on stacks varies, they are told
 * apart by the place alone for a while: a stack for each wait is dearer than two lines in one row.
 */
static __always_inline amdahl_u64 place_by_callers(amdahl_u64 place_hash, struct task_struct *t, struct pt_regs *regs,
						   amdahl_u64 ts)
{
	amdahl_u64 hash = place_hash ^ callers_of(t, regs);
	amdahl_u32 index = (hash >> 40) & 4095, zero = 0;
	struct callers *callers = bpf_map_lookup_elem(&callers_map, &zero);
	struct place *place = bpf_map_lookup_elem(&places, &index);

	if (!callers || !place || place->hash == hash)
		return hash;
	return are_too_many(&callers->new, ts, NEW_PLACES) ? place_hash : hash;
}
