//! Where threads of a pool sleep, each for one reason: functions that are on the stack then, by whose names tools (`amdahl
//! scale`, `amdahl locks`) know what a thread waits for, also in programs that were built without debug information.
//!
//! None is inlined, ends in a jump, or has the instructions of another one, or its name would be lost.

use std::hint::black_box;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use crate::parker::Parker;

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[cold]
        #[inline(never)]
        pub(crate) fn $name(parker: &Parker, timeout: Option<Duration>) -> bool {
            // Functions that do the same become one: each says its name.
            black_box(stringify!($name));
            let was_woken = parker.park(timeout);
            black_box(was_woken)
        }
    )*};
}

states! {
    /// A worker that has found nothing to do.
    idle_worker;
    /// A worker, or a thread of the program, that needs the end of other work.
    join;
    /// One end of a channel, for the other.
    channel;
    /// The caller of a range, for the last chunks of its helpers.
    helpers_of_a_range;
    /// A worker whose CPU has gone.
    worker_without_a_cpu;
    /// The thread that looks after the others.
    watch;
}

/// Waits until no work on CPUs is left. The loop is here, so that no closure of another name is between this and the wait.
#[cold]
#[inline(never)]
pub(crate) fn flush<T>(bell: &Condvar, mut gate: MutexGuard<'_, T>, is_left: &dyn Fn() -> bool) {
    while is_left() {
        gate = bell.wait(gate).unwrap_or_else(PoisonError::into_inner);
    }
    black_box(&gate);
}

/// Looks out for a moment for the last chunks of helpers, which need no wake-up then. Whether `is_over` came true.
#[inline(never)]
pub(crate) fn look_for_helpers(time: Duration, is_over: &dyn Fn() -> bool) -> bool {
    let begun = std::time::Instant::now();
    while begun.elapsed() < time {
        if is_over() {
            return true;
        }
        (0..16).for_each(|_| crate::sync::spin_loop());
    }
    false
}
