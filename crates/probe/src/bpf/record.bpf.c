// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
//
// Records what the threads of one workload do: who runs where, who waits where,
// who wakes whom. No decisions here: what a wait means is decided in user space.
//
// Costs kept down (see DESIGN.md of this crate): fixed-size slots in a ring per
// CPU without a lock between CPUs, no wake-up of the reader, system call numbers
// and arguments read from the saved registers instead of hooking every call,
// user stacks copied (not walked) and only now and then per place of waiting.

#include "stack.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Set before loading. */
volatile const amdahl_u32 has_counters = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_totals);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, amdahl_u32);
} instructions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, amdahl_u32);
} cycles SEC(".maps");

static __always_inline struct amdahl_totals *totals_of(amdahl_u32 cpu)
{
	return bpf_map_lookup_elem(&totals, &cpu);
}

static __always_inline amdahl_u64 read_counter(void *map)
{
	struct bpf_perf_event_value value = {};

	if (bpf_perf_event_read_value(map, BPF_F_CURRENT_CPU, &value, sizeof(value)))
		return 0;
	return value.counter;
}

/* The workload leaves (prev) or enters (next) this CPU. */
static __always_inline void count(amdahl_u32 cpu, int prev, int next)
{
	struct amdahl_totals *t;
	amdahl_u64 i, c;

	if (!has_counters || !!prev == !!next)
		return;
	t = totals_of(cpu);
	if (!t)
		return;
	i = read_counter(&instructions);
	c = read_counter(&cycles);
	if (next) {
		t->instructions_at = i;
		t->cycles_at = c;
		t->counting = 1;
	} else if (t->counting) {
		t->instructions += i - t->instructions_at;
		t->cycles += c - t->cycles_at;
		t->counting = 0;
	}
}

#if defined(__TARGET_ARCH_x86)
#define NR_FUTEX 202
#define NR_READ 0
#define NR_WRITE 1
#else
#define NR_FUTEX 98
#define NR_READ 63
#define NR_WRITE 64
#endif

/* Which system call, its arguments, and whether this sleep gets a stack. */
static __always_inline void where(void *ctx, struct amdahl_ring *ring, amdahl_u32 cpu, struct amdahl_slot *slot,
				  struct amdahl_task *task, struct pt_regs *regs, amdahl_u64 ts)
{
	amdahl_u64 hash;

	slot->arg[0] = REG_ARG0(regs);
	slot->arg[1] = REG_ARG1(regs);
	if (!(slot->flags & AMDAHL_PREV_IN_LOCK))
		slot->arg[2] = REG_ARG2(regs);
	task->in_futex = slot->syscall == NR_FUTEX;
	hash = place_of(regs, task->tgid);
	if (slot->syscall == NR_READ || slot->syscall == NR_WRITE)
		hash ^= slot->arg[0] * 0xff51afd7ed558ccdull;
	if (task->in_futex)
		hash ^= kind_of_futex(slot->arg[0]) * 0xff51afd7ed558ccdull;
	slot->place = hash >> 32;
	if (takes_stack(ring, hash, ts) &&
	    take_stack(ctx, ring, cpu, regs, AMDAHL_STACK_WAIT, ts, slot->tid, task->tgid))
		slot->flags |= AMDAHL_STACK_TAKEN;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), prev_tid, next_tid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_task *p, *n;
	struct amdahl_slot *slot;
	struct pt_regs *regs;
	amdahl_u64 seq, ts;
	long state;

	if (!ring || !ring->watched)
		return 0;
	prev_tid = prev->pid;
	next_tid = next->pid;
	p = find_or_enter(prev);
	n = find_or_enter(next);
	count(cpu, !!p, !!n);
	slot = reserve(ring, cpu, &seq);
	ts = bpf_ktime_get_ns();
	state = state_of(prev);
	if (!slot)
		goto out;
	slot->ts = ts;
	slot->kind = AMDAHL_SWITCH;
	slot->flags = (p ? AMDAHL_PREV_WORKLOAD : 0) | (n ? AMDAHL_NEXT_WORKLOAD : 0);
	slot->lock_kind = 0;
	slot->cpu = cpu;
	slot->tid = prev_tid;
	slot->other = next_tid;
	slot->syscall = -1;
	slot->place = 0;
	if (p) {
		regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
		slot->syscall = REG_SYSCALL(regs);
		/* TASK_WAKING (0x200): woken between its decision to sleep and this switch. */
		if (preempt || state == 0 || (state & 0x200)) {
			slot->flags |= AMDAHL_PREV_RUNNABLE;
		} else if (state & 0xb0) { /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
			slot->flags |= AMDAHL_PREV_EXITED;
			slot->syscall = -1;
		} else {
			if (state & 2)
				slot->flags |= AMDAHL_PREV_UNINT;
			if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
				slot->flags |= AMDAHL_PREV_IOWAIT;
			if (p->lock) {
				slot->flags |= AMDAHL_PREV_IN_LOCK;
				slot->lock_kind = p->lock_flags;
				slot->arg[2] = p->lock;
			}
			where(ctx, ring, cpu, slot, p, regs, ts);
		}
	} else if (prev_tid) {
		BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, prev, comm);
	}
	publish(slot, seq);
out:
	if (p && !preempt && (state & 0xb0))
		leave(prev_tid);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *woken)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), waker;
	struct amdahl_task *task = find_or_enter(woken), *by;
	struct amdahl_ring *ring = ring_of(cpu);
	struct task_struct *current;
	struct amdahl_slot *slot;
	amdahl_u64 seq, ts;

	if (!task || !ring)
		return 0;
	slot = reserve(ring, cpu, &seq);
	if (!slot)
		return 0;
	current = bpf_get_current_task_btf();
	waker = current->pid;
	ts = bpf_ktime_get_ns();
	slot->ts = ts;
	slot->kind = AMDAHL_WAKE;
	slot->flags = 0;
	slot->cpu = cpu;
	slot->tid = task->tid;
	slot->other = waker;
	slot->place = 0;
	if (ring->in_timer) {
		slot->flags = AMDAHL_WAKER_TIMER;
	} else if (!waker || ring->in_irq) {
		slot->flags = AMDAHL_WAKER_IRQ;
	} else if ((by = find(waker))) {
		slot->flags = AMDAHL_WAKER_WORKLOAD;
		if (task->in_futex) {
			struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(current);
			amdahl_u64 hash = ~place_of(regs, by->tgid);

			slot->place = hash >> 32;
			if (takes_stack(ring, hash, ts) &&
			    take_stack(ctx, ring, cpu, regs, AMDAHL_STACK_WAKE, ts, waker, by->tgid))
				slot->flags |= AMDAHL_STACK_TAKEN;
		}
	}
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *moved, int cpu)
{
	amdahl_u32 here = bpf_get_smp_processor_id();
	struct amdahl_task *task = find_or_enter(moved);
	struct amdahl_ring *ring = ring_of(here);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!task || !ring)
		return 0;
	slot = reserve(ring, here, &seq);
	if (!slot)
		return 0;
	slot->ts = bpf_ktime_get_ns();
	slot->kind = AMDAHL_MIGRATE;
	slot->flags = 0;
	slot->cpu = cpu;
	slot->tid = task->tid;
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = child->pid, tgid = child->tgid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring || !find_or_enter(parent) || !enter(tid, tgid))
		return 0;
	slot = reserve(ring, cpu, &seq);
	if (!slot)
		return 0;
	slot->ts = bpf_ktime_get_ns();
	slot->kind = AMDAHL_FORK;
	slot->flags = 0;
	slot->cpu = cpu;
	slot->tid = tid;
	slot->other = parent->pid;
	slot->syscall = tgid;
	BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, child, comm);
	publish(slot, seq);
	return 0;
}

static __always_inline int name_of(struct task_struct *t, const char *name)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring || !find_or_enter(t))
		return 0;
	slot = reserve(ring, cpu, &seq);
	if (!slot)
		return 0;
	slot->ts = bpf_ktime_get_ns();
	slot->kind = AMDAHL_COMM;
	slot->flags = 0;
	slot->cpu = cpu;
	slot->tid = t->pid;
	slot->other = t->tgid;
	bpf_probe_read_kernel_str(slot->arg, 16, name);
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *t, const char *name)
{
	return name_of(t, name);
}

/* Spin locks: spun on by this CPU, interrupts nest. */
struct spins {
	amdahl_u64 lock[4], begin[4];
	amdahl_u32 depth;
	amdahl_u32 tid;       /* of what is added up and not yet told */
	amdahl_u64 told_lock, ns;
	amdahl_u32 count, flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct spins);
} spins_map SEC(".maps");

#define LCB_F_SPIN 0x01u
#define LCB_F_MUTEX 0x20u

static __always_inline void tell_spins(struct spins *spins)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!spins->ns || !ring)
		return;
	slot = reserve(ring, cpu, &seq);
	if (slot) {
		slot->ts = bpf_ktime_get_ns();
		slot->kind = AMDAHL_SPIN;
		slot->flags = 0;
		slot->lock_kind = spins->flags;
		slot->cpu = cpu;
		slot->tid = spins->tid;
		slot->syscall = spins->count;
		slot->arg[0] = spins->told_lock;
		slot->arg[1] = spins->ns;
		publish(slot, seq);
	}
	spins->ns = 0;
	spins->count = 0;
}

/* No stack is walked here: that would lengthen the wait it looks at. */
SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct amdahl_task *task = find_or_enter(me);
	struct mm_struct *mm;
	amdahl_u32 zero = 0;

	if (!task)
		return 0;
	if ((flags & (LCB_F_SPIN | LCB_F_MUTEX)) == LCB_F_SPIN) {
		struct spins *spins = bpf_map_lookup_elem(&spins_map, &zero);

		if (spins) {
			amdahl_u32 at = spins->depth++ & 3;

			spins->lock[at] = (amdahl_u64)lock;
			spins->begin[at] = bpf_ktime_get_ns();
			spins->flags = flags;
		}
		return 0;
	}
	mm = me->mm;
	task->lock_flags = flags & 0x7f;
	if (mm && lock == (void *)__builtin_preserve_access_index(&mm->mmap_lock))
		task->lock_flags |= AMDAHL_LOCK_IS_MMAP;
	task->lock = (amdahl_u64)lock;
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock)
{
	amdahl_u32 tid = bpf_get_current_task_btf()->pid, zero = 0, at;
	struct amdahl_task *task = find(tid);
	struct spins *spins;

	if (!task)
		return 0;
	if (task->lock == (amdahl_u64)lock) {
		task->lock = 0;
		return 0;
	}
	spins = bpf_map_lookup_elem(&spins_map, &zero);
	if (!spins || !spins->depth)
		return 0;
	at = --spins->depth & 3;
	if (spins->lock[at] != (amdahl_u64)lock) {
		spins->depth = 0;
		return 0;
	}
	if (spins->tid != tid || spins->told_lock != (amdahl_u64)lock || spins->ns > 500000)
		tell_spins(spins);
	spins->tid = tid;
	spins->told_lock = (amdahl_u64)lock;
	spins->ns += bpf_ktime_get_ns() - spins->begin[at];
	spins->count++;
	return 0;
}

#define COUNT_CONTEXT(name, field, step)                                        \
	SEC("tp_btf/" #name)                                                    \
	int BPF_PROG(on_##name)                                                 \
	{                                                                       \
		struct amdahl_ring *ring = ring_of(bpf_get_smp_processor_id()); \
		if (ring)                                                       \
			ring->field = step;                                     \
		return 0;                                                       \
	}

COUNT_CONTEXT(hrtimer_expire_entry, in_timer, 1)
COUNT_CONTEXT(hrtimer_expire_exit, in_timer, 0)
COUNT_CONTEXT(timer_expire_entry, in_timer, 1)
COUNT_CONTEXT(timer_expire_exit, in_timer, 0)
COUNT_CONTEXT(irq_handler_entry, in_irq, 1)
COUNT_CONTEXT(irq_handler_exit, in_irq, 0)

static __always_inline int sample(struct bpf_perf_event_data *ctx, int kind)
{
	amdahl_u64 id = bpf_get_current_pid_tgid();
	amdahl_u32 tid = (amdahl_u32)id;
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_stack *s;
	struct pt_regs *regs;
	long bytes;

	if (!ring || !find_or_enter(bpf_get_current_task_btf()))
		return 0;
	s = bpf_ringbuf_reserve(&stacks, sizeof(*s), 0);
	if (!s) {
		__sync_fetch_and_add(&ring->stacks_lost, 1);
		return 0;
	}
	s->ts = bpf_ktime_get_ns();
	s->tid = tid;
	s->pid = id >> 32;
	s->cpu = cpu;
	s->kind = kind;
	s->unused[0] = s->unused[1] = 0;
	s->kernel_frames = 0;
	bytes = bpf_get_stack(ctx, s->kernel, sizeof(s->kernel), 0);
	if (bytes > 0)
		s->kernel_frames = (amdahl_u64)bytes >> 3;
	s->user_mode = !s->kernel_frames;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	user_registers(s, regs);
	copy_user_stack(s);
	walk_frame_pointers(ctx, s);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("perf_event")
int on_time(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, AMDAHL_STACK_TIME);
}

SEC("perf_event")
int on_instructions(struct bpf_perf_event_data *ctx)
{
	return sample(ctx, AMDAHL_STACK_INSTRUCTIONS);
}
