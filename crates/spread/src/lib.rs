//! Data spread over cache lines: distributed counters, sparse masks, hashed locks.

mod mask;
mod sync;

pub use mask::{CpuMask, Dense, Iter, Mask, MaskError, Sparse, SparseMask, Word};
