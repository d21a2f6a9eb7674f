//! Searches: by address, and for the lowest gap that fits.

use super::node::{DEPTH, Inner, is_saturated, short};
use super::{Class, Path, Step, Tree};
use crate::isa::{FAN, Grid, Isa, SPOTS};
use crate::word::Word;

/// No child: the search has left the addresses below its lower bound behind.
const NOT_THERE: u32 = u32::MAX;

/// What is searched for, in words.
#[derive(Clone, Copy)]
pub(crate) struct Sought<W> {
    pub size: W,
    pub grid: Grid<W>,
    /// The lowest start; 0 if it need not be looked at.
    pub from: W,
}

impl<W: Word> Sought<W> {
    /// The same in words of another type, which has the numbers.
    #[inline(always)]
    pub(crate) fn cast<V: Word>(self) -> Sought<V> {
        let to = |word: W| V::of(word.get());
        Sought {
            size: to(self.size),
            grid: Grid {
                mask: to(self.grid.mask),
                phase: to(self.grid.phase),
            },
            from: to(self.from),
        }
    }
}

/// The child that answers for an address below the end.
#[inline(always)]
fn child_of<W: Word, I: Isa<W>>(inner: &Inner<W>, address: W) -> u32 {
    I::count_at_most(&inner.keys, address).wrapping_sub(1)
}

impl<W: Word> Tree<W> {
    /// The way to the leaf that answers for an address below the end.
    #[inline(always)]
    pub(crate) fn locate<I: Isa<W>>(&self, address: W, path: &mut Path) {
        let mut node = self.root;
        for step in &mut path.steps[..self.depth] {
            let inner = self.inners.get(node);
            let pos = child_of::<W, I>(inner, address);
            *step = Step { node, pos };
            node = inner.children[pos as usize % FAN];
        }
        path.leaf = node;
    }

    /// Among the blocks of the leaf that answers for an address the last that begins there or below.
    #[inline(always)]
    pub(crate) fn block_at<I: Isa<W>>(&self, leaf: u32, address: W) -> Option<usize> {
        let leaf = self.leaves.get(leaf);
        debug_assert!(address < leaf.end());
        (I::count_at_most(&leaf.hi, address) as usize).checked_sub(1)
    }

    /// The lowest start of a gap for what is sought without a lower bound, with the way to its leaf and
    /// the number of the gap there. Nothing if there is none, or if it takes [`find_above`](Tree::find_above)
    /// to say so.
    #[inline(always)]
    pub(crate) fn find<I: Isa<W>>(
        &self,
        class: Class,
        sought: &Sought<W>,
        path: &mut Path,
    ) -> Option<(usize, W)> {
        debug_assert!(sought.from == W::ZERO);
        if is_saturated::<W>(short(sought.size)) {
            return None;
        }
        let rows = &self.groups.get(class.group).sums.rows;
        let mut node = self.root;
        for step in &mut path.steps[..self.depth] {
            let row = rows.get(node, class.lane as usize);
            let fit = I::row_at_least(row, short(sought.size));
            if fit == 0 {
                return None;
            }
            let pos = fit.trailing_zeros();
            *step = Step { node, pos };
            node = self.inners.get(node).children[pos as usize % FAN];
        }
        path.leaf = node;
        self.fit_in::<I>(node, sought)
    }

    /// The first gap of a leaf that fits, whatever the lower bound, and the start in it.
    #[inline(always)]
    pub(crate) fn fit_in<I: Isa<W>>(&self, leaf: u32, sought: &Sought<W>) -> Option<(usize, W)> {
        let leaf = self.leaves.get(leaf);
        let fits = I::fits(&leaf.lo, &leaf.hi, sought.grid, sought.size) & leaf.all();
        if fits == 0 {
            return None;
        }
        let at = fits.trailing_zeros() as usize % SPOTS;
        let lo = leaf.lo[at];
        Some((at, lo.wrapping_add(sought.grid.pad(lo))))
    }

    /// The first gap of a leaf that fits at or above the lower bound, and the start in it.
    #[inline(always)]
    pub(crate) fn fit_above<I: Isa<W>>(&self, leaf: u32, sought: &Sought<W>) -> Option<(usize, W)> {
        let Sought { size, grid, from } = *sought;
        let leaf = self.leaves.get(leaf);
        let fits = I::fits_from(&leaf.lo, &leaf.hi, from, grid, size) & leaf.all();
        if fits == 0 {
            return None;
        }
        let at = fits.trailing_zeros() as usize % SPOTS;
        let lo = leaf.lo[at].max(from);
        Some((at, lo.wrapping_add(grid.pad(lo))))
    }

    /// Which children of a node have a gap that fits, and which of them is still to be searched for
    /// addresses at or above `from` alone.
    #[inline(always)]
    fn candidates<I: Isa<W>>(
        &self,
        class: Class,
        (node, level): (u32, usize),
        size: W,
        edge: Option<W>,
    ) -> (u64, u32) {
        let rows = &self.groups.get(class.group).sums.rows;
        let row = rows.get(node, class.lane as usize);
        let mut fit = I::row_at_least(row, short(size));
        if is_saturated::<W>(short(size)) {
            fit = self.large_enough(class, (node, level), fit, size);
        }
        match edge {
            None => (fit, NOT_THERE),
            Some(from) => {
                let edge = child_of::<W, I>(self.inners.get(node), from);
                (fit & u64::MAX << edge, edge)
            }
        }
    }

    /// Which of some children have a gap that fits a size which is too large for the row.
    #[cold]
    fn large_enough(
        &self,
        class: Class,
        (node, level): (u32, usize),
        children: u64,
        size: W,
    ) -> u64 {
        let inner = self.inners.get(node);
        let sums = &self.groups.get(class.group).sums;
        let lane = class.lane as usize;
        let is_leaf = level + 1 == self.depth;
        let mut fit = 0;
        for pos in (0..inner.len).filter(|pos| children >> pos & 1 == 1) {
            let child = inner.children[pos as usize];
            let most = if is_leaf {
                sums.leaf.get(child).0[lane]
            } else {
                sums.inner.get(child).0[lane]
            };
            fit |= u64::from(most >= size) << pos;
        }
        fit
    }

    /// The lowest start at or above `from` of a gap of `size` units on `grid`, with the way to its
    /// leaf and the number of the gap there: down along the lower bound, then to the first subtree
    /// above that fits.
    ///
    /// `class` is the grid's own class, or one that has all of its starts and more: then a leaf may
    /// be searched in vain, and the search goes on.
    #[inline(always)]
    pub(crate) fn find_above<I: Isa<W>>(
        &self,
        class: Class,
        sought: &Sought<W>,
        path: &mut Path,
    ) -> Option<(usize, W)> {
        let Sought { size, from, .. } = *sought;
        // On each level the children that are still to be searched.
        let mut open = [0u64; DEPTH];
        let (mut node, mut level) = (self.root, 0usize);
        let edge_from = (from != W::ZERO).then_some(from);
        let (mut fit, mut edge) = self.candidates::<I>(class, (node, level), size, edge_from);
        loop {
            while fit == 0 {
                level = level.checked_sub(1)?;
                node = path.steps[level].node;
                (fit, edge) = (open[level], NOT_THERE);
            }
            let pos = fit.trailing_zeros();
            path.steps[level] = Step { node, pos };
            open[level] = fit & (fit - 1);
            let from = if pos == edge { from } else { W::ZERO };
            let child = self.inners.get(node).children[pos as usize % FAN];
            if level + 1 < self.depth {
                level += 1;
                node = child;
                let edge_from = (from != W::ZERO).then_some(from);
                (fit, edge) = self.candidates::<I>(class, (node, level), size, edge_from);
                continue;
            }
            if let Some(found) = self.fit_above::<I>(child, &Sought { from, ..*sought }) {
                path.leaf = child;
                return Some(found);
            }
            (fit, edge) = (open[level], NOT_THERE);
        }
    }
}
