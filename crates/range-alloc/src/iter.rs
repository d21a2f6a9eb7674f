use core::iter::FusedIterator;
use core::ops::Range;

use crate::arena::RangeAlloc;
use crate::tree::AnyTree;
use crate::tree::node::NONE;

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// An allocation.
    Busy,
    /// An allocation that was freed lazily and not purged yet.
    Lazy,
    /// A gap.
    Free,
}

/// A range of addresses of one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Its addresses.
    pub range: Range<u64>,
    /// What it is.
    pub state: State,
}

/// The segments of an arena in the order of addresses, without holes between them.
#[derive(Clone)]
pub struct Segments<'a> {
    tree: &'a AnyTree,
    leaf: u32,
    at: usize,
    /// The gap of this block has been told.
    is_in_block: bool,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        while self.leaf != NONE {
            let (len, lazy, above) = self.tree.leaf(self.leaf);
            if self.at == len {
                (self.leaf, self.at) = (above, 0);
                continue;
            }
            let (range, state) = if self.is_in_block {
                let is_lazy = lazy >> self.at & 1 == 1;
                let state = if is_lazy { State::Lazy } else { State::Busy };
                self.at += 1;
                (self.tree.block(self.leaf, self.at - 1), state)
            } else {
                (self.tree.gap(self.leaf, self.at), State::Free)
            };
            self.is_in_block = !self.is_in_block;
            if !range.is_empty() {
                return Some(Segment { range, state });
            }
        }
        None
    }
}

impl FusedIterator for Segments<'_> {}

impl RangeAlloc {
    /// Allocations and gaps in the order of addresses.
    pub fn iter(&self) -> Segments<'_> {
        Segments {
            tree: &self.tree,
            leaf: self.tree.first_leaf(),
            at: 0,
            is_in_block: false,
        }
    }

    /// The same from the segment that holds an address, or from the lowest one above it.
    ///
    /// O(log n) for the first.
    pub fn iter_from(&self, address: u64) -> Segments<'_> {
        // Words are of addresses within the arena.
        let address = address.clamp(self.range.start, self.range.end);
        let (leaf, below) = self.tree.block_below(address);
        let (at, is_in_block) = match below {
            None => (0, false),
            Some(at) if address < self.tree.block(leaf, at).end => (at, true),
            Some(at) => (at + 1, false),
        };
        Segments {
            tree: &self.tree,
            leaf,
            at,
            is_in_block,
        }
    }

    /// The gaps in the order of addresses.
    pub fn gaps(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let free = self.iter().filter(|segment| segment.state == State::Free);
        free.map(|segment| segment.range)
    }

    /// The allocations in the order of addresses, those freed lazily not among them.
    pub fn allocations(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let busy = self.iter().filter(|segment| segment.state == State::Busy);
        busy.map(|segment| segment.range)
    }
}

impl<'a> IntoIterator for &'a RangeAlloc {
    type Item = Segment;
    type IntoIter = Segments<'a>;

    fn into_iter(self) -> Segments<'a> {
        self.iter()
    }
}
