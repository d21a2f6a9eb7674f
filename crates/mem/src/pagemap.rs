//! Sizes of the pages behind a mapping: `/proc/PID/pagemap` with `/proc/kpageflags`.
//!
//! `smaps` tells huge pages of 2 MiB only. The sizes between (mTHP) are seen by the page frames:
//! a large page (folio) is a head followed by tails, in a row. Only the administrator may read
//! frame numbers.
//!
//! Each page is a call of the kernel, so of large mappings [`blocks`](Blocks) are looked at that lie evenly in them.

use std::collections::BTreeMap;

/// An entry of `/proc/PID/pagemap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// In memory.
    pub fn is_present(self) -> bool {
        self.0 & 1 << 63 != 0
    }

    /// On a swap device.
    pub fn is_swapped(self) -> bool {
        self.0 & 1 << 62 != 0
    }

    /// In memory, and its frame is kept from who reads.
    pub fn is_hidden(self) -> bool {
        self.is_present() && self.frame().is_none()
    }

    /// Number of the page frame; `None` for those who may not know it.
    pub fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        (self.is_present() && frame != 0).then_some(frame)
    }
}

/// Bits of an entry of `/proc/kpageflags` (uapi/linux/kernel-page-flags.h).
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;

/// Bytes by size of page, gathered from the pages of one mapping in rising order of address.
#[derive(Clone, Debug, Default)]
pub struct Census {
    page: u64,
    bytes: BTreeMap<u64, u64>,
    run: Option<Run>,
}

/// Neighbouring pages of the address space that are neighbours in memory and of one folio.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Address of its first page, in pages.
    at: u64,
    frame: u64,
    pages: u64,
    /// It begins with the head of a folio.
    is_whole: bool,
}

impl Census {
    /// Of small pages of `page` bytes.
    pub fn new(page: u64) -> Census {
        Census {
            page,
            ..Census::default()
        }
    }

    /// Adds the page at address `at` (counted in pages) with frame `frame`, whose flags
    /// `/proc/kpageflags` tells.
    pub fn add(&mut self, at: u64, frame: u64, flags: u64) {
        if flags & COMPOUND_TAIL != 0
            && let Some(run) = &mut self.run
            && run.at.checked_add(run.pages) == Some(at)
            && run.frame.checked_add(run.pages) == Some(frame)
        {
            run.pages += 1;
            return;
        }
        self.close();
        self.run = Some(Run {
            at,
            frame,
            pages: 1,
            is_whole: flags & COMPOUND_HEAD != 0,
        });
    }

    /// Bytes by size of page: those of folios that are mapped in part, or not aligned to their
    /// size, count as small pages, since that is what they cost in the TLB.
    pub fn finish(mut self) -> BTreeMap<u64, u64> {
        self.close();
        self.bytes
    }

    fn close(&mut self) {
        let Some(run) = self.run.take() else { return };
        // A folio's size is a power of two; what follows it in the run is another mapping of it.
        let pages = 1_u64 << run.pages.ilog2();
        let is_aligned = run.at.is_multiple_of(pages) && run.frame.is_multiple_of(pages);
        let size = if run.is_whole && is_aligned { pages } else { 1 };
        let mut count = |size: u64, pages: u64| {
            if pages > 0 {
                let bytes = self
                    .bytes
                    .entry(size.saturating_mul(self.page))
                    .or_default();
                *bytes = bytes.saturating_add(pages.saturating_mul(self.page));
            }
        };
        if size == 1 {
            count(1, run.pages);
        } else {
            count(size, pages);
            count(1, run.pages - pages);
        }
    }
}

/// Sizes of the pages behind a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes by size of page. Those that were not looked at are taken to be as the others.
    pub bytes: BTreeMap<u64, u64>,
    /// Bytes in memory that were looked at.
    pub seen: u64,
}

impl Sizes {
    /// Of a mapping with `resident` bytes in memory, of which `seen` by size were looked at. `None` if none was.
    pub fn of_some(seen: &BTreeMap<u64, u64>, resident: u64) -> Option<Sizes> {
        let sum = seen
            .values()
            .fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
        if sum == 0 {
            return None;
        }
        let all = |bytes: u64| u128::from(bytes) * u128::from(resident) / u128::from(sum);
        let all = |bytes: u64| u64::try_from(all(bytes)).unwrap_or(u64::MAX);
        Some(Sizes {
            bytes: seen
                .iter()
                .map(|(&size, &bytes)| (size, all(bytes)))
                .collect(),
            seen: sum,
        })
    }

    /// A part was looked at, but for what rounding makes of it.
    pub fn is_part(&self) -> bool {
        let sum = |sum: u64, &bytes: &u64| sum.saturating_add(bytes);
        self.seen < self.bytes.values().fold(0, sum) / 100 * 99
    }

    /// Of a mapping of which all was looked at.
    pub fn of_all(bytes: BTreeMap<u64, u64>) -> Sizes {
        Sizes {
            seen: bytes
                .values()
                .fold(0, |sum: u64, &more| sum.saturating_add(more)),
            bytes,
        }
    }
}

/// The blocks of a range of pages, each once, in an order of which every beginning lies evenly in the range. A block begins
/// at a multiple of its size, so that it holds aligned large pages as a whole; the first and the last one may be shorter.
#[derive(Clone, Debug)]
pub struct Blocks {
    first: u64,
    last: u64,
    block: u64,
    /// How many there are, and how many came.
    all: u64,
    came: u64,
    step: u64,
}

impl Blocks {
    /// Of `block` pages (at least 1), from page `first` up to `last`.
    pub fn new(first: u64, last: u64, block: u64) -> Blocks {
        let block = block.max(1);
        let all = last.div_ceil(block).saturating_sub(first / block);
        // By the golden ratio, points on a circle come to lie evenly, however many there are.
        let mut step = ((all as f64 * 0.618_033_988_75) as u64).max(1);
        while gcd(step, all) > 1 {
            step -= 1;
        }
        Blocks {
            first,
            last,
            block,
            all: if first < last { all } else { 0 },
            came: 0,
            step,
        }
    }
}

impl Iterator for Blocks {
    /// First page, and how many.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.came == self.all {
            return None;
        }
        let at = u128::from(self.came) * u128::from(self.step) % u128::from(self.all);
        self.came += 1;
        let begin = (self.first / self.block + at as u64).saturating_mul(self.block);
        let end = begin.saturating_add(self.block).min(self.last);
        let begin = begin.max(self.first);
        Some((begin, end - begin))
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// How many of `pages` pages each mapping may have, of those that want the numbers in `wanted`, the most important first. As
/// long as there are any each gets `least`, or what it wants, and those that come then none. The rest is divided evenly, and
/// what one does not want is for the others.
pub fn shares(wanted: &[u64], pages: u64, least: u64) -> Vec<u64> {
    let mut left = pages;
    let first = wanted.iter().map(|&wanted| {
        let needed = wanted.min(least);
        let is_there = needed <= left;
        left -= if is_there { needed } else { 0 };
        if is_there { needed } else { 0 }
    });
    let mut shares: Vec<u64> = first.collect();
    let more = |shares: &[u64], at: usize| wanted[at] - shares[at];
    let mut order: Vec<usize> = (0..wanted.len()).filter(|&at| shares[at] > 0).collect();
    order.sort_by_key(|&at| more(&shares, at));
    let mut waiting = order.len() as u64;
    for at in order {
        let taken = more(&shares, at).min(left / waiting);
        shares[at] += taken;
        (left, waiting) = (left - taken, waiting - 1);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_not_looked_at_is_taken_to_be_alike() {
        let seen = BTreeMap::from([(4096, 3 << 20), (64 << 10, 1 << 20)]);
        let sizes = Sizes::of_some(&seen, 400 << 20).expect("some");
        let bytes = BTreeMap::from([(4096, 300 << 20), (64 << 10, 100 << 20)]);
        assert!(sizes.is_part() && !Sizes::of_all(seen).is_part());
        assert_eq!((sizes.bytes, sizes.seen), (bytes, 4 << 20));
        assert_eq!(Sizes::of_some(&BTreeMap::new(), 7), None);
        let sizes = Sizes::of_some(&BTreeMap::from([(4096, u64::MAX)]), u64::MAX);
        assert_eq!(sizes.expect("some").seen, u64::MAX);
    }

    #[test]
    fn the_first_blocks_lie_evenly() {
        let all: Vec<u64> = Blocks::new(0, 512 << 10, 512)
            .map(|(at, _)| at / 512)
            .collect();
        for many in [8, 50, 333] {
            let mut some = all[..many].to_vec();
            some.sort_unstable();
            let widest = some.windows(2).map(|pair| pair[1] - pair[0]).max();
            let mean = 1024 / many as u64;
            assert!(
                widest.is_some_and(|widest| widest <= 3 * mean),
                "{many}: {widest:?}"
            );
        }
    }

    #[test]
    fn pages_are_shared_and_none_is_kept_back() {
        assert_eq!(shares(&[10, 20], 100, 4), [10, 20]);
        // The large one gets what the small ones do not want.
        assert_eq!(shares(&[1000, 5, 5], 90, 4), [80, 5, 5]);
        // Too many: the first ones have enough to be of use.
        assert_eq!(shares(&[10, 10, 10, 10], 20, 8), [10, 10, 0, 0]);
        assert_eq!(shares(&[], 20, 8), []);
    }

    #[test]
    fn entries_are_read() {
        let entry = Entry(1 << 63 | 0x1234);
        assert_eq!((entry.is_present(), entry.frame()), (true, Some(0x1234)));
        assert_eq!(Entry(1 << 63).frame(), None);
        assert_eq!(Entry(1 << 62 | 5).frame(), None);
        assert!(Entry(1 << 62).is_swapped());
        assert!(Entry(1 << 63).is_hidden() && !entry.is_hidden() && !Entry(0).is_hidden());
    }

    #[test]
    fn large_pages_are_told_apart_by_size() {
        let mut census = Census::new(4096);
        // Small, 64 KiB, half of one, not aligned.
        census.add(1, 77, 0);
        for i in 0..16 {
            census.add(
                16 + i,
                160 + i,
                if i == 0 { COMPOUND_HEAD } else { COMPOUND_TAIL },
            );
        }
        for i in 8..16 {
            census.add(40 + i, 320 + i, COMPOUND_TAIL);
        }
        for i in 0..4 {
            census.add(
                101 + i,
                400 + i,
                if i == 0 { COMPOUND_HEAD } else { COMPOUND_TAIL },
            );
        }
        let bytes = census.finish();
        assert_eq!(
            bytes,
            BTreeMap::from([(4096, 13 * 4096), (64 << 10, 64 << 10)])
        );
    }

    proptest! {
        #[test]
        fn blocks_are_a_range_in_parts(first in 0u64..5000, pages in 0u64..5000, block in 0u64..600) {
            let mut parts: Vec<_> = Blocks::new(first, first + pages, block).collect();
            parts.sort_unstable();
            let mut at = first;
            for (from, count) in parts {
                prop_assert_eq!(from, at);
                prop_assert!(count > 0 && count <= block.max(1));
                at += count;
                prop_assert!(at == first + pages || at.is_multiple_of(block.max(1)));
            }
            prop_assert_eq!(at, first + pages);
        }

        #[test]
        fn shares_keep_within_what_there_is(
            wanted in proptest::collection::vec(0u64..5000, 0..50), pages in 0u64..50_000, least in 0u64..100) {
            let shares = shares(&wanted, pages, least);
            prop_assert!(shares.iter().zip(&wanted).all(|(share, wanted)| share <= wanted));
            let (sum, all): (u64, u64) = (shares.iter().sum(), wanted.iter().sum());
            let is_enough = |(&share, &wanted): (&u64, &u64)| share >= wanted.min(least);
            let has_each = shares.iter().zip(&wanted).all(is_enough);
            prop_assert!(sum <= pages);
            prop_assert!(sum == all.min(pages) || !has_each || least == 0);
        }

        #[test]
        fn every_page_is_counted_once(pages in proptest::collection::vec((0u64..64, 0u64..64, 0u64..4), 0..200)) {
            let mut census = Census::new(4096);
            for &(at, frame, flags) in &pages {
                census.add(at, frame, flags << 15);
            }
            let bytes: u64 = census.finish().values().sum();
            prop_assert_eq!(bytes, pages.len() as u64 * 4096);
        }
    }
}
