//! Sets of pages: a bit each.

use std::ops::Range;

/// Pages of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    pages: u64,
}

impl PageSet {
    pub fn new(pages: u64) -> PageSet {
        PageSet {
            words: vec![0; pages.div_ceil(64) as usize],
            pages,
        }
    }

    pub fn all(pages: u64) -> PageSet {
        let mut set = PageSet::new(pages);
        set.insert(0..pages);
        set
    }

    /// Pages that can be in it.
    pub fn room(&self) -> u64 {
        self.pages
    }

    /// How many are in it.
    pub fn len(&self) -> u64 {
        self.words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }

    pub fn contains(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] & 1 << (page % 64) != 0
    }

    /// # Panics
    /// Beyond the last page.
    pub fn insert(&mut self, pages: Range<u64>) {
        self.each_word(pages, |word, bits| *word |= bits);
    }

    /// # Panics
    /// Beyond the last page.
    pub fn remove(&mut self, pages: Range<u64>) {
        self.each_word(pages, |word, bits| *word &= !bits);
    }

    /// Adds the pages that are in `all` and not in `but`, which have as much room.
    pub fn insert_difference(&mut self, all: &PageSet, but: &PageSet) {
        for (word, (all, but)) in self.words.iter_mut().zip(all.words.iter().zip(&but.words)) {
            *word |= all & !but;
        }
    }

    fn each_word(&mut self, pages: Range<u64>, mut change: impl FnMut(&mut u64, u64)) {
        assert!(pages.end <= self.pages);
        let mut at = pages.start;
        while at < pages.end {
            let end = (at / 64 * 64 + 64).min(pages.end);
            let bits = u64::MAX >> (64 - (end - at)) << (at % 64);
            change(&mut self.words[(at / 64) as usize], bits);
            at = end;
        }
    }

    /// Runs of pages that are in it, in rising order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, true)?;
            let end = self.next(start, false).unwrap_or(self.pages);
            at = end;
            Some(start..end)
        })
    }

    /// The first page from `from` on that is in the set, or is not.
    fn next(&self, from: u64, is_in: bool) -> Option<u64> {
        let mut at = from;
        while at < self.pages {
            let word = self.words[(at / 64) as usize];
            let word = if is_in { word } else { !word } >> (at % 64);
            if word != 0 {
                let found = at + u64::from(word.trailing_zeros());
                return (found < self.pages).then_some(found);
            }
            at = at / 64 * 64 + 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_is_a_set(pages in 1u64..300, changes in prop::collection::vec((0u64..300, 0u64..300, any::<bool>()), 0..20)) {
            let (mut set, mut model) = (PageSet::new(pages), BTreeSet::new());
            for (start, len, insert) in changes {
                let start = start.min(pages);
                let range = start..(start + len).min(pages);
                if insert {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    set.remove(range.clone());
                    model.retain(|page| !range.contains(page));
                }
            }
            prop_assert_eq!(set.len(), model.len() as u64);
            prop_assert!((0..pages).all(|page| set.contains(page) == model.contains(&page)));
            let mut odd = PageSet::new(pages);
            (1..pages).step_by(2).for_each(|page| odd.insert(page..page + 1));
            let mut even = PageSet::new(pages);
            even.insert_difference(&set, &odd);
            prop_assert!((0..pages).all(|page| even.contains(page) == (page % 2 == 0 && set.contains(page))));
            let runs: Vec<_> = set.runs().collect();
            prop_assert!(runs.windows(2).all(|two| two[0].end < two[1].start));
            prop_assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }
    }
}
