//! Blocks come and go in a leaf; the maxima above follow, as far up as they change.

use super::node::{
    Group, INNERS_A_CHUNK, Inner, LEAF, Leaf, SATURATED, close_bit, open_bit, short,
};
use super::{Path, Step, Tree};
use crate::isa::{FAN, Isa, LANES, Lanes, Portable};
use crate::pool::Pool;

type Inners = Pool<Inner, INNERS_A_CHUNK>;

impl Tree {
    /// Whether a leaf has room for a block.
    #[inline(always)]
    pub(crate) fn has_room(&self, leaf: u32) -> bool {
        (self.leaves.get(leaf).len as usize) < LEAF
    }

    /// Puts the block `start..end` into gap `at` of the path's leaf.
    ///
    /// The leaf has room, and the block lies within the gap.
    #[inline(always)]
    pub(crate) fn insert<I: Isa>(&mut self, path: &Path, at: usize, start: u64, end: u64) {
        let leaf = self.leaves.get_mut(path.leaf);
        debug_assert!(self.depth >= 1 && leaf.len < LEAF as u32 && at < leaf.len as usize);
        debug_assert!(leaf.lo[at] <= start && start < end && end <= leaf.hi[at]);
        I::open(&mut leaf.hi, at);
        leaf.hi[at] = start;
        I::open(&mut leaf.lo, at);
        leaf.lo[at + 1] = end;
        leaf.lazy = open_bit(leaf.lazy, at);
        leaf.len += 1;
        self.lower::<I>(path);
    }

    /// Takes block `at` out of the path's leaf. The caller calls `settle_shape` afterwards.
    ///
    /// It is not the empty block at the end of the arena.
    #[inline(always)]
    pub(crate) fn remove<I: Isa>(&mut self, path: &Path, at: usize) {
        let leaf = self.leaves.get_mut(path.leaf);
        let len = leaf.len as usize;
        debug_assert!(at < len);
        I::close(&mut leaf.hi, at);
        I::close(&mut leaf.lo, at + 1);
        leaf.lazy = close_bit(leaf.lazy, at);
        leaf.len -= 1;
        if at + 1 < len {
            self.raise::<I>(path, at);
        } else {
            self.give_to_next::<I>(path);
        }
    }

    /// Lets block `at` begin higher.
    #[inline(always)]
    pub(crate) fn raise_start<I: Isa>(&mut self, path: &Path, at: usize, start: u64) {
        self.leaves.get_mut(path.leaf).hi[at] = start;
        self.raise::<I>(path, at);
    }

    /// Lets block `at` end lower.
    #[inline(always)]
    pub(crate) fn lower_end<I: Isa>(&mut self, path: &Path, at: usize, end: u64) {
        let leaf = self.leaves.get_mut(path.leaf);
        leaf.lo[at + 1] = end;
        if at + 1 < leaf.len as usize {
            self.raise::<I>(path, at + 1);
        } else {
            self.give_to_next::<I>(path);
        }
    }

    /// The last block of a leaf is gone or shorter: the first gap of the next leaf begins lower.
    #[inline(always)]
    fn give_to_next<I: Isa>(&mut self, path: &Path) {
        let leaf = self.leaves.get_mut(path.leaf);
        let end = leaf.end();
        leaf.hi[leaf.len as usize] = end;
        let mut next = *path;
        let mut level = self.depth - 1;
        loop {
            let Step { node, pos } = path.steps[level];
            let inner = self.inners.get_mut(node);
            if pos + 1 < inner.len {
                // Here the ways part.
                inner.keys[pos as usize + 1] = end;
                next.steps[level].pos = pos + 1;
                break;
            }
            assert!(level > 0, "the last block of all stays");
            level -= 1;
        }
        let step = next.steps[level];
        let mut node = self.inners.get(step.node).children[step.pos as usize];
        for below in level + 1..self.depth {
            next.steps[below] = Step { node, pos: 0 };
            node = self.inners.get(node).children[0];
        }
        next.leaf = node;
        self.leaves.get_mut(node).lo[0] = end;
        self.lower::<I>(path);
        self.raise::<I>(&next, 0);
    }

    /// Gap `at` of a leaf has grown.
    #[inline(always)]
    fn raise<I: Isa>(&mut self, path: &Path, at: usize) {
        let leaf = self.leaves.get(path.leaf);
        let (lo, hi) = (leaf.lo[at], leaf.hi[at]);
        for group in &mut self.groups {
            let mut now = I::usable(lo, hi, &group.masks, &group.phases);
            let most = &mut group.leaf.get_mut(path.leaf).0;
            let was = *most;
            for lane in 0..LANES {
                now[lane] = (now[lane] & group.active[lane]).max(was[lane]);
            }
            if now != was {
                *most = now;
                carry::<I>(group, &self.inners, &path.steps[..self.depth], was, now);
            }
        }
    }

    /// A gap of a leaf that may have been the largest has shrunk or gone.
    #[inline(always)]
    fn lower<I: Isa>(&mut self, path: &Path) {
        let leaf = self.leaves.get(path.leaf);
        let largest = self.groups[0].leaf.get(path.leaf).0[0];
        for group in &mut self.groups {
            let now = I::maxima(
                &leaf.lo,
                &leaf.hi,
                largest,
                &group.masks,
                &group.phases,
                group.used,
            );
            let most = &mut group.leaf.get_mut(path.leaf).0;
            let was = *most;
            if now != was {
                *most = now;
                carry::<I>(group, &self.inners, &path.steps[..self.depth], was, now);
            }
        }
    }
}

/// The largest usable gap of a leaf for each class of a group.
pub(super) fn leaf_maxima(leaf: &Leaf, group: &Group) -> Lanes {
    Portable::maxima(
        &leaf.lo,
        &leaf.hi,
        u64::MAX,
        &group.masks,
        &group.phases,
        group.used,
    )
}

/// Maxima of a leaf went from `was` to `now`: the nodes above follow, as far as they change.
#[inline(always)]
fn carry<I: Isa>(
    group: &mut Group,
    inners: &Inners,
    steps: &[Step],
    mut was: Lanes,
    mut now: Lanes,
) {
    for (above, step) in steps.iter().rev().enumerate() {
        let rows = &mut group.rows.get_mut(step.node).0;
        for (row, now) in rows.iter_mut().zip(now).take(group.used) {
            row[step.pos as usize % FAN] = short(now);
        }
        let top = group.inner.get(step.node).0;
        // Also the classes whose largest gap has shrunk.
        let (mut next, mut shrunk) = I::follow(&was, &now, &top);
        while shrunk != 0 {
            let lane = shrunk.trailing_zeros() as usize % LANES;
            shrunk &= shrunk - 1;
            let max = I::row_max(&group.rows.get(step.node).0[lane]);
            next[lane] = u64::from(max);
            if max == SATURATED {
                next[lane] =
                    saturated_max(group, inners.get(step.node), step.node, lane, above == 0);
            }
        }
        if next == top {
            return;
        }
        group.inner.get_mut(step.node).0 = next;
        (was, now) = (top, next);
    }
}

/// The largest maximum of a node's children, some of which are too large for their row.
#[cold]
pub(super) fn saturated_max(
    group: &Group,
    inner: &Inner,
    node: u32,
    lane: usize,
    has_leaves: bool,
) -> u64 {
    let row = &group.rows.get(node).0[lane];
    let large = (0..inner.len as usize).filter(|pos| row[*pos] == SATURATED);
    let maxima = large.map(|pos| {
        let child = inner.children[pos];
        if has_leaves {
            group.leaf.get(child).0[lane]
        } else {
            group.inner.get(child).0[lane]
        }
    });
    maxima.max().unwrap_or(0)
}
