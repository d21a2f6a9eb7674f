//! Blocks that are freed but not to be used again yet: a bit in the leaf, and in each node above.

use core::ops::Range;

use super::{Path, Tree};
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
        let mut node = self.root;
        for _ in 0..self.depth {
            let inner = self.inners.get(node);
            if inner.lazy == 0 {
                return None;
            }
            node = inner.children[inner.lazy.trailing_zeros() as usize];
        }
        let lazy = self.leaves.get(node).lazy;
        (lazy != 0).then(|| self.block(node, lazy.trailing_zeros() as usize))
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
