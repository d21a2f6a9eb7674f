#![doc = include_str!("../README.md")]

pub mod chain;
pub mod contention;
pub mod count;
mod dock;
pub mod gate;
mod lateness;
pub mod lock;
mod meeting;
pub mod message;
#[cfg(all(test, loom))]
mod models;
pub mod policy;
mod release;
mod rseq;
pub mod schedule;
pub mod spinners;
pub mod sync;
pub mod sys;
#[cfg(all(test, loom))]
#[path = "task/models.rs"]
mod task;
pub mod tree;

#[cfg(not(loom))]
pub mod alloc;
#[cfg(not(loom))]
pub mod binding;
#[cfg(not(loom))]
pub mod capacity;
#[cfg(not(loom))]
pub mod degree;
#[cfg(not(loom))]
pub mod display;
#[cfg(not(loom))]
pub mod doacross;
#[cfg(not(loom))]
pub mod env;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod icv;
#[cfg(not(loom))]
mod kept;
#[cfg(not(loom))]
pub mod loops;
#[cfg(not(loom))]
pub mod ordered;
#[cfg(not(loom))]
pub mod places;
#[cfg(not(loom))]
mod runnable;
#[cfg(not(loom))]
pub mod share;
#[cfg(not(loom))]
pub mod single;
#[cfg(not(loom))]
pub mod sizing;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
pub mod target;
#[cfg(not(loom))]
pub mod task;
#[cfg(not(loom))]
pub mod team;
#[cfg(not(loom))]
pub mod thread;
#[cfg(not(loom))]
mod tls;
#[cfg(not(loom))]
mod worker;
