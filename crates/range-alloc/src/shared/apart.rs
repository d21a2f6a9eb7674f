//! Values in lines that nobody else writes to: what slots keep on the heap would else lie side by side.

use core::ops::{Deref, DerefMut};
use std::vec::Vec;

use crate::error::OutOfMemory;

/// Neighbours are this far away, as lines are fetched in pairs.
const APART_BYTES: usize = 128;

/// A slice with room before and after it.
pub(super) struct Apart<T>(Vec<T>);

impl<T: Copy + Default> Apart<T> {
    const PAD: usize = APART_BYTES.div_ceil(size_of::<T>());

    pub(super) fn new(len: usize) -> Result<Self, OutOfMemory> {
        let mut apart = Apart(Vec::new());
        apart.ensure(len)?;
        Ok(apart)
    }

    /// Makes it so long at least. New values are the default.
    pub(super) fn ensure(&mut self, len: usize) -> Result<(), OutOfMemory> {
        let all = len + 2 * Self::PAD;
        let more = all.saturating_sub(self.0.len());
        self.0.try_reserve(more).map_err(|_| OutOfMemory)?;
        self.0.resize(all.max(self.0.len()), T::default());
        Ok(())
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl<T: Copy + Default> Deref for Apart<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0[Self::PAD..self.0.len() - Self::PAD]
    }
}

impl<T: Copy + Default> DerefMut for Apart<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        let end = self.0.len() - Self::PAD;
        &mut self.0[Self::PAD..end]
    }
}
