/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * User registers as saved on entry to the kernel, by the field names of the
 * kernel's type information; offsets are relocated when the object is loaded.
 * And the numbers of system calls that are looked at there.
 */
#pragma once

#if defined(__TARGET_ARCH_x86)

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, sp;
} __attribute__((preserve_access_index));

#define REG_IP(r) ((r)->ip)
#define REG_SP(r) ((r)->sp)
#define REG_FP(r) ((r)->bp)
#define REG_LR(r) 0ull
#define REG_SYSCALL(r) ((int)(r)->orig_ax)
#define REG_ARG0(r) ((r)->di)
#define REG_ARG1(r) ((r)->si)
#define REG_ARG2(r) ((r)->dx)

/* Of a function of Go, by its own convention: the goroutine, and the first argument. */
#define REG_GOROUTINE(r) ((r)->r14)
#define REG_GO_ARG0(r) ((r)->ax)

/* Those that a function must leave as they were. */
#define REG_KEPT(r, i)                                                          \
	((i) == 0 ? (r)->bx : (i) == 1 ? (r)->bp : (i) == 2 ? (r)->r12 :        \
	 (i) == 3 ? (r)->r13 : (i) == 4 ? (r)->r14 : (r)->r15)
#define REGS_KEPT 6

/* Calls that do nothing but wait. */
#define IS_PLAIN_WAIT(nr)                                                       \
	((nr) == NR_FUTEX || (nr) == 7 /* poll */ || (nr) == 23 /* select */ || \
	 (nr) == 232 /* epoll_wait */ || (nr) == 270 /* pselect6 */ ||          \
	 (nr) == 271 /* ppoll */ || (nr) == 281 /* epoll_pwait */)
/* Calls that read from the file that is their first argument. */
#define IS_READ(nr)                                                             \
	((nr) == NR_READ || (nr) == 17 /* pread64 */ || (nr) == 19 /* readv */ || \
	 (nr) == 217 /* getdents64 */ || (nr) == 295 /* preadv */ ||            \
	 (nr) == 327 /* preadv2 */)
#define NR_READ 0
#define NR_WRITE 1
#define NR_SCHED_YIELD 24
#define NR_FCNTL 72
#define NR_FLOCK 73
#define NR_FUTEX 202
#define NR_NANOSLEEP 35
#define NR_SEMOP 65
#define NR_SEMTIMEDOP 220

/* Those in which a compiler keeps loop counters: r11 and rcx are lost to system calls. */
#define REG_COPY(to, r)                                                         \
	({                                                                      \
		(to)[0] = (r)->ax, (to)[1] = (r)->bx, (to)[2] = (r)->cx;        \
		(to)[3] = (r)->dx, (to)[4] = (r)->si, (to)[5] = (r)->di;        \
		(to)[6] = (r)->bp, (to)[7] = (r)->r8, (to)[8] = (r)->r9;        \
		(to)[9] = (r)->r10, (to)[10] = (r)->r11, (to)[11] = (r)->r12;   \
		(to)[12] = (r)->r13, (to)[13] = (r)->r14, (to)[14] = (r)->r15;  \
		(to)[15] = 0;                                                   \
	})

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs {
	unsigned long long regs[31], sp, pc, orig_x0;
	int syscallno;
} __attribute__((preserve_access_index));

#define REG_IP(r) ((r)->pc)
#define REG_SP(r) ((r)->sp)
#define REG_FP(r) ((r)->regs[29])
#define REG_LR(r) ((r)->regs[30])
#define REG_SYSCALL(r) ((r)->syscallno)
#define REG_ARG0(r) ((r)->orig_x0)
#define REG_ARG1(r) ((r)->regs[1])
#define REG_ARG2(r) ((r)->regs[2])

/* Of a function of Go, by its own convention: the goroutine, and the first argument. */
#define REG_GOROUTINE(r) ((r)->regs[28])
#define REG_GO_ARG0(r) ((r)->regs[0])

#define REG_KEPT(r, i) ((r)->regs[19 + (i)])
#define REGS_KEPT 12 /* to the frame pointer and the link register */

#define IS_PLAIN_WAIT(nr)                                                       \
	((nr) == NR_FUTEX || (nr) == 22 /* epoll_pwait */ ||                    \
	 (nr) == 72 /* pselect6 */ || (nr) == 73 /* ppoll */)
#define IS_READ(nr)                                                             \
	((nr) == NR_READ || (nr) == 67 /* pread64 */ || (nr) == 65 /* readv */ || \
	 (nr) == 61 /* getdents64 */ || (nr) == 69 /* preadv */ ||              \
	 (nr) == 286 /* preadv2 */)
#define NR_READ 63
#define NR_WRITE 64
#define NR_SCHED_YIELD 124
#define NR_FCNTL 25
#define NR_FLOCK 32
#define NR_FUTEX 98
#define NR_NANOSLEEP 101
#define NR_SEMOP 193
#define NR_SEMTIMEDOP 192

/* Above them a return address may be signed (pointer authentication). */
#define USER_ADDRESS_BITS ((1ull << 48) - 1)

#define REG_COPY(to, r)                                                         \
	({                                                                      \
		(to)[0] = (r)->regs[0], (to)[1] = (r)->regs[1];                 \
		(to)[2] = (r)->regs[2], (to)[3] = (r)->regs[3];                 \
		(to)[4] = (r)->regs[8], (to)[5] = (r)->regs[9];                 \
		(to)[6] = (r)->regs[10], (to)[7] = (r)->regs[11];               \
		(to)[8] = (r)->regs[12], (to)[9] = (r)->regs[13];               \
		(to)[10] = (r)->regs[19], (to)[11] = (r)->regs[20];             \
		(to)[12] = (r)->regs[21], (to)[13] = (r)->regs[22];             \
		(to)[14] = (r)->regs[23], (to)[15] = (r)->regs[24];             \
	})

#else
#error "no register names for this architecture"
#endif
