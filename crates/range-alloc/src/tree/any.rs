//! One of two trees: words of 32 bits take half the lines and half the vectors of those of 64. They
//! are enough as long as nothing lies beyond the first 2^32 - 1 granules.

use core::ops::Range;

use super::edit::{Emptied, Filled, Free};
use super::{Path, Tree};
use crate::error::{AllocError, OutOfMemory};
use crate::isa::{self, Grid, Job, Look};
use crate::request::Wanted;

#[allow(clippy::large_enum_variant)] // A box would be one load more in every call, to save 200 bytes in an arena.
pub(crate) enum AnyTree {
    Narrow(Tree<u32>),
    Wide(Tree<u64>),
}

/// The same for both.
macro_rules! either {
    ($self:expr, $tree:ident => $value:expr) => {
        match $self {
            AnyTree::Narrow($tree) => $value,
            AnyTree::Wide($tree) => $value,
        }
    };
}

impl AnyTree {
    /// One gap. `grid` is that of all starts, a granule of `2^shift`.
    pub(crate) fn new(range: &Range<u64>, shift: u32, grid: Grid) -> Result<Self, OutOfMemory> {
        Ok(AnyTree::Narrow(Tree::new(range, shift, grid)?))
    }

    /// Up to where blocks may lie.
    pub(crate) fn reach(&self) -> u64 {
        either!(self, tree => tree.reach())
    }

    /// Lets blocks lie anywhere in the arena. O(n). After an error nothing has changed.
    #[cold]
    pub(crate) fn widen(&mut self) -> Result<(), OutOfMemory> {
        if let AnyTree::Narrow(tree) = self {
            *self = AnyTree::Wide(tree.widened()?);
        }
        Ok(())
    }

    /// Gives back what memory is not needed. O(n). After an error nothing has changed.
    pub(crate) fn shrink(&mut self) -> Result<(), OutOfMemory> {
        match self {
            AnyTree::Narrow(tree) => *tree = tree.shrunk()?,
            AnyTree::Wide(tree) => *tree = tree.shrunk()?,
        }
        Ok(())
    }

    /// Puts a block into the top gap, where that is simple and right.
    #[inline(always)]
    pub(crate) fn place_on_top(&mut self, wanted: &Wanted) -> Option<Filled> {
        either!(self, tree => tree.place_on_top_of_leaf(wanted))
    }

    /// Takes out the block below the top gap, where that is simple and it is the one.
    #[inline(always)]
    pub(crate) fn free_top(&mut self, free: &Free) -> Option<Emptied> {
        either!(self, tree => tree.free_top_of_leaf(free))
    }

    /// Does the work. `simd` is what [`isa::has_simd`] said.
    #[inline(always)]
    pub(crate) fn run<J: Job>(&mut self, simd: bool, job: J) -> J::Out {
        either!(self, tree => isa::run(simd, tree, job))
    }

    /// Answers the question. `simd` is what [`isa::has_simd`] said.
    #[inline(always)]
    pub(crate) fn look<L: Look>(&self, simd: bool, question: L) -> L::Out {
        either!(self, tree => isa::look(simd, tree, question))
    }

    pub(crate) fn prepare(&mut self, grid: Grid) -> Result<(), AllocError> {
        either!(self, tree => tree.prepare(grid))?;
        Ok(())
    }

    pub(crate) fn reserve(&mut self, leaves: usize, inners: usize) -> Result<(), OutOfMemory> {
        either!(self, tree => tree.reserve(leaves, inners))
    }

    #[cfg(feature = "std")]
    pub(crate) fn has_spare_at(&self, start: u64) -> bool {
        if start >= self.reach() {
            return false;
        }
        let (leaf, _) = self.block_below(start);
        either!(self, tree => tree.has_room(leaf) || tree.has_spare())
    }

    /// The marked block with the lowest address.
    pub(crate) fn first_lazy(&self) -> Option<Range<u64>> {
        either!(self, tree => tree.first_lazy())
    }

    /// The same of those that begin at an address, where a block may begin, or above.
    #[cfg(feature = "std")]
    pub(crate) fn first_lazy_from(&self, from: u64) -> Option<Range<u64>> {
        either!(self, tree => tree.first_lazy_from(from))
    }

    pub(crate) fn first_leaf(&self) -> u32 {
        either!(self, tree => tree.first_leaf())
    }

    /// How many blocks a leaf has, which of them are freed lazily, and the leaf above.
    pub(crate) fn leaf(&self, leaf: u32) -> (usize, u32, u32) {
        either!(self, tree => {
            let leaf = tree.leaf(leaf);
            (leaf.len as usize, leaf.lazy, leaf.next)
        })
    }

    pub(crate) fn block(&self, leaf: u32, at: usize) -> Range<u64> {
        either!(self, tree => tree.block(leaf, at))
    }

    pub(crate) fn gap(&self, leaf: u32, at: usize) -> Range<u64> {
        either!(self, tree => tree.gap(leaf, at))
    }

    /// The leaf that answers for an address, and the last block in it that begins at the address or
    /// below it: the empty one at the end does only if the arena ends there.
    pub(crate) fn block_below(&self, address: u64) -> (u32, Option<usize>) {
        use crate::isa::Portable;
        either!(self, tree => {
            if address >= tree.reach() {
                // In the top gap, or at its end.
                let last = tree.last_leaf();
                let at = tree.leaf(last).len as usize - 1;
                let is_end = address == tree.gap(last, at).end;
                return (last, if is_end { Some(at) } else { at.checked_sub(1) });
            }
            let mut path = Path::new();
            let word = tree.scale.word(address);
            tree.locate::<Portable>(word, &mut path);
            (path.leaf, tree.block_at::<Portable>(path.leaf, word))
        })
    }

    pub(crate) fn top_gap(&self) -> Range<u64> {
        either!(self, tree => tree.top_gap())
    }

    pub(crate) fn largest_gap(&self) -> u64 {
        either!(self, tree => tree.largest_gap())
    }

    pub(crate) fn levels(&self) -> usize {
        either!(self, tree => tree.levels())
    }

    pub(crate) fn nodes(&self) -> (usize, usize) {
        either!(self, tree => tree.nodes())
    }

    /// Classes that there are.
    pub(crate) fn alignments(&self) -> usize {
        either!(self, tree => tree.groups.iter().map(|group| group.classes.used).sum())
    }

    pub(crate) fn bytes(&self) -> usize {
        either!(self, tree => tree.bytes())
    }
}
