#![doc = include_str!("../README.md")]

mod bounded;
mod cell;
mod check;
pub mod compare;
pub mod headline;
pub mod html;
pub mod load;
pub mod locks;
pub mod mem;
pub mod number;
mod palette;
pub mod plain;
pub mod point;
pub mod samples;
pub mod save;
pub mod sched;
pub mod schema;
pub mod terminal;
pub mod trace;
