#![doc = include_str!("../README.md")]

mod average;
mod clock;
mod error;
mod estimate;
mod host;
mod host_page;
mod machine;
mod pace;
mod proc;
mod reading;
mod sampler;
mod sums;
mod takers;
mod tally;

#[cfg(feature = "bpf")]
mod bpf;

pub use average::Averages;
pub use clock::{monotonic_ns, thread_cpu_ns};
pub use error::SourceError;
pub use estimate::{Estimate, Estimator, OVERLOAD, SPAN_MAX, Settings};
pub use host::{Follower, Silence};
pub use host_page::HostPage;
pub use machine::Machine;
pub use pace::Pace;
pub use proc::text;
pub use proc::threads::Members;
pub use reading::{HostReading, QuotaReading, Reading};
pub use sampler::{How, Sampler, Scope};
pub use sums::{CpuLine, Totals, Who};
pub use takers::{Look, Taken};
pub use tally::{Event, Tally};
