/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * Which threads are of the workload, and what the programs must remember of them.
 *
 * A table by the low bits of the thread id: looking one up is one line of memory. Where two
 * threads meet in an entry, the later one is in a hash instead, and the entry says so.
 */
#pragma once

#include "ring.bpf.h"

/* Every thread is of the workload. */
volatile const amdahl_u32 everyone = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, AMDAHL_TASKS);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, amdahl_u32);
	__type(value, struct amdahl_task);
} crowd SEC(".maps");

static __always_inline struct amdahl_task *find(amdahl_u32 tid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;
	struct amdahl_task *task;

	if (!tid)
		return 0;
	task = bpf_map_lookup_elem(&tasks, &index);
	if (!task || task->tid == tid)
		return task;
	return task->crowded ? bpf_map_lookup_elem(&crowd, &tid) : 0;
}

/* Free entries are zero but for crowded. */
static __always_inline struct amdahl_task *enter(amdahl_u32 tid, amdahl_u32 tgid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;
	struct amdahl_task *task = bpf_map_lookup_elem(&tasks, &index), new = {};

	if (!task)
		return 0;
	if (!__sync_val_compare_and_swap(&task->tid, 0, tid)) {
		task->tgid = tgid;
		return task;
	}
	new.tid = tid;
	new.tgid = tgid;
	if (bpf_map_update_elem(&crowd, &tid, &new, BPF_NOEXIST))
		return 0;
	__sync_fetch_and_add(&task->crowded, 1);
	return bpf_map_lookup_elem(&crowd, &tid);
}

static __always_inline struct amdahl_task *find_or_enter(struct task_struct *t)
{
	amdahl_u32 tid = t->pid;
	struct amdahl_task *task = find(tid);

	if (!everyone || task || !tid)
		return task;
	return enter(tid, t->tgid);
}

static __always_inline void leave(amdahl_u32 tid)
{
	amdahl_u32 index = tid % AMDAHL_TASKS;
	struct amdahl_task *task = bpf_map_lookup_elem(&tasks, &index);

	if (!task)
		return;
	if (task->tid == tid) {
		task->lock = 0;
		task->lock_flags = 0;
		task->in_futex = 0;
		task->call = 0;
		__sync_lock_test_and_set(&task->tid, 0);
	} else if (!bpf_map_delete_elem(&crowd, &tid)) {
		__sync_fetch_and_add(&task->crowded, -1);
	}
}

static __always_inline int is_ours(amdahl_u32 tid)
{
	return everyone || find(tid);
}

static __always_inline int tell_fork(struct task_struct *parent, struct task_struct *child)
{
	amdahl_u64 seq;
	struct amdahl_slot *slot = begin_here(AMDAHL_FORK, child->pid, &seq);

	if (!slot)
		return 0;
	slot->other = parent->pid;
	slot->syscall = child->tgid;
	BPF_CORE_READ_STR_INTO((char(*)[16])slot->arg, child, comm);
	publish(slot, seq);
	return 0;
}

static __always_inline int tell_name(struct task_struct *t, const char *name)
{
	amdahl_u64 seq;
	struct amdahl_slot *slot = begin_here(AMDAHL_COMM, t->pid, &seq);

	if (!slot)
		return 0;
	slot->other = t->tgid;
	bpf_probe_read_kernel_str(slot->arg, 16, name);
	publish(slot, seq);
	return 0;
}

/* A new thread of the workload. What one does that there is no room for is not told. */
static __always_inline int enter_child(struct task_struct *child)
{
	if (enter(child->pid, child->tgid))
		return 1;
	count_lost();
	return 0;
}
