//! Blocks that are freed but not to be used again yet: a bit in the leaf, and in each node above.

use core::ops::Range;

use super::{Path, Tree};
#[cfg(feature = "std")]
use crate::isa::Portable;
use crate::word::Word;

impl<W: Word> Tree<W> {
    /// Marks block `at` of the path's leaf.
    #[inline(always)]
    pub(crate) fn mark_lazy(&mut self, path: &Path, at: usize) {
        let lazy = &mut self.leaves.get_mut(path.leaf).lazy;
        let known = *lazy != 0;
        *lazy |= 1 << at;
        if known {
            return;
        }
        for step in path.steps[..self.depth].iter().rev() {
            let lazy = &mut self.inners.get_mut(step.node).lazy;
            let known = *lazy != 0;
            *lazy |= 1 << step.pos;
            if known {
                return;
            }
        }
    }

    /// The marked block with the lowest address.
    pub(crate) fn first_lazy(&self) -> Option<Range<u64>> {
        self.first_lazy_below(self.root, self.depth)
    }

    /// The same below a node that has so many levels of inner nodes, itself included.
    fn first_lazy_below(&self, mut node: u32, levels: usize) -> Option<Range<u64>> {
        for _ in 0..levels {
            let inner = self.inners.get(node);
            if inner.lazy == 0 {
                return None;
            }
            node = inner.children[inner.lazy.trailing_zeros() as usize];
        }
        let lazy = self.leaves.get(node).lazy;
        (lazy != 0).then(|| self.block(node, lazy.trailing_zeros() as usize))
    }

    /// The marked block with the lowest address that begins at `from`, where a block may begin, or above. O(log n).
    #[cfg(feature = "std")]
    pub(crate) fn first_lazy_from(&self, from: u64) -> Option<Range<u64>> {
        if from >= self.reach() {
            return None;
        }
        let mut path = Path::new();
        self.locate::<Portable>(self.scale.word(from), &mut path);
        let mut lazy = self.leaves.get(path.leaf).lazy;
        while lazy != 0 {
            let block = self.block(path.leaf, lazy.trailing_zeros() as usize);
            if block.start >= from {
                return Some(block);
            }
            lazy &= lazy - 1;
        }
        for (level, step) in path.steps[..self.depth].iter().enumerate().rev() {
            let inner = self.inners.get(step.node);
            // Two shifts: the child may be the last one that a word has a bit for.
            let above = inner.lazy >> step.pos >> 1;
            if above != 0 {
                let at = step.pos + 1 + above.trailing_zeros();
                return self.first_lazy_below(inner.children[at as usize], self.depth - level - 1);
            }
        }
        None
    }

    /// After the last marked block of the path's leaf has been taken out.
    pub(crate) fn forget_lazy(&mut self, path: &Path) {
        if self.leaves.get(path.leaf).lazy != 0 {
            return;
        }
        for step in path.steps[..self.depth].iter().rev() {
            let lazy = &mut self.inners.get_mut(step.node).lazy;
            *lazy &= !(1 << step.pos);
            if *lazy != 0 {
                return;
            }
        }
    }
}
