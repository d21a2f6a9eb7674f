//! Blocks come and go in a leaf; the maxima above follow, as far up as they change.

use core::ops::Range;

use super::node::{
    AlignedRow, Group, Groups, LEAF, Leaf, Sums, close_bit, is_saturated, low_bits, open_bit, short,
};
use super::{Inners, Path, Step, Tree};
use crate::isa::{FAN, Isa, LANES, Lanes, SPOTS};
use crate::word::Word;

impl<W: Word> Tree<W> {
    /// Whether a leaf has room for a block.
    #[inline(always)]
    pub(crate) fn has_room(&self, leaf: u32) -> bool {
        (self.leaves.get(leaf).len as usize) < LEAF
    }

    /// Puts a block into gap `at` of the path's leaf.
    ///
    /// The leaf has room, and the block lies within the gap.
    #[inline(always)]
    pub(crate) fn insert<I: Isa<W>>(&mut self, path: &Path, at: usize, block: Range<W>) {
        let leaf = self.leaves.get_mut(path.leaf);
        let gap = leaf.lo[at]..leaf.hi[at];
        debug_assert!(leaf.len < LEAF as u32 && at < leaf.len as usize);
        debug_assert!(gap.start <= block.start && block.start < block.end && block.end <= gap.end);
        I::open(&mut leaf.hi, at, block.start);
        I::open(&mut leaf.lo, at + 1, block.end);
        leaf.lazy = open_bit(u64::from(leaf.lazy), at) as u32;
        leaf.len += 1;
        self.note_gap(&(gap.start..block.start));
        if self.depth > 0 && gap.end == self.end && self.sum_top(path, block.end..gap.end) {
            return;
        }
        self.lower::<I>(path, gap);
    }

    /// Takes block `at` out of the path's leaf. The caller calls `settle_shape` afterwards.
    ///
    /// It is not the empty block at the end of the arena.
    #[inline(always)]
    pub(crate) fn remove<I: Isa<W>>(&mut self, path: &Path, at: usize) {
        let leaf = self.leaves.get_mut(path.leaf);
        let len = leaf.len as usize;
        debug_assert!(at < len && len <= LEAF);
        let (lo, hi, next) = (leaf.lo[at], leaf.hi[at], leaf.hi[(at + 1) % SPOTS]);
        if next == self.end && at + 2 == len {
            // The last one: the words above hold an empty gap there already.
            (leaf.hi[at], leaf.lo[at + 1]) = (next, next);
            leaf.lazy &= low_bits(at as u32);
        } else {
            I::close(&mut leaf.hi, at);
            I::close(&mut leaf.lo, at + 1);
            leaf.lazy = close_bit(u64::from(leaf.lazy), at) as u32;
        }
        leaf.len -= 1;
        if at + 1 < len {
            self.raise::<I>(path, lo..next);
        } else {
            self.give_to_next::<I>(path);
            self.lower::<I>(path, lo..hi);
        }
    }

    /// Lets block `at` begin higher.
    #[inline(always)]
    pub(crate) fn raise_start<I: Isa<W>>(&mut self, path: &Path, at: usize, start: W) {
        let leaf = self.leaves.get_mut(path.leaf);
        leaf.hi[at] = start;
        let gap = leaf.lo[at]..start;
        self.raise::<I>(path, gap);
    }

    /// Lets block `at` end lower.
    #[inline(always)]
    pub(crate) fn lower_end<I: Isa<W>>(&mut self, path: &Path, at: usize, end: W) {
        let leaf = self.leaves.get_mut(path.leaf);
        leaf.lo[at + 1] = end;
        if at + 1 < leaf.len as usize {
            let gap = end..leaf.hi[at + 1];
            self.raise::<I>(path, gap);
        } else {
            self.give_to_next::<I>(path);
        }
    }

    /// The last block of a leaf is gone or shorter: the first gap of the next leaf begins lower.
    #[inline(always)]
    fn give_to_next<I: Isa<W>>(&mut self, path: &Path) {
        let leaf = self.leaves.get_mut(path.leaf);
        let end = leaf.end();
        leaf.hi[leaf.len as usize] = end;
        let mut next = *path;
        let mut level = self.depth.checked_sub(1).expect("there is a next leaf");
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
        let leaf = self.leaves.get_mut(node);
        leaf.lo[0] = end;
        let gap = end..leaf.hi[0];
        self.raise::<I>(&next, gap);
    }

    /// A gap of a leaf is now this one, which is larger.
    #[inline(always)]
    fn raise<I: Isa<W>>(&mut self, path: &Path, gap: Range<W>) {
        self.note_gap(&gap);
        if self.depth == 0 {
            return;
        }
        let steps = &path.steps[..self.depth];
        self.groups.first.raise::<I>(path.leaf, steps, &gap);
        for group in &mut self.groups.others {
            group.raise::<I>(path.leaf, steps, &gap);
        }
    }

    /// A gap of a leaf, which was this one, has shrunk, is in parts or gone.
    #[inline(always)]
    pub(super) fn lower<I: Isa<W>>(&mut self, path: &Path, gap: Range<W>) {
        if self.depth == 0 {
            return;
        }
        let leaf = self.leaves.get(path.leaf);
        let largest = self.groups.first.sums.leaf.get(path.leaf).0[0];
        let steps = &path.steps[..self.depth];
        let leaf = (path.leaf, leaf);
        let Groups { first, others } = &mut self.groups;
        first.lower::<I>(leaf, steps, &self.inners, &gap, largest);
        for group in others {
            group.lower::<I>(leaf, steps, &self.inners, &gap, largest);
        }
    }
}

impl<W: Word> Group<W> {
    /// A gap of a leaf is now this one, which is larger.
    #[inline(always)]
    fn raise<I: Isa<W>>(&mut self, leaf: u32, steps: &[Step], gap: &Range<W>) {
        if self.classes.used == 1 {
            return self.raise_one(leaf, steps, gap);
        }
        let Sums {
            leaf: leaves,
            inner,
            rows,
        } = &mut self.sums;
        let most = &mut leaves.get_mut(leaf).0;
        if !I::raise_by_gap(gap.start, gap.end, &self.classes, most) {
            return;
        }
        let used = self.classes.used;
        let (last, above) = steps.split_last().expect("the leaf is below an inner node");
        write_column(rows.of_mut(last.node), last.pos as usize, most, used);
        let top = &mut inner.get_mut(last.node).0;
        if !I::raise(top, most) {
            return;
        }
        let mut now = *top;
        for step in above.iter().rev() {
            write_column(rows.of_mut(step.node), step.pos as usize, &now, used);
            let top = &mut inner.get_mut(step.node).0;
            if !I::raise(top, &now) {
                return;
            }
            now = *top;
        }
    }

    /// The same with one class: single words, no vectors.
    #[inline(always)]
    fn raise_one(&mut self, leaf: u32, steps: &[Step], gap: &Range<W>) {
        let Sums {
            leaf: leaves,
            inner,
            rows,
        } = &mut self.sums;
        let now = self.classes.grid(0).usable(gap.start, gap.end);
        let mut most = &mut leaves.get_mut(leaf).0[0];
        for step in steps.iter().rev() {
            if now <= *most {
                return;
            }
            *most = now;
            rows.get_mut(step.node, 0)[step.pos as usize % FAN] = short(now);
            most = &mut inner.get_mut(step.node).0[0];
        }
        *most = now.max(*most);
    }

    /// A gap of a leaf, which was this one, has shrunk, is in parts or gone. `largest` is not below
    /// any gap of the leaf.
    #[inline(always)]
    fn lower<I: Isa<W>>(
        &mut self,
        (id, leaf): (u32, &Leaf<W>),
        steps: &[Step],
        inners: &Inners<W>,
        gap: &Range<W>,
        largest: W,
    ) {
        let (classes, sums) = (&self.classes, &mut self.sums);
        let most = &mut sums.leaf.get_mut(id).0;
        if classes.used == 1 {
            // What follows waits for the single word that was stored last, which it loads in a vector.
            let was = most[0];
            if classes.grid(0).usable(gap.start, gap.end) == was && was != W::ZERO {
                I::maxima(&leaf.lo, &leaf.hi, largest, classes, most);
                let now = most[0];
                lower_above::<W, I>(sums, inners, steps, 0, was..now);
            }
            return;
        }
        if I::is_most(gap.start, gap.end, classes, most) == 0 {
            // The largest gap of each class is another.
            return;
        }
        let was = *most;
        I::maxima(&leaf.lo, &leaf.hi, largest, classes, most);
        let above = steps.last().expect("the leaf is below an inner node");
        // Where it was the largest maximum of the node above.
        let mut top = I::same(&was, &sums.inner.get(above.node).0) & classes.all();
        // Looks at rows before they are written to: waiting for a store costs more.
        while top != 0 {
            let lane = top.trailing_zeros() as usize % LANES;
            top &= top - 1;
            let now = sums.leaf.get(id).0[lane];
            if now != was[lane] {
                lower_above::<W, I>(sums, inners, steps, lane, was[lane]..now);
            }
        }
        let rows = sums.rows.of_mut(above.node);
        write_column(rows, above.pos as usize, &sums.leaf.get(id).0, classes.used);
    }
}

/// Writes what there is below a child.
#[inline(always)]
pub(super) fn write_column<W: Word>(
    rows: &mut [AlignedRow],
    pos: usize,
    now: &Lanes<W>,
    used: usize,
) {
    for (row, now) in rows.iter_mut().zip(&now[..used.min(LANES)]) {
        row.0[pos % FAN] = short(*now);
    }
}

/// A maximum of a leaf, which was the largest below the node above, went from the start of a range
/// down to its end: the nodes above follow, as far as they change.
#[inline(always)]
fn lower_above<W: Word, I: Isa<W>>(
    sums: &mut Sums<W>,
    inners: &Inners<W>,
    steps: &[Step],
    lane: usize,
    Range {
        start: was,
        end: mut now,
    }: Range<W>,
) {
    for (above, step) in steps.iter().rev().enumerate() {
        let row = sums.rows.get_mut(step.node, lane);
        let pos = step.pos as usize % FAN;
        let top = sums.inner.get(step.node).0[lane % LANES];
        if top != was {
            row[pos] = short(now);
            return;
        }
        let max = I::row_max_with(row, pos, short(now));
        row[pos] = short(now);
        now = if is_saturated::<W>(max) {
            saturated_max(sums, inners, step.node, lane, above == 0)
        } else {
            W::of(u64::from(max))
        };
        if now == top {
            return;
        }
        sums.inner.get_mut(step.node).0[lane % LANES] = now;
    }
}

/// The largest maximum of a node's children, some of which are too large for their row.
#[cold]
pub(super) fn saturated_max<W: Word>(
    sums: &Sums<W>,
    inners: &Inners<W>,
    node: u32,
    lane: usize,
    has_leaves: bool,
) -> W {
    let row = sums.rows.get(node, lane);
    let inner = inners.get(node);
    let large = (0..inner.len as usize).filter(|pos| is_saturated::<W>(row[*pos]));
    let maxima = large.map(|pos| {
        let child = inner.children[pos];
        if has_leaves {
            sums.leaf.get(child).0[lane]
        } else {
            sums.inner.get(child).0[lane]
        }
    });
    maxima.max().unwrap_or(W::ZERO)
}
