#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod affine;
mod answer;
mod balance;
mod bounded;
mod compose;
mod dispatcher;
mod find;
mod flips;
mod groups;
mod linux;
mod machine;
mod numa;
mod policy;
mod queues;
mod single;
mod spin;
mod state;
mod steal;
mod table;
pub mod testing;
mod view;

pub use affine::{Affine, Search};
pub use answer::{Conserving, Cost, Idle, IdleAction, Tick, TickAction, Waking, Woken};
pub use balance::{Newidle, Periodic};
pub use bounded::Bounded;
pub use compose::{Composed, IdlePart, Pull, Reach, RoundRobin, TickPart, WakePart};
pub use dispatcher::{AskDispatcher, Dispatcher};
pub use flips::Flips;
pub use groups::{GroupSize, Groups, StealGroups};
pub use linux::Scan;
pub use machine::{CpuId, Distance, Machine};
pub use numa::Numa;
pub use policy::{Assigned, Lookout, Policy};
pub use queues::{QueueId, Queues};
pub use single::Single;
pub use spin::{Partner, Spin, SpinFacts, SpinState, Spinner};
pub use state::CpuState;
pub use steal::{Idlest, Steal};
pub use table::{Named, POLICIES, PolicyError, policy};
pub use view::View;
