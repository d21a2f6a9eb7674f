// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
//
// Sums of how long the threads of a workload ran and how long they could have run but did not. Nothing is handed
// over event by event: user space reads one line a CPU whenever it likes.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "phantom.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define CORE __attribute__((preserve_access_index))

struct task_struct {
	unsigned int __state;
	int pid;
	int tgid;
	char comm[16];
	struct task_struct *group_leader;
} CORE;
/* before 5.14 */
struct task_struct___old { volatile long state; } CORE;

/* Set before loading. */
volatile const amdahl_u32 everyone = 0;   /* every thread is of the workload */
volatile const amdahl_u32 by_process = 0; /* keep the time of others by process */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_phantom_cpu);
} cpus SEC(".maps");

/* Threads of the workload: their states. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, amdahl_u32);
	__type(value, amdahl_u32);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_phantom_taker);
} takers SEC(".maps");

/* [0]: threads that found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, amdahl_u64);
} lost SEC(".maps");

static __always_inline struct amdahl_phantom_cpu *this_cpu(void)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

/* The pair around a change of a line; interrupts are off at all hooks, so that nobody else changes it meanwhile. */
static __always_inline void begin_change(struct amdahl_phantom_cpu *cpu)
{
#if defined(__TARGET_ARCH_x86)
	/* Stores are seen in their order. */
	*(volatile amdahl_u64 *)&cpu->seq = cpu->seq + 1;
	__asm__ volatile("" ::: "memory");
#else
	/* An exchange orders both ways; an addition whose result nobody wants would not. */
	__sync_lock_test_and_set(&cpu->seq, cpu->seq + 1);
#endif
}

static __always_inline void end_change(struct amdahl_phantom_cpu *cpu)
{
#if defined(__TARGET_ARCH_x86)
	__asm__ volatile("" ::: "memory");
	*(volatile amdahl_u64 *)&cpu->seq = cpu->seq + 1;
#else
	/* An exchange orders both ways; an addition whose result nobody wants would not. */
	__sync_lock_test_and_set(&cpu->seq, cpu->seq + 1);
#endif
}

static __always_inline amdahl_u32 *enter(amdahl_u32 tid)
{
	amdahl_u32 off = AMDAHL_PHANTOM_OFF, zero = 0;
	amdahl_u64 *full;

	if (!bpf_map_update_elem(&threads, &tid, &off, BPF_NOEXIST))
		return bpf_map_lookup_elem(&threads, &tid);
	full = bpf_map_lookup_elem(&lost, &zero);
	if (full)
		__sync_fetch_and_add(full, 1);
	return 0;
}

/* The state of a thread of the workload; none for others and for idle threads. */
static __always_inline amdahl_u32 *state_of_ours(amdahl_u32 tid)
{
	amdahl_u32 *state;

	if (!tid)
		return 0;
	state = bpf_map_lookup_elem(&threads, &tid);
	if (!state && everyone)
		state = enter(tid);
	return state;
}

static __always_inline long state_of(struct task_struct *t)
{
	if (bpf_core_field_exists(t->__state))
		return t->__state;
	return ((struct task_struct___old *)t)->state;
}

static __always_inline void others_ran(struct task_struct *t, amdahl_u64 ns)
{
	amdahl_u32 tgid = t->tgid;
	struct amdahl_phantom_taker *taker = bpf_map_lookup_elem(&takers, &tgid), new = {};

	if (taker) {
		__sync_fetch_and_add(&taker->ns, ns);
		return;
	}
	new.ns = ns;
	BPF_CORE_READ_STR_INTO(&new.name, t, group_leader, comm);
	bpf_map_update_elem(&takers, &tgid, &new, BPF_ANY);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct amdahl_phantom_cpu *cpu = this_cpu();
	amdahl_u64 now, ran;
	amdahl_u32 prev_tid = prev->pid, next_tid = next->pid;
	amdahl_u32 *prev_state, *next_state;
	amdahl_s64 begun = 0; /* waits, less those that end */
	int runnable;
	long state;

	if (!cpu)
		return 0;
	prev_state = state_of_ours(prev_tid);
	next_state = state_of_ours(next_tid);
	if (prev_state) {
		state = state_of(prev);
		/* TASK_WAKING (0x200): woken between its decision to sleep and this switch; its wake-up is told later. */
		runnable = preempt || state == 0;
		/* Its wait counts already if it was woken while it ran and nobody knew that it did. */
		begun = runnable - (*prev_state == AMDAHL_PHANTOM_WAITS);
		*prev_state = runnable ? AMDAHL_PHANTOM_WAITS : AMDAHL_PHANTOM_OFF;
		if (!runnable && (state & 0xb0)) /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
			bpf_map_delete_elem(&threads, &prev_tid);
	}
	if (next_state) {
		begun -= *next_state == AMDAHL_PHANTOM_WAITS;
		*next_state = AMDAHL_PHANTOM_RUNS;
	}
	now = bpf_ktime_get_ns();
	ran = cpu->since ? now - cpu->since : 0;
	begin_change(cpu);
	if (prev_state)
		cpu->run += ran;
	else if (!prev_tid)
		cpu->idle += ran;
	cpu->since = now;
	cpu->tid = next_tid;
	cpu->tgid = next->tgid;
	cpu->ours = !!next_state;
	cpu->waits -= begun * (amdahl_s64)now;
	cpu->waiting += begun;
	end_change(cpu);
	if (by_process && cpu->watched && !prev_state && prev_tid)
		others_ran(prev, ran);
	return 0;
}

/* t is in a run queue: on this CPU, with interrupts off, its wait begins. */
static __always_inline void begin_waiting(amdahl_u32 *state)
{
	struct amdahl_phantom_cpu *cpu = this_cpu();

	if (!cpu || *state != AMDAHL_PHANTOM_OFF)
		return;
	*state = AMDAHL_PHANTOM_WAITS;
	begin_change(cpu);
	cpu->waits -= bpf_ktime_get_ns();
	cpu->waiting += 1;
	end_change(cpu);
}

/*
 * Not sched_waking, which may come before the switch that takes the thread away. A thread that was woken before it went to
 * sleep comes here too; it runs.
 */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *t)
{
	amdahl_u32 *state = state_of_ours(t->pid);

	if (state)
		begin_waiting(state);
	return 0;
}

/* Whoever made it is the current one. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_new, struct task_struct *child)
{
	amdahl_u32 tid = child->pid, parent = bpf_get_current_task_btf()->pid;
	amdahl_u32 *state;

	if (!everyone && !bpf_map_lookup_elem(&threads, &parent))
		return 0;
	/* It is there already if its number is left from one whose end was not seen. */
	state = bpf_map_lookup_elem(&threads, &tid);
	if (!state)
		state = enter(tid);
	else if (*state == AMDAHL_PHANTOM_RUNS)
		*state = AMDAHL_PHANTOM_OFF;
	if (state)
		begin_waiting(state);
	return 0;
}
