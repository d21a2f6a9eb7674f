//! The stack of a run from polled thread states instead of events.
//!
//! Without privileges nobody tells when a thread went to sleep and who woke it. What a
//! poll does tell exactly are the CPU time and the run-queue time of every thread since
//! the last poll; the rest of the interval it waited. What for is known at the poll
//! itself. [`Charger`] puts both together, and on-CPU samples where there are some, and fills
//! the same [`RunPartition`](crate::partition::RunPartition) that events fill.

mod charge;
mod futex;
mod interval;
mod polled;
mod resolve;
mod sampled;
mod trace;
mod user_wait;

use std::sync::Arc;

use crate::event::{Blocked, CpuId, Ns, Tid};

pub use charge::{Charger, CpuUsage};
pub use user_wait::{ProcessWaits, UserWait, WaitKind, WaitTotal};

/// All threads of the workload at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// When the poll was half done.
    pub ts: Ns,
    /// One per thread that is alive, zombies left out.
    pub threads: Vec<ThreadState>,
    /// Accumulated times of all CPUs; empty when this poll did not read them, they are dear.
    pub cpus: Vec<CpuTimes>,
    /// CPU time that quotas have held back so far, told when a CPU may go on; read with `cpus`, 0 where nobody counts it.
    pub throttled_ns: Ns,
}

/// One thread at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadState {
    /// The thread.
    pub tid: Tid,
    /// Its process.
    pub pid: Tid,
    /// What it does.
    pub state: State,
    /// CPU that it runs on, or ran on last, or in whose run queue it is.
    pub cpu: CpuId,
    /// CPU time so far. That of a running thread may be one scheduler tick old.
    pub cpu_ns: Ns,
    /// Time so far in a run queue. That of a runnable thread grows when it gets a CPU.
    pub queued_ns: Ns,
    /// How often it was put on a CPU.
    pub turns: u64,
    /// User part of `cpu_ns`, in scheduler ticks' resolution.
    pub user_ns: Ns,
    /// Kernel part of `cpu_ns`, likewise.
    pub system_ns: Ns,
}

/// What a thread does at a poll.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// On a CPU or in its run queue: the kernel does not tell which.
    Runnable,
    /// It waits.
    Waiting(Waiting),
    /// Stopped by a signal or a debugger.
    Stopped,
}

/// A wait seen by a poll.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The system call and its arguments, as far as the kernel told.
    pub blocked: Blocked,
    /// The kernel may tell the system call of this process: otherwise `blocked` has none for that.
    pub is_readable: bool,
    /// Kernel function that waits; empty when unknown.
    pub wchan: Arc<str>,
    /// Where the descriptor leads that it waits for.
    pub reach: Reach,
}

/// Who is at the other end of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Not known.
    #[default]
    Unknown,
    /// The workload itself.
    Workload,
    /// Somebody else: a peer outside, a terminal, the network.
    Outside,
    /// A timer.
    Timer,
    /// A file.
    Storage,
}

/// What `/proc/stat` says of a CPU since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Which.
    pub cpu: CpuId,
    /// User code, niced or not, guests included.
    pub user_ns: Ns,
    /// Kernel code.
    pub system_ns: Ns,
    /// Idle.
    pub idle_ns: Ns,
    /// Idle while I/O was under way.
    pub iowait_ns: Ns,
    /// Interrupts, hard and soft.
    pub irq_ns: Ns,
    /// Taken by the hypervisor.
    pub steal_ns: Ns,
}
