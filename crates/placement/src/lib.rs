#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod compose;
mod find;
mod flips;
mod groups;
mod machine;
mod policy;
mod queues;
mod single;
mod spin;
mod state;
mod steal;
mod table;
mod view;

pub use answer::{Conserving, Cost, Idle, IdleAction, Tick, TickAction, Waking, Woken};
pub use compose::{Composed, IdlePart, Pull, Reach, RoundRobin, TickPart, WakePart};
pub use flips::Flips;
pub use groups::{GroupSize, Groups, StealGroups};
pub use machine::{CpuId, Distance, Machine};
pub use policy::{Assigned, Policy};
pub use queues::{QueueId, Queues};
pub use single::Single;
pub use spin::{Partner, Spin, SpinFacts, SpinState};
pub use state::CpuState;
pub use steal::{Idlest, Steal};
pub use table::{Named, POLICIES, PolicyError, policy};
pub use view::View;
