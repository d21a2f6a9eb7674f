#![doc = include_str!("../README.md")]

mod counter;
mod cpu;
mod hashed;
mod histogram;
mod llc_map;
mod mask;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod parts;
mod pool;
mod published;
mod region;
#[cfg_attr(
    not(all(
        target_os = "linux",
        any(
            target_arch = "x86_64",
            all(target_arch = "aarch64", target_endian = "little")
        ),
        not(any(loom, miri))
    )),
    path = "no_rseq.rs"
)]
mod rseq;
mod sync;

pub use counter::Counter;
pub use hashed::{
    HashedLocks, HashedMutexes, HashedRwLocks, KeyGuard, KeysGuard, Kind, Mutex, RwLock,
};
pub use histogram::{Buckets, Histogram, HistogramError, Recorded, Snapshot};
pub use llc_map::LlcMap;
pub use mask::{CpuMask, Dense, Iter, Mask, MaskError, Sparse, SparseMask, Within, Word};
pub use memory::OutOfMemory;
pub use parts::Placement;
pub use published::{Clock, Monotonic, PublishedCounter};
