//! Search from any CPU on, around the end.

use std::iter::FusedIterator;

use super::{Mask, Word};
use crate::sync::Ordering;

/// The CPUs whose bits are set; see [`Mask::iter_from`].
pub struct Iter<'a, W> {
    mask: &'a Mask<W>,
    /// Bits still to report, of the word `at`.
    bits: u64,
    at: usize,
    /// Words still to load. The first one is loaded again at the end, for the bits before `start`.
    words_left: usize,
    /// The bits of the first word that lie before `start`.
    before_start: u64,
}

impl<'a, W: Word> Iter<'a, W> {
    #[inline]
    pub(super) fn new(mask: &'a Mask<W>, start: u32) -> Self {
        let start = if start < mask.cpus { start } else { 0 };
        let at = (start >> mask.shift) as usize;
        let before_start = (1 << (start & (mask.bits_per_word() - 1))) - 1;
        let words = mask.words.len();
        let mut iter = Iter {
            mask,
            bits: 0,
            at,
            words_left: words - usize::from(before_start == 0),
            before_start,
        };
        iter.bits = iter.load() & !before_start;
        iter
    }

    #[inline]
    fn load(&self) -> u64 {
        // Acquire: pairs with the Release in `Mask::set`.
        self.mask.words[self.at].bits().load(Ordering::Acquire)
    }
}

impl<W: Word> Iterator for Iter<'_, W> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.bits == 0 {
            self.words_left = self.words_left.checked_sub(1)?;
            self.at = match self.at + 1 {
                end if end == self.mask.words.len() => 0,
                at => at,
            };
            self.bits = self.load();
            // Only a search that began within a word comes back to it.
            if self.words_left == 0 && self.before_start != 0 {
                self.bits &= self.before_start;
            }
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(((self.at as u32) << self.mask.shift) + bit)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.mask.cpus as usize))
    }
}

impl<W: Word> FusedIterator for Iter<'_, W> {}
