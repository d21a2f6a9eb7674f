//! Reader-writer locks over ranges of addresses, and a map of ranges that is read without locks.
//!
//! [`RangeLock`] locks any range of the numbers from 0 to 2^64 - 1: bytes of a file, pages of an address space, rows of a
//! table. Who locks ranges that do not overlap does not wait, and on other CPUs hardly notices.
//! A [`Reader`] of a [`SeqRangeMap`] finds the value of an address without a lock or a store, however often the map changes.
//!
//! ```
//! use amdahl_range_lock::RangeLock;
//!
//! let lock = RangeLock::new();
//! let header = lock.read(0..512); // Others may read it as well.
//! let body = lock.write(512..4096); // This part is ours alone.
//! assert!(lock.try_write(0..100).is_err());
//! let (done, rest) = body.split_at(1024); // Each half can be given back on its own.
//! drop(done);
//! let rest = rest.downgrade(); // Now others can read it, too.
//! # drop((header, rest));
//! ```
//!
//! # Order
//!
//! Requests that overlap are served first come, first served, except that readers share. A request has come when it is in
//! the queue:
//!
//! - A future ([`RangeLock::write_async`]) is so after its first poll.
//! - A thread first tries for some tens of microseconds, about as long as it takes to wake a sleeping thread, then queues up
//!   and parks. While it tries, others may overtake it; after that nobody does. So a large range is not starved by a stream of
//!   small ones, and short sections do not each cost a switch of threads.
//! - A request whose time is over before that (`_for` and `_until` with less) never queues up, so it may be overtaken each time
//!   that it is made again.
//! - `try_` and who tries never overtake somebody who queues for a part of the range. In a segmented lock that holds for each
//!   segment: who queues at one of its segments is overtaken at those that it comes to later.
//!
//! # Which implementation
//!
//! | | [`RangeLock::new`] | [`RangeLock::segmented`] |
//! |---|---|---|
//! | excluded are | ranges that overlap | ranges with a common segment |
//! | a thread may hold several ranges | yes, in an order that all keep | no: ranges that do not overlap may meet |
//! | cost of a range | O(log n + k) of n requests near it, whatever its size: k of them overlap it, of which a reader need not look at readers while nobody wants to write there | O(segments that it needs) |
//! | readers | write to nothing that others use, while nobody writes | share a counter |
//! | the first writer after them | has all CPUs pass a fence: 5 to 15 us with two threads | waits for them, no more |
//! | a large range | waits once, for all before it | waits at one segment after the other, and holds those before |
//! | suits | all else | threads with ranges within a granule of their own parts, one at a time, where size and cost must be known beforehand |
//!
//! The first adapts itself: it begins as one set of requests, splits at addresses where requests meet that do not
//! overlap, joins again where ranges cross the border, and spreads readers while nobody writes. With what ranges which of them is faster are the rows
//! `segmented / ordered: ...` of `make bench-memory`; what was measured is in
//! `experiments/2026-11-22-range-locks` of the repository; how it works is in DESIGN.md beside this file.
//!
//! # What it does not do
//!
//! - Nothing is poisoned. The lock guards no data: a panic that drops a guard gives the range back, one that drops a future its place
//!   in the queue. What the range stands for may be half-changed; whoever knows that must say so in the data. A map is never
//!   half-changed: what a panic in a value's clone or comparison leaves is the version before.
//! - It finds no deadlock between threads. A thread that would wait for itself panics in debug builds, with both ranges named:
//!   if it holds a range in conflict, or if it queues behind somebody who waits for a range that it holds, or for another who does
//!   so (whom a deadline may free, but this is not known). It looks before it tries, and again when it has queued up.
//!   With a deadline it panics if it holds a range in conflict itself: it would wait in vain until the time is over. What is held are guards
//!   of the functions that are not `async`, until they are [given away](Guard::into_task).
//! - It does not see that a task waits for itself. Whose a guard is that came from a future only the runtime knows; and a task that
//!   polls several futures, as `join!` does, may give back in one of them what another waits for. Nor does a thread panic that polls a
//!   future while it holds a range in conflict: it may run another task that gives that back.
//! - A read guard cannot become a write guard: two who try would wait for each other.

// Under loom a mutex stands in for the gate, which only its own test uses.
#![cfg_attr(loom, allow(dead_code))]

mod barrier;
mod future;
mod gate;
mod guard;
mod held;
mod lock;
mod map;
mod ordered;
mod segmented;
mod span;
mod sync;
mod thread_number;
mod wait;
mod waiter;

pub use future::Acquire;
pub use guard::{Access, ByTask, ByThread, Guard, Owner, Read, ReadGuard, Write, WriteGuard};
pub use lock::{NotGranted, RangeLock, SegmentsError};
pub use map::{Gaps, Iter, Reader, SeqRangeMap, Snapshot};

pub(crate) use sealed::Kind;

/// What only this crate implements.
mod sealed {
    use crate::guard::{ByTask, ByThread, Read, Write};

    /// Whether a request shares its range with others of its kind.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Kind {
        Read,
        Write,
    }

    pub trait Access {
        #[doc(hidden)]
        const KIND: Kind;
    }

    impl Access for Read {
        const KIND: Kind = Kind::Read;
    }

    impl Access for Write {
        const KIND: Kind = Kind::Write;
    }

    pub trait Owner {
        #[doc(hidden)]
        const IS_THREAD: bool;
    }

    impl Owner for ByThread {
        const IS_THREAD: bool = true;
    }

    impl Owner for ByTask {
        const IS_THREAD: bool = false;
    }
}

/// CPUs that this process may use, as far as that is known.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The examples of README.md are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
