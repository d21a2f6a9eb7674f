#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod costs;
mod engine;
pub mod program;
mod random;
pub mod result;
pub mod time;
mod trace;
pub mod workload;

pub use costs::{ByDistance, Costs};
pub use engine::{Limits, SetupError, Simulation};
pub use random::{Dist, Rng};
pub use result::{Outcome, RunResult};
pub use trace::Slice;
