// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
//
// Records waits for locks: contended kernel locks, sleeps in futexes, for System V semaphores and
// for locks on files, and sleeps in the kernel that may be for a grace period of RCU; one slot for
// each wait when it is over. Nothing is recorded of other switches and of locks that are free.
//
// The wait is timed before anything else is looked at: whoever spins on a lock hands it on later
// by whatever its waiter does in between.

#include "callers.bpf.h"
#include "holds.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Addresses of kernel code: their upper half, 0 if not known, and the bounds of the lower one. Set
 * before loading. */
volatile const amdahl_u32 text_high = 0;
volatile const amdahl_u32 text_begin = 0;
volatile const amdahl_u32 text_end = 0;

/* Waits in progress, by the low bits of the thread id; where two meet, the later one is in the hash. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, AMDAHL_TASKS);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_wait);
} waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_wait);
} waits_crowd SEC(".maps");

static __always_inline struct amdahl_wait *find_wait(amdahl_u32 tid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;
	struct amdahl_wait *wait = bpf_map_lookup_elem(&waits, &index);

	if (!wait || wait->tid == tid)
		return wait;
	return wait->crowded ? bpf_map_lookup_elem(&waits_crowd, &tid) : 0;
}

static __always_inline struct amdahl_wait *enter_wait(amdahl_u32 tid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;
	struct amdahl_wait *wait = bpf_map_lookup_elem(&waits, &index), new = {};

	if (!wait || !__sync_val_compare_and_swap(&wait->tid, 0, tid))
		return wait;
	new.tid = tid;
	if (bpf_map_update_elem(&waits_crowd, &tid, &new, BPF_NOEXIST)) {
		count_lost();
		return 0;
	}
	__sync_fetch_and_add(&wait->crowded, 1);
	return bpf_map_lookup_elem(&waits_crowd, &tid);
}

static __always_inline void leave_wait(amdahl_u32 tid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;
	struct amdahl_wait *wait = bpf_map_lookup_elem(&waits, &index);

	if (!wait)
		return;
	if (wait->tid == tid) {
		wait->kind = 0;
		wait->waker = 0;
		wait->waker_flags = 0;
		wait->waker_place = 0;
		__sync_lock_test_and_set(&wait->tid, 0);
	} else if (!bpf_map_delete_elem(&waits_crowd, &tid)) {
		__sync_fetch_and_add(&wait->crowded, -1);
	}
}

#define NR_FUTEX_WAITV 449 /* since Linux 5.16 */
#define NR_FUTEX_WAIT 455  /* since Linux 6.7 */

static __always_inline int in_futex(struct pt_regs *regs)
{
	int number = REG_SYSCALL(regs);

	return number == NR_FUTEX || number == NR_FUTEX_WAIT || number == NR_FUTEX_WAITV;
}

/* What futex_waitv has a list of. */
struct awaited {
	amdahl_u64 value, address;
};

/* A stack with its place, of the kernel too where it waits. Returns how many frames of the kernel it has. */
static __always_inline int take(void *ctx, struct amdahl_ring *ring, amdahl_u32 cpu, struct task_struct *t,
				int kind, amdahl_u64 ts, amdahl_u32 place)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(t);
	struct amdahl_stack *s = begin_stack(ring, cpu, kind, ts, t->pid, t->tgid);
	int kernel_frames;

	if (!s)
		return 0;
	if (kind == AMDAHL_STACK_LOCK)
		walk_kernel(ctx, s);
	kernel_frames = s->kernel_frames;
	user_registers(s, regs);
	if (!is_kernel_thread(t)) {
		copy_user_stack(s);
		walk_frame_pointers(ctx, s);
		if (kind == AMDAHL_STACK_WAIT)
			walk_goroutine(s);
	}
	s->place = place;
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return kernel_frames;
}

/* The slot of a wait that ended at `ts`. */
static __always_inline void tell(struct amdahl_ring *ring, amdahl_u32 cpu, struct amdahl_wait *wait,
				 amdahl_u64 ts)
{
	struct amdahl_slot *slot;
	amdahl_u64 seq, ns, since;

	slot = begin(ring, cpu, wait->kind, wait->tid, ts, &seq);
	if (!slot)
		return;
	ns = ts - wait->begin;
	since = wait->waker ? ts - wait->woken_at : 0;
	slot->flags = wait->waker_flags;
	slot->lock_kind = wait->lock_flags;
	slot->unused = wait->expected;
	slot->other = wait->waker;
	slot->syscall = wait->tgid;
	slot->place = wait->place;
	slot->arg[0] = wait->lock;
	slot->arg[1] = ns;
	slot->arg[2] = (amdahl_u64)wait->waker_place << 32 | (since < 0xffffffff ? since : 0xffffffff);
	publish(slot, seq);
}

/* AMDAHL_SLEEPs in progress, those whose ends were lost included: where there are none, nobody who
 * comes on a CPU is looked up. */
amdahl_u32 sleepers = 0;

/*
 * A thread that waits once more has come on a CPU since its last sleep, though that switch was not told: some kernels tell
 * nothing of what happens while certain threads run, and it took a CPU from one of those. It is taken to have run at one go since.
 */
static __always_inline void end_unseen(struct amdahl_wait *wait, struct task_struct *t, amdahl_u64 now)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	amdahl_u64 since = now - (t->se.sum_exec_runtime - wait->had_run);

	if (wait->kind == AMDAHL_SLEEP)
		__sync_fetch_and_add(&sleepers, -1);
	/* Both clocks are read at other times. */
	if ((amdahl_s64)(since - wait->begin) < 0)
		since = wait->begin;
	if (since < wait->woken_at)
		since = wait->woken_at;
	if (ring)
		tell(ring, cpu, wait, since);
}

/* An entry for a wait of this thread that begins now; none within one for a lock of the kernel, as of a page fault. */
static __always_inline struct amdahl_wait *begin_wait(struct task_struct *t, amdahl_u64 now)
{
	struct amdahl_wait *wait = find_wait(t->pid);

	if (!wait || !wait->kind)
		return enter_wait(t->pid);
	if (wait->kind == AMDAHL_KERNEL_WAIT)
		return 0;
	end_unseen(wait, t, now);
	return wait;
}

/*
 * The deepest stack of a place names it, and after the first ones another hardly tells more: they become rarer, twice each time,
 * but do not end, for what has forgotten the place meanwhile.
 */
static __always_inline int is_too_soon(struct place *place, amdahl_u64 ts, amdahl_u32 first, amdahl_u64 gap, amdahl_u32 doublings)
{
	amdahl_u64 more = place->count - first;

	return place->count >= first && ts - place->last < gap << (more < doublings ? more : doublings);
}

/* As takes_stack, and after the first four after 20 ms to 10 s. */
static __always_inline int takes_user_stack(struct amdahl_ring *ring, amdahl_u64 hash, amdahl_u64 ts)
{
	amdahl_u32 index = (hash >> 40) & 4095;
	struct place *place = bpf_map_lookup_elem(&places, &index);

	return place && !(place->hash == hash && is_too_soon(place, ts, 4, 20000000, 9)) &&
	       takes_stack(ring, hash, ts);
}

static __always_inline void futex_begins(void *ctx, struct amdahl_ring *ring, amdahl_u32 cpu,
					 struct task_struct *t, struct pt_regs *regs)
{
	amdahl_u64 goroutine, hash, ts = bpf_ktime_get_ns();
	struct amdahl_wait *wait = begin_wait(t, ts);
	struct awaited first = { REG_ARG1(regs), REG_ARG0(regs) };
	int number = REG_SYSCALL(regs);

	if (!wait)
		return;
	/* A wait for any of several counts as one for the first. */
	if (number == NR_FUTEX_WAITV && bpf_probe_read_user(&first, sizeof(first), (void *)REG_ARG0(regs)))
		first.value = first.address = 0;
	wait->tgid = t->tgid;
	wait->lock = first.address;
	wait->begin = ts;
	/* Only the oldest of these calls does anything but wait. */
	wait->lock_flags = number == NR_FUTEX ? REG_ARG1(regs) : 0;
	wait->expected = number == NR_FUTEX ? REG_ARG2(regs) : first.value;
	goroutine = place_of_goroutine(regs);
	hash = place_of(regs, t->tgid) ^ kind_of_futex(wait->lock) * 0xff51afd7ed558ccdull ^ goroutine;
	/* Those of a goroutine are on another stack, and have been looked at. */
	if (!goroutine)
		hash = place_by_callers(hash, t, regs, ts);
	wait->place = hash >> 32;
	wait->had_run = t->se.sum_exec_runtime;
	wait->woken_at = 0;
	wait->waker = 0;
	wait->waker_flags = 0;
	wait->waker_place = 0;
	wait->kind = AMDAHL_FUTEX_WAIT;
	if (takes_user_stack(ring, hash, ts))
		take(ctx, ring, cpu, t, AMDAHL_STACK_WAIT, ts, wait->place);
}

/* Longer than the naps of Go's threads that look for work, shorter than those of its monitor. */
#define NAP_NS 10000

struct span {
	amdahl_s64 s, ns;
};

static __always_inline int is_nap(amdahl_u64 address)
{
	struct span span = {};

	return !bpf_probe_read_user(&span, sizeof(span), (void *)address) && !span.s && span.ns <= NAP_NS;
}

#define F_SETLKW 7
#define F_OFD_SETLKW 38

/* What a call waits for when it sleeps; 0 is none of what is recorded. */
static __always_inline int sleep_in(struct pt_regs *regs)
{
	int number = REG_SYSCALL(regs);
	int command;

	if (number == NR_SEMOP || number == NR_SEMTIMEDOP)
		return AMDAHL_SLEEP_SEMAPHORE;
	if (number == NR_FLOCK)
		return AMDAHL_SLEEP_FILE;
	if (number == NR_NANOSLEEP)
		return is_nap(REG_ARG0(regs)) ? AMDAHL_SLEEP_NAP : 0;
	if (number != NR_FCNTL)
		return 0;
	command = REG_ARG1(regs);
	return command == F_SETLKW || command == F_OFD_SETLKW ? AMDAHL_SLEEP_FILE : 0;
}

static __always_inline amdahl_u64 inode_of(struct task_struct *t, amdahl_u64 fd)
{
	struct fdtable *table = BPF_CORE_READ(t, files, fdt);
	struct file *file = 0;

	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + fd);
	return file ? (amdahl_u64)BPF_CORE_READ(file, f_inode) : 0;
}

#define DEEP_FRAMES 16

static __always_inline amdahl_u64 place_by_kernel_stack(void *ctx)
{
	amdahl_u64 frames[DEEP_FRAMES] = {}, hash = 0;
	int i;

	bpf_get_stack(ctx, frames, sizeof(frames), 0);
	for (i = 0; i < DEEP_FRAMES; i++)
		hash = (hash ^ frames[i]) * HASH_FACTOR;
	return hash;
}

/* Places in the kernel, of all CPUs together: there are few, every CPU comes by, and only who takes a stack writes there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, amdahl_u32);
	__type(value, struct place);
} kernel_places SEC(".maps");

/* In 2^27 ns (134 ms) on a CPU: their stacks, which are dear, are at most some thousandths of its time. */
#define NEW_KERNEL_PLACES 16

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct newcomers);
} new_kernel_places SEC(".maps");

/* Which code of the program came into the kernel; 0 is none. */
static __always_inline amdahl_u64 program_hash(struct task_struct *t)
{
	struct pt_regs *regs;

	if (is_kernel_thread(t))
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(t);
	return callers_of(t, regs) ^ REG_IP(regs) * HASH_FACTOR;
}

/*
 * A place in the kernel, by the code of the program too, which is what wants the lock: all that fault, write or open come by the
 * same functions of the kernel. Where too many new ones come they are told apart by the kernel's code alone for a while.
 */
static __always_inline amdahl_u64 place_by_program(amdahl_u64 kernel_hash, amdahl_u64 program, amdahl_u64 ts)
{
	amdahl_u64 hash = kernel_hash ^ program;
	amdahl_u32 index = (hash >> 40) & 4095, zero = 0;
	struct newcomers *new;
	struct place *place;

	if (!kernel_hash || !program)
		return kernel_hash;
	place = bpf_map_lookup_elem(&kernel_places, &index);
	new = bpf_map_lookup_elem(&new_kernel_places, &zero);
	if (!place || !new || place->hash == hash || !are_too_many(new, ts, NEW_KERNEL_PLACES))
		return hash;
	return kernel_hash;
}

/* A walk that breaks off at once has fewer frames, with those of the hook itself. */
#define WHOLE_FRAMES 6

/*
 * Takes a stack with that of the kernel, if this place gets one now. They are dear where the tables for unwinding are not in the
 * cache, and one tells all there is to know of a place: the second is for one that was cut short, those after 1 to
 * 16 s for what met in one hash.
 */
static __always_inline void take_at_kernel_place(void *ctx, struct amdahl_ring *ring, amdahl_u32 cpu, struct task_struct *t,
						 amdahl_u64 ts, amdahl_u64 hash)
{
	amdahl_u32 index = (hash >> 40) & 4095;
	struct place *place = bpf_map_lookup_elem(&kernel_places, &index);

	if (!place)
		return;
	if (place->hash != hash) {
		/* A new one, unless two take turns in this entry. */
		if (ts - place->last < 1000000)
			return;
		place->hash = hash;
		place->count = 0;
	} else if (place->count >= 2) {
		if (is_too_soon(place, ts, 2, 1000000000, 4) || ts - ring->repeated_at < 10000000)
			return;
		ring->repeated_at = ts;
	}
	place->count++;
	place->last = ts;
	if (take(ctx, ring, cpu, t, AMDAHL_STACK_LOCK, ts, hash >> 32) >= WHOLE_FRAMES && place->count == 1)
		place->count = 2;
}

static __always_inline void sleep_begins(void *ctx, struct task_struct *t, struct pt_regs *regs, int what)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tid = t->pid;
	struct amdahl_ring *ring = ring_of(cpu);
	amdahl_u64 hash, ts = bpf_ktime_get_ns();
	struct amdahl_wait *wait;
	int is_deep = what == AMDAHL_SLEEP_DEEP;

	if (!ring || !tid)
		return;
	wait = begin_wait(t, ts);
	if (!wait)
		return;
	wait->tgid = t->tgid;
	wait->begin = ts;
	wait->lock_flags = what;
	wait->expected = 0;
	if (is_deep) {
		wait->lock = 0;
		hash = place_by_program(place_by_kernel_stack(ctx), program_hash(t), ts);
	} else {
		wait->lock = what == AMDAHL_SLEEP_FILE ? inode_of(t, REG_ARG0(regs)) :
			     what == AMDAHL_SLEEP_NAP  ? 0 :
							 REG_ARG0(regs);
		hash = place_of(regs, t->tgid);
		if (what != AMDAHL_SLEEP_NAP)
			hash = place_by_callers(hash, t, regs, ts);
	}
	wait->place = hash >> 32;
	wait->had_run = t->se.sum_exec_runtime;
	wait->woken_at = 0;
	wait->waker = 0;
	wait->waker_flags = 0;
	wait->waker_place = 0;
	wait->kind = AMDAHL_SLEEP;
	__sync_fetch_and_add(&sleepers, 1);
	if (is_deep)
		take_at_kernel_place(ctx, ring, cpu, t, ts, hash);
	else if (takes_user_stack(ring, hash, ts))
		take(ctx, ring, cpu, t, AMDAHL_STACK_WAIT, ts, wait->place);
}

/* The wait of a thread that comes on the CPU, if it is of this kind. */
static __always_inline void sleep_ends(amdahl_u32 tid, int kind)
{
	struct amdahl_wait *wait = find_wait(tid);
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);

	if (!wait || wait->kind != kind)
		return;
	if (kind == AMDAHL_SLEEP)
		__sync_fetch_and_add(&sleepers, -1);
	if (ring)
		tell(ring, cpu, wait, bpf_ktime_get_ns());
	leave_wait(tid);
}

#define TASK_INTERRUPTIBLE 1
#define TASK_UNINTERRUPTIBLE 2
#define TASK_WAKEKILL 0x100
#define TASK_NOLOAD 0x400 /* since Linux 4.2: a thread of the kernel without work */
/* Sleeps that a signal may end, if only one that kills: whoever waits for a child of vfork, but nobody for a grace period. */
#define NO_DEEP_SLEEP (TASK_WAKEKILL | TASK_NOLOAD)

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	long state = preempt ? 0 : state_of(prev);
	struct amdahl_ring *ring;
	struct pt_regs *regs;
	amdahl_u32 cpu;
	int what;

	if (state & TASK_INTERRUPTIBLE) {
		regs = (struct pt_regs *)bpf_task_pt_regs(prev);
		if (in_futex(regs)) {
			cpu = bpf_get_smp_processor_id();
			ring = ring_of(cpu);
			if (ring && is_ours(prev->pid))
				futex_begins(ctx, ring, cpu, prev, regs);
		} else if (!is_kernel_thread(prev)) {
			what = sleep_in(regs);
			if (what && is_ours(prev->pid))
				sleep_begins(ctx, prev, regs, what);
		}
	} else if ((state & (TASK_UNINTERRUPTIBLE | NO_DEEP_SLEEP)) == TASK_UNINTERRUPTIBLE) {
		if (!BPF_CORE_READ_BITFIELD(prev, in_iowait) && is_ours(prev->pid))
			sleep_begins(ctx, prev, 0, AMDAHL_SLEEP_DEEP);
	}
	if (!is_kernel_thread(next) && in_futex((struct pt_regs *)bpf_task_pt_regs(next)))
		sleep_ends(next->pid, AMDAHL_FUTEX_WAIT);
	if (sleepers && next->pid)
		sleep_ends(next->pid, AMDAHL_SLEEP);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *woken)
{
	amdahl_u32 cpu, tid = woken->pid;
	struct task_struct *current;
	struct amdahl_wait *wait;
	struct amdahl_ring *ring;
	amdahl_u64 hash, ts;

	/* A thread of the kernel without work waits for no lock. Many are woken, and looking one up is a line from memory. */
	if (state_of(woken) & TASK_NOLOAD)
		return 0;
	wait = find_wait(tid);
	if (!wait || !wait->kind)
		return 0;
	cpu = bpf_get_smp_processor_id();
	ring = ring_of(cpu);
	if (!ring)
		return 0;
	ts = bpf_ktime_get_ns();
	wait->woken_at = ts;
	current = bpf_get_current_task_btf();
	wait->waker = current->pid;
	wait->waker_flags = wakes_from(ring, wait->waker);
	if (!wait->waker_flags) {
		struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(current);

		wait->waker_flags = AMDAHL_WAKER_WORKLOAD;
		if (is_kernel_thread(current))
			return 0;
		hash = place_by_callers(~place_of(regs, current->tgid), current, regs, ts);
		wait->waker_place = hash >> 32;
		if (takes_user_stack(ring, hash, ts))
			take(ctx, ring, cpu, current, AMDAHL_STACK_WAKE, ts, wait->waker_place);
	}
	return 0;
}

/* Spin locks that this CPU waits for: interrupts nest. */
struct spins {
	struct {
		amdahl_u64 lock, begin;
	} at[4];
	amdahl_u32 depth, flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, amdahl_u32);
	__type(value, struct spins);
} spins_map SEC(".maps");

/* Of one's own address space, or of another's: of a process whose memory is looked at, or of a child's. */
static __always_inline int is_mmap_lock(struct task_struct *me, amdahl_u64 lock, amdahl_u32 flags)
{
	struct mm_struct *mm = me->mm;

	if (mm && lock == lock_of(mm))
		return 1;
	/* Semaphores of readers and writers have one of these two and nothing else. */
	return (flags == LCB_F_READ || flags == LCB_F_WRITE) && owner_by_lock(lock);
}

SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct amdahl_ring *ring;
	struct amdahl_wait *wait;
	amdahl_u32 zero = 0;

	if (!is_ours(me->pid))
		return 0;
	ring = ring_of(bpf_get_smp_processor_id());
	if (!ring || ring->takes_stack)
		return 0;
	if ((flags & (LCB_F_SPIN | LCB_F_MUTEX)) == LCB_F_SPIN) {
		struct spins *spins = bpf_map_lookup_elem(&spins_map, &zero);

		if (spins) {
			amdahl_u32 at = spins->depth++ & 3;

			spins->at[at].lock = (amdahl_u64)lock;
			spins->flags = (spins->flags & ~(0xffu << at * 8)) | (flags & 0x7f) << at * 8;
			spins->at[at].begin = bpf_ktime_get_ns();
		}
		return 0;
	}
	wait = find_wait(me->pid);
	/* A mutex tells again when it changes from spinning to sleeping. */
	if (wait && wait->kind == AMDAHL_KERNEL_WAIT && wait->lock == (amdahl_u64)lock)
		return 0;
	if (!wait || wait->kind != AMDAHL_KERNEL_WAIT)
		wait = begin_wait(me, bpf_ktime_get_ns());
	if (!wait)
		return 0;
	wait->tgid = me->tgid;
	wait->lock = (amdahl_u64)lock;
	wait->lock_flags = flags & 0x7f;
	if (is_mmap_lock(me, (amdahl_u64)lock, flags))
		wait->lock_flags |= AMDAHL_LOCK_IS_MMAP;
	wait->expected = 0;
	wait->place = 0;
	wait->woken_at = 0;
	wait->waker = 0;
	wait->waker_flags = 0;
	wait->waker_place = 0;
	/* Now, since at the end the lock is held. Nobody asks of a wait of this kind what its thread had run. */
	wait->had_run = program_hash(me);
	wait->begin = bpf_ktime_get_ns();
	wait->kind = AMDAHL_KERNEL_WAIT;
	return 0;
}

#define SCANNED 40
/* Through the functions that take a lock to who wants it; beyond, what is left over varies. */
#define RETURNS 4

#if defined(__TARGET_ARCH_arm64)
/* A return address may be signed, in all bits above the 48th but the one that tells the kernel's addresses from others: as it is without. */
#define KERNEL_ADDRESS(word) ((word) | -((word) >> 55 & 1) << 48)
#else
#define KERNEL_ADDRESS(word) (word)
#endif

/*
 * Who wants the lock, without walking the stack: the return addresses above the probe's own frame,
 * as far as they are found among the words there. Words that are left over from earlier calls
 * may be among them; they only tell apart what is the same.
 */
static __always_inline amdahl_u64 place_in_kernel(void *ctx, amdahl_u32 flags)
{
	amdahl_u64 words[SCANNED], hash = flags + 1, low, is_text, found = 0;
	int i;

	if (!text_high || bpf_probe_read_kernel(words, sizeof(words), ctx))
		return 0;
	/* Without branches, each of which would double what the verifier has to look at. */
	for (i = 2; i < SCANNED; i++) {
		low = words[i] & 0xffffffff;
		is_text = ((KERNEL_ADDRESS(words[i]) >> 32 ^ text_high) - 1) >> 63;
		is_text &= ~((low - text_begin) >> 63) & ((low - text_end) >> 63);
		is_text &= (found - RETURNS) >> 63;
		found += is_text;
		hash ^= -is_text & (hash ^ (hash ^ low) * HASH_FACTOR);
	}
	return hash;
}

SEC("tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock)
{
	amdahl_u64 ts = bpf_ktime_get_ns(), hash;
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 tid = me->pid, zero = 0, at, cpu;
	struct amdahl_wait *wait, spun = {};
	struct amdahl_ring *ring;
	struct spins *spins;

	if (!is_ours(me->pid))
		return 0;
	cpu = bpf_get_smp_processor_id();
	ring = ring_of(cpu);
	if (!ring || ring->takes_stack)
		return 0;
	wait = find_wait(tid);
	if (wait && wait->kind == AMDAHL_KERNEL_WAIT && wait->lock == (amdahl_u64)lock) {
		hash = place_by_program(place_in_kernel(ctx, wait->lock_flags), wait->had_run, ts);
		wait->place = hash >> 32;
		tell(ring, cpu, wait, ts);
		leave_wait(tid);
	} else {
		spins = bpf_map_lookup_elem(&spins_map, &zero);
		if (!spins || !spins->depth)
			return 0;
		at = --spins->depth & 3;
		if (spins->at[at].lock != (amdahl_u64)lock) {
			spins->depth = 0;
			return 0;
		}
		spun.kind = AMDAHL_KERNEL_WAIT;
		spun.tid = tid;
		spun.tgid = me->tgid;
		spun.lock = (amdahl_u64)lock;
		spun.begin = spins->at[at].begin;
		spun.lock_flags = spins->flags >> at * 8;
		hash = place_in_kernel(ctx, spun.lock_flags);
		spun.place = hash >> 32;
		tell(ring, cpu, &spun, ts);
	}
	if (hash)
		take_at_kernel_place(ctx, ring, cpu, me, ts, hash);
	return 0;
}

/* By the low bits of the thread id; a later thread replaces, and what it replaces is counted as lost. */
struct holds {
	struct amdahl_held at[AMDAHL_HELD];
	amdahl_u32 tid, unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AMDAHL_TASKS);
	__type(key, amdahl_u32);
	__type(value, struct holds);
} holding SEC(".maps");

static __always_inline void tell_hold(struct amdahl_ring *ring, amdahl_u32 cpu, struct task_struct *me,
				      struct amdahl_held *hold, amdahl_u64 ts)
{
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	slot = begin(ring, cpu, AMDAHL_HOLD, me->pid, ts, &seq);
	if (!slot)
		return;
	slot->lock_kind = hold->flags;
	slot->unused = 0;
	slot->other = 0;
	slot->syscall = me->tgid;
	slot->place = hold->place;
	slot->arg[0] = hold->lock;
	slot->arg[1] = ts - hold->begin;
	slot->arg[2] = 0;
	publish(slot, seq);
}

SEC("tp_btf/mmap_lock_acquire_returned")
int on_mmap_acquired(unsigned long long *ctx)
{
	struct mm_struct *mm = (void *)ctx[0];
	int write = argument_of_lock(ctx, 1), success = argument_of_lock(ctx, 2);
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 tid = me->pid, index = tid % AMDAHL_TASKS, cpu;
	amdahl_u64 lock, hash, ts;
	struct amdahl_ring *ring;
	struct holds *holds;
	struct amdahl_held *hold;

	if (!success || !is_ours(me->pid))
		return 0;
	cpu = bpf_get_smp_processor_id();
	ring = ring_of(cpu);
	holds = bpf_map_lookup_elem(&holding, &index);
	if (!ring || !holds)
		return 0;
	if (holds->tid != tid) {
		if (holds->at[0].lock || holds->at[1].lock)
			count_lost();
		holds->at[0].lock = holds->at[1].lock = 0;
		holds->tid = tid;
	}
	lock = lock_of(mm);
	hold = find_held(holds->at, lock);
	/* A writer that goes on as a reader acquires without having released. */
	if (hold && !write && hold->flags & LCB_F_WRITE) {
		ts = bpf_ktime_get_ns();
		tell_hold(ring, cpu, me, hold, ts);
		hold->flags = AMDAHL_LOCK_IS_MMAP | LCB_F_READ;
		hold->begin = ts;
		return 0;
	}
	if (!hold)
		hold = free_held(holds->at);
	hold->lock = lock;
	hold->flags = AMDAHL_LOCK_IS_MMAP | (write ? LCB_F_WRITE : LCB_F_READ);
	hash = ~place_in_kernel(ctx, hold->flags);
	hold->place = hash >> 32;
	ts = bpf_ktime_get_ns();
	hold->begin = ts;
	take_at_kernel_place(ctx, ring, cpu, me, ts, hash);
	return 0;
}

SEC("tp_btf/mmap_lock_released")
int BPF_PROG(on_mmap_released, struct mm_struct *mm)
{
	amdahl_u64 ts = bpf_ktime_get_ns();
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 tid = me->pid, index = tid % AMDAHL_TASKS, cpu = bpf_get_smp_processor_id();
	struct holds *holds = bpf_map_lookup_elem(&holding, &index);
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_held *hold;

	if (!holds || holds->tid != tid)
		return 0;
	hold = find_held(holds->at, lock_of(mm));
	if (!hold)
		return 0;
	if (ring)
		tell_hold(ring, cpu, me, hold, ts);
	hold->lock = 0;
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	if (!is_ours(parent->pid) || (!everyone && !enter_child(child)))
		return 0;
	return tell_fork(parent, child);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *t)
{
	if (!everyone)
		leave(t->pid);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *t, const char *name)
{
	return is_ours(t->pid) ? tell_name(t, name) : 0;
}

#include "goroutines.bpf.h"

IN_CONTEXT(hrtimer_expire_entry, ring->in_timer = 1)
IN_CONTEXT(hrtimer_expire_exit, ring->in_timer = 0)
