//! Waits for locks in, one table of lock sites out: pure code, no I/O, no clock.
//!
//! A probe tells of each wait that is over ([`Event`]) and gives stacks for places of waiting
//! ([`Tracker::learn`]). The tracker adds them up in bounded memory ([`Tally`]); a [`Table`] has
//! a row per site, thread, process, lock or stack, with counts, times, a 99th percentile of
//! stated error, who released the lock, and what holders waited for themselves.
//!
//! Which lock a stack means is decided by `amdahl_speedup::primitive`, not here.

mod chains;
mod event;
pub mod histogram;
mod named;
mod rounds;
mod site;
mod table;
mod tally;
mod tracker;
pub mod unprivileged;

pub use amdahl_speedup::primitive::Class;
pub use chains::{Link, LinkId};
pub use event::{Event, Hold, Kind, LockId, Parked, Place, Wait, Waker};
pub use site::{Site, What};
pub use table::{
    FoldedStack, GroupBy, NestedRow, Of, OwnerRow, Row, SortBy, Table, ThreadName, folded_stacks,
};
pub use tally::{Cell, CellKey, Folded, Limits, Share, Tally};
pub use tracker::{RETRY_NS, SEARCH_NS, Tracker};
