use crate::arena::RangeAlloc;
use crate::iter::{Segment, State};

/// How an arena stands. Units are those of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Addresses of the arena.
    pub units: u64,
    /// Units allocated.
    pub busy_units: u64,
    /// Units freed lazily and not purged.
    pub lazy_units: u64,
    /// Units in gaps.
    pub free_units: u64,
    /// Allocations.
    pub allocations: usize,
    /// Allocations freed lazily and not purged.
    pub lazy_allocations: usize,
    /// The largest gap.
    pub largest_free: u64,
    /// Levels of the tree.
    pub levels: usize,
    /// Leaves of the tree.
    pub leaves: usize,
    /// Inner nodes of the tree.
    pub inner_nodes: usize,
    /// Pairs of alignment and phase that are kept for searches.
    pub alignments: usize,
    /// Bytes on the heap for bookkeeping.
    pub footprint_bytes: usize,
}

/// The gaps of an arena by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragmentation {
    /// How many gaps have at least 2^i and less than 2^(i+1) units, at index i.
    pub gaps: [u64; 64],
    /// How many units they are.
    pub units: [u64; 64],
}

/// Of the gaps among segments.
impl FromIterator<Segment> for Fragmentation {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        let (mut gaps, mut units) = ([0; 64], [0; 64]);
        let segments = segments.into_iter();
        for segment in segments.filter(|segment| segment.state == State::Free) {
            let size = segment.range.end - segment.range.start;
            gaps[size.ilog2() as usize] += 1;
            units[size.ilog2() as usize] += size;
        }
        Fragmentation { gaps, units }
    }
}

impl Fragmentation {
    /// Share of the free units that lies in gaps of less than `size` units, from 0 to 1; sizes
    /// count by their power of two. What a request of that size cannot use.
    pub fn unusable(&self, size: u64) -> f64 {
        let all: u64 = self.units.iter().sum();
        let below: u64 = self.units[..size.max(1).ilog2() as usize].iter().sum();
        if all == 0 {
            0.0
        } else {
            below as f64 / all as f64
        }
    }
}

impl RangeAlloc {
    /// Sums. O(1).
    pub fn stats(&self) -> Stats {
        let units = self.range.end - self.range.start;
        let (leaves, inner_nodes) = self.tree.nodes();
        Stats {
            units,
            busy_units: self.busy,
            lazy_units: self.lazy,
            free_units: units - self.busy - self.lazy,
            allocations: self.blocks,
            lazy_allocations: self.lazy_blocks,
            largest_free: self.tree.largest_gap(),
            levels: self.tree.levels(),
            leaves,
            inner_nodes,
            alignments: self.tree.alignments(),
            footprint_bytes: self.bytes(),
        }
    }

    /// Counts the gaps by size. O(n).
    pub fn fragmentation(&self) -> Fragmentation {
        self.iter().collect()
    }
}
