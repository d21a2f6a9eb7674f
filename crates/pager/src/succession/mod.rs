//! One process takes over from another the serving of memory that was handed over: when both want it, or because the other was killed.
//!
//! [`Ledger`] is what is known of pages, in memory that both have, [`Filled`] what a file of clean pages has. [`Arbiter`] is the lock that who serves has. [`message`] is what the two say to each other, and [`turn`] who
//! serves when: both pure.

mod arbiter;
mod filled;
pub(crate) mod ledger;
pub mod message;
mod shared;
pub mod turn;

pub use arbiter::{Arbiter, Claim};
pub use filled::Filled;
pub use ledger::{COUNTERS, Ledger, LedgerError};
