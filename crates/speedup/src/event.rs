//! What a probe tells about a run: the input vocabulary of [`crate::partition`].
//!
//! Times are nanoseconds of one monotonic clock. Threads are named by their
//! kernel thread id, which is unique at any instant.

use std::sync::Arc;

/// Nanoseconds of a monotonic clock.
pub type Ns = u64;
/// Kernel thread id.
pub type Tid = u32;
/// Kernel CPU number.
pub type CpuId = u32;

/// One call frame, innermost frames first in a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled function name, or `module+0xoffset` when there is no symbol.
    pub symbol: String,
    /// Source file, where there is debug information.
    pub file: Option<String>,
    /// Line in `file`.
    pub line: Option<u32>,
    /// Path of the ELF file, `[kernel]`, `[jit]` or empty when unknown.
    pub module: String,
}

/// A symbolised call stack: what ran, or what waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallStack {
    /// User frames, innermost first.
    pub user: Vec<Frame>,
    /// Kernel frames, innermost first; empty when the CPU was in user mode or it was not sampled.
    pub kernel: Vec<Frame>,
    /// The innermost user instruction pointer is inside a spin loop (see [`crate::spin`]).
    pub in_spin_loop: bool,
    /// The innermost user instruction follows a system call: the thread comes out of the kernel.
    pub after_system_call: bool,
}

/// Index of a [`CallStack`] in the table that accompanies the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// Stacks by [`StackId`].
pub type StackTable = Vec<Arc<CallStack>>;

/// Who occupies a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// Nobody: the idle thread.
    Idle,
    /// A thread of the workload.
    Workload(Tid),
    /// Somebody else's thread.
    Other(Tid),
}

/// Kind of a kernel lock, as the kernel's `contention_begin` tracepoint tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelLockKind {
    /// Spin lock or reader-writer spin lock.
    Spin,
    /// Sleeping mutex.
    Mutex,
    /// Reader-writer semaphore, taken for reading.
    RwsemRead,
    /// Reader-writer semaphore, taken for writing.
    RwsemWrite,
    /// Per-CPU rwsem, real-time lock or a kind unknown to us.
    Other,
}

/// A contended kernel lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelLock {
    /// Address of the lock, which names it.
    pub address: u64,
    /// Its kind.
    pub kind: KernelLockKind,
    /// It is the address-space lock of the waiting task.
    pub is_mmap_lock: bool,
}

/// Where a thread stood when it went to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// System call number of the machine's own ABI, `None` inside a page fault or an exit.
    pub syscall: Option<u32>,
    /// The first four arguments of the call.
    pub args: [u64; 4],
    /// The kernel accounts the sleep as block I/O.
    pub in_iowait: bool,
    /// The sleep is not interruptible by signals (state D).
    pub uninterruptible: bool,
    /// The thread sleeps inside a contended kernel lock.
    pub kernel_lock: Option<KernelLock>,
    /// Identifies the place of waiting; stacks are sampled per place. 0 is no place.
    pub place: u64,
    /// Stack taken at this very sleep, if it was sampled.
    pub stack: Option<StackId>,
    /// Who ended the sleep ended itself right after.
    pub until_end: bool,
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// It was still runnable and somebody else came.
    Preempted,
    /// It was still runnable and gave way of its own accord (`sched_yield`).
    Yielded,
    /// It waits.
    Blocked(Blocked),
    /// It is gone.
    Exited,
}

/// Who made a thread runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waker {
    /// A thread of the workload.
    Workload(Tid),
    /// A thread that is not of the workload.
    Other(Tid),
    /// A timer interrupt.
    Timer,
    /// Another interrupt: a device or the network.
    Interrupt,
}

/// One thing that happened. `ts` says when, `cpu` where, `tid` to whom.
#[allow(
    missing_docs,
    reason = "the names of the fields are the vocabulary of this module"
)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// `cpu` goes over from one occupant to the next.
    Switch {
        ts: Ns,
        cpu: CpuId,
        prev: Occupant,
        off: Off,
        next: Occupant,
    },
    /// A waiting thread becomes runnable.
    Wake {
        ts: Ns,
        tid: Tid,
        waker: Waker,
        from: Option<StackId>,
    },
    /// A runnable thread moves to the run queue of `cpu`.
    Migrate { ts: Ns, tid: Tid, cpu: CpuId },
    /// A thread joins the workload, runnable on the run queue of `cpu`.
    Fork {
        ts: Ns,
        parent: Tid,
        child: Tid,
        pid: Tid,
        cpu: CpuId,
    },
    /// A running thread spun on a kernel lock, `count` times and for `spun` in total, shortly before `ts`. The last time it did so
    /// in `stack`, where that is known: of events that have one, each stands for as much time of spinning.
    KernelSpin {
        ts: Ns,
        tid: Tid,
        lock: KernelLock,
        spun: Ns,
        count: u64,
        stack: Option<StackId>,
    },
    /// A thread of the workload was seen running.
    Sample(Sample),
    /// CPUs were throttled by a quota for `ns` in total during the `window` before `ts`.
    Throttled { ts: Ns, window: Ns, ns: Ns },
    /// The probe lost `count` events on `cpu` shortly before `ts`.
    Lost { ts: Ns, cpu: CpuId, count: u64 },
    /// Nothing was recorded from `ts` to `until`, except samples, threads that joined and threads that ended, whose
    /// events follow with their own times. What happens in the `window` after it stands for the gap as well. What is
    /// known of its end follows: `Occupied`, `Runnable` and `Asleep`, all at `until`.
    Gap { ts: Ns, until: Ns, window: Ns },
    /// Who had `cpu` when a gap ended.
    Occupied { ts: Ns, cpu: CpuId, by: Occupant },
    /// The thread was in the run queue of `cpu` when a gap ended.
    Runnable { ts: Ns, tid: Tid, cpu: CpuId },
    /// The thread slept when a gap ended; what for is not known.
    Asleep { ts: Ns, tid: Tid },
    /// The thread ended.
    Exit { ts: Ns, tid: Tid },
}

/// One on-CPU sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub ts: Ns,
    /// Where.
    pub cpu: CpuId,
    /// Who.
    pub tid: Tid,
    /// What overflowed.
    pub by: SampledBy,
    /// The CPU was in user mode.
    pub user_mode: bool,
    /// Call stack.
    pub stack: StackId,
}

/// What a sample is proportional to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampledBy {
    /// Time or cycles: each sample stands for this many nanoseconds on a CPU, as long as it was since the one before. What they do not
    /// cover is divided in the same proportions.
    Time(Ns),
    /// Retired user instructions: each sample stands for this many.
    Instructions(u64),
    /// Page faults: each sample stands for this many.
    PageFaults(u64),
}

impl Event {
    /// When it happened.
    pub fn ts(&self) -> Ns {
        match *self {
            Event::Switch { ts, .. }
            | Event::Wake { ts, .. }
            | Event::Migrate { ts, .. }
            | Event::Fork { ts, .. }
            | Event::KernelSpin { ts, .. }
            | Event::Throttled { ts, .. }
            | Event::Lost { ts, .. }
            | Event::Gap { ts, .. }
            | Event::Occupied { ts, .. }
            | Event::Runnable { ts, .. }
            | Event::Asleep { ts, .. }
            | Event::Exit { ts, .. } => ts,
            Event::Sample(sample) => sample.ts,
        }
    }
}
