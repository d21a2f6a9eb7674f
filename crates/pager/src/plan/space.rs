//! Which addresses belong to which pages: regions, their pages numbered through.

use std::ops::Range;

use crate::{BLOCK, Error, PAGE};

/// A piece of memory that is filled from a piece of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Address of its first byte.
    pub start: usize,
    /// Pages of 4 KiB.
    pub pages: usize,
    /// Where in the source its content begins.
    pub source_offset: u64,
    /// Pages that come and go together: 1, or those of a huge page.
    pub granule: usize,
    /// Whether whole huge pages can be moved into it.
    pub movable: bool,
    /// Whether it is shared memory whose file takes whole huge pages, which are mapped then.
    pub takes_blocks: bool,
    /// Whether it is memory of this process.
    pub own: bool,
    /// Whether it maps the file of the pager's clean pages.
    pub clean: bool,
}

/// Pages of a block.
const BLOCK_PAGES: usize = BLOCK / PAGE;

impl Region {
    /// Pages between its first and the beginning of the huge page that it lies in.
    fn skew(&self) -> usize {
        self.start / PAGE % BLOCK_PAGES
    }
}

/// Regions with the number of their first page.
#[derive(Debug)]
pub(crate) struct Space {
    regions: Box<[(usize, Region)]>,
    /// The number of the first block of each region.
    blocks: Box<[usize]>,
    pages: usize,
}

impl Space {
    /// # Errors
    /// [`Error::Config`]: no region, one that is not of whole pages, or two that overlap.
    pub fn new(mut regions: Vec<Region>) -> Result<Space, Error> {
        regions.sort_by_key(|region| region.start);
        let bad = |region: &Region| {
            let unit = region.granule * PAGE;
            region.pages == 0
                || !region.start.is_multiple_of(unit)
                || !region.pages.is_multiple_of(region.granule)
                || region
                    .pages
                    .checked_mul(PAGE)
                    .and_then(|len| region.start.checked_add(len))
                    .is_none()
                || region
                    .source_offset
                    .checked_add(region.pages as u64 * PAGE as u64)
                    .is_none()
        };
        if regions.is_empty() {
            return Err(Error::Config("there is no region to fill"));
        }
        if regions.iter().any(bad) {
            return Err(Error::Config(
                "a region does not consist of whole pages, or ends beyond the last address",
            ));
        }
        if regions
            .windows(2)
            .any(|two| two[0].start + two[0].pages * PAGE > two[1].start)
        {
            return Err(Error::Config("two regions overlap"));
        }
        let (mut pages, mut block) = (0, 0);
        let (mut numbered, mut blocks) = (Vec::new(), Vec::new());
        for region in regions {
            blocks.push(block);
            numbered.push((pages, region));
            block += (region.skew() + region.pages).div_ceil(BLOCK_PAGES);
            pages += region.pages;
        }
        Ok(Space {
            regions: numbered.into(),
            blocks: blocks.into(),
            pages,
        })
    }

    /// How many blocks there are: the pages of a region that lie between two multiples of 2 MiB in memory. A block is a huge page, or
    /// the part of one that its region has.
    pub fn blocks(&self) -> usize {
        self.block_of(self.pages - 1) + 1
    }

    /// The block of a page. O(log regions).
    pub fn block_of(&self, page: usize) -> usize {
        (page + self.shift(page)) / BLOCK_PAGES
    }

    /// The pages of a block. O(log regions).
    pub fn block(&self, block: usize) -> Range<usize> {
        let which = self.blocks.partition_point(|first| *first <= block) - 1;
        let (first, region) = &self.regions[which];
        let start = (block - self.blocks[which]) * BLOCK_PAGES;
        let page = |at: usize| first + at.saturating_sub(region.skew()).min(region.pages);
        page(start)..page(start + BLOCK_PAGES)
    }

    /// What must be added to a page of a region so that multiples of a power of two up to a huge page are such in memory as well.
    pub fn shift(&self, page: usize) -> usize {
        let which = self.regions.partition_point(|(first, _)| *first <= page) - 1;
        let (first, region) = &self.regions[which];
        self.blocks[which] * BLOCK_PAGES + region.skew() - first
    }

    /// All pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Regions with the number of their first page, by address.
    pub fn regions(&self) -> &[(usize, Region)] {
        &self.regions
    }

    /// The page at an address. O(log regions).
    pub fn page(&self, address: usize) -> Option<usize> {
        let after = self
            .regions
            .partition_point(|(_, region)| region.start <= address);
        let (first, region) = self.regions.get(after.checked_sub(1)?)?;
        let page = (address - region.start) / PAGE;
        (page < region.pages).then_some(first + page)
    }

    /// The parts of some pages that lie in one region each.
    pub fn parts(&self, pages: &Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let pages = pages.clone();
        self.regions.iter().filter_map(move |(first, region)| {
            let part = pages.start.max(*first)..pages.end.min(first + region.pages);
            (!part.is_empty()).then_some(part)
        })
    }

    /// Pages of one region, and what comes and goes with them.
    pub fn granules(&self, pages: &Range<usize>) -> Range<usize> {
        let (first, region) = self.region(pages.start);
        let start = first + (pages.start - first) / region.granule * region.granule;
        let end = (pages.end - first).next_multiple_of(region.granule);
        start..first + end.min(region.pages)
    }

    /// The region of a page, and its first page. O(log regions).
    pub fn region(&self, page: usize) -> (usize, &Region) {
        let after = self.regions.partition_point(|(first, _)| *first <= page);
        let (first, region) = &self.regions[after - 1];
        (*first, region)
    }

    /// The addresses of pages of one region.
    pub fn addresses(&self, pages: &Range<usize>) -> Range<usize> {
        let (first, region) = self.region(pages.start);
        let start = region.start + (pages.start - first) * PAGE;
        start..start + pages.len() * PAGE
    }

    /// Where in the source a page is.
    pub fn source_offset(&self, page: usize) -> u64 {
        let (first, region) = self.region(page);
        region.source_offset + ((page - first) * PAGE) as u64
    }

    /// The window as it can be fetched around `page`: within the region, of whole granules.
    pub fn clip(&self, page: usize, window: Range<u64>) -> Range<usize> {
        let (first, region) = self.region(page);
        let (low, high) = (first, first + region.pages);
        let start = usize::try_from(window.start)
            .unwrap_or(low)
            .clamp(low, page);
        let end = usize::try_from(window.end)
            .unwrap_or(high)
            .clamp(page + 1, high);
        let granule = region.granule;
        low + (start - low) / granule * granule
            ..low + (end - low).next_multiple_of(granule).min(region.pages)
    }

    /// Pages of the region that an address range covers, cut to what is ours: for what the kernel tells of changes.
    pub fn covered(&self, addresses: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        self.regions.iter().filter_map(move |(first, region)| {
            let end = region.start + region.pages * PAGE;
            let (low, high) = (addresses.start.max(region.start), addresses.end.min(end));
            (low < high).then(|| {
                first + (low - region.start) / PAGE..first + (high - region.start).div_ceil(PAGE)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: usize, pages: usize) -> Region {
        Region {
            start: start * PAGE,
            pages,
            source_offset: start as u64 * 10 * PAGE as u64,
            granule: 1,
            movable: false,
            takes_blocks: false,
            own: true,
            clean: false,
        }
    }

    #[test]
    fn granules_are_whole_and_of_their_region() {
        let huge = Region {
            granule: BLOCK_PAGES,
            ..region(4 * BLOCK, 2 * BLOCK_PAGES)
        };
        let space = Space::new(vec![region(0x1000, 3), huge]).unwrap();
        assert_eq!(space.granules(&(1..2)), 1..2);
        let first = 3..3 + BLOCK_PAGES;
        assert_eq!(space.granules(&(3..4)), first);
        assert_eq!(space.granules(&(4..first.end)), first);
        assert_eq!(
            space.granules(&(first.end - 1..first.end + 1)),
            3..3 + 2 * BLOCK_PAGES
        );
    }

    #[test]
    fn addresses_and_pages_are_each_others_inverse() {
        let space = Space::new(vec![region(700, 30), region(100, 50)]).unwrap();
        assert_eq!(space.pages(), 80);
        for page in 0..80 {
            let addresses = space.addresses(&(page..page + 1));
            assert_eq!(space.page(addresses.start), Some(page));
            assert_eq!(space.page(addresses.end - 1), Some(page));
        }
        for outside in [0, 99, 150, 699, 730, 10_000] {
            assert_eq!(space.page(outside * PAGE), None, "{outside}");
        }
        assert_eq!(space.source_offset(50), 7000 * PAGE as u64);
    }

    #[test]
    fn windows_stay_in_their_region_and_are_of_whole_granules() {
        let mut huge = region(1024, 1024);
        huge.granule = 512;
        let space = Space::new(vec![region(10, 8), huge]).unwrap();
        assert_eq!(space.clip(7, 0..512), 0..8);
        assert_eq!(space.clip(7, 7..8), 7..8);
        assert_eq!(space.clip(600, 600..601), 520..1032);
        assert_eq!(space.clip(9, 9..10), 8..520);
        assert_eq!(space.clip(1031, 1000..5000), 520..1032);
    }

    #[test]
    fn blocks_are_huge_pages_of_memory_whatever_lies_before() {
        // 0.5 and 2.5 huge pages, and one that begins and ends in the middle.
        let regions = vec![region(1024, 256), region(2048, 1280), region(5220, 1000)];
        let space = Space::new(regions).unwrap();
        let blocks: Vec<_> = (0..space.blocks())
            .map(|block| space.block(block))
            .collect();
        assert_eq!(
            blocks,
            [
                0..256,
                256..768,
                768..1280,
                1280..1536,
                1536..1948,
                1948..2460,
                2460..2536
            ]
        );
        for (number, block) in blocks.into_iter().enumerate() {
            for page in block.clone() {
                assert_eq!(space.block_of(page), number);
                let address = space.addresses(&(page..page + 1)).start / PAGE;
                assert_eq!((page + space.shift(page)) % 512, address % 512);
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Space::new(vec![]).is_err());
        assert!(Space::new(vec![region(10, 0)]).is_err());
        assert!(Space::new(vec![region(10, 5), region(14, 1)]).is_err());
        let mut odd = region(10, 5);
        odd.start += 1;
        assert!(Space::new(vec![odd]).is_err());
        let mut far = region(10, 5);
        far.pages = usize::MAX / PAGE;
        assert!(Space::new(vec![far]).is_err());
    }

    #[test]
    fn changes_may_cover_several_regions() {
        let space = Space::new(vec![region(10, 10), region(30, 10)]).unwrap();
        let covered: Vec<_> = space.covered(15 * PAGE..35 * PAGE).collect();
        assert_eq!(covered, [5..10, 10..15]);
        assert_eq!(space.covered(0..10 * PAGE).count(), 0);
    }
}
