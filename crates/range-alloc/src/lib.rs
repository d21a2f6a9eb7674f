#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(missing_docs)]

extern crate alloc;

mod arena;
mod by_size;
mod error;
mod isa;
mod iter;
mod layout;
mod map;
mod pool;
mod request;
#[cfg(feature = "std")]
mod shared;
mod stats;
mod tree;
mod word;

pub use arena::{Allocation, RangeAlloc};
pub use error::{AllocError, ArenaError, FreeError, OutOfMemory};
pub use iter::{Segment, Segments, State};
pub use layout::{Layout, LayoutError};
pub use request::{MAX_ALIGN, Policy, Request};
#[cfg(feature = "std")]
pub use shared::{SharedConfig, SharedRangeAlloc, SharedStats};
pub use stats::{Fragmentation, Stats};
