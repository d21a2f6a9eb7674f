//! The BPF recorder: scheduler events, waits, samples and mappings of one workload.
//!
//! The programs (`record.bpf.c`, built into the objects beside it) only record;
//! everything is decided later. [`Recorder`] loads them once and records run after run.

pub mod wire;

mod decode;
mod drain;
mod elements;
mod error;
mod events;
mod joins;
mod programs;
mod recorder;
mod sched;
mod tasks;

pub use decode::{Decoded, Decoder, Events, ThreadName};
pub use drain::{Part, keep_up};
pub use error::RecorderError;
pub use programs::{Programs, SCALE, Tracepoint};
pub use recorder::{Counts, Recorder, Settings};
pub use sched::SCHED;
