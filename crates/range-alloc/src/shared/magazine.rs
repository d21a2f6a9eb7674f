//! Magazines (Bonwick and Adams, 2001): for each of the smallest sizes a few blocks that are free and still stand in the slot's
//! tree, so that the next request of the size takes one without a change of the tree.
//!
//! The lowest block is taken first, and the highest makes room, so that addresses stay low.

use core::ops::Range;

use super::apart::Apart;
use crate::error::OutOfMemory;
use crate::request::Wanted;

/// Sizes that have magazines at most.
pub(super) const SIZES: u64 = 64;
/// Blocks in a magazine at most.
pub(super) const DEPTH: usize = 64;

/// Starts of blocks by size.
pub(super) struct Magazines {
    /// `depth` places for each size, from one granule on: the highest start first.
    starts: Apart<u64>,
    /// How many of them are in use.
    lens: Apart<u32>,
    depth: usize,
    granule_bits: u32,
    /// Of all blocks.
    units: u64,
}

impl Magazines {
    /// Empty ones for blocks up to a size, a multiple of the granule.
    pub(super) fn new(largest: u64, depth: usize, granule: u64) -> Result<Self, OutOfMemory> {
        let granule_bits = granule.trailing_zeros();
        let sizes = (largest >> granule_bits) as usize;
        Ok(Magazines {
            starts: Apart::new(sizes * depth)?,
            lens: Apart::new(sizes)?,
            depth,
            granule_bits,
            units: 0,
        })
    }

    /// The largest size that has a magazine.
    pub(super) fn largest(&self) -> u64 {
        (self.lens.len() as u64) << self.granule_bits
    }

    /// Units of all blocks.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// How many blocks there are. O(sizes).
    pub(super) fn blocks(&self) -> usize {
        let lens = (0..self.lens.len()).map(|number| self.lens[number] as usize);
        lens.sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.starts.bytes() + self.lens.bytes()
    }

    /// Which magazine has blocks of a size, a multiple of the granule.
    #[inline]
    fn number(&self, size: u64) -> Option<usize> {
        let number = (size >> self.granule_bits).wrapping_sub(1);
        (number < self.lens.len() as u64).then_some(number as usize)
    }

    /// The starts in a magazine.
    #[inline]
    fn of(&self, number: usize) -> &[u64] {
        &self.starts[number * self.depth..][..self.lens[number] as usize]
    }

    /// Whether a block is here.
    #[inline]
    pub(super) fn has(&self, block: &Range<u64>) -> bool {
        let number = self.number(block.end - block.start);
        number.is_some_and(|number| self.of(number).contains(&block.start))
    }

    /// Takes the lowest block out that a request may have.
    #[inline]
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<u64> {
        let number = self.number(wanted.size)?;
        let starts = self.of(number);
        let at = starts.iter().rposition(|start| wanted.may_be_at(*start))?;
        let start = starts[at];
        self.remove(number, at);
        Some(start)
    }

    /// Takes a block in, of a size that has a magazine; answers with the start of one of the size that has no place any more.
    #[inline]
    pub(super) fn put(&mut self, block: &Range<u64>) -> Option<u64> {
        let size = block.end - block.start;
        let number = self.number(size).expect("its size has a magazine");
        let mut len = self.lens[number] as usize;
        let places = &mut self.starts[number * self.depth..][..self.depth];
        let mut out = None;
        if len == places.len() {
            if block.start > places[0] {
                return Some(block.start);
            }
            out = Some(places[0]);
            places.copy_within(1.., 0);
            len -= 1;
        }
        let mut at = len;
        while at > 0 && places[at - 1] < block.start {
            places[at] = places[at - 1];
            at -= 1;
        }
        places[at] = block.start;
        if out.is_none() {
            self.lens[number] += 1;
            self.units += size;
        }
        out
    }

    /// Takes a block out; tells whether it was here.
    pub(super) fn take_out(&mut self, block: &Range<u64>) -> bool {
        let place = self.number(block.end - block.start).and_then(|number| {
            let at = self
                .of(number)
                .iter()
                .position(|start| *start == block.start)?;
            Some((number, at))
        });
        if let Some((number, at)) = place {
            self.remove(number, at);
        }
        place.is_some()
    }

    /// Takes a block out that touches a range; answers with its start.
    pub(super) fn take_any(&mut self, range: &Range<u64>) -> Option<u64> {
        if self.units == 0 {
            return None;
        }
        let (number, at, start) = (0..self.lens.len()).find_map(|number| {
            let size = (number as u64 + 1) << self.granule_bits;
            let touches = |start: &u64| *start < range.end && *start + size > range.start;
            let at = self.of(number).iter().rposition(touches)?;
            Some((number, at, self.of(number)[at]))
        })?;
        self.remove(number, at);
        Some(start)
    }

    #[inline]
    fn remove(&mut self, number: usize, at: usize) {
        let len = self.lens[number] as usize;
        let starts = &mut self.starts[number * self.depth..][..len];
        starts.copy_within(at + 1.., at);
        self.lens[number] -= 1;
        self.units -= (number as u64 + 1) << self.granule_bits;
    }
}
