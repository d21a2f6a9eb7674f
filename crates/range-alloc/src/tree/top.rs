//! The gap at the top of the arena, where addresses go that fit nowhere below.
//!
//! Programs mostly build up: what they ask for fits into none of the few holes there are. A bound on
//! all gaps but the top one says so without a look at them, and as long as the top gap is larger
//! than that bound, it alone is what all nodes above it sum up. (What dlmalloc calls the wilderness.)

use core::ops::Range;

use super::edit::{Emptied, Filled, Free};
use super::find::Sought;
use super::node::LEAF;
use super::{Path, Step, Tree};
use crate::isa::{Isa, LANES};
use crate::request::Wanted;
use crate::word::Word;

impl<W: Word> Tree<W> {
    /// Puts a block into the top gap, where it belongs if all other gaps are too small for it, in a
    /// tree of one leaf. Nothing if that is not possible or takes more than a store or two.
    #[inline(always)]
    pub(super) fn place_on_top_of_leaf(&mut self, wanted: &Wanted) -> Option<Filled> {
        if self.depth > 0 {
            return None;
        }
        let sought = self.sought(wanted)?;
        if sought.size <= self.below_top {
            return None;
        }
        let (filled, _) = self.append(self.root, wanted, &sought)?;
        Some(filled)
    }

    /// The same in a tree with levels.
    #[inline(always)]
    pub(super) fn place_on_top<I: Isa<W>>(
        &mut self,
        wanted: &Wanted,
        sought: &Sought<W>,
    ) -> Option<Filled> {
        let path = &mut Path::new();
        path.leaf = self.root;
        for step in &mut path.steps[..self.depth] {
            let node = path.leaf;
            let inner = self.inners.get(node);
            let pos = inner.len - 1;
            *step = Step { node, pos };
            path.leaf = inner.children[pos as usize % inner.children.len()];
        }
        let (filled, [lo, end]) = self.append(path.leaf, wanted, sought)?;
        if !self.sum_top(path, end..self.end) {
            self.lower::<I>(path, lo..self.end);
        }
        Some(filled)
    }

    /// Puts a block into the top gap, if it fits there and the last leaf has room. Tells where the
    /// gap began and where the block ends.
    #[inline(always)]
    fn append(
        &mut self,
        leaf: u32,
        wanted: &Wanted,
        sought: &Sought<W>,
    ) -> Option<(Filled, [W; 2])> {
        debug_assert!(sought.size > self.below_top);
        let leaf = self.leaves.get_mut(leaf);
        let at = leaf.len as usize - 1;
        if at + 1 >= LEAF {
            return None;
        }
        let (lo, hi) = (leaf.lo[at], self.end);
        let from = lo.max(sought.from);
        if sought.grid.usable(from, hi) < sought.size {
            return None;
        }
        let first = from.wrapping_add(sought.grid.pad(from));
        let start = self.scale.address(first);
        if start >= wanted.to || wanted.to - start < wanted.size {
            return None;
        }
        // The words above are those of an empty gap at the end already.
        let end = first.wrapping_add(sought.size);
        leaf.hi[at] = first;
        leaf.lo[at + 1] = end;
        leaf.len += 1;
        self.below_top = self.below_top.max(first.wrapping_sub(lo));
        let filled = Filled {
            gap: self.gap_of(lo..hi),
            block: start..start + wanted.size,
        };
        Some((filled, [lo, end]))
    }

    /// Takes out the block below the top gap, if it is this one and the tree one leaf.
    #[inline(always)]
    pub(super) fn free_top_of_leaf(&mut self, free: &Free) -> Option<Emptied> {
        if self.depth > 0 {
            return None;
        }
        let leaf = self.leaves.get_mut(self.root);
        let at = (leaf.len as usize).checked_sub(2)?;
        let (lo, first, end) = (leaf.lo[at], leaf.hi[at], leaf.lo[at + 1]);
        let start = self.scale.address(first);
        let block = start..self.scale.address(end);
        let is_other = free
            .size
            .is_some_and(|size| size != block.end - block.start);
        if start != free.start || is_other || leaf.lazy >> at & 1 == 1 {
            return None;
        }
        (leaf.hi[at], leaf.lo[at + 1]) = (self.end, self.end);
        leaf.len -= 1;
        let gap = self.gap_of(lo..self.end);
        Some(Emptied { block, gap })
    }

    /// The top gap is now this one, which is smaller. Tells whether it is still so large that it is
    /// the largest for each class in each node above it, which it then is told to be.
    #[inline(always)]
    pub(super) fn sum_top(&mut self, path: &Path, gap: Range<W>) -> bool {
        let size = gap.end.wrapping_sub(gap.start);
        let below_top = self.below_top;
        let is_largest = self
            .groups
            .iter()
            .all(|group| size.saturating_sub(group.classes.any_mask) >= below_top);
        if !is_largest {
            return false;
        }
        for group in self.groups.iter_mut() {
            let (classes, sums) = (&group.classes, &mut group.sums);
            let most = sums.leaf.get_mut(path.leaf);
            for (lane, most) in most.0.iter_mut().enumerate().take(classes.used.min(LANES)) {
                *most = classes.grid(lane).usable(gap.start, gap.end);
            }
            let most = *most;
            for step in path.steps[..self.depth].iter().rev() {
                let rows = sums.rows.of_mut(step.node);
                super::change::write_column(rows, step.pos as usize, &most.0, classes.used);
                *sums.inner.get_mut(step.node) = most;
            }
        }
        true
    }

    /// A gap is now this one, which is larger or new.
    #[inline(always)]
    pub(super) fn note_gap(&mut self, gap: &Range<W>) {
        if gap.end != self.end {
            self.below_top = self.below_top.max(gap.end.wrapping_sub(gap.start));
        }
    }

    /// Looked for everywhere, what is sought was found in this gap.
    #[inline(always)]
    pub(super) fn note_found(&mut self, sought: &Sought<W>, gap_end: W) {
        if gap_end == self.end && sought.from == W::ZERO {
            // A gap of that and its padding would have been found.
            let most = sought.size.wrapping_sub(W::ONE);
            let most = most.saturating_add(sought.grid.mask);
            self.below_top = self.below_top.min(most);
        }
    }
}
