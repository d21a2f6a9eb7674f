//! Something noted of pages, a bit each: which were touched, which are lost.

use std::ops::Range;

use super::pages::zeroed;
use super::working_set::WorkingSet;
use crate::sync::{AtomicU64, Ordering};

/// The bits.
pub(crate) struct Record(Box<[AtomicU64]>);

impl Record {
    pub fn new(pages: usize) -> Record {
        Record(zeroed(pages.div_ceil(64), || AtomicU64::new(0)))
    }

    /// Notes a page. Async-signal-safe.
    pub fn note(&self, page: usize) {
        // Relaxed: bits order nothing.
        self.0[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
    }

    /// Notes a range.
    pub fn note_all(&self, pages: Range<usize>) {
        let mut at = pages.start;
        while at < pages.end {
            let (word, bits, count) = part(at, pages.end);
            self.0[word].fetch_or(bits, Ordering::Relaxed);
            at += count;
        }
    }

    /// The first page of a range that was noted.
    pub fn first(&self, pages: Range<usize>) -> Option<usize> {
        let mut at = pages.start;
        while at < pages.end {
            let (word, bits, count) = part(at, pages.end);
            let noted = self.0[word].load(Ordering::Relaxed) & bits;
            if noted != 0 {
                return Some(word * 64 + noted.trailing_zeros() as usize);
            }
            at += count;
        }
        None
    }

    /// Whether a page was noted. Async-signal-safe.
    pub fn has(&self, page: usize) -> bool {
        self.0[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 1
    }

    /// Forgets what was noted of a range; whether there was anything.
    pub fn clear(&self, pages: Range<usize>) -> bool {
        let mut found = false;
        let mut at = pages.start;
        while at < pages.end {
            let (word, bits, count) = part(at, pages.end);
            // Mostly there is nothing: a look does not take the line away from others.
            if self.0[word].load(Ordering::Relaxed) & bits != 0 {
                found |= self.0[word].fetch_and(!bits, Ordering::Relaxed) & bits != 0;
            }
            at += count;
        }
        found
    }

    /// What was noted until now.
    pub fn working_set(&self) -> WorkingSet {
        let pages = self.0.iter().enumerate().flat_map(|(word, bits)| {
            let bits = bits.load(Ordering::Relaxed);
            (0..64)
                .filter(move |bit| bits >> bit & 1 == 1)
                .map(move |bit| word as u64 * 64 + bit)
        });
        WorkingSet::from_pages(pages)
    }
}

/// From a page on to the end of its word, or to `end` before that: the word, its bits, how many.
fn part(at: usize, end: usize) -> (usize, u64, usize) {
    let (word, bit) = (at / 64, at % 64);
    let count = (64 - bit).min(end - at);
    (word, u64::MAX >> (64 - count) << bit, count)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_forgotten_and_nothing_else() {
        let record = Record::new(300);
        for range in [0..1, 63..65, 5..200, 64..128, 299..300, 7..7] {
            (0..300).for_each(|page| record.note(page));
            assert_eq!(record.clear(range.clone()), !range.is_empty());
            assert!(!record.clear(range.clone()));
            let left = (0..300).filter(|page| record.has(*page)).count();
            assert_eq!(left, 300 - range.len(), "{range:?}");
            assert!(!range.clone().any(|page| record.has(page)));
            assert_eq!(record.first(range.clone()), None);
            record.note_all(range.clone());
            assert!((0..300).all(|page| record.has(page)));
            assert_eq!(record.first(range.clone()), range.clone().next());
        }
    }
}
