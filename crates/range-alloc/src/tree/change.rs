//! Blocks come and go in a leaf; the maxima above follow, as far up as they change.

use super::node::{Group, LEAF, Leaf, close_bit, open_bit};
use super::{Path, Step, Tree};
use crate::isa::{FAN, Isa, LANES, Lanes};

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
        let len = leaf.len as usize;
        debug_assert!(len < LEAF && at < len && start < end);
        debug_assert!(leaf.lo[at] <= start && end <= leaf.hi[at]);
        // The gap shrinks: that matters to the classes in which it was the largest.
        let gap = 1 << at;
        let mut hit = [0u32; super::node::GROUPS];
        for (group, hit) in self.groups.iter().zip(&mut hit) {
            let was = I::usable(&leaf.lo, &leaf.hi, gap, &group.masks, &group.phases);
            let most = &group.leaf.get(path.leaf).0;
            *hit = group.in_use() & lanes(|lane| was[lane] == most[lane] && was[lane] != 0);
        }
        leaf.hi.copy_within(at..len, at + 1);
        leaf.hi[at] = start;
        leaf.lo.copy_within(at + 1..len + 1, at + 2);
        leaf.lo[at + 1] = end;
        leaf.lazy = open_bit(leaf.lazy, at);
        leaf.len += 1;
        for (number, hit) in hit.into_iter().enumerate().take(self.groups.len()) {
            if hit != 0 {
                self.lower::<I>(path, number);
            }
        }
    }

    /// Takes block `at` out of the path's leaf. The caller calls `settle_shape` afterwards.
    ///
    /// It is not the empty block at the end of the arena.
    #[inline(always)]
    pub(crate) fn remove<I: Isa>(&mut self, path: &Path, at: usize) {
        let leaf = self.leaves.get_mut(path.leaf);
        let len = leaf.len as usize;
        debug_assert!(at < len);
        leaf.hi.copy_within(at + 1..len, at);
        leaf.lo.copy_within(at + 2..len + 1, at + 1);
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
        let leaf = self.leaves.get(path.leaf);
        let end = leaf.end();
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
        for number in 0..self.groups.len() {
            self.lower::<I>(path, number);
        }
        self.raise::<I>(&next, 0);
    }

    /// Gap `at` of a leaf has grown.
    #[inline(always)]
    fn raise<I: Isa>(&mut self, path: &Path, at: usize) {
        let leaf = self.leaves.get(path.leaf);
        for group in &mut self.groups {
            let now = I::usable(&leaf.lo, &leaf.hi, 1 << at, &group.masks, &group.phases);
            let in_use = group.in_use();
            let most = &mut group.leaf.get_mut(path.leaf).0;
            let raised = in_use & lanes(|lane| now[lane] > most[lane]);
            if raised != 0 {
                let was = *most;
                for lane in 0..LANES {
                    most[lane] = most[lane].max(now[lane]);
                }
                let now = *most;
                carry::<I>(group, &path.steps[..self.depth], raised, was, now);
            }
        }
    }

    /// A gap of a leaf that may have been the largest has shrunk or gone.
    #[inline(always)]
    fn lower<I: Isa>(&mut self, path: &Path, number: usize) {
        let group = &mut self.groups[number];
        let now = leaf_maxima::<I>(self.leaves.get(path.leaf), group);
        let in_use = group.in_use();
        let most = &mut group.leaf.get_mut(path.leaf).0;
        let was = *most;
        let lowered = in_use & lanes(|lane| now[lane] != was[lane]);
        if lowered != 0 {
            *most = now;
            carry::<I>(group, &path.steps[..self.depth], lowered, was, now);
        }
    }
}

/// The largest usable gap of a leaf for each class of a group.
#[inline(always)]
pub(super) fn leaf_maxima<I: Isa>(leaf: &Leaf, group: &Group) -> Lanes {
    let gaps = I::gaps(&leaf.lo, &leaf.hi) & leaf.all();
    I::usable(&leaf.lo, &leaf.hi, gaps, &group.masks, &group.phases)
}

/// A bit for each class of a group.
#[inline(always)]
fn lanes(is: impl Fn(usize) -> bool) -> u32 {
    let mut bits = 0;
    for lane in 0..LANES {
        bits |= u32::from(is(lane)) << lane;
    }
    bits
}

/// Maxima of a leaf went from `was` to `now` in the classes `changed`: the nodes above follow.
#[inline(always)]
fn carry<I: Isa>(
    group: &mut Group,
    steps: &[Step],
    mut changed: u32,
    mut was: Lanes,
    mut now: Lanes,
) {
    for step in steps.iter().rev() {
        let rows = &mut group.rows.get_mut(step.node).0;
        let most = &mut group.inner.get_mut(step.node).0;
        let mut left = changed;
        while left != 0 {
            let lane = left.trailing_zeros() as usize % LANES;
            left &= left - 1;
            rows[lane][step.pos as usize % FAN] = now[lane];
            let top = most[lane];
            if now[lane] > top {
                most[lane] = now[lane];
            } else if was[lane] == top {
                most[lane] = I::max(&rows[lane]);
            }
            (was[lane], now[lane]) = (top, most[lane]);
            if top == most[lane] {
                changed &= !(1 << lane);
            }
        }
        if changed == 0 {
            return;
        }
    }
}
