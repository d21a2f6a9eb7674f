// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
//
// Records page faults, waits for the address-space lock, how long it is held, and the kernel's
// own address ranges. No decisions here.
//
// A fault begins at the exception and ends where the kernel counts it as minor or major (a
// software perf event with this program on it), still inside the handler: so the number of
// records is the number that getrusage tells, but for what the kernel does on its own behalf.

#include "stack.bpf.h"
#include "holds.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* linux/bpf_perf_event.h, whose registers would be a second definition of ours */
struct bpf_perf_event_data {
#if defined(__TARGET_ARCH_x86)
	amdahl_u64 regs[21];
#else
	amdahl_u64 regs[34];
#endif
	amdahl_u64 sample_period;
	amdahl_u64 addr;
};

struct task_struct___mem {
	int pagefault_disabled;
	struct task_struct *group_leader;
} CORE;
struct page;
struct super_block { unsigned long s_magic; } CORE;
struct inode___mem { struct super_block *i_sb; } CORE;
/* linux/gfp_types.h: a page that may be moved, as those of programs; page tables may not. */
#define GFP_MOVABLE 0x08u
/* linux/magic.h */
#define PROC_SUPER_MAGIC 0x9fa0

/* What a thread is in the middle of. By the low bits of its id: where two live threads meet, the
 * later one wins, and a wait or hold of the other that is gone with it is counted as lost. */
struct doing {
	amdahl_u32 tid;
	amdahl_u32 in_fault;   /* 1: of the program, 2: of the kernel on its behalf */
	amdahl_u64 fault_at;
	amdahl_u32 error;
	amdahl_u32 wait_flags; /* LCB_F_* of the lock it waits for */
	amdahl_u32 wait_of;    /* of a stranger: whose lock it waits for; 0 of the workload */
	amdahl_u32 allocated;  /* order of the last page that the fault took, plus one */
	amdahl_u64 wait_at;
	amdahl_u64 lock;
	amdahl_u64 mm;         /* whose lock is known to be one of an address space */
	struct amdahl_held held[AMDAHL_HELD]; /* flags: AMDAHL_MMAP_WRITE, _STRANGER; place: whose, of a stranger */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AMDAHL_TASKS);
	__type(key, amdahl_u32);
	__type(value, struct doing);
} doings SEC(".maps");

/* Locks of address spaces that were seen: of those that others than their owner wait for. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, amdahl_u64);
	__type(value, amdahl_u32);
} mmap_locks SEC(".maps");

/* Of this thread or another that it meets. */
static __always_inline struct doing *doing_at(amdahl_u32 tid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;

	return bpf_map_lookup_elem(&doings, &index);
}

static __always_inline struct doing *find_doing(amdahl_u32 tid)
{
	struct doing *doing = doing_at(tid);

	return doing && doing->tid == tid ? doing : 0;
}

/* It waits for a lock, or holds one. */
static __always_inline int has_lock(struct doing *doing)
{
	return doing->lock || doing->held[0].lock || doing->held[1].lock;
}

static __always_inline struct doing *doing_of(amdahl_u32 tid)
{
	struct doing *doing = doing_at(tid);

	if (doing && doing->tid != tid) {
		if (has_lock(doing))
			count_lost();
		__builtin_memset(doing, 0, sizeof(*doing));
		doing->tid = tid;
	}
	return doing;
}

/* Once for each thread and address space. */
static __always_inline void learn_lock(struct doing *doing, struct task_struct *me, amdahl_u32 tgid)
{
	struct mm_struct *mm = me->mm;
	amdahl_u64 lock;

	if (!mm || doing->mm == (amdahl_u64)mm)
		return;
	doing->mm = (amdahl_u64)mm;
	lock = lock_of(mm);
	bpf_map_update_elem(&mmap_locks, &lock, &tgid, BPF_ANY);
}

static __always_inline int begin_fault(amdahl_u32 error, amdahl_u32 whose)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct amdahl_task *task = find_or_enter(me);
	struct doing *doing;

	if (!task)
		return 0;
	doing = doing_at(task->tid);
	/* A fault that is not timed is counted all the same, unlike a wait. */
	if (!doing || (doing->tid != task->tid && has_lock(doing)))
		return 0;
	doing = doing_of(task->tid);
	if (!doing)
		return 0;
	learn_lock(doing, me, task->tgid);
	doing->error = error;
	doing->fault_at = bpf_ktime_get_ns();
	doing->allocated = 0;
	doing->in_fault = whose;
	return 0;
}

#if defined(__TARGET_ARCH_x86)
SEC("tp_btf/page_fault_user")
int BPF_PROG(on_fault_user, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	return begin_fault(error, 1);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(on_fault_kernel, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct task_struct___mem *mine = (void *)me;

	/* Copies that give up rather than fault, ours too, never become a page fault. */
	if (mine->pagefault_disabled)
		return 0;
	return begin_fault(error, 2);
}
#else
/* Only the beginning is told, by a software event. */
SEC("perf_event")
int on_fault(struct bpf_perf_event_data *ctx)
{
	return begin_fault(0, 1);
}
#endif

/* What a fault brings is the last that it takes: larger ones were refused by the control group, or not needed. */
SEC("tp_btf/mm_page_alloc")
int BPF_PROG(on_page_alloc, struct page *page, unsigned int order, unsigned int gfp_flags)
{
	struct doing *doing;

	if (!(gfp_flags & GFP_MOVABLE) || !page)
		return 0;
	doing = find_doing(bpf_get_current_task_btf()->pid);
	if (doing && doing->in_fault)
		doing->allocated = order + 1;
	return 0;
}

static __always_inline int end_fault(struct bpf_perf_event_data *ctx, amdahl_u8 flags)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct amdahl_task *task = find_or_enter(me);
	amdahl_u32 cpu = bpf_get_smp_processor_id(), tgid;
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	struct pt_regs *regs;
	struct doing *doing;
	amdahl_u64 seq, ts, hash, began = 0;
	amdahl_u32 error = 0, allocated = 0;
	int syscall;

	if (!task || !ring)
		return 0;
	ts = bpf_ktime_get_ns();
	doing = find_doing(task->tid);
	if (doing && doing->in_fault) {
		doing->in_fault = 0;
		began = doing->fault_at;
		error = doing->error;
		allocated = doing->allocated;
		flags |= AMDAHL_FAULT_IS_TIMED;
#if defined(__TARGET_ARCH_x86)
		flags |= AMDAHL_FAULT_HAS_ERROR;
#endif
	}
	slot = begin(ring, cpu, AMDAHL_FAULT, task->tid, ts, &seq);
	if (!slot)
		return 0;
	tgid = task->tgid;
	regs = (struct pt_regs *)bpf_task_pt_regs(me);
	syscall = REG_SYSCALL(regs);
	slot->lock_kind = error;
	slot->unused = allocated;
	slot->other = tgid;
	slot->syscall = syscall;
	slot->arg[0] = ctx->addr;
	slot->arg[1] = began ? ts - began : 0;
	hash = ~place_of(regs, tgid);
	slot->place = hash >> 32;
	if (takes_stack(ring, hash, ts) &&
	    take_stack(ctx, ring, cpu, regs, AMDAHL_STACK_FAULT, ts, slot->tid, tgid, 0))
		flags |= AMDAHL_STACK_TAKEN;
	slot->flags = flags;
	publish(slot, seq);
	return 0;
}

SEC("perf_event")
int on_minor_fault(struct bpf_perf_event_data *ctx)
{
	return end_fault(ctx, 0);
}

SEC("perf_event")
int on_major_fault(struct bpf_perf_event_data *ctx)
{
	return end_fault(ctx, AMDAHL_FAULT_MAJOR);
}

static __always_inline int is_mmap_lock(struct task_struct *me, amdahl_u64 lock)
{
	struct mm_struct *mm = me->mm;

	return (mm && lock == lock_of(mm)) || bpf_map_lookup_elem(&mmap_locks, &lock);
}

/* The process of the workload that an address space belongs to, 0 if there is none. */
static __always_inline amdahl_u32 whose(struct mm_struct *mm)
{
	struct mm_struct___owned *owned = (void *)mm;
	struct amdahl_task *task;
	struct task_struct *owner;

	if (!bpf_core_field_exists(owned->owner))
		return 0;
	owner = owned->owner;
	task = owner ? find(owner->pid) : 0;
	return task ? task->tgid : 0;
}

/* The same of a semaphore that may be anything. */
static __always_inline amdahl_u32 whose_lock(amdahl_u64 lock)
{
	struct task_struct *owner = owner_by_lock(lock);
	struct amdahl_task *task = owner ? find(BPF_CORE_READ(owner, pid)) : 0;

	return task ? task->tgid : 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *me;
	struct doing *doing;
	amdahl_u32 of = 0;

	/* Semaphores of readers and writers have one of these two and nothing else. */
	if (flags != LCB_F_READ && flags != LCB_F_WRITE)
		return 0;
	me = bpf_get_current_task_btf();
	if (find_or_enter(me)) {
		if (!is_mmap_lock(me, (amdahl_u64)lock))
			return 0;
	} else {
		/* A stranger who waits for its own address space is none of ours. */
		if (me->mm && (amdahl_u64)lock == lock_of(me->mm))
			return 0;
		of = whose_lock((amdahl_u64)lock);
		if (!of)
			return 0;
	}
	doing = doing_of(me->pid);
	if (!doing)
		return 0;
	/* An id that was one of the workload's before. */
	if (of)
		doing->in_fault = 0;
	doing->wait_of = of;
	doing->lock = (amdahl_u64)lock;
	doing->wait_flags = flags;
	doing->wait_at = bpf_ktime_get_ns();
	return 0;
}

/* In a call that reads from a file of /proc. */
static __always_inline int reads_proc(struct task_struct *me)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(me);
	int syscall = REG_SYSCALL(regs);
	amdahl_u64 fd = REG_ARG0(regs);
	struct fdtable *table;
	struct file *file = 0;
	struct inode___mem *inode;

	if (!IS_READ(syscall))
		return 0;
	table = BPF_CORE_READ(me, files, fdt);
	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + fd);
	inode = file ? (void *)BPF_CORE_READ(file, f_inode) : 0;
	return inode && BPF_CORE_READ(inode, i_sb, s_magic) == PROC_SUPER_MAGIC;
}

/* Of a slot about the lock: who, and in the middle of what. */
static __always_inline amdahl_u8 who(struct amdahl_slot *slot, struct task_struct *me, struct doing *doing)
{
	int syscall = me->mm ? REG_SYSCALL((struct pt_regs *)bpf_task_pt_regs(me)) : -1;

	slot->lock_kind = 0;
	slot->other = me->tgid;
	slot->syscall = syscall;
	if (!me->mm)
		return AMDAHL_MMAP_KTHREAD;
	/* A fault of the program that failed leaves a trace, which a later system call gives away. */
	if (doing->in_fault == 2 || (doing->in_fault && syscall < 0))
		return AMDAHL_MMAP_IN_FAULT;
	return reads_proc(me) ? AMDAHL_MMAP_READS_PROC : 0;
}

static __always_inline void name_stranger(struct amdahl_slot *slot, struct task_struct *me, amdahl_u32 of)
{
	slot->place = of;
	BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, (struct task_struct___mem *)me, group_leader, comm);
}

SEC("tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock)
{
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 tid = me->pid, cpu;
	struct doing *doing = find_doing(tid);
	struct amdahl_task *task;
	struct amdahl_ring *ring;
	struct amdahl_slot *slot;
	struct pt_regs *regs;
	amdahl_u64 seq, ts, hash;
	amdahl_u32 of;
	amdahl_u8 flags;

	if (!doing || !doing->lock || doing->lock != (amdahl_u64)lock)
		return 0;
	ts = bpf_ktime_get_ns();
	doing->lock = 0;
	of = doing->wait_of;
	task = find(tid);
	cpu = bpf_get_smp_processor_id();
	ring = ring_of(cpu);
	if (!ring || (!task && !of))
		return 0;
	slot = begin(ring, cpu, AMDAHL_MMAP_WAIT, tid, ts, &seq);
	if (!slot)
		return 0;
	flags = doing->wait_flags == LCB_F_WRITE ? AMDAHL_MMAP_WRITE : 0;
	slot->arg[2] = ts - doing->wait_at;
	flags |= who(slot, me, doing);
	if (!task || of) {
		name_stranger(slot, me, of);
		slot->flags = flags | AMDAHL_MMAP_STRANGER;
		publish(slot, seq);
		return 0;
	}
	regs = (struct pt_regs *)bpf_task_pt_regs(me);
	hash = me->mm ? place_of(regs, task->tgid) * 31 : 0;
	slot->place = hash >> 32;
	if (hash && takes_stack(ring, hash, ts) &&
	    take_stack(ctx, ring, cpu, regs, AMDAHL_STACK_WAIT, ts, tid, task->tgid, 0))
		flags |= AMDAHL_STACK_TAKEN;
	slot->flags = flags;
	publish(slot, seq);
	return 0;
}

static __always_inline void tell_hold(struct task_struct *me, struct doing *doing, struct amdahl_held *held,
				      amdahl_u64 ts)
{
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring)
		return;
	slot = begin(ring, cpu, AMDAHL_MMAP_HOLD, doing->tid, ts, &seq);
	if (!slot)
		return;
	slot->place = 0;
	slot->arg[2] = ts - held->begin;
	if (held->flags & AMDAHL_MMAP_STRANGER)
		name_stranger(slot, me, held->place);
	slot->flags = held->flags | who(slot, me, doing);
	publish(slot, seq);
}

/* Dear: twice for every fault and call that changes the address space. Only when asked for. */
SEC("tp_btf/mmap_lock_acquire_returned")
int on_mmap_lock_acquired(unsigned long long *ctx)
{
	struct mm_struct *mm = (void *)ctx[0];
	int write = argument_of_lock(ctx, 1), success = argument_of_lock(ctx, 2);
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 of = 0;
	amdahl_u64 lock, ts;
	struct doing *doing;
	struct amdahl_held *held;

	if (!success)
		return 0;
	if (!find_or_enter(me)) {
		/* A stranger in its own address space is none of ours: nearly all there are. */
		if (me->mm == mm)
			return 0;
		of = whose(mm);
		if (!of)
			return 0;
	}
	doing = doing_of(me->pid);
	if (!doing)
		return 0;
	/* An id that was one of the workload's before. */
	if (of)
		doing->in_fault = 0;
	lock = lock_of(mm);
	ts = bpf_ktime_get_ns();
	held = find_held(doing->held, lock);
	if (held) {
		/* A writer that goes on as a reader acquires without having released. */
		if (held->flags & AMDAHL_MMAP_WRITE && !write)
			tell_hold(me, doing, held, ts);
	} else {
		held = free_held(doing->held);
	}
	held->lock = lock;
	held->flags = (write ? AMDAHL_MMAP_WRITE : 0) | (of ? AMDAHL_MMAP_STRANGER : 0);
	held->place = of;
	held->begin = ts;
	return 0;
}

SEC("tp_btf/mmap_lock_released")
int BPF_PROG(on_mmap_lock_released, struct mm_struct *mm)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct doing *doing = find_doing(me->pid);
	struct amdahl_held *held;

	if (!doing)
		return 0;
	held = find_held(doing->held, lock_of(mm));
	if (!held)
		return 0;
	tell_hold(me, doing, held, bpf_ktime_get_ns());
	held->lock = 0;
	return 0;
}

/* The kernel's own ranges: of the whole machine, since all of it pays for a purge. */
static __always_inline int tell_vmalloc(amdahl_u8 flags, amdahl_u64 first, amdahl_u64 second)
{
	struct task_struct *me = bpf_get_current_task_btf();
	amdahl_u32 cpu = bpf_get_smp_processor_id();
	struct amdahl_ring *ring = ring_of(cpu);
	struct amdahl_slot *slot;
	amdahl_u64 seq;

	if (!ring || !ring->watched)
		return 0;
	slot = begin(ring, cpu, AMDAHL_VMALLOC, me->pid, bpf_ktime_get_ns(), &seq);
	if (!slot)
		return 0;
	slot->flags = flags;
	slot->lock_kind = 0;
	slot->other = me->tgid;
	slot->syscall = me->mm ? REG_SYSCALL((struct pt_regs *)bpf_task_pt_regs(me)) : -1;
	slot->place = 0;
	slot->arg[0] = first;
	slot->arg[1] = second;
	publish(slot, seq);
	return 0;
}

SEC("tp_btf/alloc_vmap_area")
int BPF_PROG(on_alloc_vmap_area, unsigned long addr, unsigned long size, unsigned long align, unsigned long vstart,
	     unsigned long vend, int failed)
{
	return tell_vmalloc(0, size, failed != 0);
}

SEC("tp_btf/free_vmap_area_noflush")
int BPF_PROG(on_free_vmap_area, unsigned long va_start, unsigned long nr_lazy, unsigned long nr_lazy_max)
{
	return tell_vmalloc(AMDAHL_VMALLOC_FREE, nr_lazy, 0);
}

SEC("tp_btf/purge_vmap_area_lazy")
int BPF_PROG(on_purge_vmap_area, unsigned long start, unsigned long end, unsigned int npurged)
{
	return tell_vmalloc(AMDAHL_VMALLOC_PURGE, npurged, end > start ? end - start : 0);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct doing *doing;

	if (!find_or_enter(parent) || !enter_child(child))
		return 0;
	doing = find_doing(child->pid);
	if (doing)
		doing->in_fault = doing->lock = doing->mm = doing->held[0].lock = doing->held[1].lock = 0;
	return tell_fork(parent, child);
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *t, const char *name)
{
	return find_or_enter(t) ? tell_name(t, name) : 0;
}

/* Not at the exit: a thread that ends gives back its address space after that. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *t)
{
	leave(t->pid);
	return 0;
}
