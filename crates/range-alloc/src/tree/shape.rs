//! Splits before a leaf gets too full, merges when neighbours have become empty enough.
//! Neither changes the maxima above the two nodes and their parent.

use super::change::{saturated_max, write_column};
use super::node::{
    AlignedRow, DEPTH, LEAF, NONE, close_bit, is_saturated, low_bits, low_bits_of_64, open_bit,
    short,
};
use super::{Path, Tree};
use crate::error::OutOfMemory;
use crate::isa::{FAN, Isa, Job, LANES};
use crate::word::Word;

/// A leaf with fewer blocks looks for a neighbour to join.
const FEW: u32 = 8;
/// Two leaves are joined when they have no more than this, and a single leaf is the root then.
const JOINED: u32 = 24;
/// The same for inner nodes.
const FEW_CHILDREN: u32 = 16;
const CHILDREN_JOINED: u32 = 48;

/// Splits the leaf of an address (a word), and nodes above it as far as need be.
pub(super) struct MakeRoom {
    pub address: u64,
}

impl Job for MakeRoom {
    type Out = Result<(), OutOfMemory>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        tree.make_room::<I>(W::of(self.address))
    }
}

/// Joins what has become empty enough along a path, which is of no use afterwards.
struct ThinOut<'a> {
    path: &'a Path,
}

impl Job for ThinOut<'_> {
    type Out = ();

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) {
        tree.thin_out::<I>(self.path);
    }
}

impl<W: Word> Tree<W> {
    #[inline(always)]
    fn make_room<I: Isa<W>>(&mut self, address: W) -> Result<(), OutOfMemory> {
        if self.depth + 1 == DEPTH {
            return Err(OutOfMemory);
        }
        self.reserve(1, self.depth + 1)?;
        if self.depth == 0 || self.is_full(self.root) {
            self.add_root::<I>();
        }
        let mut node = self.root;
        for level in 1..self.depth {
            let pos = self.child_pos(node, address);
            let child = self.inners.get(node).children[pos];
            if self.is_full(child) {
                self.split_inner::<I>(node, pos, level + 1 == self.depth);
            }
            let pos = self.child_pos(node, address);
            node = self.inners.get(node).children[pos];
        }
        let pos = self.child_pos(node, address);
        let leaf = self.inners.get(node).children[pos];
        if !self.has_room(leaf) {
            self.split_leaf::<I>(node, pos);
        }
        Ok(())
    }

    fn is_full(&self, inner: u32) -> bool {
        self.inners.get(inner).len as usize == FAN
    }

    fn child_pos(&self, node: u32, address: W) -> usize {
        let inner = self.inners.get(node);
        let keys = &inner.keys[1..inner.len as usize];
        keys.partition_point(|key| *key <= address)
    }

    #[inline(always)]
    fn add_root<I: Isa<W>>(&mut self) {
        let old = self.root;
        self.root = self.inner_ids.take(&mut self.inners);
        let any_lazy = if self.depth == 0 {
            self.leaves.get(old).lazy != 0
        } else {
            self.inners.get(old).lazy != 0
        };
        let root = self.inners.get_mut(self.root);
        (root.len, root.children[0]) = (1, old);
        root.clear_above();
        root.lazy = u64::from(any_lazy);
        for group in self.groups.iter_mut() {
            let most = if self.depth == 0 {
                self.leaves.get(old).maxima::<I>(&group.classes)
            } else {
                group.sums.inner.get(old).0
            };
            group.sums.inner.get_mut(self.root).0 = most;
            let rows = group.sums.rows.of_mut(self.root);
            for (row, most) in rows.iter_mut().zip(most).take(group.classes.used) {
                row.0 = [0; FAN];
                row.0[0] = short(most);
            }
        }
        self.depth += 1;
    }

    #[inline(always)]
    fn split_leaf<I: Isa<W>>(&mut self, parent: u32, pos: usize) {
        let left = self.inners.get(parent).children[pos];
        let right = self.leaf_ids.take(&mut self.leaves);
        let (a, b) = self.leaves.two_mut(left, right);
        let len = a.len as usize;
        // Whoever fills the arena from below leaves full leaves behind.
        let keep = if a.next == NONE { len - 1 } else { len / 2 };
        b.lo[..=len - keep].copy_from_slice(&a.lo[keep..=len]);
        b.hi[..len - keep].copy_from_slice(&a.hi[keep..len]);
        (a.len, b.len) = (keep as u32, (len - keep) as u32);
        a.clear_above();
        b.clear_above();
        b.lazy = a.lazy >> keep;
        a.lazy &= low_bits(a.len);
        (b.prev, b.next) = (left, a.next);
        a.next = right;
        let key = b.lo[0];
        let lazy = (a.lazy != 0, b.lazy != 0);
        let after = b.next;
        if after != NONE {
            self.leaves.get_mut(after).prev = right;
        }
        self.insert_child(parent, pos + 1, right, key);
        self.mark(parent, pos, lazy.0);
        self.mark(parent, pos + 1, lazy.1);
        self.sum_leaf::<I>(parent, pos);
        self.sum_leaf::<I>(parent, pos + 1);
    }

    #[inline(always)]
    fn split_inner<I: Isa<W>>(&mut self, parent: u32, pos: usize, has_leaves: bool) {
        let left = self.inners.get(parent).children[pos];
        let right = self.inner_ids.take(&mut self.inners);
        // A node at the end of all is mostly split by ascending blocks.
        let at_end = pos + 1 == self.inners.get(parent).len as usize;
        let (a, b) = self.inners.two_mut(left, right);
        let len = a.len as usize;
        let keep = if at_end { len - FAN / 4 } else { len / 2 };
        b.keys[..len - keep].copy_from_slice(&a.keys[keep..len]);
        b.children[..len - keep].copy_from_slice(&a.children[keep..len]);
        (a.len, b.len) = (keep as u32, (len - keep) as u32);
        b.lazy = a.lazy >> keep;
        a.lazy &= low_bits_of_64(a.len);
        let (key, lazy) = (b.keys[0], (a.lazy != 0, b.lazy != 0));
        a.clear_above();
        b.clear_above();
        for group in self.groups.iter_mut() {
            for lane in 0..group.classes.used {
                let (a, b) = group.sums.rows.two_mut(left, right, lane);
                *b = [0; FAN];
                b[..len - keep].copy_from_slice(&a[keep..len]);
                a[keep..].fill(0);
            }
        }
        self.insert_child(parent, pos + 1, right, key);
        self.mark(parent, pos, lazy.0);
        self.mark(parent, pos + 1, lazy.1);
        self.sum_inner::<I>(parent, pos, has_leaves);
        self.sum_inner::<I>(parent, pos + 1, has_leaves);
    }

    /// Opens a place for a child. Its maxima are to be filled in.
    fn insert_child(&mut self, parent: u32, pos: usize, child: u32, key: W) {
        let inner = self.inners.get_mut(parent);
        let len = inner.len as usize;
        inner.keys.copy_within(pos..len, pos + 1);
        inner.keys[pos] = key;
        inner.children.copy_within(pos..len, pos + 1);
        inner.children[pos] = child;
        inner.lazy = open_bit(inner.lazy, pos);
        inner.len += 1;
        for group in self.groups.iter_mut() {
            let rows = group.sums.rows.of_mut(parent);
            for AlignedRow(row) in &mut rows[..group.classes.used] {
                row.copy_within(pos..len, pos + 1);
            }
        }
    }

    fn remove_child(&mut self, parent: u32, pos: usize) {
        let inner = self.inners.get_mut(parent);
        let len = inner.len as usize;
        inner.keys.copy_within(pos + 1..len, pos);
        inner.children.copy_within(pos + 1..len, pos);
        inner.lazy = close_bit(inner.lazy, pos);
        inner.len -= 1;
        inner.keys[0] = W::ZERO;
        inner.keys[len - 1] = W::MAX;
        for group in self.groups.iter_mut() {
            let rows = group.sums.rows.of_mut(parent);
            for AlignedRow(row) in &mut rows[..group.classes.used] {
                row.copy_within(pos + 1..len, pos);
                row[len - 1] = 0;
            }
        }
    }

    fn mark(&mut self, parent: u32, pos: usize, is_lazy: bool) {
        let lazy = &mut self.inners.get_mut(parent).lazy;
        *lazy = *lazy & !(1 << pos) | u64::from(is_lazy) << pos;
    }

    #[inline(always)]
    fn sum_leaf<I: Isa<W>>(&mut self, parent: u32, pos: usize) {
        let leaf = self.inners.get(parent).children[pos];
        for group in self.groups.iter_mut() {
            let now = self.leaves.get(leaf).maxima::<I>(&group.classes);
            group.sums.leaf.get_mut(leaf).0 = now;
            let rows = group.sums.rows.of_mut(parent);
            write_column(rows, pos, &now, group.classes.used);
        }
    }

    #[inline(always)]
    fn sum_inner<I: Isa<W>>(&mut self, parent: u32, pos: usize, has_leaves: bool) {
        let child = self.inners.get(parent).children[pos];
        for group in self.groups.iter_mut() {
            let mut now = [W::ZERO; LANES];
            for (lane, now) in now.iter_mut().enumerate().take(group.classes.used) {
                let row = group.sums.rows.get(child, lane);
                let max = I::row_max_with(row, 0, row[0]);
                *now = if is_saturated::<W>(max) {
                    saturated_max(&group.sums, &self.inners, child, lane, has_leaves)
                } else {
                    W::of(u64::from(max))
                };
            }
            group.sums.inner.get_mut(child).0 = now;
            let rows = group.sums.rows.of_mut(parent);
            write_column(rows, pos, &now, group.classes.used);
        }
    }

    /// After blocks have been taken out of the path's leaf: gives back what is empty, joins what
    /// is nearly so. The path is of no use afterwards.
    #[inline(always)]
    pub(super) fn settle_shape<I: Isa<W>>(&mut self, path: &Path) {
        if self.leaves.get(path.leaf).len < FEW && self.depth > 0 {
            I::aside(self, ThinOut { path });
        }
    }

    #[inline(always)]
    fn thin_out<I: Isa<W>>(&mut self, path: &Path) {
        let mut level = self.depth - 1;
        let (parent, pos) = (path.steps[level].node, path.steps[level].pos as usize);
        if self.leaves.get(path.leaf).len == 0 {
            self.unlink(path.leaf);
            self.remove_child(parent, pos);
        } else if !self.join_leaf::<I>(parent, pos) && self.inners.get(self.root).len > 1 {
            return;
        }
        while level > 0 && self.inners.get(path.steps[level].node).len < FEW_CHILDREN {
            let node = path.steps[level].node;
            level -= 1;
            let (parent, pos) = (path.steps[level].node, path.steps[level].pos as usize);
            if self.inners.get(node).len == 0 {
                self.inner_ids.give(node, &mut self.inners);
                self.remove_child(parent, pos);
            } else if !self.join_inner::<I>(parent, pos, level + 2 == self.depth) {
                break;
            }
        }
        while self.depth > 0 && self.inners.get(self.root).len == 1 {
            let old = self.root;
            let child = self.inners.get(old).children[0];
            if self.depth == 1 && self.leaves.get(child).len > JOINED {
                break;
            }
            self.root = child;
            self.inner_ids.give(old, &mut self.inners);
            self.depth -= 1;
        }
    }

    /// Takes a leaf out of the order of leaves.
    fn unlink(&mut self, leaf: u32) {
        let gone = self.leaves.get(leaf);
        let (prev, next) = (gone.prev, gone.next);
        if prev != NONE {
            self.leaves.get_mut(prev).next = next;
        }
        if next != NONE {
            self.leaves.get_mut(next).prev = prev;
        }
        self.leaf_ids.give(leaf, &mut self.leaves);
    }

    /// The left one of two neighbours, of which one is at `pos`, that may be joined.
    fn pair(&self, parent: u32, pos: usize, most: u32, len: impl Fn(u32) -> u32) -> Option<usize> {
        let inner = self.inners.get(parent);
        let joined = |left: usize| len(inner.children[left]) + len(inner.children[left + 1]);
        let right = pos + 1 < inner.len as usize && joined(pos) <= most;
        let left = pos > 0 && joined(pos - 1) <= most;
        right.then_some(pos).or_else(|| left.then(|| pos - 1))
    }

    #[inline(always)]
    fn join_leaf<I: Isa<W>>(&mut self, parent: u32, pos: usize) -> bool {
        let Some(pos) = self.pair(parent, pos, JOINED, |leaf| self.leaves.get(leaf).len) else {
            return false;
        };
        let children = &self.inners.get(parent).children;
        let (left, right) = (children[pos], children[pos + 1]);
        let (a, b) = self.leaves.two_mut(left, right);
        let (la, lb) = (a.len as usize, b.len as usize);
        debug_assert!(la + lb <= LEAF && a.lo[la] == b.lo[0]);
        a.lo[la..=la + lb].copy_from_slice(&b.lo[..=lb]);
        a.hi[la..la + lb].copy_from_slice(&b.hi[..lb]);
        a.len += b.len;
        a.clear_above();
        a.lazy |= b.lazy << la;
        let any_lazy = a.lazy != 0;
        self.unlink(right);
        self.remove_child(parent, pos + 1);
        self.mark(parent, pos, any_lazy);
        self.sum_leaf::<I>(parent, pos);
        true
    }

    #[inline(always)]
    fn join_inner<I: Isa<W>>(&mut self, parent: u32, pos: usize, has_leaves: bool) -> bool {
        let Some(pos) = self.pair(parent, pos, CHILDREN_JOINED, |inner| {
            self.inners.get(inner).len
        }) else {
            return false;
        };
        let inner = self.inners.get(parent);
        let (left, right, key) = (
            inner.children[pos],
            inner.children[pos + 1],
            inner.keys[pos + 1],
        );
        let (a, b) = self.inners.two_mut(left, right);
        let (la, lb) = (a.len as usize, b.len as usize);
        a.keys[la..la + lb].copy_from_slice(&b.keys[..lb]);
        // The parent knows where the right one begins.
        a.keys[la] = key;
        a.children[la..la + lb].copy_from_slice(&b.children[..lb]);
        a.len += b.len;
        a.lazy |= b.lazy << la;
        let any_lazy = a.lazy != 0;
        for group in self.groups.iter_mut() {
            for lane in 0..group.classes.used {
                let (a, b) = group.sums.rows.two_mut(left, right, lane);
                a[la..la + lb].copy_from_slice(&b[..lb]);
            }
        }
        self.inner_ids.give(right, &mut self.inners);
        self.remove_child(parent, pos + 1);
        self.mark(parent, pos, any_lazy);
        self.sum_inner::<I>(parent, pos, has_leaves);
        true
    }
}
