//! Measuring without privileges: what `/proc` and the measured programs themselves tell.
//!
//! * [`Poller`] looks at all threads of a process tree every few milliseconds.
//! * [`preload`] reads what the preload library recorded in the programs.
//!
//! `amdahl_speedup::snapshot` turns both into the same partition that events give.

mod files;
mod parse;
mod poller;
pub mod preload;
mod reach;
mod thread;
mod tree;

pub use poller::{Blindness, PollError, Poller, ThreadName};
pub use thread::StackCopy;
pub use tree::Scope;
