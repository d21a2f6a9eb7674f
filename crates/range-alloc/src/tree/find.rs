//! Searches: by address, and for the lowest gap that fits.

use super::node::{DEPTH, Inner, SATURATED, low_bits, short};
use super::{Class, Path, Step, Tree};
use crate::isa::{FAN, Grid, Isa, LANES};

/// No child: the search has left the addresses below its lower bound behind.
const NOT_THERE: u32 = u32::MAX;

/// The child that answers for an address.
#[inline(always)]
fn child_of<I: Isa>(inner: &Inner, address: u64) -> u32 {
    let begun = I::at_most(&inner.keys, address) & low_bits(inner.len - 1) << 1;
    begun.count_ones()
}

impl Tree {
    /// The way to the leaf that answers for an address.
    #[inline(always)]
    pub(crate) fn locate<I: Isa>(&self, address: u64, path: &mut Path) {
        let mut node = self.root;
        for step in &mut path.steps[..self.depth] {
            let inner = self.inners.get(node);
            let pos = child_of::<I>(inner, address);
            *step = Step { node, pos };
            node = inner.children[pos as usize];
        }
        path.leaf = node;
    }

    /// Among the blocks of a leaf the last that begins at the address or below it.
    #[inline(always)]
    pub(crate) fn block_at<I: Isa>(&self, leaf: u32, address: u64) -> Option<usize> {
        let leaf = self.leaves.get(leaf);
        let begun = I::at_most(&leaf.hi, address) & leaf.all();
        (begun.count_ones() as usize).checked_sub(1)
    }

    /// Which children of a node have a gap that fits, and which of them is still to be searched for
    /// addresses at or above `from` alone.
    #[inline(always)]
    fn candidates<I: Isa>(
        &self,
        class: Class,
        (node, level): (u32, usize),
        size: u64,
        edge: Option<u64>,
    ) -> (u32, u32) {
        let rows = &self.groups[class.group as usize].rows.get(node).0;
        let row = &rows[class.lane as usize % LANES];
        let mut fit = I::row_at_least(row, short(size));
        if short(size) == SATURATED {
            fit = self.large_enough(class, (node, level), fit, size);
        }
        match edge {
            None => (fit, NOT_THERE),
            Some(from) => {
                let edge = child_of::<I>(self.inners.get(node), from);
                (fit & u32::MAX << edge, edge)
            }
        }
    }

    /// Which of some children have a gap that fits a size which is too large for the row.
    #[cold]
    fn large_enough(
        &self,
        class: Class,
        (node, level): (u32, usize),
        children: u32,
        size: u64,
    ) -> u32 {
        let inner = self.inners.get(node);
        let (group, lane) = (&self.groups[class.group as usize], class.lane as usize);
        let is_leaf = level + 1 == self.depth;
        let mut fit = 0;
        for pos in (0..inner.len).filter(|pos| children >> pos & 1 == 1) {
            let child = inner.children[pos as usize];
            let most = if is_leaf {
                group.leaf.get(child).0[lane]
            } else {
                group.inner.get(child).0[lane]
            };
            fit |= u32::from(most >= size) << pos;
        }
        fit
    }

    /// The lowest start at or above `from` of a gap of `size` units on `grid`, with the way to its
    /// leaf and the number of the gap there.
    ///
    /// `class` is the grid's own class, or one that has all of its starts and more: then a leaf may
    /// be searched in vain, and the search goes on.
    #[inline(always)]
    pub(crate) fn find<I: Isa>(
        &self,
        class: Class,
        grid: Grid,
        size: u64,
        from: u64,
        path: &mut Path,
    ) -> Option<(usize, u64)> {
        // On each level the children that are still to be searched.
        let mut open = [0u32; DEPTH];
        let (mut node, mut level) = (self.root, 0usize);
        let edge_from = (from != 0).then_some(from);
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
            let from = if pos == edge { from } else { 0 };
            let child = self.inners.get(node).children[pos as usize % FAN];
            if level + 1 < self.depth {
                level += 1;
                node = child;
                let edge_from = (from != 0).then_some(from);
                (fit, edge) = self.candidates::<I>(class, (node, level), size, edge_from);
                continue;
            }
            let leaf = self.leaves.get(child);
            let fits = I::fits(&leaf.lo, &leaf.hi, from, grid, size) & leaf.all();
            if fits != 0 {
                let at = fits.trailing_zeros() as usize % FAN;
                let lo = leaf.lo[at].max(from);
                path.leaf = child;
                return Some((at, lo + grid.pad(lo)));
            }
            (fit, edge) = (open[level], NOT_THERE);
        }
    }
}
