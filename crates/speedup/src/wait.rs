//! What a blocked thread waits for, from its system call, its stack and its waker.
//!
//! Two steps, because some of it is only known at the end: [`classify`] when the
//! thread goes to sleep, [`Wait::resolve`] when it is woken.

mod call;
mod names;

use crate::cause::Cause;
use crate::event::{Blocked, CallStack, Waker};

pub use call::SYS_FUTEX_WAIT;
use call::{Call, call};
pub use names::{INTERPRETER, is_libc, is_runtime};
pub(crate) use names::{PartOfLibc, callee_name, part_of_libc};
use names::{by_name, released_by, runtime_thread};

/// What is known when a thread goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// The cause is certain already.
    For(Cause),
    /// For somebody: a partner in the workload, an outside peer or a timer. The waker tells.
    Peer,
    /// A futex of unknown meaning: a lock, a barrier or a condition. How it is used tells.
    Futex,
    /// A futex of unknown meaning inside a library's own thread: in the middle of a task of the
    /// program it is a [`Wait::Futex`], between tasks an [`Wait::IdleWorker`]. How it is used tells.
    PoolFutex,
    /// A worker of a runtime without a task. What the waker was doing tells.
    IdleWorker,
    /// The same, for some microseconds between two looks for one: its timer tells nothing, what gives the workers a task does.
    Nap,
    /// A thread that only looks after others from time to time, by the nature of its runtime.
    Service,
    /// Nothing is known.
    Unknown,
}

/// What is known when a thread goes to sleep. The rules in their order: see `DESIGN.md`.
pub fn classify(blocked: &Blocked, stack: Option<&CallStack>) -> Wait {
    if let Some(lock) = blocked.kernel_lock {
        return Wait::For(if lock.is_mmap_lock {
            Cause::MmapLock
        } else {
            Cause::KernelLock
        });
    }
    if blocked.in_iowait {
        return Wait::For(Cause::Io);
    }
    let by_name = stack.and_then(|stack| {
        let of_runtime = runtime_thread(&stack.user);
        match by_name(&stack.user) {
            Some(Wait::For(Cause::LockWait) | Wait::Peer) | None if of_runtime.is_some() => {
                of_runtime
            }
            named => named,
        }
    });
    let Some(number) = blocked.syscall else {
        // A page fault that sleeps without a contended lock reads its page.
        return if blocked.uninterruptible {
            Wait::For(Cause::Io)
        } else {
            Wait::Unknown
        };
    };
    match call(number) {
        Call::Futex => by_name.unwrap_or(Wait::Futex),
        Call::Timer if by_name == Some(Wait::Service) => Wait::Service,
        Call::Timer if by_name == Some(Wait::IdleWorker) => Wait::Nap,
        Call::Timer => Wait::For(Cause::Sleep),
        Call::Child => Wait::For(Cause::Serial),
        Call::Peer if blocked.uninterruptible => Wait::For(Cause::Io),
        Call::Peer => match by_name {
            Some(wait @ (Wait::IdleWorker | Wait::Service)) => wait,
            _ => Wait::Peer,
        },
        Call::Storage => Wait::For(Cause::Io),
        Call::FileLock | Call::Semaphore => Wait::For(Cause::LockWait),
        // The other calls block on each other inside the kernel only.
        Call::Other if blocked.uninterruptible => Wait::For(Cause::KernelLock),
        Call::Other => Wait::Unknown,
    }
}

impl Wait {
    /// The cause, now that the waker is known. `from` is what the waker was doing.
    pub fn resolve(self, waker: Option<Waker>, from: Option<&CallStack>) -> Resolved {
        match (self, waker) {
            (Wait::For(cause), _) => Resolved::Cause(cause),
            (Wait::Unknown, _) => Resolved::Cause(Cause::Unexplained),
            (Wait::Futex | Wait::PoolFutex, Some(Waker::Timer)) => Resolved::Cause(Cause::Sleep),
            (Wait::Futex | Wait::PoolFutex, _) => Resolved::Futex,
            (Wait::IdleWorker, Some(Waker::Timer)) => Resolved::Cause(Cause::Sleep),
            (Wait::IdleWorker, Some(Waker::Workload(_))) => {
                match from.and_then(|stack| released_by(&stack.user)) {
                    Some(cause) => Resolved::Cause(cause),
                    None => Resolved::AsOthers,
                }
            }
            (Wait::IdleWorker, Some(Waker::Interrupt | Waker::Other(_))) => {
                Resolved::Cause(Cause::Io)
            }
            (Wait::IdleWorker, None) | (Wait::Nap, _) => Resolved::AsOthers,
            (Wait::Service, _) => Resolved::Cause(Cause::Sleep),
            (Wait::Peer, Some(Waker::Workload(_))) => Resolved::Cause(Cause::Partner),
            (Wait::Peer, Some(Waker::Timer)) => Resolved::Cause(Cause::Sleep),
            (Wait::Peer, Some(Waker::Interrupt | Waker::Other(_))) => Resolved::Cause(Cause::Io),
            // Never woken: it waited for what never came.
            (Wait::Peer, None) => Resolved::Cause(Cause::Serial),
        }
    }

    /// The thread is a worker of a runtime without a task.
    pub fn is_worker(self) -> bool {
        matches!(self, Wait::IdleWorker | Wait::Nap)
    }

    /// The thread has no work of its own: it waits for the work of others to end.
    pub fn is_serial(self) -> bool {
        self == Wait::For(Cause::Serial)
    }
}

/// The outcome of [`Wait::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolved {
    /// This cause.
    Cause(Cause),
    /// Decided at the end of the run by how the futex was used ([`FutexUse`]).
    Futex,
    /// A worker got a task from the scheduler of its runtime, which does not tell where the task
    /// came from: divided like the other waits of idle workers of its process; serial without any.
    AsOthers,
}

/// How one futex address was used over a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FutexUse {
    /// Value that the first waiter expected.
    pub first_value: u32,
    /// Later waiters expected other values: a generation or sequence number.
    pub values_differ: bool,
    /// Waits.
    pub waits: u64,
    /// Waits that ended together with another one on the same address.
    pub woken_together: u64,
    /// Wakes by a thread that itself waits on the same address at other times.
    pub woken_by_waiters: u64,
}

impl FutexUse {
    /// Locks expect one constant value, mostly a small one, and are released by those who also
    /// wait; barriers count generations, or wake all at once, and everybody takes a turn at waking;
    /// what is left is a condition. A word that is 0 while somebody waits is a count or a flag: a
    /// lock would be free then.
    pub fn cause(&self) -> Cause {
        let by_waiters = self.woken_by_waiters * 2 >= self.waits;
        let value = (self.first_value as i32).unsigned_abs();
        if self.woken_together * 2 > self.waits && by_waiters {
            Cause::Barrier
        } else if !self.values_differ {
            if by_waiters || (1..=3).contains(&value) && self.waits > 2 {
                Cause::LockWait
            } else {
                Cause::Partner
            }
        } else if by_waiters {
            Cause::Barrier
        } else {
            Cause::Partner
        }
    }

    /// A library's thread that waits here waits for its next task, as far as is known.
    pub fn is_for_a_task(&self) -> bool {
        self.waits < 3 || self.cause() == Cause::Partner
    }
}

#[cfg(test)]
mod tests;
