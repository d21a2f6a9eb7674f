//! Which page of a pager has the content of which page of its source. Pure.

use std::ops::Range;

use crate::{HandedOver, PAGE, WorkingSet};

/// Where the content of regions is in the source.
#[derive(Clone, Debug)]
pub struct Layout {
    /// First page in the pager, first page in the source, pages; in the order of the pager's pages.
    parts: Vec<(u64, u64, u64)>,
}

impl Layout {
    /// Of regions whose content begins at whole pages of the source.
    pub fn new(regions: &[HandedOver]) -> Layout {
        let mut order: Vec<&HandedOver> = regions.iter().collect();
        order.sort_by_key(|region| region.start);
        let mut first = 0;
        let parts = order.into_iter().map(|region| {
            let pages = (region.len / PAGE) as u64;
            let part = (first, region.source_offset / PAGE as u64, pages);
            first += pages;
            part
        });
        Layout {
            parts: parts.collect(),
        }
    }

    /// The page of the source that a page of the pager has the content of. O(log regions).
    pub fn source_page(&self, page: u64) -> Option<u64> {
        let after = self.parts.partition_point(|(first, _, _)| *first <= page);
        let (first, source, pages) = self.parts.get(after.checked_sub(1)?)?;
        (page - first < *pages).then(|| source + (page - first))
    }

    /// The pages of the pager that have the content of pages of the source: runs, without those that no region has. O(regions).
    pub fn pages(&self, source: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.parts.iter().filter_map(move |(first, begin, pages)| {
            let start = source.start.max(*begin);
            let end = source.end.min(begin + pages);
            (start < end).then(|| first + (start - begin)..first + (end - begin))
        })
    }

    /// Runs of pages of the source, in the order in which they are needed, as sets to be fetched one after the other: of about `pages` pages
    /// each, which are in rising order within a set.
    pub fn steps(&self, runs: impl IntoIterator<Item = Range<u64>>, pages: u64) -> Vec<WorkingSet> {
        let pages = pages.max(1);
        let mut steps = Vec::new();
        let (mut step, mut count): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        let mut cut = |step: &mut Vec<Range<u64>>| {
            step.sort_by_key(|run| run.start);
            steps.push(WorkingSet::from_pages(step.drain(..).flatten()));
        };
        for mut run in runs.into_iter().flat_map(|run| self.pages(run)) {
            while !run.is_empty() {
                let end = run.end.min(run.start.saturating_add(pages - count));
                step.push(run.start..end);
                count += end - run.start;
                run.start = end;
                if count == pages {
                    cut(&mut step);
                    count = 0;
                }
            }
        }
        if !step.is_empty() {
            cut(&mut step);
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(start: usize, pages: usize, source_page: u64) -> HandedOver {
        HandedOver {
            start: start * PAGE,
            len: pages * PAGE,
            source_offset: source_page * PAGE as u64,
            page_bytes: PAGE,
        }
    }

    #[test]
    fn pages_are_numbered_by_address_and_content_by_offset() {
        let layout = Layout::new(&[region(900, 10, 0), region(100, 20, 10)]);
        assert_eq!(layout.source_page(0), Some(10));
        assert_eq!(layout.source_page(19), Some(29));
        assert_eq!(layout.source_page(20), Some(0));
        assert_eq!(layout.source_page(30), None);
        let pages: Vec<_> = layout.pages(5..15).collect();
        assert_eq!(pages, [0..5, 25..30]);
        assert_eq!(layout.pages(30..u64::MAX).count(), 0);
    }

    proptest! {
        #[test]
        fn steps_have_every_page_once_and_those_needed_first_first(
            runs in proptest::collection::vec((0u64..60, 1u64..9), 0..12), pages in 1u64..10,
        ) {
            let layout = Layout::new(&[region(900, 10, 0), region(100, 20, 20)]);
            let mut seen = std::collections::BTreeSet::new();
            // As a naive reader would go: without those that came before.
            let mut runs: Vec<Range<u64>> = runs.into_iter().map(|(at, n)| at..at + n).collect();
            runs.retain(|run| run.clone().all(|page| seen.insert(page)));
            let expected: Vec<u64> = runs.iter().cloned().flatten()
                .flat_map(|page| layout.pages(page..page + 1)).flatten().collect();
            let steps = layout.steps(runs, pages);
            let mut at = 0;
            for (number, step) in steps.iter().enumerate() {
                let count = step.pages() as usize;
                prop_assert!(count as u64 == pages || number + 1 == steps.len());
                let mut now = expected[at..at + count].to_vec();
                now.sort_unstable();
                prop_assert_eq!(step.runs().iter().cloned().flatten().collect::<Vec<_>>(), now);
                at += count;
            }
            prop_assert_eq!(at, expected.len());
        }
    }
}
