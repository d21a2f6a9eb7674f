/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Locks of address spaces, and those that a thread holds. */
#ifndef AMDAHL_HOLDS_BPF_H
#define AMDAHL_HOLDS_BPF_H

/* before Linux 6.14 */
struct trace_event_raw_mmap_lock_acquire_returned { amdahl_u32 __data_loc_memcg_path; } CORE;

/*
 * Argument `n` of a tracepoint of the lock, from 1 on: before Linux 6.14 the path of a control group is between the address space, which
 * is 0, and the others. The two ways must not be joined into one with a variable offset, which the verifier refuses.
 */
static __always_inline amdahl_u64 argument_of_lock(unsigned long long *ctx, int n)
{
	struct trace_event_raw_mmap_lock_acquire_returned *event = 0;
	amdahl_u64 value;

	if (bpf_core_field_exists(event->__data_loc_memcg_path)) {
		value = ctx[n + 1];
		asm volatile("/* behind the path */" : "+r"(value));
	} else {
		value = ctx[n];
		asm volatile("" : "+r"(value));
	}
	return value & 0xff;
}

/* with CONFIG_MEMCG */
struct mm_struct___owned { struct task_struct *owner; } CORE;

static __always_inline amdahl_u64 lock_of(struct mm_struct *mm)
{
	return (amdahl_u64)__builtin_preserve_access_index(&mm->mmap_lock);
}

/*
 * Who owns the address space that a semaphore is in, which may be anything: were it in an address space, that would have an
 * owner who is in it. What is read there of another thing proves nothing unless it leads back.
 */
static __always_inline struct task_struct *owner_by_lock(amdahl_u64 lock)
{
	struct mm_struct___owned *owned = (void *)(lock - lock_of(0));
	struct task_struct *owner;

	if (!bpf_core_field_exists(owned->owner))
		return 0;
	owner = BPF_CORE_READ(owned, owner);
	return owner && (void *)BPF_CORE_READ(owner, mm) == owned ? owner : 0;
}

/* Fork holds two at once: of the parent and of the child. */
#define AMDAHL_HELD 2

struct amdahl_held {
	amdahl_u64 lock, begin; /* no lock: free */
	amdahl_u32 place, flags;
};

/* Where `lock` stands among those held; 0 is none, so that what is free is found too. */
static __always_inline struct amdahl_held *find_held(struct amdahl_held *held, amdahl_u64 lock)
{
	if (held[0].lock == lock)
		return &held[0];
	return held[1].lock == lock ? &held[1] : 0;
}

/* Where another one goes: the first where none is free, since the release of one of them was not seen. */
static __always_inline struct amdahl_held *free_held(struct amdahl_held *held)
{
	struct amdahl_held *free = find_held(held, 0);

	return free ? free : &held[0];
}

#endif
