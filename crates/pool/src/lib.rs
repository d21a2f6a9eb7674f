#![doc = include_str!("../README.md")]

mod bound;
mod budget;
mod cancel;
mod channel;
mod counts;
mod cpus;
mod deque;
mod fair;
mod job;
mod join;
mod landing;
mod latch;
mod load;
#[cfg(all(test, loom))]
mod models;
mod observe;
mod outcome;
mod parker;
#[cfg(all(test, not(any(loom, miri))))]
mod placed;
mod pool;
mod priority;
mod queue;
mod range;
mod registry;
mod scope;
mod spawn;
mod spin;
mod states;
mod stuck;
mod sync;
mod sys;
mod task;
mod waits;
mod watch;
mod worker;

pub use bound::{BoundHandle, WhenOffline};
pub use cancel::CancelToken;
pub use channel::{
    Receiver, RecvError, RecvFuture, SendError, SendFuture, Sender, TryRecvError, TrySendError,
    channel,
};
pub use cpus::{CpuSource, SimulatedCpus, StealStat, ThisMachine};
pub use observe::{PoolState, PoolWaits};
pub use pool::{Builder, Error, Pool};
pub use priority::Lowering;
pub use range::{Cause, Ranges, Stopped};
pub use scope::Scope;
pub use spawn::{Cancelled, Handle, JoinError, Priority, Spawn};
pub use waits::WaitCount;

use worker::Worker;

/// Runs both closures, `b` on another thread if one is free, and waits for both.
///
/// In the pool of the worker that calls it, or in the [global](Pool::global) one. Nothing is allocated; while nobody
/// is hungry it costs a few ns. If `a` panics, `b` is waited for or never begun, and the panic goes on; if only `b`
/// panics, its panic goes on here.
///
/// ```
/// fn fib(n: u64) -> u64 {
///     if n < 2 {
///         return n;
///     }
///     let (a, b) = amdahl_pool::join(|| fib(n - 1), || fib(n - 2));
///     a + b
/// }
/// assert_eq!(fib(20), 6765);
/// ```
#[inline(always)]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA + Send,
    B: FnOnce() -> RB + Send,
    RA: Send,
    RB: Send,
{
    match Worker::current() {
        Some(worker) => join::join_on(worker, a, b),
        None => Pool::global().run_here(|worker| join::join_on(worker, a, b)),
    }
}

/// Runs `work`, which may start more work that borrows what outlives the scope, and waits for all of it.
///
/// In the pool of the worker that calls it, or in the [global](Pool::global) one. After a panic in any of it nothing
/// more begins, and the first panic goes on when all has ended.
///
/// ```
/// let mut parts = [0; 4];
/// amdahl_pool::scope(|s| {
///     for (i, part) in parts.iter_mut().enumerate() {
///         s.spawn(move |_| *part = i * i);
///     }
/// });
/// assert_eq!(parts, [0, 1, 4, 9]);
/// ```
pub fn scope<'scope, R: Send>(work: impl FnOnce(&Scope<'scope>) -> R + Send) -> R {
    match Worker::current() {
        Some(worker) => scope::scope_on(worker, work),
        None => Pool::global().scope(work),
    }
}

/// Gives work away to the pool of the worker that calls it, or to the [global](Pool::global) one. One allocation.
///
/// ```
/// let six = amdahl_pool::spawn(|| 2 * 3);
/// assert_eq!(six.join()?, 6);
/// # Ok::<(), amdahl_pool::JoinError>(())
/// ```
pub fn spawn<T, F>(work: F) -> Handle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let Some(worker) = Worker::current() else {
        return Pool::global().spawn(work);
    };
    let task = spawn::Task::new(work, None);
    worker.queue(task.queued(), Priority::Normal);
    Handle::new(task)
}
