//! Measuring without privileges: what `/proc` and the measured programs themselves tell.
//!
//! * [`Poller`] looks at all threads of a process tree, a control group or the machine every 5 ms, or more
//!   seldom so that it costs at most one hundredth of a CPU; never more seldom than once a second.
//! * [`preload`] reads what the preload library recorded inside the programs.
//! * [`fault_ns`] measures what a page fault costs.
//!
//! `amdahl_speedup::snapshot` turns them, with the samples of [`crate::perf`], into the same
//! partition that events give.
//!
//! # What a poll knows
//! `schedstat` tells exactly how long each thread ran and how long it was in a run queue since
//! the last poll, and how often it was put on a CPU; the rest of the time it waited. What for is
//! known at the poll: its system call with arguments, the descriptors behind them, and the code
//! (a copy of its stack, which [`crate::symbol`] unwinds). So the amount of waiting is measured,
//! and only its division among several things that one thread waits for is sampled.
//!
//! # What each cause becomes
//! Running code is seen by [`crate::perf`], and how much of it depends on
//! `kernel.perf_event_paranoid`: *kernel* below 2, *user* at 2, *none* above or where the call is
//! filtered.
//!
//! | cause | found / approximated / merged into |
//! |---|---|
//! | `work` | found: CPU time of the tree as the kernel accounts it, with code but for *none* |
//! | `extra-work` | found as with BPF; *none*: merged into `slow-work` |
//! | `slow-work` | found as with BPF; *none*: all growth of user time, code not named |
//! | `extra-kernel` | found; *user*: approximated, with spinning on kernel locks in it, the code by samples at the return of system calls; *none*: the same without code |
//! | `page-fault` | found; *user*: approximated by their number and the cost of a fault on this machine, the code by samples of faults; *none*: the same without code. A fault that reads from disk is `io` |
//! | `user-spin` | found, loops of `sched_yield` too; *none*: `pthread_spin_lock` found with the preload library; else merged into `extra-work` and `slow-work`, and `sched_yield` loops into `extra-kernel` too, which a loop of short turns is in with samples as well. In code that was generated (Java) merged into the same three |
//! | `kernel-lock` | sleeping: approximated by the kernel function (file, directory and pipe locks; waits in `fallocate` and `fsync` are merged into `io`); spinning: found; *user* and *none*: merged into `extra-kernel` |
//! | `mmap-lock` | sleeping: approximated by the kernel function; spinning: found; *user* and *none*: merged into `extra-kernel` |
//! | `lock-wait` | found by the stack, by the preload library, or (approximated) by how the futex is used. A lock of Java is merged into `partner` and `serial`, as its threads' waits are conditions to `/proc`; one between processes whose turns are short into `sleep` too |
//! | `barrier` | likewise; a barrier that the library does not know and whose stack has no known name is told by its changing futex value |
//! | `partner` | found for pipes and TCP, by who holds the other end; approximated for Unix sockets and `eventfd` (taken to lead into the workload); futexes as above |
//! | `serial` | found, with the code that ran but for *none*; also what workers without a task wait for: the waker that would tell is not seen, so a wait between goroutines or for a lock of such a runtime is merged into it |
//! | `io` | found for uninterruptible waits and outside descriptors; a peer that is part of the workload but hidden counts as outside |
//! | `sleep` | found; a time limit that ends a wait for something else is not seen |
//! | `placement` | approximated: runnable threads behind others at polls, limited by the measured time in run queues |
//! | `stolen` | approximated by `/proc/stat`: the smaller of busy time beyond the workload's own and of time that was not idle, whether or not a thread was runnable meanwhile; a quota by the control group's own account |
//! | `unexplained` | waits in system calls of unknown meaning, and runs too short to be polled twice |
//!
//! *Kernel* needs readable kernel names as well (`kernel.kptr_restrict` 0, or `CAP_SYSLOG`): with
//! hidden ones page faults are told by their number and locks not at all. A fault that maps a
//! huge page costs many times what the estimate says.
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
//!
//! For want of descriptors or memory a file may not be readable that was before. That is not the end
//! of a thread: it counts as what it was, and [`Blindness::unread`] says how often that was so.
//!
//! A process that runs already, and is no descendant, is seen as far as that goes: without the
//! preload library, with samples where it is of the same user.

mod fault;
mod files;
pub(crate) mod parse;
mod poller;
pub mod preload;
pub(crate) mod reach;
pub(crate) mod thread;
mod tree;

pub use fault::fault_ns;
pub use files::{Unread, open_files_for, threads_kept_open};
pub use poller::{Blindness, PollError, Poller, ThreadName};
pub use thread::StackCopy;
pub use tree::Scope;
