//! Search from any CPU on, around the end, and within a range.

use std::iter::FusedIterator;
use std::ops::Range;

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

/// The CPUs of a range whose bits are set; see [`Mask::iter_within`].
pub struct Within<'a, W> {
    mask: &'a Mask<W>,
    /// Bits still to report, of the word before `next`.
    bits: u64,
    /// The word to load next, and the first that is beyond the range.
    next: usize,
    end: usize,
    /// The bits of the last word that are in the range.
    last: u64,
}

impl<'a, W: Word> Within<'a, W> {
    #[inline]
    pub(super) fn new(mask: &'a Mask<W>, range: Range<u32>) -> Self {
        let Range { start, end } = range.start..range.end.min(mask.cpus);
        let mut within = Within {
            mask,
            bits: 0,
            next: 0,
            end: 0,
            last: 0,
        };
        if start < end {
            let used = mask.bits_per_word() - 1;
            within.next = (start >> mask.shift) as usize;
            within.end = ((end - 1) >> mask.shift) as usize + 1;
            within.last = u64::MAX >> (u64::BITS - 1 - ((end - 1) & used));
            within.load();
            within.bits &= u64::MAX << (start & used);
        }
        within
    }

    #[inline]
    fn load(&mut self) {
        // Acquire: pairs with the Release in `Mask::set`.
        self.bits = self.mask.words[self.next].bits().load(Ordering::Acquire);
        self.next += 1;
        if self.next == self.end {
            self.bits &= self.last;
        }
    }
}

impl<W: Word> Iterator for Within<'_, W> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.bits == 0 {
            if self.next == self.end {
                return None;
            }
            self.load();
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(((self.next as u32 - 1) << self.mask.shift) + bit)
    }
}

impl<W: Word> FusedIterator for Within<'_, W> {}
