/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * Where a thread is: hashes of places, and stacks of user code, copied now and then for each place
 * (see "Places" in DESIGN.md of this crate).
 */
#pragma once

#include "tasks.bpf.h"

/* 2^64 by the golden ratio: Knuth, The Art of Computer Programming 3, 6.4. */
#define HASH_FACTOR 0x9e3779b97f4a7c15ull

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

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} stacks SEC(".maps");

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

/*
 * Whether this place gets a stack now: the first time, three times more, then every 20 ms; but no
 * more than one of the known places in a millisecond.
 */
static __always_inline int takes_stack(struct amdahl_ring *ring, amdahl_u64 hash, amdahl_u64 ts)
{
	amdahl_u32 index = (hash >> 40) & 4095;
	struct place *place = bpf_map_lookup_elem(&places, &index);

	if (!place)
		return 0;
	if (place->hash != hash) {
		place->hash = hash;
		place->count = 0;
	} else {
		if (place->count >= 4 && ts - place->last < 20000000)
			return 0;
		if (ts - ring->repeated_at < 1000000)
			return 0;
		ring->repeated_at = ts;
	}
	place->count++;
	place->last = ts;
	return 1;
}

/* For a millisecond after a look into the table of places a thread remembers its last place, and that no stack is wanted there. */
static __always_inline int is_settled(struct amdahl_task *task, amdahl_u64 ts)
{
	return (amdahl_s32)(task->settled - (amdahl_u32)(ts >> 20)) > 0;
}

/*
 * The same for a thread that sleeps, where it slept last most often. Its line is in the cache, the one in the table of places
 * mostly is not.
 */
static __always_inline int sleeper_takes_stack(struct amdahl_task *task, struct amdahl_ring *ring, amdahl_u64 hash,
					       amdahl_u64 ts)
{
	amdahl_u32 place = hash >> 32, now = ts >> 20;
	int takes;

	if (task->place == place && is_settled(task, ts))
		return 0;
	takes = takes_stack(ring, hash, ts);
	task->place = place;
	task->settled = takes ? now : now + 1;
	return takes;
}

/*
 * A hash of all registers that tell a call from others: a thread in which it is the same as before sleeps where it slept before,
 * and reading its memory, the dearest part of a hook, would tell nothing new. That is asked of calls that only wait: a function
 * may well read twice with the same arguments, but hardly waits twice for the same.
 */
static __always_inline amdahl_u64 call_of(struct pt_regs *regs)
{
	amdahl_u64 one = REG_IP(regs), two = REG_SP(regs);
	int i;

	/* Two chains, so that one multiplication does not wait for the other. */
	one = one * HASH_FACTOR + REG_ARG0(regs);
	two = two * 0xff51afd7ed558ccdull + REG_ARG1(regs);
	one = one * HASH_FACTOR + REG_ARG2(regs);
	two = two * 0xff51afd7ed558ccdull + REG_SYSCALL(regs);
#pragma unroll
	for (i = 0; i < REGS_KEPT; i += 2) {
		one = one * HASH_FACTOR + REG_KEPT(regs, i);
		two = two * 0xff51afd7ed558ccdull + REG_KEPT(regs, i + 1);
	}
	return (one ^ two >> 32) * HASH_FACTOR ^ two;
}

/* A hash of where a thread is in its own code. `walked`: of more than its registers and the word at its stack pointer. */
static __always_inline amdahl_u64 place_and_way(struct pt_regs *regs, amdahl_u32 tgid, int *walked)
{
	amdahl_u64 ip = REG_IP(regs), sp = REG_SP(regs), bp = REG_FP(regs), word = 0;
	amdahl_u64 frame[2];
	int depth, is_static;

	/* The word at the stack pointer is the caller of a leaf call wrapper. */
	bpf_probe_read_user(&word, sizeof(word), (void *)sp);
	is_static = word >> 28 == ip >> 28 || REG_LR(regs) >> 28 == ip >> 28;
	*walked = is_static;
	/* Where wrappers share one function for the call (futexes in libc), the depth of the stack
	 * tells them apart: the stacks of threads begin at the same place of a page. */
	word += (sp & 0xfff) << 40;
	/* Where calls go through layers of one static binary (Go), its frame pointers tell more. */
	for (depth = 0; depth < 4 && is_static; depth++) {
		if (bp - sp > 65536 || bpf_probe_read_user(frame, sizeof(frame), (void *)bp) ||
		    frame[1] >> 28 != ip >> 28)
			break;
		word = word * 31 + frame[1];
		bp = frame[0];
	}
	return (ip ^ (word << 1) ^ ((amdahl_u64)(amdahl_u32)REG_SYSCALL(regs) << 48) ^
		((amdahl_u64)tgid << 32)) * HASH_FACTOR;
}

static __always_inline amdahl_u64 place_of(struct pt_regs *regs, amdahl_u32 tgid)
{
	int walked;

	return place_and_way(regs, tgid, &walked);
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
	return (name[0] * 31 + name[1]) * 31 + ((address >> 2) * HASH_FACTOR >> 58);
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
	s->place = 0;
}

#if defined(__TARGET_ARCH_x86)
#define G_WORDS 20

/* Where a goroutine that is parked goes on. */
struct parked {
	amdahl_u64 sp, pc, bp;
};

/*
 * A thread of Go that looks for work stands on its system stack, where frame pointers end in
 * mcall: what the goroutine that it parked waits for is on that one's own stack. mcall pushed
 * its descriptor (g) just above the last frame. There stand stack pointer, program counter, g
 * itself and, two to four words on, the frame pointer (gobuf); the word before tells the
 * thread that runs it, none while it is parked. Fields before and between differ from version
 * to version, the order does not. A pointer that leads to itself proves that it is one.
 */
static __always_inline int find_parked(amdahl_u64 fp, struct parked *parked)
{
	amdahl_u64 frame[3] = { fp }, g[G_WORDS];
	amdahl_u32 i;

	parked->pc = 0;
	for (i = 0; i < AMDAHL_USER_FRAMES && frame[0]; i++)
		if (bpf_probe_read_user(frame, sizeof(frame), (void *)frame[0]))
			return 0;
	if (frame[0] || bpf_probe_read_user(g, sizeof(g), (void *)frame[2]))
		return 0;
#pragma unroll
	for (i = 4; i < G_WORDS - 4; i++) {
		if (g[i] != frame[2] || g[i - 3])
			continue;
		parked->sp = g[i - 2];
		parked->pc = g[i - 1];
		parked->bp = g[i + 2] - parked->sp < 65536 ? g[i + 2] :
			     g[i + 3] - parked->sp < 65536 ? g[i + 3] :
							     g[i + 4];
	}
	return !!parked->pc;
}

/* Frames of a goroutine that tell its places apart: from the scheduler out to who called a lock. */
#define PARKED_FRAMES 8

/*
 * All threads of Go sleep at one place; goroutines do not. 0 if it is no thread that has parked one.
 *
 * Not static: the verifier looks once at a global function, and goes on with one result.
 */
__attribute__((noinline)) amdahl_u64 parked_place(amdahl_u64 ip, amdahl_u64 sp, amdahl_u64 fp)
{
	amdahl_u64 frame[2], hash;
	struct parked parked;
	int i;

	/* All of it is one static program: others do not get beyond this line, and where the register is no frame
	 * pointer nothing is read, since a fault in between is dear. */
	if (fp - sp >= 65536 || bpf_probe_read_user(frame, sizeof(frame), (void *)fp) || (frame[1] ^ ip) >> 28 ||
	    !find_parked(fp, &parked))
		return 0;
	hash = parked.pc;
	frame[0] = parked.bp;
	for (i = 0; i < PARKED_FRAMES; i++) {
		if (frame[0] - parked.sp >= 65536 || bpf_probe_read_user(frame, sizeof(frame), (void *)frame[0]) ||
		    (frame[1] ^ ip) >> 28)
			break;
		hash = hash * 31 + frame[1];
	}
	return hash * 0xff51afd7ed558ccdull;
}

static __always_inline amdahl_u64 place_of_goroutine(struct pt_regs *regs)
{
	return parked_place(REG_IP(regs), REG_SP(regs), REG_FP(regs));
}

/* Not static, as above. */
__attribute__((noinline)) int walk_goroutine(struct amdahl_stack *s)
{
	struct parked parked;
	amdahl_u64 frame[2];
	amdahl_u32 n, i;

	if (!s)
		return 0;
	n = s->user_frames;
	if (n < 4 || n >= AMDAHL_USER_FRAMES || (s->user[n - 1] ^ s->ip) >> 28 || !find_parked(s->bp, &parked))
		return 0;
	frame[0] = parked.bp;
	frame[1] = parked.pc;
	for (i = 0; i < AMDAHL_USER_FRAMES; i++) {
		if (i < n)
			continue;
		if ((frame[1] ^ s->ip) >> 28)
			break;
		s->user[i] = frame[1];
		s->user_frames = i + 1;
		if (frame[0] - parked.sp >= 65536 ||
		    bpf_probe_read_user(frame, 16, (void *)frame[0]))
			break;
	}
	return 0;
}
#else
/* Elsewhere mcall leaves the goroutine in a register that its callees may use for others. */
static __always_inline amdahl_u64 place_of_goroutine(struct pt_regs *regs)
{
	return 0;
}

static __always_inline void walk_goroutine(struct amdahl_stack *s)
{
}
#endif

/*
 * A stack without any frames yet.
 *
 * The kernel takes a lock for that. Who comes in between on the same CPU must not want it as well: an NMI that takes a sample, or a program
 * that is told of contention for this very lock, which the kernel tells while it holds it. Until Linux 6.15 the latter would wait for itself for
 * ever; since then the lock notices, in the first kernels after a quarter of a second (Varma, "A tale about fixing eBPF spinlock issues in the
 * Linux kernel", 2026). So there is no second one on a CPU, and programs that are told of contention do nothing meanwhile.
 */
static __always_inline struct amdahl_stack *begin_stack(struct amdahl_ring *ring, amdahl_u32 cpu, int kind,
							 amdahl_u64 ts, amdahl_u32 tid, amdahl_u32 tgid)
{
	struct amdahl_stack *s = 0;

	if (!__sync_fetch_and_add(&ring->takes_stack, 1))
		s = bpf_ringbuf_reserve(&stacks, sizeof(*s), 0);
	__sync_fetch_and_add(&ring->takes_stack, -1);
	if (!s) {
		__sync_fetch_and_add(&ring->stacks_lost, 1);
		return 0;
	}
	s->ts = ts;
	s->tid = tid;
	s->pid = tgid;
	s->cpu = cpu;
	s->kind = kind;
	s->user_mode = 0;
	s->has_code = s->has_below = 0;
	s->kernel_frames = 0;
	s->user_bytes = 0;
	s->user_frames = 0;
	return s;
}

static __always_inline void walk_kernel(void *ctx, struct amdahl_stack *s)
{
	long bytes = bpf_get_stack(ctx, s->kernel, sizeof(s->kernel), 0);

	if (bytes > 0)
		s->kernel_frames = (amdahl_u64)bytes >> 3;
}

/* Of user space, and of the kernel if `with_kernel`. */
static __always_inline int take_stack(void *ctx, struct amdahl_ring *ring, amdahl_u32 cpu, struct pt_regs *regs, int kind, amdahl_u64 ts,
				      amdahl_u32 tid, amdahl_u32 tgid, int with_kernel)
{
	struct amdahl_stack *s = begin_stack(ring, cpu, kind, ts, tid, tgid);

	if (!s)
		return 0;
	user_registers(s, regs);
	copy_user_stack(s);
	walk_frame_pointers(ctx, s);
	if (kind == AMDAHL_STACK_WAIT)
		walk_goroutine(s);
	if (with_kernel)
		walk_kernel(ctx, s);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 1;
}
