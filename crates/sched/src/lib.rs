#![doc = include_str!("../README.md")]

mod analysis;
mod chain;
mod columns;
mod distance;
pub mod event;
mod histogram;
mod names;
mod outcome;
mod picture;
pub mod proc;
pub mod recording;
mod threads;
mod timelines;
pub mod vmm;
mod wakers;
mod wasted;

pub use analysis::{Analysis, Settings};
pub use chain::{Chain, Link};
pub use distance::{DISTANCES, Distance, distance};
pub use histogram::Histogram;
pub use outcome::{CpuRow, Outcome, ThreadRow, Totals};
pub use picture::{Cell, Picture, PictureRow};
pub use timelines::{Doing, Spent, Timeline, Timelines};
pub use wakers::WakeRow;
pub use wasted::{BRIEF_NS, PairRow, REASONS, Reason, WastedTable};
