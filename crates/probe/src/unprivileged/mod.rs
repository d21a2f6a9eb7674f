//! Measuring without privileges: what `/proc` and the measured programs themselves tell.
//!
//! * [`Poller`] looks at all threads of a process tree every 5 ms, or more seldom so that it
//!   costs at most one hundredth of a CPU.
//! * [`preload`] reads what the preload library recorded inside the programs.
//!
//! `amdahl_speedup::snapshot` turns both into the same partition that events give.
//!
//! # What a poll knows
//! `schedstat` tells exactly how long each thread ran and how long it was in a run queue since
//! the last poll, and how often it was put on a CPU; the rest of the time it waited. What for is
//! known at the poll: its system call with arguments, the descriptors behind them, and the code
//! (a copy of its stack, which [`crate::symbol`] unwinds). So the amount of waiting is measured,
//! and only its division among several things that one thread waits for is sampled.
//!
//! # What each cause becomes
//! | cause | found / approximated / merged into |
//! |---|---|
//! | `work` | found: CPU time of the tree as the kernel accounts it |
//! | `extra-work` | merged with `slow-work`, unless instructions are counted by other means |
//! | `slow-work` | merged with `extra-work`, likewise |
//! | `extra-kernel` | found as a sum, with `page-fault` and spinning on kernel locks in it |
//! | `page-fault` | merged into `extra-kernel`; a fault that reads from disk is `io` |
//! | `user-spin` | `pthread_spin_lock` found with the preload library; else merged into `extra-work` and `slow-work`, and `sched_yield` loops into `extra-kernel` too |
//! | `kernel-lock` | sleeping: approximated by the kernel function (file, directory and pipe locks); spinning: merged into `extra-kernel` |
//! | `mmap-lock` | sleeping: approximated by the kernel function; spinning: merged into `extra-kernel` |
//! | `lock-wait` | found by the stack, by the preload library, or (approximated) by how the futex is used |
//! | `barrier` | likewise; a barrier that the library does not know and whose stack has no known name is told by its changing futex value |
//! | `partner` | found for pipes and TCP, by who holds the other end; approximated for Unix sockets and `eventfd` (taken to lead into the workload); futexes as above |
//! | `serial` | found; also what workers without a task wait for: the waker that would tell is not seen, so a wait between goroutines or for a lock of such a runtime is merged into it |
//! | `io` | found for uninterruptible waits and outside descriptors; a peer that is part of the workload but hidden counts as outside |
//! | `sleep` | found; a time limit that ends a wait for something else is not seen |
//! | `placement` | approximated: runnable threads behind others at polls, limited by the measured time in run queues |
//! | `stolen` | approximated by `/proc/stat`: the smaller of busy time beyond the workload's own and of time that was not idle; a quota looks like `placement` or `serial` |
//! | `unexplained` | waits in system calls of unknown meaning, and runs too short to be polled twice |
//!
//! Without the preload library, and for programs it does not reach, stacks and the use of futexes
//! stand in for it. A run needs some dozens of polls: below about 100 ms all of this is coarse.
//!
//! # What the kernel hides
//! `stat` and `schedstat` are readable for all processes (unless `/proc` is mounted with
//! `hidepid`). `syscall`, `wchan`, descriptors and memory are those of the same user's dumpable
//! processes only. With `kernel.yama.ptrace_scope` 1 they must also be descendants of the process
//! that polls: orphans are, if it is their subreaper ([`Scope::adopter`]). With 2 or 3 nothing
//! of them is readable. A thread of which they are hidden counts in
//! [`Blindness::hidden`]; its waits are `unexplained`. The kernel stack is never readable.

mod fault;
mod files;
mod parse;
mod poller;
pub mod preload;
mod reach;
mod thread;
mod tree;

pub use fault::fault_ns;
pub use poller::{Blindness, PollError, Poller, ThreadName};
pub use thread::StackCopy;
pub use tree::Scope;
