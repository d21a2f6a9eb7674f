/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * The kernel's types as far as they are used, and the rings of slots that the programs
 * write (see "The ring of a CPU" in DESIGN.md of this crate).
 */
#pragma once

#include <linux/bpf.h>
#include "registers.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "record.h"

#define CORE __attribute__((preserve_access_index))

struct rw_semaphore { long unused; } CORE;
struct mm_struct { struct rw_semaphore mmap_lock; } CORE;
struct inode { long unused; } CORE;
struct file { struct inode *f_inode; } CORE;
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} CORE;
struct files_struct { struct fdtable *fdt; } CORE;
struct sched_entity { unsigned long long sum_exec_runtime; } CORE;
struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int pid;
	int tgid;
	struct sched_entity se;
	struct mm_struct *mm;
	char comm[16];
	unsigned in_iowait : 1;
	struct files_struct *files;
} CORE;
/* before 5.14 */
struct task_struct___old { volatile long state; } CORE;

/* Flags of contention_begin. */
#define LCB_F_SPIN 0x01u
#define LCB_F_READ 0x02u
#define LCB_F_WRITE 0x04u
#define LCB_F_MUTEX 0x20u

/* Set before loading. */
volatile const amdahl_u32 slots_per_cpu = 1024; /* a power of two */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_ring);
} rings SEC(".maps");

static __always_inline struct amdahl_ring *ring_of(amdahl_u32 cpu)
{
	return bpf_map_lookup_elem(&rings, &cpu);
}

/*
 * A slot of this CPU. Where interrupts are off nobody else reserves one meanwhile, and no atomic instruction is needed.
 * (Programs in NMIs, which take samples by hardware counters, reserve none. Should the kernel tell of contention in one, just between the
 * load of the head and its store, the two would share a slot and one of them be lost.)
 */
static __always_inline struct amdahl_slot *reserve(struct amdahl_ring *ring, amdahl_u32 cpu, amdahl_u64 *seq,
						    int irqs_off)
{
	amdahl_u64 at = ring->head;
	amdahl_u32 index;

	/* An interrupt may come in between; both then find the ring (nearly) full. */
	if (at - *(volatile amdahl_u64 *)&ring->tail >= slots_per_cpu - 16) {
		__sync_fetch_and_add(&ring->lost, 1);
		return 0;
	}
	if (irqs_off)
		*(volatile amdahl_u64 *)&ring->head = at + 1;
	else
		at = __sync_fetch_and_add(&ring->head, 1);
	index = cpu * slots_per_cpu + ((amdahl_u32)at & (slots_per_cpu - 1));
	*seq = at + 1;
	return bpf_map_lookup_elem(&slots, &index);
}

/*
 * The beginning of a slot, without flags. It is only written to: whoever reads it again waits until
 * its line has come from memory.
 */
static __always_inline struct amdahl_slot *begin_with(struct amdahl_ring *ring, amdahl_u32 cpu, amdahl_u8 kind,
						      amdahl_u32 tid, amdahl_u64 ts, amdahl_u64 *seq, int irqs_off)
{
	struct amdahl_slot *slot = reserve(ring, cpu, seq, irqs_off);

	if (!slot)
		return 0;
	slot->ts = ts;
	slot->kind = kind;
	slot->flags = 0;
	slot->cpu = cpu;
	slot->tid = tid;
	return slot;
}

static __always_inline struct amdahl_slot *begin(struct amdahl_ring *ring, amdahl_u32 cpu, amdahl_u8 kind,
						 amdahl_u32 tid, amdahl_u64 ts, amdahl_u64 *seq)
{
	return begin_with(ring, cpu, kind, tid, ts, seq, 0);
}

/* The same, here and now. */
static __always_inline struct amdahl_slot *begin_here(amdahl_u8 kind, amdahl_u32 tid, amdahl_u64 *seq)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);

	return ring ? begin(ring, cpu, kind, tid, bpf_ktime_get_ns(), seq) : 0;
}

/* Release: pairs with the Acquire load of seq in wire.rs. */
static __always_inline void publish(struct amdahl_slot *slot, amdahl_u64 seq)
{
#if defined(__TARGET_ARCH_x86)
	/* Stores are seen in their order. An exchange would wait here for the slot's line. */
	__asm__ volatile("" ::: "memory");
	*(volatile amdahl_u64 *)&slot->seq = seq;
#else
	__sync_lock_test_and_set(&slot->seq, seq);
#endif
}

static __always_inline long state_of(struct task_struct *t)
{
	if (bpf_core_field_exists(t->__state))
		return t->__state;
	return ((struct task_struct___old *)t)->state;
}

#define PF_KTHREAD 0x00200000

/*
 * It has no code of its own in user space. A look at its mm would tell the same, but the verifier searches all names of types three
 * times, milliseconds each, wherever a pointer is loaded from a task.
 */
static __always_inline int is_kernel_thread(struct task_struct *t)
{
	return !!(t->flags & PF_KTHREAD);
}

/* A program that notes what this CPU is in the middle of. */
#define IN_CONTEXT(name, change)                                                \
	SEC("tp_btf/" #name)                                                    \
	int BPF_PROG(on_##name)                                                 \
	{                                                                       \
		struct amdahl_ring *ring = ring_of(bpf_get_smp_processor_id()); \
		if (ring)                                                       \
			change;                                                 \
		return 0;                                                       \
	}

/* AMDAHL_WAKER_TIMER or _IRQ if that is who wakes, not the current thread. */
static __always_inline amdahl_u8 wakes_from(struct amdahl_ring *ring, amdahl_u32 current_tid)
{
	if (ring->in_timer)
		return AMDAHL_WAKER_TIMER;
	return !current_tid || ring->in_irq ? AMDAHL_WAKER_IRQ : 0;
}

/* What there was no room to remember counts like what there was no room to tell. */
static __always_inline void count_lost(void)
{
	struct amdahl_ring *ring = ring_of(bpf_get_smp_processor_id());

	if (ring)
		__sync_fetch_and_add(&ring->lost, 1);
}
