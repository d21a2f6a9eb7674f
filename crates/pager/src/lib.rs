#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod blocks;
mod builder;
mod clean;
mod engine;
mod error;
mod event;
mod fetch;
mod filling;
pub mod handoff;
mod inner;
mod lost;
pub mod measure;
mod pager;
mod placing;
mod plan;
mod source;
mod staging;
mod stats;
pub mod succession;
mod sync;
mod sys;
mod zeros;

pub use builder::{Background, Builder, HandedOver};
pub use clean::CleanPages;
pub use engine::Engine;
pub use error::Error;
pub use event::{Event, Loss};
pub use pager::Pager;
pub use plan::working_set::{WorkingSet, WorkingSetError};
pub use source::{Extent, FileSource, MemorySource, ProcessSource, Source, SourceError};
#[cfg(feature = "image")]
pub use source::{ImageSource, StoreSource};
pub use stats::Stats;
pub use sys::mapping::{Backing, Mapping};
pub use sys::support::{Support, Way};
pub use sys::uffd::Features;
pub use zeros::is_zero;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a huge page.
pub const BLOCK: usize = 2 << 20;
