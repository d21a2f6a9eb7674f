/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * The only contract between the BPF programs and user space. The layout is
 * asserted on both sides: here by _Static_assert, in src/bpf/wire.rs by tests.
 */
#pragma once

typedef unsigned char amdahl_u8;
typedef unsigned short amdahl_u16;
typedef unsigned int amdahl_u32;
typedef unsigned long long amdahl_u64;
typedef int amdahl_s32;
typedef long long amdahl_s64;

enum amdahl_kind {
	AMDAHL_SWITCH = 1,
	AMDAHL_WAKE = 2,
	AMDAHL_MIGRATE = 3,
	AMDAHL_FORK = 4,
	AMDAHL_COMM = 5,
	AMDAHL_SPIN = 6,
	AMDAHL_EXIT = 7,
	/* of locks.bpf.c, see struct amdahl_wait */
	AMDAHL_FUTEX_WAIT = 16,
	AMDAHL_KERNEL_WAIT = 17,
	AMDAHL_HOLD = 18,
	AMDAHL_SLEEP = 19,
	AMDAHL_GO_WAIT = 20, /* of goroutines.bpf.h */
	AMDAHL_FAULT = 32,
	AMDAHL_MMAP_WAIT = 33,
	AMDAHL_MMAP_HOLD = 34,
	AMDAHL_VMALLOC = 35,
	AMDAHL_SCHED_SWITCH = 48,
	AMDAHL_SCHED_WAKE = 49,
	AMDAHL_SCHED_MIGRATE = 50,
	AMDAHL_SCHED_NEW = 51,
	AMDAHL_SCHED_NAME = 52,
};

/* flags of AMDAHL_SWITCH */
#define AMDAHL_PREV_WORKLOAD 0x01u  /* prev belongs to the workload */
#define AMDAHL_NEXT_WORKLOAD 0x02u  /* next belongs to the workload */
#define AMDAHL_PREV_RUNNABLE 0x04u  /* prev could have gone on */
#define AMDAHL_PREV_EXITED 0x08u    /* prev is gone */
#define AMDAHL_PREV_IOWAIT 0x10u    /* the kernel accounts the sleep as block I/O */
#define AMDAHL_PREV_UNINT 0x20u     /* state D */
#define AMDAHL_PREV_IN_LOCK 0x40u   /* inside a contended kernel lock; arg[2] is its address */
#define AMDAHL_STACK_TAKEN 0x80u    /* a struct amdahl_stack with the same ts and tid follows; in SPIN too */
/* lock_kind while AMDAHL_PREV_IN_LOCK: LCB_F_* of the kernel, and */
#define AMDAHL_LOCK_IS_MMAP 0x80u

/* flags of AMDAHL_WAKE */
#define AMDAHL_WAKER_WORKLOAD 0x01u
#define AMDAHL_WAKER_TIMER 0x02u
#define AMDAHL_WAKER_IRQ 0x04u

/* flags of AMDAHL_FAULT: other is the process, lock_kind the processor's error code, unused the order of the page that was
 * allocated plus one (0: none), arg[0] the address, arg[1] ns, syscall only if the kernel used the memory of the program */
#define AMDAHL_FAULT_MAJOR 0x01u
#define AMDAHL_FAULT_HAS_ERROR 0x02u /* lock_kind is valid */
#define AMDAHL_FAULT_IS_TIMED 0x04u  /* arg[1] is valid */

/* flags of AMDAHL_MMAP_WAIT and _HOLD: other is the process, arg[2] ns */
#define AMDAHL_MMAP_WRITE 0x01u
#define AMDAHL_MMAP_IN_FAULT 0x02u
#define AMDAHL_MMAP_KTHREAD 0x04u
#define AMDAHL_MMAP_STRANGER 0x08u /* not of the workload: place is whose lock it is, arg[0..1] the stranger's name */
#define AMDAHL_MMAP_READS_PROC 0x10u /* in a call that reads from a file of /proc */

/* flags of AMDAHL_VMALLOC: other is the process. Alloc: arg[0] bytes, arg[1] whether it failed;
 * free: arg[0] pages that wait for a purge; purge: arg[0] ranges, arg[1] bytes from first to last */
#define AMDAHL_VMALLOC_FREE 0x01u
#define AMDAHL_VMALLOC_PURGE 0x02u
/*
 * Of the AMDAHL_SCHED_* kinds, tid is whom they are about (of a switch who leaves), lock_kind whether that is a
 * thread of the kernel, syscall on how many CPUs it may run. place: SWITCH, NEW, NAME: its process; WAKE: the CPU
 * where it ran last; MIGRATE: the run queue that it leaves. other: SWITCH: who comes; WAKE: the waker; NEW: the parent.
 * cpu: NEW, MIGRATE: the run queue. arg: SWITCH: [0] slots lost so far; NEW, NAME: [0..1] name.
 */
/* flags of AMDAHL_SCHED_SWITCH */
#define AMDAHL_SCHED_RUNNABLE 0x01u
#define AMDAHL_SCHED_YIELDED 0x02u
#define AMDAHL_SCHED_EXITED 0x04u
#define AMDAHL_SCHED_IOWAIT 0x08u
#define AMDAHL_SCHED_UNINT 0x10u
#define AMDAHL_SCHED_OURS 0x20u /* prev is of the workload */

/* One cache line. seq is written last: slot i of a ring holds seq i + 1 once it is complete. */
struct amdahl_slot {
	amdahl_u64 seq;
	amdahl_u64 ts;
	amdahl_u8 kind;
	amdahl_u8 flags;
	amdahl_u8 lock_kind;
	amdahl_u8 unused;
	amdahl_u32 cpu;     /* where it happened; MIGRATE: where it goes */
	amdahl_u32 tid;     /* SWITCH: prev; WAKE, MIGRATE: the woken; FORK: child; COMM, EXIT: whose */
	amdahl_u32 other;   /* SWITCH: next; WAKE: the waker; FORK: parent; COMM: tgid */
	amdahl_s32 syscall; /* SWITCH: of prev, -1 outside; FORK: tgid of the child; SPIN: how often */
	amdahl_u32 place;   /* SWITCH: hash of where prev waits; WAKE: of where the waker is, or 0 */
	amdahl_u64 arg[3];  /* SWITCH: of the call, [2] the lock if IN_LOCK; for a prev of others and COMM: [0..1] name; SPIN: lock, ns */
};
_Static_assert(sizeof(struct amdahl_slot) == 64, "a slot is a cache line");

struct amdahl_ring {
	amdahl_u64 head;   /* slots reserved: written by the kernel side */
	amdahl_u64 tail;   /* slots consumed: written by user space */
	amdahl_u64 lost;   /* slots that found the ring full */
	amdahl_u64 repeated_at; /* when a stack of a known place was last taken on this CPU */
	amdahl_u32 watched;     /* its switches are recorded: written by user space */
	amdahl_u32 in_timer;    /* a timer's handler runs now */
	amdahl_u32 in_irq;      /* an interrupt's handler runs now */
	amdahl_u32 window;      /* counts stretches in which switches are seen: written by user space */
	amdahl_u64 stacks_lost; /* stacks that found their ring full */
	amdahl_u32 takes_stack; /* within the kernel's code for the ring of stacks, see begin_stack */
	amdahl_u32 samples;     /* AMDAHL_STACK_TIME taken on this CPU, modulo 2^32 */
};
_Static_assert(sizeof(struct amdahl_ring) == 64, "rings do not share lines");

enum amdahl_stack_kind {
	AMDAHL_STACK_TIME = 1,         /* on-CPU, every n cycles or ns */
	AMDAHL_STACK_INSTRUCTIONS = 2, /* on-CPU, every n user instructions */
	AMDAHL_STACK_WAIT = 3,         /* going to sleep */
	AMDAHL_STACK_WAKE = 4,         /* waking a thread that sleeps in a futex */
	AMDAHL_STACK_LOCK = 6,         /* having got a lock of the kernel; with kernel frames */
	AMDAHL_STACK_FAULT = 5,        /* at the end of a page fault */
};

#define AMDAHL_KERNEL_FRAMES 32
#define AMDAHL_USER_FRAMES 24
#define AMDAHL_STACK_BYTES 2048
#define AMDAHL_REGISTERS 16
/* Code around the instruction, which begins after the first half of it. */
#define AMDAHL_CODE_BYTES 256
/* Below the stack pointer, where functions that call none may have their variables (x86-64: the red zone, of which this is the upper half). */
#define AMDAHL_BELOW_BYTES 64

struct amdahl_stack {
	amdahl_u64 ts;
	amdahl_u32 tid;
	amdahl_u32 pid;
	amdahl_u32 cpu;
	amdahl_u8 kind;
	amdahl_u8 user_mode;
	amdahl_u8 has_code; /* kernel[] holds AMDAHL_CODE_BYTES of code: there are no frames of the kernel in user mode */
	amdahl_u8 has_below; /* below[] is valid */
	amdahl_u64 ip, sp, bp, lr;
	amdahl_u64 regs[AMDAHL_REGISTERS]; /* general registers in the kernel's order, 0 beyond */
	amdahl_u32 kernel_frames;
	amdahl_u32 user_bytes; /* of bytes[] */
	amdahl_u32 user_frames;
	amdahl_u32 place;       /* of locks.bpf.c: where it was taken */
	amdahl_u64 kernel[AMDAHL_KERNEL_FRAMES];
	amdahl_u64 user[AMDAHL_USER_FRAMES]; /* by frame pointers, across switches of stack */
	amdahl_u8 bytes[AMDAHL_STACK_BYTES];
	amdahl_u8 below[AMDAHL_BELOW_BYTES]; /* from sp - AMDAHL_BELOW_BYTES on */
};
_Static_assert(AMDAHL_CODE_BYTES <= 8 * AMDAHL_KERNEL_FRAMES, "it fits");
_Static_assert(sizeof(struct amdahl_stack) ==
	       72 + 8 * (AMDAHL_REGISTERS + AMDAHL_KERNEL_FRAMES + AMDAHL_USER_FRAMES) + AMDAHL_STACK_BYTES +
		       AMDAHL_BELOW_BYTES,
	       "no holes");

/* per CPU: what the workload did there */
struct amdahl_totals {
	amdahl_u64 instructions;   /* user instructions of the workload */
	amdahl_u64 cycles;         /* cycles of the workload, user and kernel */
	amdahl_u64 instructions_at, cycles_at; /* counters when the workload last came on */
	amdahl_u64 counting;       /* the *_at are valid, in this window */
	amdahl_u64 window;
	amdahl_u64 unused[2];
};
_Static_assert(sizeof(struct amdahl_totals) == 64, "one line a CPU");

/* Entries of the table of threads: all thread ids where there are no more. */
#define AMDAHL_TASKS 65536

/* A thread of the workload. */
struct amdahl_task {
	amdahl_u32 tid;        /* 0: the entry is free */
	amdahl_u32 tgid;
	amdahl_u32 crowded;    /* threads that share this entry and are in the hash instead */
	amdahl_u16 lock_flags; /* of the contended sleeping lock, 0 if none */
	amdahl_u16 in_futex;   /* sleeps in the futex call: its waker is of interest */
	amdahl_u64 lock;
	amdahl_u32 place;      /* where it slept last */
	amdahl_u32 settled;    /* no stack is wanted there before this time, in 2^20 ns */
	amdahl_u64 call;       /* hash of its registers then; 0 if they do not tell the place */
	amdahl_u64 unused[3];
};
_Static_assert(sizeof(struct amdahl_task) == 64, "threads do not share lines");

/* What a sleep is for that is neither in a futex nor announced as contention. */
enum amdahl_sleep {
	AMDAHL_SLEEP_DEEP = 1,      /* not to be interrupted and not for a disk: the kernel stack tells; lock is 0 */
	AMDAHL_SLEEP_SEMAPHORE = 2, /* in semop; lock is the set's id */
	AMDAHL_SLEEP_FILE = 3,      /* for a lock on a file; lock is its inode */
	AMDAHL_SLEEP_NAP = 4,       /* in nanosleep, for some microseconds: between two tries; lock is 0 */
};

/*
 * A wait for a lock. The slot of one that is over: ts its end, tid and syscall the thread and its
 * process, other the waker or 0, flags AMDAHL_WAKER_*, lock_kind and unused as below, place where
 * it waited; arg: the lock, nanoseconds waited, and the waker's place above the nanoseconds since it
 * woke (at most 2^32 - 1). The slot of a hold is the same without a waker.
 */
struct amdahl_wait {
	amdahl_u32 tid;        /* 0: the entry is free */
	amdahl_u32 tgid;
	amdahl_u64 lock;       /* address in the kernel, or of the futex */
	amdahl_u64 begin;
	amdahl_u64 woken_at;   /* 0: not yet */
	amdahl_u32 waker;
	amdahl_u32 waker_place;
	amdahl_u32 place;
	amdahl_u8 kind;        /* AMDAHL_FUTEX_WAIT, AMDAHL_KERNEL_WAIT, AMDAHL_SLEEP; 0: not waiting */
	amdahl_u8 lock_flags;  /* LCB_F_* of the kernel and AMDAHL_LOCK_IS_MMAP; the futex operation;
				* enum amdahl_sleep */
	amdahl_u8 expected;    /* low bits of the value that the futex was expected to have */
	amdahl_u8 waker_flags;
	amdahl_u32 crowded;    /* threads that share this entry and are in the hash instead */
	amdahl_u32 unused;
	amdahl_u64 had_run;    /* nanoseconds on a CPU, of a sleep; of a lock of the kernel the code that wants it */
};
_Static_assert(sizeof(struct amdahl_wait) == 64, "one line");

struct amdahl_goroutine {
	amdahl_u64 g; /* address of its descriptor */
	amdahl_u32 tgid;
	amdahl_u32 unused;
};

/*
 * The last wait of a goroutine. The slot of one that is over: ts its end, tid the thread that goes on with it, syscall the process,
 * other the thread that let it go on or 0, cpu the place of that, place where it waited; arg: the lock, nanoseconds waited, and
 * those before it if it goes on with an earlier one (0: it does not).
 */
struct amdahl_go_wait {
	amdahl_u64 lock;
	amdahl_u64 begin; /* or when the one before ended */
	amdahl_u64 first; /* when the wait began with which this one goes on */
	amdahl_u64 end;   /* of the one before; 0: there is none */
	amdahl_u32 waker;
	amdahl_u32 waker_place;
	amdahl_u32 place;
	amdahl_u32 is_parked; /* it has not ended */
};
_Static_assert(sizeof(struct amdahl_go_wait) == 48, "no holes");
