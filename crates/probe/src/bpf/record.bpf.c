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
static __always_inline void count(amdahl_u32 cpu, amdahl_u32 window, int prev, int next)
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
		t->window = window;
	} else if (t->counting && t->window == window) {
		t->instructions += i - t->instructions_at;
		t->cycles += c - t->cycles_at;
		t->counting = 0;
	}
}

/*
 * The arguments of the system call that sleeps, where it is, and a stack if it is to have one.
 *
 * Here and in the hooks below a slot is written and never read back: user space has its line, a
 * store does not wait for it and a load does.
 */
static __always_inline amdahl_u8 where(void *ctx, struct amdahl_ring *ring, amdahl_u32 cpu, struct amdahl_slot *slot,
				       struct amdahl_task *task, struct pt_regs *regs, int syscall, amdahl_u32 tid,
				       amdahl_u64 ts, amdahl_u64 lock)
{
	amdahl_u64 first = REG_ARG0(regs), call = IS_PLAIN_WAIT(syscall) && !lock ? call_of(regs) : 0, goroutine = 0, hash;
	amdahl_u32 tgid = task->tgid;
	int in_futex = syscall == NR_FUTEX, walked;

	slot->arg[0] = first;
	slot->arg[1] = REG_ARG1(regs);
	if (call && call == task->call && is_settled(task, ts)) {
		slot->place = task->place;
		return 0;
	}
	task->in_futex = in_futex;
	hash = place_and_way(regs, tgid, &walked);
	if (syscall == NR_READ || syscall == NR_WRITE)
		hash ^= first * 0xff51afd7ed558ccdull;
	if (in_futex) {
		goroutine = place_of_goroutine(regs);
		hash ^= kind_of_futex(first) * 0xff51afd7ed558ccdull ^ goroutine;
	}
	/* A place of its own: what the same call sleeps for otherwise has another kernel stack. */
	if (lock)
		hash ^= 0xc2b2ae3d27d4eb4full;
	slot->place = hash >> 32;
	task->call = walked || goroutine ? 0 : call;
	/* The kernel's part of a lock's: few are taken, one for each place now and then. */
	if (sleeper_takes_stack(task, ring, hash, ts) &&
	    take_stack(ctx, ring, cpu, regs, AMDAHL_STACK_WAIT, ts, tid, tgid, lock != 0))
		return AMDAHL_STACK_TAKEN;
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), prev_tid, next_tid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_task *p, *n;
	struct amdahl_slot *slot;
	struct pt_regs *regs;
	amdahl_u64 seq, ts, lock;
	amdahl_u8 flags;
	int syscall = -1;
	long state;

	if (!ring || !ring->watched)
		return 0;
	prev_tid = prev->pid;
	next_tid = next->pid;
	p = find_or_enter(prev);
	n = find_or_enter(next);
	count(cpu, ring->window, !!p, !!n);
	state = state_of(prev);
	ts = bpf_ktime_get_ns();
	slot = begin_with(ring, cpu, AMDAHL_SWITCH, prev_tid, ts, &seq, 1);
	if (!slot)
		goto out;
	flags = (p ? AMDAHL_PREV_WORKLOAD : 0) | (n ? AMDAHL_NEXT_WORKLOAD : 0);
	slot->lock_kind = 0;
	slot->other = next_tid;
	slot->place = 0;
	if (p) {
		regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
		syscall = REG_SYSCALL(regs);
		/* TASK_WAKING (0x200): woken between its decision to sleep and this switch. */
		if (preempt || state == 0 || (state & 0x200)) {
			flags |= AMDAHL_PREV_RUNNABLE;
		} else if (state & 0xb0) { /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
			flags |= AMDAHL_PREV_EXITED;
			syscall = -1;
		} else {
			if (state & 2)
				flags |= AMDAHL_PREV_UNINT;
			if (BPF_CORE_READ_BITFIELD(prev, in_iowait))
				flags |= AMDAHL_PREV_IOWAIT;
			lock = p->lock;
			if (lock) {
				flags |= AMDAHL_PREV_IN_LOCK;
				slot->lock_kind = p->lock_flags;
			}
			slot->arg[2] = lock ? lock : REG_ARG2(regs);
			flags |= where(ctx, ring, cpu, slot, p, regs, syscall, prev_tid, ts, lock);
		}
	} else if (prev_tid) {
		BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, prev, comm);
	}
	slot->syscall = syscall;
	slot->flags = flags;
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
	amdahl_u8 flags;

	if (!task || !ring)
		return 0;
	ts = bpf_ktime_get_ns();
	current = bpf_get_current_task_btf();
	waker = current->pid;
	/* A thread that wakes itself does so with interrupts on. */
	slot = begin_with(ring, cpu, AMDAHL_WAKE, task->tid, ts, &seq, waker != task->tid);
	if (!slot)
		return 0;
	flags = wakes_from(ring, waker);
	slot->other = waker;
	slot->place = 0;
	if (!flags && (by = find(waker))) {
		flags = AMDAHL_WAKER_WORKLOAD;
		if (task->in_futex) {
			struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(current);
			amdahl_u64 hash = ~place_of(regs, by->tgid);

			slot->place = hash >> 32;
			if (takes_stack(ring, hash, ts) &&
			    take_stack(ctx, ring, cpu, regs, AMDAHL_STACK_WAKE, ts, waker, by->tgid, 0))
				flags |= AMDAHL_STACK_TAKEN;
		}
	}
	slot->flags = flags;
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *moved, int cpu)
{
	struct amdahl_task *task = find_or_enter(moved);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!task)
		return 0;
	slot = begin_here(AMDAHL_MIGRATE, task->tid, &seq);
	if (!slot)
		return 0;
	slot->cpu = cpu;
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	if (!find_or_enter(parent) || !enter(child->pid, child->tgid))
		return 0;
	return tell_fork(parent, child);
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *t, const char *name)
{
	return find_or_enter(t) ? tell_name(t, name) : 0;
}

/*
 * The end of a thread where not every switch is seen (see "Windows" in DESIGN.md): these two are attached only there. From
 * its exit to its last switch a thread still gives back memory and files, and wakes who waits for them: it is of the
 * workload until it is freed.
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *gone)
{
	amdahl_u32 tid = gone->pid;
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!find(tid))
		return 0;
	slot = begin_here(AMDAHL_EXIT, tid, &seq);
	if (slot)
		publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *gone)
{
	leave(gone->pid);
	return 0;
}

/* Spin locks: spun on by this CPU, interrupts nest. */
struct spins {
	amdahl_u64 lock[4], begin[4];
	amdahl_u32 depth;
	amdahl_u32 tid;       /* of what is added up and not yet told */
	amdahl_u64 told_lock, ns;
	amdahl_u32 count, flags;
	amdahl_u64 owed;      /* spun since a stack was last taken */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct spins);
} spins_map SEC(".maps");

/* A stack is taken each time so much has been spun: walked while the lock is held, for whom the others wait the longer. */
#define SPUN_NS 500000

static __always_inline void tell_spins(struct amdahl_ring *ring, amdahl_u32 cpu, struct spins *spins, amdahl_u64 ts,
				       amdahl_u8 flags)
{
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!spins->ns)
		return;
	slot = begin(ring, cpu, AMDAHL_SPIN, spins->tid, ts, &seq);
	if (slot) {
		slot->flags = flags;
		slot->lock_kind = spins->flags;
		slot->syscall = spins->count;
		slot->arg[0] = spins->told_lock;
		slot->arg[1] = spins->ns;
		publish(slot, seq);
	}
	spins->ns = 0;
	spins->count = 0;
}

/* Neither here nor at the end anything is done that would wait for the lock of the ring of stacks, see begin_stack. */
SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct amdahl_task *task = find_or_enter(me);
	struct amdahl_ring *ring;
	struct mm_struct *mm;
	amdahl_u32 zero = 0;

	if (!task)
		return 0;
	ring = ring_of(bpf_get_smp_processor_id());
	if (!ring || ring->takes_stack)
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
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = me->pid, zero = 0, at;
	struct amdahl_task *task = find(tid);
	struct amdahl_ring *ring;
	struct spins *spins;
	amdahl_u64 ts, spun;

	if (!task)
		return 0;
	ring = ring_of(cpu);
	if (!ring || ring->takes_stack)
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
	ts = bpf_ktime_get_ns();
	spun = ts - spins->begin[at];
	if (spins->tid != tid || spins->told_lock != (amdahl_u64)lock)
		tell_spins(ring, cpu, spins, ts, 0);
	spins->tid = tid;
	spins->told_lock = (amdahl_u64)lock;
	spins->ns += spun;
	spins->count++;
	spins->owed += spun;
	if (spins->owed < SPUN_NS)
		return 0;
	spins->owed = 0;
	if (take_stack(ctx, ring, cpu, (struct pt_regs *)bpf_task_pt_regs(me), AMDAHL_STACK_LOCK, ts, tid, task->tgid, 1))
		tell_spins(ring, cpu, spins, ts, AMDAHL_STACK_TAKEN);
	return 0;
}

IN_CONTEXT(hrtimer_expire_entry, ring->in_timer = 1)
IN_CONTEXT(hrtimer_expire_exit, ring->in_timer = 0)
IN_CONTEXT(timer_expire_entry, ring->in_timer = 1)
IN_CONTEXT(timer_expire_exit, ring->in_timer = 0)
IN_CONTEXT(irq_handler_entry, ring->in_irq = 1)
IN_CONTEXT(irq_handler_exit, ring->in_irq = 0)

/* Generated code (JIT) may be gone when somebody asks whether it spins. */
static __always_inline void copy_code(struct amdahl_stack *s)
{
	s->has_code = !bpf_probe_read_user(s->kernel, AMDAHL_CODE_BYTES, (void *)(s->ip - AMDAHL_CODE_BYTES / 2));
}

/* Loop counters of unoptimised code; on arm64 nothing is there. */
static __always_inline void copy_below(struct amdahl_stack *s)
{
#if defined(__TARGET_ARCH_x86)
	s->has_below = !bpf_probe_read_user(s->below, AMDAHL_BELOW_BYTES, (void *)(s->sp - AMDAHL_BELOW_BYTES));
#endif
}

static __always_inline int sample(struct bpf_perf_event_data *ctx, int kind)
{
	amdahl_u64 id = bpf_get_current_pid_tgid();
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_stack *s;
	struct pt_regs *regs;

	if (!ring || !find_or_enter(bpf_get_current_task_btf()))
		return 0;
	/* Also those for which there is no room: each has its cost. */
	if (kind == AMDAHL_STACK_TIME)
		ring->samples++;
	s = begin_stack(ring, cpu, kind, bpf_ktime_get_ns(), id, id >> 32);
	if (!s)
		return 0;
	walk_kernel(ctx, s);
	s->user_mode = !s->kernel_frames;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	user_registers(s, regs);
	copy_user_stack(s);
	walk_frame_pointers(ctx, s);
	if (s->user_mode) {
		copy_code(s);
		copy_below(s);
	}
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
