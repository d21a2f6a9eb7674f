/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Locks of address spaces that a thread holds. */
#ifndef AMDAHL_HOLDS_BPF_H
#define AMDAHL_HOLDS_BPF_H

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
