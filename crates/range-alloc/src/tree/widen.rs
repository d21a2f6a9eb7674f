//! A tree whose words have become too narrow, in wide ones: the same nodes under the same numbers.

use super::Tree;
use super::node::{Inner, LEAF, Leaf};
use crate::error::OutOfMemory;
use crate::word::Scale;

impl Tree<u32> {
    /// The same in words that have all addresses of the arena. O(n) for each class of alignment.
    pub(super) fn widened(&self) -> Result<Tree<u64>, OutOfMemory> {
        let mut wide = self.bare::<u64>(u64::MAX)?;
        wide.ensure_leaves(self.leaf_ids.limit())?;
        if self.inner_ids.limit() > 0 {
            wide.ensure_inners(self.inner_ids.limit())?;
        }
        // Nodes that are not in use are chained through themselves.
        wide.leaf_ids = self.leaf_ids.clone();
        wide.inner_ids = self.inner_ids.clone();
        let scale = self.scale;
        for id in 0..self.leaf_ids.limit() {
            *wide.leaves.get_mut(id) = wide_leaf(self.leaves.get(id), scale, self.end);
        }
        for id in 0..self.inner_ids.limit() {
            *wide.inners.get_mut(id) = wide_inner(self.inners.get(id), scale);
        }
        (wide.root, wide.depth) = (self.root, self.depth);
        wide.below_top = scale.units(self.below_top);
        for group in 0..wide.groups.len() {
            wide.summarise(group);
        }
        Ok(wide)
    }
}

/// The empty block at the end moves to that of the arena.
fn wide_leaf(leaf: &Leaf<u32>, scale: Scale, end: u32) -> Leaf<u64> {
    let mut wide = Leaf {
        lo: leaf.lo.map(|word| scale.address(word)),
        hi: leaf.hi.map(|word| scale.address(word)),
        len: leaf.len,
        lazy: leaf.lazy,
        next: leaf.next,
        prev: leaf.prev,
    };
    let last = (leaf.len as usize).wrapping_sub(1);
    if last < LEAF && leaf.hi[last] == end {
        wide.hi[last] = scale.gap_end(end);
        wide.lo[last + 1] = wide.hi[last];
        wide.clear_above();
    }
    wide
}

fn wide_inner(inner: &Inner<u32>, scale: Scale) -> Inner<u64> {
    let mut wide = Inner {
        keys: inner.keys.map(|key| scale.address(key)),
        children: inner.children,
        lazy: inner.lazy,
        len: inner.len,
    };
    wide.clear_above();
    wide
}
