//! What a probe tells about the scheduler.
//!
//! Times are nanoseconds of one monotonic clock, threads are kernel thread ids, 0 is the idle thread.

use amdahl_topology::CpuSet;

/// Nanoseconds of a monotonic clock.
pub type Ns = u64;
/// Kernel thread id; 0 is the idle thread of whichever CPU.
pub type Tid = u32;
/// Kernel CPU number.
pub type CpuId = u32;

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Off {
    /// It was still runnable, and another came.
    Preempted,
    /// It was still runnable and gave way by `sched_yield`.
    Yielded,
    /// It sleeps until it is woken.
    Blocked {
        /// The kernel accounts the sleep as block I/O.
        in_iowait: bool,
        /// Signals do not end the sleep (state D).
        uninterruptible: bool,
    },
    /// It is gone.
    Exited,
}

/// Who made a thread runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Waker {
    /// A thread, by a system call or a page fault.
    Thread(Tid),
    /// A timer interrupt.
    Timer,
    /// Another interrupt: a device, the network, another CPU.
    Interrupt,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `cpu` goes over from one thread to the next.
    Switch {
        /// When.
        ts: Ns,
        /// Where.
        cpu: CpuId,
        /// Who leaves.
        prev: Tid,
        /// Why.
        off: Off,
        /// Who comes.
        next: Tid,
    },
    /// A sleeping thread becomes runnable. Which queue it joins is told by a `Migrate` that
    /// follows at once; without one it is that of `last_cpu`.
    Waking {
        /// When.
        ts: Ns,
        /// Who is woken.
        tid: Tid,
        /// By whom.
        waker: Waker,
        /// CPU on which the waker ran.
        cpu: CpuId,
        /// CPU on which the woken thread last ran.
        last_cpu: CpuId,
    },
    /// A thread that does not run moves from one run queue to another.
    Migrate {
        /// When.
        ts: Ns,
        /// Who.
        tid: Tid,
        /// From where.
        from: CpuId,
        /// To where.
        to: CpuId,
    },
    /// A new thread is put on the run queue of `cpu`.
    Fork {
        /// When.
        ts: Ns,
        /// Who made it.
        parent: Tid,
        /// The new one.
        child: Tid,
        /// Process of the new one.
        pid: Tid,
        /// Its first run queue.
        cpu: CpuId,
    },
    /// Who a thread is; comes again when that changes.
    Thread {
        /// When that was found out.
        ts: Ns,
        /// Which thread.
        tid: Tid,
        /// Its process.
        pid: Tid,
        /// It is a thread of the kernel.
        is_kernel: bool,
        /// Its own name.
        name: Box<str>,
    },
    /// Where a thread may run; `None` is everywhere. Comes again when that changes.
    Allowed {
        /// When that was found out.
        ts: Ns,
        /// Which thread.
        tid: Tid,
        /// Its affinity.
        cpus: Option<CpuSet>,
    },
    /// `count` events of `cpu` were lost shortly before `ts`.
    Lost {
        /// When that was found out.
        ts: Ns,
        /// Where.
        cpu: CpuId,
        /// How many.
        count: u64,
    },
}

impl Event {
    /// When it happened.
    pub fn ts(&self) -> Ns {
        match *self {
            Event::Switch { ts, .. }
            | Event::Waking { ts, .. }
            | Event::Migrate { ts, .. }
            | Event::Fork { ts, .. }
            | Event::Thread { ts, .. }
            | Event::Allowed { ts, .. }
            | Event::Lost { ts, .. } => ts,
        }
    }
}
