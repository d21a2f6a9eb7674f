//! Small blocks that are allocated for certain, so that who frees one soon after it was allocated needs no look at the tree.

use super::apart::Apart;
use crate::error::OutOfMemory;

/// Places, a power of two.
const PLACES: usize = 256;

/// Start and size of some blocks, each at the place of its start; size 0: none.
pub(super) struct Known {
    places: Apart<(u64, u64)>,
    granule_bits: u32,
}

impl Known {
    pub(super) fn new(granule: u64) -> Result<Self, OutOfMemory> {
        Ok(Known {
            places: Apart::new(PLACES)?,
            granule_bits: granule.trailing_zeros(),
        })
    }

    #[inline]
    fn place(&mut self, start: u64) -> &mut (u64, u64) {
        // Fibonacci hashing.
        let hash = (start >> self.granule_bits).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.places[(hash >> (64 - PLACES.trailing_zeros())) as usize % PLACES]
    }

    /// A block has been allocated.
    #[inline]
    pub(super) fn note(&mut self, start: u64, size: u64) {
        *self.place(start) = (start, size);
    }

    /// Forgets the block that begins at an address; answers with its size if it is allocated for certain.
    #[inline]
    pub(super) fn take(&mut self, start: u64) -> Option<u64> {
        let place = self.place(start);
        let (known, size) = *place;
        if known != start || size == 0 {
            return None;
        }
        place.1 = 0;
        Some(size)
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.places.fill((0, 0));
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.bytes()
    }
}
