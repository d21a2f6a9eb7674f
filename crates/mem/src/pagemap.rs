//! Sizes of the pages behind a mapping: `/proc/PID/pagemap` with `/proc/kpageflags`.
//!
//! `smaps` tells huge pages of 2 MiB only. The sizes between (mTHP) are seen by the page frames:
//! a large page (folio) is a head followed by tails, in a row. Only the administrator may read
//! frame numbers.

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

    /// Number of the page frame; 0 for those who may not know it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_are_read() {
        let entry = Entry(1 << 63 | 0x1234);
        assert_eq!((entry.is_present(), entry.frame()), (true, Some(0x1234)));
        assert_eq!(Entry(1 << 63).frame(), None);
        assert_eq!(Entry(1 << 62 | 5).frame(), None);
        assert!(Entry(1 << 62).is_swapped());
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
