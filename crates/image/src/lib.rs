#![doc = include_str!("../README.md")]

mod cache;
mod chain;
mod codec;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod identity;
mod image;
mod layer;
mod layout;
mod sections;
mod shelf;
mod store;
mod threads;
mod unpack;
mod verify;
mod write;

pub use cache::ClusterCache;
pub use codec::{Compression, ParseCompressionError};
pub use error::{Error, Result};
pub use identity::{Identity, ParseIdentityError};
pub use image::{Image, LayerInfo, OpenOptions, Place, Runs};
pub use layout::{
    Codec, LAYERS_MAX, MAGIC, MEMORY_BYTES_MAX, PAGE_BYTES, PageKind, STORED_PAGES_MAX,
};
pub use sections::{METADATA_BYTES_MAX, PageRun, REGIONS_MAX, Region, WORKING_SET_RUNS_MAX};
pub use shelf::{Files, Shelf};
pub use store::{Sink, Store};
pub use threads::Progress;
pub use unpack::Unpack;
pub use verify::{Damage, Verified, Verify};
pub use write::{CLUSTER_BYTES, Input, Pack, Packed};
