//! What becomes of the capacity of a run: the vocabulary of the answer.

use rustc_hash::FxHashMap;

use crate::cause::Cause;
use crate::event::{CpuId, Ns, StackId, Tid};

/// What part of a thread's time on a CPU was spent on, by samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// Its own code.
    User,
    /// A user-space spin loop, or yielding in one.
    UserSpin,
    /// A page fault.
    PageFault,
    /// Spinning on a kernel lock.
    KernelLock,
    /// Spinning on the address-space lock.
    MmapLock,
    /// An interrupt that hit the thread.
    Interrupt,
    /// Any other kernel code.
    Kernel,
}

/// Key of a charge: who lost it where, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChargeKey {
    /// To what.
    pub cause: Cause,
    /// Whose wait it was; 0 for nobody's.
    pub tid: Tid,
    /// Stack of the wait, of the running thread (serial, placement), or none.
    pub stack: Option<StackId>,
    /// Lock address, waker's thread id, thread id of the other occupant, or 0.
    pub object: u64,
}

/// Amount of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Charge {
    /// CPU nanoseconds.
    pub ns: f64,
    /// Waits or samples behind it.
    pub count: u64,
}

/// A stretch of one CPU or of one thread's wait, for a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The CPU that ran it; `None` for a wait.
    pub cpu: Option<CpuId>,
    /// Who; 0 is idle.
    pub tid: Tid,
    /// Begin and end.
    pub from: Ns,
    /// End.
    pub to: Ns,
    /// What for, of a wait.
    pub cause: Option<Cause>,
}

/// What became of the capacity of one run.
#[derive(Clone, Debug, Default)]
pub struct RunPartition {
    /// Begin and end of the run.
    pub from: Ns,
    /// End.
    pub to: Ns,
    /// Of that, what no event and no window stands for: a gap at the end.
    pub missing_ns: f64,
    /// Nanoseconds of it in which nothing was recorded but samples.
    pub gaps_ns: Ns,
    /// CPUs it owned.
    pub cpus: u32,
    /// CPU time of the workload on the watched CPUs.
    pub on_cpu_ns: f64,
    /// CPU time of others there.
    pub other_ns: f64,
    /// Idle CPU time there.
    pub idle_ns: f64,
    /// Idle and foreign time by cause; adds up to `idle_ns + other_ns`. Of foreign time events make `stolen` only what passed
    /// while a thread of the workload was runnable; polls, which do not tell of instants, all of it.
    pub off: FxHashMap<ChargeKey, Charge>,
    /// On-CPU samples by activity, thread and stack; `ns` adds up to `on_cpu_ns`.
    pub on: FxHashMap<(Activity, Tid, StackId), Charge>,
    /// User instructions sampled by thread and stack.
    pub instructions: FxHashMap<(Tid, StackId), u64>,
    /// Spin-lock waits timed by tracepoints.
    pub spun_ns: f64,
    /// Spin-lock waits by lock address.
    pub spun: FxHashMap<u64, Charge>,
    /// Where a lock was spun on, and by whom: samples, each of as much time of spinning.
    pub spun_at: FxHashMap<(u64, Tid, StackId), u64>,
    /// CPU time by thread; 0 has that of threads that a long run no longer tells apart.
    pub threads: FxHashMap<Tid, f64>,
    /// Process of each thread that something tells of.
    pub processes: FxHashMap<Tid, Tid>,
    /// Events lost.
    pub lost: u64,
    /// Events seen.
    pub events: u64,
    /// Time on CPU samples seen.
    pub samples: u64,
    /// Stretches for a trace, if asked for.
    pub stretches: Vec<Stretch>,
    /// When there was no room for more of them: those that ended at that time or later are not there. `None` if all are.
    pub stretches_until: Option<Ns>,
}

impl RunPartition {
    /// Keeps a stretch while there are fewer than `max`.
    pub(crate) fn keep(&mut self, stretch: Stretch, max: usize) {
        if self.stretches.len() < max {
            self.stretches.push(stretch);
        } else if max > 0 {
            self.stretches_until = self.stretches_until.or(Some(stretch.to));
        }
    }

    /// Capacity: CPUs x wall time, as far as it is accounted for.
    pub fn capacity_ns(&self) -> f64 {
        f64::from(self.cpus) * (self.wall_ns() - self.missing_ns)
    }

    /// Share of its wall time that is accounted for.
    pub fn accounted(&self) -> f64 {
        1.0 - self.missing_ns / self.wall_ns().max(1.0)
    }

    /// Share of its wall time in which all was recorded.
    pub fn recorded(&self) -> f64 {
        (1.0 - self.gaps_ns as f64 / self.wall_ns().max(1.0)).max(0.0)
    }

    fn wall_ns(&self) -> f64 {
        (self.to - self.from) as f64
    }
}

/// Object of a `stolen` charge that a quota took.
pub const QUOTA: u64 = u64::MAX;
/// Object of a `stolen` charge that the hypervisor took.
pub const HYPERVISOR: u64 = u64::MAX - 1;
/// Object of a `stolen` charge that interrupts took.
pub const INTERRUPTS: u64 = u64::MAX - 2;
