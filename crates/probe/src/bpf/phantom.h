/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
 *
 * The contract of phantom.bpf.c with user space. The layout is asserted on both sides: here by
 * _Static_assert, in src/bpf/phantom.rs by a test.
 */
#pragma once

#include "record.h"

/*
 * A CPU, one line, written by that CPU alone with interrupts off; user space writes nothing but watched.
 *
 * Waiting is kept as two sums from which the integral at any time t follows without looking at a single thread:
 * waits + t * waiting, over all CPUs, where beginning to wait subtracts the time and ending adds it.
 */
struct amdahl_phantom_cpu {
	amdahl_u64 seq;     /* odd while the rest changes */
	amdahl_u64 since;   /* last switch; 0 before the first one */
	amdahl_u32 tid;     /* who has run since; 0 is idle */
	amdahl_u32 tgid;    /* its process */
	amdahl_u32 ours;    /* it was of the workload when it came */
	amdahl_u32 watched; /* time of others is kept by process */
	amdahl_u64 run;     /* ns of the workload up to since */
	amdahl_u64 idle;    /* ns of nobody up to since */
	amdahl_s64 waits;   /* ns */
	amdahl_s64 waiting; /* threads */
};
_Static_assert(sizeof(struct amdahl_phantom_cpu) == 64, "one line a CPU");

/* A thread of the workload is in this state. */
#define AMDAHL_PHANTOM_OFF 0u     /* asleep, or not known yet */
#define AMDAHL_PHANTOM_WAITS 1u   /* could run and does not */
#define AMDAHL_PHANTOM_RUNS 2u

/* What a process that is not of the workload took of the watched CPUs. */
struct amdahl_phantom_taker {
	amdahl_u64 ns;
	char name[16];
};
_Static_assert(sizeof(struct amdahl_phantom_taker) == 24, "no holes");
