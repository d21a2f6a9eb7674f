//! How far apart the words of a mask are.

use crate::sync::AtomicU64;

/// A word of a mask, alone in its cache line or beside others.
///
/// Sealed: [`Dense`] and [`Sparse`] are all there are.
pub trait Word: Default + sealed::Bits {}

/// A word beside the next.
#[derive(Debug, Default)]
pub struct Dense(AtomicU64);

/// A word alone in its cache line.
///
/// 64 bytes as in the kernel, not 128: the prefetch of the neighbouring line makes a reader's
/// scan faster, and the bits are written rarely enough for it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Sparse(AtomicU64);

impl Word for Dense {}
impl Word for Sparse {}

pub(super) mod sealed {
    use crate::sync::AtomicU64;

    pub trait Bits {
        fn bits(&self) -> &AtomicU64;
    }
}

impl sealed::Bits for Dense {
    #[inline]
    fn bits(&self) -> &AtomicU64 {
        &self.0
    }
}

impl sealed::Bits for Sparse {
    #[inline]
    fn bits(&self) -> &AtomicU64 {
        &self.0
    }
}
