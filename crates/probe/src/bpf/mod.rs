//! The BPF recorder: scheduler events, waits, samples and mappings of one workload.
//!
//! The programs (`record.bpf.c`, built into the objects beside it) only record;
//! everything is decided later. [`Recorder`] loads them once and records run after run.

pub mod wire;

mod decode;
mod joins;
mod recorder;
mod tasks;

pub use decode::{Decoded, Decoder, Events, ThreadName};
pub use recorder::{Counts, Part, Recorder, RecorderError, Settings, keep_up};
