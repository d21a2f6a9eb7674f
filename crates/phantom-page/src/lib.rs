#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test, loom)), no_std)]

mod clock;
mod error;
mod follow;
mod foreign;
mod layout;
mod reader;
mod snapshot;
mod sync;

#[cfg(feature = "std")]
mod degree;
#[cfg(feature = "std")]
mod place;
#[cfg(feature = "std")]
mod publish;

#[cfg(all(test, loom))]
mod models;

pub use clock::coarse_now_ns;
pub use error::{ForeignError, OpenError, ReadError};
pub use follow::Followed;
pub use foreign::{Foreign, ForeignPage};
pub use layout::{MAGIC, PAGE_BYTES, READ_ATTEMPTS, VERSION};
pub use reader::{ENVIRONMENT, Finder, Reader};
pub use snapshot::{Cpus, STALE_TICKS, Snapshot, Source};

#[cfg(feature = "std")]
pub use degree::{Degree, Load, SPAN_WINDOWS, best_beside_others};
#[cfg(feature = "std")]
pub use place::{PlaceError, Subject, directory, path};
#[cfg(feature = "std")]
pub use publish::{BAR_BYTES, PublishError, Publisher, remove_abandoned};

/// The page as bytes that nobody vetted, for fuzzers: what a reader would make of it.
#[doc(hidden)]
pub fn read_bytes(bytes: &[u8; PAGE_BYTES]) -> Result<Snapshot, ReadError> {
    let page = layout::Page::from_bytes(bytes);
    page.check().map_err(|_| ReadError::Damaged)?;
    page.read()
}
