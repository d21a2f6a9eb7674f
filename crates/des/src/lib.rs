#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod costs;
mod engine;
mod hash;
pub mod program;
mod random;
mod report;
pub mod result;
pub mod time;
mod trace;
pub mod workload;

/// Which model this is: a hash of its sources and of the policies'. Results of another one need not agree with it.
pub const MODEL: &str = env!("AMDAHL_MODEL");

pub use costs::{ByDistance, Costs, published};
pub use engine::{Limits, SetupError, Simulation};
pub use hash::content_hash;
pub use random::{Dist, Rng};
pub use report::{Document, HostRow, SCHEMA, median, report, table};
pub use result::{Outcome, RunResult};
pub use trace::Slice;
