//! Events of a run in, speedup stack out: pure code, no I/O, no clock.
//!
//! * [`event`]: what a probe tells (the input vocabulary).
//! * [`cause`]: the stable names of where CPU time goes.
//! * [`wait`]: what a blocked thread waits for.
//! * [`primitive`]: which lock, barrier or condition it waits on.
//! * [`spin`]: whether a piece of machine code is a spin loop.
//! * [`partition`]: the exclusive partition of the capacity of one run.
//! * [`snapshot`]: polled thread states instead of events, for users without privileges.
//! * [`stack`]: runs on 1 and on n CPUs to the stack of n.
//! * [`model`]: Amdahl's law and the Universal Scalability Law.
//!
//! The rules, their order and their reasons are in `DESIGN.md` beside this crate.

pub mod activity;
pub mod cause;
pub mod event;
pub mod model;
pub mod partition;
pub mod primitive;
pub mod progress;
pub mod snapshot;
pub mod spin;
pub mod stack;
pub mod wait;
