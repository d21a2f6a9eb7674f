// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
//
// Records what the scheduler does: switches, wake-ups, migrations, new threads. No stacks, and
// with `everyone` no look at any table: a record is a dozen loads and one line written.

#include "tasks.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct thread_info___sched { unsigned int cpu; } CORE;
struct task_struct___sched {
	struct thread_info___sched thread_info;
	unsigned int cpu; /* before 5.16 on x86 */
	int nr_cpus_allowed;
} CORE;

/* Run queue that the task is in, or was in last. */
static __always_inline amdahl_u32 cpu_of(struct task_struct *t)
{
	struct task_struct___sched *s = (void *)t;

	if (bpf_core_field_exists(s->thread_info.cpu))
		return s->thread_info.cpu;
	return s->cpu;
}

/* The beginning of a slot about a thread. */
static __always_inline struct amdahl_slot *about(struct task_struct *t, struct amdahl_ring *ring, amdahl_u32 cpu,
						 amdahl_u8 kind, amdahl_u32 tid, amdahl_u64 *seq)
{
	struct task_struct___sched *s = (void *)t;
	struct amdahl_slot *slot = begin(ring, cpu, kind, tid, bpf_ktime_get_ns(), seq);

	if (!slot)
		return 0;
	slot->lock_kind = is_kernel_thread(t);
	slot->syscall = s->nr_cpus_allowed;
	return slot;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = prev->pid;
	struct amdahl_ring *ring = ring_of(cpu);
	int ours, flags = 0;
	struct amdahl_slot *slot;
	amdahl_u64 seq;
	long state;

	if (!ring || !ring->watched)
		return 0;
	ours = is_ours(tid);
	state = state_of(prev);
	/* TASK_WAKING (0x200): woken between its decision to sleep and this switch. */
	if (preempt || state == 0 || (state & 0x200)) {
		flags = AMDAHL_SCHED_RUNNABLE;
		if (!preempt && ours && tid &&
		    (int)REG_SYSCALL((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf())) ==
			    NR_SCHED_YIELD)
			flags |= AMDAHL_SCHED_YIELDED;
	} else if (state & 0xb0) { /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
		flags = AMDAHL_SCHED_EXITED;
		if (!everyone && ours)
			leave(tid);
	} else {
		/* TASK_UNINTERRUPTIBLE without TASK_NOLOAD: idle threads of the kernel (state I) have both. */
		if ((state & 0x402) == 2)
			flags |= AMDAHL_SCHED_UNINT;
		if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
			flags |= AMDAHL_SCHED_IOWAIT;
	}
	slot = about(prev, ring, cpu, AMDAHL_SCHED_SWITCH, tid, &seq);
	if (!slot)
		return 0;
	slot->flags = flags | (ours ? AMDAHL_SCHED_OURS : 0);
	slot->other = next->pid;
	slot->place = prev->tgid;
	slot->arg[0] = ring->lost;
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *woken)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = woken->pid, waker;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring || !is_ours(tid))
		return 0;
	slot = about(woken, ring, cpu, AMDAHL_SCHED_WAKE, tid, &seq);
	if (!slot)
		return 0;
	waker = bpf_get_current_task_btf()->pid;
	slot->flags = wakes_from(ring, waker);
	slot->other = waker;
	slot->place = cpu_of(woken);
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *moved, int to)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = moved->pid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring || !is_ours(tid))
		return 0;
	slot = about(moved, ring, cpu, AMDAHL_SCHED_MIGRATE, tid, &seq);
	if (!slot)
		return 0;
	slot->cpu = to;
	slot->place = cpu_of(moved);
	publish(slot, seq);
	return 0;
}

static __always_inline void name_of(struct amdahl_slot *slot, const char *name)
{
	slot->arg[0] = slot->arg[1] = 0;
	bpf_probe_read_kernel_str(slot->arg, 16, name);
}

/* A new thread is in its first run queue; whoever made it is the current one. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_new, struct task_struct *child)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), parent = bpf_get_current_task_btf()->pid;
	amdahl_u32 tid = child->pid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring)
		return 0;
	if (!everyone) {
		if (!find(parent))
			return 0;
		if (!enter(tid, child->tgid))
			__sync_fetch_and_add(&ring->lost, 1);
	}
	slot = about(child, ring, cpu, AMDAHL_SCHED_NEW, tid, &seq);
	if (!slot)
		return 0;
	slot->cpu = cpu_of(child);
	slot->other = parent;
	slot->place = child->tgid;
	name_of(slot, child->comm);
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *t, const char *name)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = t->pid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring || !is_ours(tid))
		return 0;
	slot = about(t, ring, cpu, AMDAHL_SCHED_NAME, tid, &seq);
	if (!slot)
		return 0;
	slot->place = t->tgid;
	name_of(slot, name);
	publish(slot, seq);
	return 0;
}

/* Bits: 1 in a hard interrupt, 2 in a soft one. Both nest one in the other. */
IN_CONTEXT(hrtimer_expire_entry, ring->in_timer |= 1)
IN_CONTEXT(hrtimer_expire_exit, ring->in_timer &= ~1u)
IN_CONTEXT(irq_handler_entry, ring->in_irq |= 1)
IN_CONTEXT(irq_handler_exit, ring->in_irq &= ~1u)
IN_CONTEXT(softirq_exit, (ring->in_timer &= ~2u, ring->in_irq &= ~2u))

#define TIMER_SOFTIRQ 1
#define HRTIMER_SOFTIRQ 8

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	struct amdahl_ring *ring = ring_of(bpf_get_smp_processor_id());

	if (!ring)
		return 0;
	if (vector == TIMER_SOFTIRQ || vector == HRTIMER_SOFTIRQ)
		ring->in_timer |= 2;
	else
		ring->in_irq |= 2;
	return 0;
}
