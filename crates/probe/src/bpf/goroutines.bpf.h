/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * Times the waits of goroutines for semaphores of Go's runtime, whatever their threads do meanwhile: probes in the program
 * itself where a goroutine comes to wait, where it goes on, and where another lets it go on (see "Goroutines" in DESIGN.md of this
 * crate). All of it is code that a goroutine passes only when it has to wait.
 */
#pragma once

#include "callers.bpf.h"

/* Each goroutine that has waited. User space makes it larger where goroutines are timed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct amdahl_goroutine);
	__type(value, struct amdahl_go_wait);
} goroutines SEC(".maps");

/* As `RETRY_NS` of amdahl-locks. */
#define GO_RETRY_NS 20000
/* Of a goroutine that tell its places apart: from the runtime out to who called a lock. */
#define GO_FRAMES 8

static __always_inline struct amdahl_goroutine goroutine_of(struct task_struct *t, amdahl_u64 g)
{
	struct amdahl_goroutine key = { .g = g, .tgid = t->tgid };

	return key;
}

/* Go keeps frame pointers. */
static __always_inline amdahl_u64 place_by_frames(amdahl_u64 ip, amdahl_u64 sp, amdahl_u64 fp)
{
	amdahl_u64 hash = ip, frame[2] = { fp };
	int i;

	for (i = 0; i < GO_FRAMES; i++) {
		if (frame[0] - sp >= 65536 || bpf_probe_read_user(frame, sizeof(frame), (void *)frame[0]))
			break;
		hash = (hash ^ frame[1]) * HASH_FACTOR;
	}
	return hash;
}

/* The function that waits begins. It may return at once: then it is not told. */
SEC("uprobe")
int on_go_wait(struct pt_regs *regs)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct amdahl_goroutine key = goroutine_of(t, REG_GOROUTINE(regs));
	amdahl_u64 lock = REG_GO_ARG0(regs), ts;
	struct amdahl_go_wait *wait, new = {};

	if (!is_ours(t->pid))
		return 0;
	wait = bpf_map_lookup_elem(&goroutines, &key);
	ts = bpf_ktime_get_ns();
	if (!wait) {
		new.lock = lock;
		new.begin = new.first = ts;
		if (bpf_map_update_elem(&goroutines, &key, &new, BPF_NOEXIST))
			count_lost();
		return 0;
	}
	if (wait->lock != lock || ts - wait->end >= GO_RETRY_NS) {
		wait->first = ts;
		wait->end = 0;
	}
	wait->lock = lock;
	wait->waker = 0;
	wait->begin = ts;
	wait->is_parked = 0;
	return 0;
}

/* It is about to be parked. */
SEC("uprobe")
int on_go_park(struct pt_regs *regs)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct amdahl_goroutine key = goroutine_of(t, REG_GOROUTINE(regs));
	amdahl_u32 cpu = bpf_get_smp_processor_id(), place;
	struct amdahl_ring *ring = ring_of(cpu);
	amdahl_u64 hash, ts = bpf_ktime_get_ns();
	struct amdahl_go_wait *wait;

	if (!ring || !is_ours(t->pid))
		return 0;
	wait = bpf_map_lookup_elem(&goroutines, &key);
	/* It came before there were probes. */
	if (!wait)
		return 0;
	hash = place_by_frames(REG_IP(regs), REG_SP(regs), REG_FP(regs));
	place = hash >> 32;
	if (place != wait->place) {
		wait->first = wait->begin;
		wait->end = 0;
	}
	wait->place = place;
	wait->is_parked = 1;
	if (takes_user_stack(ring, hash, ts))
		take(regs, ring, cpu, t, AMDAHL_STACK_WAIT, ts, place);
	return 0;
}

/* It goes on after having been parked. */
SEC("uprobe")
int on_go_parked(struct pt_regs *regs)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct amdahl_goroutine key = goroutine_of(t, REG_GOROUTINE(regs));
	amdahl_u64 ts = bpf_ktime_get_ns(), seq;
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_go_wait *wait;
	struct amdahl_slot *slot;

	if (!ring || !is_ours(t->pid))
		return 0;
	wait = bpf_map_lookup_elem(&goroutines, &key);
	if (!wait || !wait->is_parked)
		return 0;
	wait->is_parked = 0;
	slot = begin(ring, cpu, AMDAHL_GO_WAIT, t->pid, ts, &seq);
	if (slot) {
		slot->cpu = wait->waker ? wait->waker_place : 0;
		slot->lock_kind = slot->unused = 0;
		slot->other = wait->waker;
		slot->syscall = t->tgid;
		slot->place = wait->place;
		slot->arg[0] = wait->lock;
		slot->arg[1] = ts - wait->first;
		slot->arg[2] = wait->end ? wait->end - wait->first : 0;
		publish(slot, seq);
	}
	/* It parks again without coming by the beginning if another was quicker. */
	wait->end = ts;
	wait->waker = 0;
	wait->begin = ts;
	return 0;
}

/* The current goroutine lets another go on, whose entry in the queue is the argument: the descriptor is the first word. */
SEC("uprobe")
int on_go_ready(struct pt_regs *regs)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct amdahl_goroutine key = goroutine_of(t, 0);
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	amdahl_u64 hash, ts = bpf_ktime_get_ns();
	struct amdahl_go_wait *wait;

	if (!ring || !is_ours(t->pid) || bpf_probe_read_user(&key.g, sizeof(key.g), (void *)REG_GO_ARG0(regs)))
		return 0;
	wait = bpf_map_lookup_elem(&goroutines, &key);
	if (!wait || !wait->is_parked)
		return 0;
	hash = ~place_by_frames(REG_IP(regs), REG_SP(regs), REG_FP(regs));
	wait->waker_place = hash >> 32;
	wait->waker = t->pid;
	if (takes_user_stack(ring, hash, ts))
		take(regs, ring, cpu, t, AMDAHL_STACK_WAKE, ts, wait->waker_place);
	return 0;
}
