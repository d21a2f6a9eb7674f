//! The BPF recorder: scheduler events, waits, samples and mappings of one workload.
//!
//! The programs (`record.bpf.c`, built into the objects beside it) only record;
//! everything is decided later. [`Recorder`] loads them once and records run after run.

pub mod wire;

mod before;
mod budget;
mod calibrate;
mod decode;
mod drain;
mod duty;
mod elements;
mod error;
mod events;
mod goroutines;
mod hooks;
mod joins;
mod locks;
mod machine_code;
mod mem;
mod namespace;
mod phantom;
mod places;
mod programs;
mod recorder;
mod sched;
mod stack_ring;
mod stacks;
mod tasks;
mod windows;

pub use before::{Before, Looked, WaitTable};
pub use budget::GRANT;
pub use decode::{Decoded, Decoder, Events, ThreadName};
pub use drain::{Part, keep_up};
pub use error::RecorderError;
pub use goroutines::GoroutineProbes;
pub use locks::{LOCKS, LOCKS_AND_HOLDS, LockFact, constants as lock_constants};
pub use mem::{MEM, MEM_HOLDS};
pub use phantom::{CpuSums, PhantomSettings, PhantomSums, Taker};
pub use places::Places;
pub use programs::{Programs, SCALE, Tracepoint, has_tracepoint};
pub use recorder::{Counts, Losses, Mappings, Recorder, Settings};
pub use sched::SCHED;
