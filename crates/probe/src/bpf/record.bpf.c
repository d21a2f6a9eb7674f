// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
//
// Records what the threads of one workload do: who runs where, who waits where,
// who wakes whom. No decisions here: what a wait means is decided in user space.
//
// Costs kept down (see DESIGN.md of this crate): fixed-size slots in a ring per
// CPU without a lock between CPUs, no wake-up of the reader, system call numbers
// and arguments read from the saved registers instead of hooking every call,
// user stacks copied (not walked) and only now and then per place of waiting.

#include <linux/bpf.h>
#include "registers.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "record.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define CORE __attribute__((preserve_access_index))

struct rw_semaphore { long unused; } CORE;
struct mm_struct { struct rw_semaphore mmap_lock; } CORE;
struct task_struct {
	unsigned int __state;
	int pid;
	int tgid;
	struct mm_struct *mm;
	char comm[16];
	unsigned in_iowait : 1;
} CORE;
/* before 5.14 */
struct task_struct___old { volatile long state; } CORE;

/* Set before loading. */
volatile const amdahl_u32 slots_per_cpu = 1024; /* a power of two */
volatile const amdahl_u32 ncpus = 1;
volatile const amdahl_u32 has_counters = 0;

struct task {
	amdahl_u32 tgid;
	amdahl_u32 lock_flags; /* of the contended sleeping lock, 0 if none */
	amdahl_u64 lock;
	amdahl_u32 in_futex;   /* sleeps in the futex call: its waker is of interest */
	amdahl_u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, amdahl_u32);
	__type(value, struct task);
} tasks SEC(".maps");

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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_totals);
} totals SEC(".maps");

/* CPUs of the sweep: 1, others 0 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, amdahl_u32);
} watched SEC(".maps");

struct place {
	amdahl_u64 hash;
	amdahl_u64 last;
	amdahl_u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, amdahl_u32);
	__type(value, struct place);
} places SEC(".maps");

/* when a stack of a known place was last taken on this CPU */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, amdahl_u64);
} repeated_at SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} stacks SEC(".maps");

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

static __always_inline struct amdahl_slot *reserve(amdahl_u64 *seq)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct amdahl_slot *slot;
	amdahl_u32 index;
	amdahl_u64 at;

	if (!ring)
		return 0;
	/* An interrupt may come in between; both then find the ring (nearly) full. */
	if (ring->head - *(volatile amdahl_u64 *)&ring->tail >= slots_per_cpu - 16) {
		__sync_fetch_and_add(&ring->lost, 1);
		return 0;
	}
	at = __sync_fetch_and_add(&ring->head, 1);
	index = cpu * slots_per_cpu + ((amdahl_u32)at & (slots_per_cpu - 1));
	slot = bpf_map_lookup_elem(&slots, &index);
	*seq = at + 1;
	return slot;
}

/* Release: pairs with the Acquire load of seq in wire.rs. The exchange orders on every JIT. */
static __always_inline void publish(struct amdahl_slot *slot, amdahl_u64 seq)
{
	__sync_lock_test_and_set(&slot->seq, seq);
}

static __always_inline int is_watched(void)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	amdahl_u32 *on = bpf_map_lookup_elem(&watched, &cpu);

	return on && *on;
}

static __always_inline struct amdahl_totals *my_totals(void)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&totals, &cpu);
}

static __always_inline long state_of(struct task_struct *t)
{
	if (bpf_core_field_exists(t->__state))
		return BPF_CORE_READ(t, __state);
	return BPF_CORE_READ((struct task_struct___old *)t, state);
}

static __always_inline void copy_user_stack(struct amdahl_stack *s)
{
	s->user_bytes = AMDAHL_STACK_BYTES;
	if (!bpf_probe_read_user(s->bytes, AMDAHL_STACK_BYTES, (void *)s->sp))
		return;
	/* Near the top of a stack there is less. */
	s->user_bytes = 1024;
	if (!bpf_probe_read_user(s->bytes, 1024, (void *)s->sp))
		return;
	s->user_bytes = 384;
	if (!bpf_probe_read_user(s->bytes, 384, (void *)s->sp))
		return;
	s->user_bytes = 96;
	if (bpf_probe_read_user(s->bytes, 96, (void *)s->sp))
		s->user_bytes = 0;
}

static __always_inline void user_registers(struct amdahl_stack *s, struct pt_regs *regs)
{
	s->ip = REG_IP(regs);
	s->sp = REG_SP(regs);
	s->bp = REG_FP(regs);
	s->lr = REG_LR(regs);
	REG_COPY(s->regs, regs);
}

static __always_inline amdahl_u64 read_counter(void *map)
{
	struct bpf_perf_event_value value = {};

	if (bpf_perf_event_read_value(map, BPF_F_CURRENT_CPU, &value, sizeof(value)))
		return 0;
	return value.counter;
}

/* The workload leaves (prev) or enters (next) this CPU. */
static __always_inline void count(int prev, int next)
{
	struct amdahl_totals *t;
	amdahl_u64 i, c;

	if (!has_counters || !!prev == !!next)
		return;
	t = my_totals();
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

/*
 * Whether this place gets a stack now: the first time, three times more, then every 20 ms; but no
 * more than one of the known places in a millisecond.
 */
static __always_inline int takes_stack(amdahl_u64 hash, amdahl_u64 ts)
{
	amdahl_u32 index = (hash >> 40) & 4095, zero = 0;
	struct place *place = bpf_map_lookup_elem(&places, &index);
	amdahl_u64 *repeated = bpf_map_lookup_elem(&repeated_at, &zero);

	if (!place || !repeated)
		return 0;
	if (place->hash != hash) {
		place->hash = hash;
		place->count = 0;
	} else {
		if (place->count >= 4 && ts - place->last < 20000000)
			return 0;
		if (ts - *repeated < 1000000)
			return 0;
		*repeated = ts;
	}
	place->count++;
	place->last = ts;
	return 1;
}

static __always_inline amdahl_u64 place_of(struct pt_regs *regs, amdahl_u32 tgid)
{
	amdahl_u64 ip = REG_IP(regs), sp = REG_SP(regs), bp = REG_FP(regs), word = 0;
	amdahl_u64 frame[2];
	int depth;

	/* The word at the stack pointer is the caller of a leaf call wrapper. */
	bpf_probe_read_user(&word, sizeof(word), (void *)sp);
	/* Where wrappers share one function for the call (futexes in libc), the depth of the stack
	 * tells them apart: the stacks of threads begin at the same place of a page. */
	word += (sp & 0xfff) << 40;
	/* Where calls go through layers of one static binary (Go), its frame pointers tell more. */
	for (depth = 0; depth < 4; depth++) {
		if (bp - sp > 65536 || bpf_probe_read_user(frame, sizeof(frame), (void *)bp) ||
		    frame[1] >> 28 != ip >> 28)
			break;
		word = word * 31 + frame[1];
		bp = frame[0];
	}
	return (ip ^ (word << 1) ^ ((amdahl_u64)(amdahl_u32)REG_SYSCALL(regs) << 48) ^
		((amdahl_u64)tgid << 32)) * 0x9e3779b97f4a7c15ull;
}

/*
 * Sleeps in one futex wrapper of libc look alike, since libc keeps no frame pointers: a garbage
 * collector's worker without work like a thread that wants a lock. They differ in the name of the
 * thread and in the futex. Only 64 kinds of futexes are told apart, for the sake of programs
 * with millions of them.
 */
static __always_inline amdahl_u64 kind_of_futex(amdahl_u64 address)
{
	amdahl_u64 name[2] = {};

	bpf_get_current_comm(name, sizeof(name));
	return (name[0] * 31 + name[1]) * 31 + ((address >> 2) * 0x9e3779b97f4a7c15ull >> 58);
}

/* Runtimes that run on two stacks (Go) keep frame pointers, which lead from one to the other. */
static __always_inline void walk_frame_pointers(void *ctx, struct amdahl_stack *s)
{
#if defined(__TARGET_ARCH_arm64)
	/* The kernel's own walk ends here where addresses fall, as they may between two stacks. */
	amdahl_u64 frame[2], fp = s->bp;
	int depth;

	s->user[0] = s->ip;
	for (depth = 1; depth < AMDAHL_USER_FRAMES; depth++) {
		if (fp & 7 || bpf_probe_read_user(frame, sizeof(frame), (void *)fp) || !frame[1])
			break;
		s->user[depth] = frame[1] & USER_ADDRESS_BITS;
		fp = frame[0];
	}
	s->user_frames = depth;
#else
	long bytes = bpf_get_stack(ctx, s->user, sizeof(s->user), BPF_F_USER_STACK);

	s->user_frames = bytes > 0 ? (amdahl_u64)bytes >> 3 : 0;
#endif
	s->unused2 = 0;
}

#if defined(__TARGET_ARCH_x86)
#define G_WORDS 20

/*
 * A thread of Go that looks for work stands on its system stack, where frame pointers end in
 * mcall: what the goroutine that it parked waits for is on that one's own stack. mcall pushed
 * its descriptor (g) just above the last frame. There stand stack pointer, program counter, g
 * itself and, two to four words on, the frame pointer (gobuf); the word before tells the
 * thread that runs it, none while it is parked. Fields before and between differ from version
 * to version, the order does not. A pointer that leads to itself proves that it is one.
 */
static __always_inline void walk_goroutine(struct amdahl_stack *s)
{
	amdahl_u64 frame[3] = { s->bp }, g[G_WORDS], sp = 0, pc = 0, bp = 0;
	amdahl_u32 n = s->user_frames, i;

	/* All of it is one static program: others do not get beyond this line. */
	if (n < 4 || n >= AMDAHL_USER_FRAMES || (s->user[n - 1] ^ s->ip) >> 28)
		return;
	for (i = 0; i < AMDAHL_USER_FRAMES && frame[0]; i++)
		if (bpf_probe_read_user(frame, sizeof(frame), (void *)frame[0]))
			return;
	if (frame[0] || bpf_probe_read_user(g, sizeof(g), (void *)frame[2]))
		return;
#pragma unroll
	for (i = 4; i < G_WORDS - 4; i++) {
		if (g[i] != frame[2] || g[i - 3])
			continue;
		sp = g[i - 2];
		pc = g[i - 1];
		bp = g[i + 2] - sp < 65536 ? g[i + 2] : g[i + 3] - sp < 65536 ? g[i + 3] : g[i + 4];
	}
	if (!pc)
		return;
	frame[0] = bp;
	frame[1] = pc;
	for (i = 0; i < AMDAHL_USER_FRAMES; i++) {
		if (i < n)
			continue;
		if ((frame[1] ^ s->ip) >> 28)
			break;
		s->user[i] = frame[1];
		s->user_frames = i + 1;
		if (frame[0] - sp >= 65536 ||
		    bpf_probe_read_user(frame, 16, (void *)frame[0]))
			break;
	}
}
#else
/* Elsewhere mcall leaves the goroutine in a register that its callees may use for others. */
static __always_inline void walk_goroutine(struct amdahl_stack *s)
{
}
#endif

static __always_inline int take_stack(void *ctx, struct pt_regs *regs, int kind, amdahl_u64 ts,
				      amdahl_u32 tid, amdahl_u32 tgid)
{
	struct amdahl_stack *s = bpf_ringbuf_reserve(&stacks, sizeof(*s), 0);

	if (!s)
		return 0;
	s->ts = ts;
	s->tid = tid;
	s->pid = tgid;
	s->cpu = bpf_get_smp_processor_id();
	s->kind = kind;
	s->user_mode = 0;
	s->unused[0] = s->unused[1] = 0;
	s->kernel_frames = 0;
	user_registers(s, regs);
	copy_user_stack(s);
	walk_frame_pointers(ctx, s);
	if (kind == AMDAHL_STACK_WAIT)
		walk_goroutine(s);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 1;
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
static __always_inline void where(void *ctx, struct amdahl_slot *slot, struct task *task, amdahl_u64 ts)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	amdahl_u64 hash;

	slot->syscall = REG_SYSCALL(regs);
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
	if (takes_stack(hash, ts) && take_stack(ctx, regs, AMDAHL_STACK_WAIT, ts, slot->tid, task->tgid))
		slot->flags |= AMDAHL_STACK_TAKEN;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	amdahl_u32 prev_tid, next_tid;
	struct task *p, *n;
	struct amdahl_slot *slot;
	amdahl_u64 seq, ts;
	long state;

	if (!is_watched())
		return 0;
	prev_tid = prev->pid;
	next_tid = next->pid;
	p = prev_tid ? bpf_map_lookup_elem(&tasks, &prev_tid) : 0;
	n = next_tid ? bpf_map_lookup_elem(&tasks, &next_tid) : 0;
	count(!!p, !!n);
	slot = reserve(&seq);
	ts = bpf_ktime_get_ns();
	state = state_of(prev);
	if (!slot)
		goto out;
	slot->ts = ts;
	slot->kind = AMDAHL_SWITCH;
	slot->cpu = bpf_get_smp_processor_id();
	slot->tid = prev_tid;
	slot->other = next_tid;
	slot->syscall = -1;
	slot->place = 0;
	slot->flags = (p ? AMDAHL_PREV_WORKLOAD : 0) | (n ? AMDAHL_NEXT_WORKLOAD : 0);
	slot->lock_kind = 0;
	if (p) {
		/* TASK_WAKING (0x200): woken between its decision to sleep and this switch. */
		if (preempt || state == 0 || (state & 0x200)) {
			slot->flags |= AMDAHL_PREV_RUNNABLE;
			slot->syscall = REG_SYSCALL((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()));
		} else if (state & 0xb0) { /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
			slot->flags |= AMDAHL_PREV_EXITED;
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
			where(ctx, slot, p, ts);
		}
	} else if (prev_tid) {
		BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, prev, comm);
	}
	publish(slot, seq);
out:
	if (p && !preempt && (state & 0xb0))
		bpf_map_delete_elem(&tasks, &prev_tid);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *woken)
{
	amdahl_u32 tid = woken->pid, waker;
	struct amdahl_totals *t;
	struct amdahl_slot *slot;
	struct task *task = bpf_map_lookup_elem(&tasks, &tid), *by;
	amdahl_u64 seq, ts;

	if (!task)
		return 0;
	slot = reserve(&seq);
	if (!slot)
		return 0;
	waker = (amdahl_u32)bpf_get_current_pid_tgid();
	ts = bpf_ktime_get_ns();
	slot->ts = ts;
	slot->kind = AMDAHL_WAKE;
	slot->flags = 0;
	slot->cpu = bpf_get_smp_processor_id();
	slot->tid = tid;
	slot->other = waker;
	slot->place = 0;
	t = my_totals();
	if (t && t->in_timer) {
		slot->flags = AMDAHL_WAKER_TIMER;
	} else if (!waker || (t && t->in_irq)) {
		slot->flags = AMDAHL_WAKER_IRQ;
	} else if ((by = bpf_map_lookup_elem(&tasks, &waker))) {
		slot->flags = AMDAHL_WAKER_WORKLOAD;
		if (task->in_futex) {
			struct pt_regs *regs =
				(struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
			amdahl_u64 hash = ~place_of(regs, by->tgid);

			slot->place = hash >> 32;
			if (takes_stack(hash, ts) &&
			    take_stack(ctx, regs, AMDAHL_STACK_WAKE, ts, waker, by->tgid))
				slot->flags |= AMDAHL_STACK_TAKEN;
		}
	}
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *moved, int cpu)
{
	amdahl_u32 tid = moved->pid;
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!bpf_map_lookup_elem(&tasks, &tid))
		return 0;
	slot = reserve(&seq);
	if (!slot)
		return 0;
	slot->ts = bpf_ktime_get_ns();
	slot->kind = AMDAHL_MIGRATE;
	slot->flags = 0;
	slot->cpu = cpu;
	slot->tid = tid;
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	amdahl_u32 parent_tid = parent->pid, child_tid = child->pid;
	struct task task = {};
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!bpf_map_lookup_elem(&tasks, &parent_tid))
		return 0;
	task.tgid = child->tgid;
	bpf_map_update_elem(&tasks, &child_tid, &task, BPF_ANY);
	slot = reserve(&seq);
	if (!slot)
		return 0;
	slot->ts = bpf_ktime_get_ns();
	slot->kind = AMDAHL_FORK;
	slot->flags = 0;
	slot->cpu = bpf_get_smp_processor_id();
	slot->tid = child_tid;
	slot->other = parent_tid;
	slot->syscall = task.tgid;
	BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, child, comm);
	publish(slot, seq);
	return 0;
}

static __always_inline int name_of(struct task_struct *t, const char *name)
{
	amdahl_u32 tid = t->pid;
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!bpf_map_lookup_elem(&tasks, &tid))
		return 0;
	slot = reserve(&seq);
	if (!slot)
		return 0;
	slot->ts = bpf_ktime_get_ns();
	slot->kind = AMDAHL_COMM;
	slot->flags = 0;
	slot->cpu = bpf_get_smp_processor_id();
	slot->tid = tid;
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
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!spins->ns)
		return;
	slot = reserve(&seq);
	if (slot) {
		slot->ts = bpf_ktime_get_ns();
		slot->kind = AMDAHL_SPIN;
		slot->flags = 0;
		slot->lock_kind = spins->flags;
		slot->cpu = bpf_get_smp_processor_id();
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
	struct task_struct *me;
	struct task *task;
	struct mm_struct *mm;
	amdahl_u32 tid, zero = 0;

	tid = (amdahl_u32)bpf_get_current_pid_tgid();
	task = bpf_map_lookup_elem(&tasks, &tid);
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
	me = bpf_get_current_task_btf();
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
	amdahl_u32 tid = (amdahl_u32)bpf_get_current_pid_tgid(), zero = 0, at;
	struct task *task = bpf_map_lookup_elem(&tasks, &tid);
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
		struct amdahl_totals *t = my_totals();                          \
		if (t)                                                          \
			t->field = step;                                        \
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
	struct amdahl_stack *s;
	struct amdahl_totals *t;
	struct pt_regs *regs;
	long bytes;

	if (!tid || !bpf_map_lookup_elem(&tasks, &tid))
		return 0;
	s = bpf_ringbuf_reserve(&stacks, sizeof(*s), 0);
	if (!s) {
		t = my_totals();
		if (t)
			__sync_fetch_and_add(&t->samples_lost, 1);
		return 0;
	}
	s->ts = bpf_ktime_get_ns();
	s->tid = tid;
	s->pid = id >> 32;
	s->cpu = bpf_get_smp_processor_id();
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
