//! A B+-tree of blocks in address order. The gaps between blocks are not stored: a leaf holds the
//! ends of its blocks, and each inner node the largest usable gap below each child, once for each
//! class of alignment in use. So a search never enters a node in vain, and one node holds what a
//! binary tree has in five or six levels. As long as one leaf is enough, it is the root, and
//! nothing is summed up.
//!
//! `find` searches, `change` inserts and removes in a leaf and corrects what is above, `top` appends, `shape`
//! splits and merges, `classes` adds alignments, `any` chooses how wide words are and `widen` widens them,
//! `shrink` gives memory back.

mod any;
mod change;
mod classes;
pub(crate) mod edit;
mod find;
mod lazy;
pub(crate) mod node;
mod shape;
mod shrink;
mod tiny;
mod top;
mod widen;

use core::ops::Range;

use crate::error::OutOfMemory;
use crate::isa::{Grid, LANES};
use crate::pool::{Ids, Pool};
use crate::word::{Scale, Word};
pub(crate) use any::AnyTree;
use node::{DEPTH, Group, Groups, Inner, Leaf, NONE};

/// A child of an inner node.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub node: u32,
    pub pos: u32,
}

/// The way from the root to a leaf. Valid until the tree changes its shape.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub steps: [Step; DEPTH],
    pub leaf: u32,
}

impl Path {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let steps = [Step { node: 0, pos: 0 }; DEPTH];
        Path { steps, leaf: 0 }
    }
}

/// Where the maxima of a class of alignment are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub group: u8,
    pub lane: u8,
}

impl Class {
    /// One of 64.
    #[inline(always)]
    pub(crate) fn bit(self) -> u64 {
        1 << (usize::from(self.group) * LANES + usize::from(self.lane))
    }
}

/// Nodes that there is room for as soon as one is not enough.
const FEW: usize = 6;

type Inners<W> = Pool<Inner<W>>;

pub(crate) struct Tree<W: Word> {
    scale: Scale,
    leaves: Pool<Leaf<W>>,
    inners: Inners<W>,
    leaf_ids: Ids,
    inner_ids: Ids,
    groups: Groups<W>,
    /// The class of each alignment without a phase.
    plain: [Option<Class>; 41],
    /// The classes that a search has needed since memory was last given back.
    asked: u64,
    /// The classes that somebody wants to have.
    prepared: u64,
    /// An inner node, or the leaf if there is but one level.
    root: u32,
    /// Levels of inner nodes.
    depth: usize,
    /// Where the top gap ends, and no other: at the end of the arena or of what words reach.
    end: W,
    /// No gap but the top one is larger.
    below_top: W,
}

impl<W: Word> Tree<W> {
    /// One gap. Starts are on `grid` at least.
    pub(crate) fn new(range: &Range<u64>, shift: u32, grid: Grid) -> Result<Self, OutOfMemory> {
        let scale = Scale::new::<W>(range, shift);
        let first = scale.grid(grid).expect("the granule's grid is in reach");
        let groups = Groups::new(Group::new(first));
        let mut tree = Tree {
            scale,
            leaves: Pool::new(),
            inners: Pool::new(),
            leaf_ids: Ids::new(),
            inner_ids: Ids::new(),
            groups,
            plain: [None; 41],
            asked: 0,
            prepared: 0,
            root: 0,
            depth: 0,
            end: scale.word(scale.reach()),
            below_top: W::ZERO,
        };
        tree.reserve(1, 0)?;
        tree.root = tree.leaf_ids.take(&mut tree.leaves);
        let leaf = tree.leaves.get_mut(tree.root);
        let end = tree.end;
        (leaf.lo[0], leaf.hi[0], leaf.lo[1]) = (scale.word(range.start), end, end);
        (leaf.len, leaf.lazy, leaf.next, leaf.prev) = (1, 0, NONE, NONE);
        leaf.clear_above();
        tree.plain[grid.mask.count_ones() as usize] = Some(Class { group: 0, lane: 0 });
        Ok(tree)
    }

    /// Makes sure that so many nodes can be taken.
    pub(crate) fn reserve(&mut self, leaves: usize, inners: usize) -> Result<(), OutOfMemory> {
        if self.leaf_ids.spare() < leaves {
            let count = more(&self.leaf_ids, leaves)?;
            self.ensure_leaves(count)?;
            self.leaf_ids.grow(count);
        }
        if self.inner_ids.spare() < inners {
            let count = more(&self.inner_ids, inners)?;
            self.ensure_inners(count)?;
            self.inner_ids.grow(count);
        }
        Ok(())
    }

    /// Makes room for leaves with numbers below `count`.
    fn ensure_leaves(&mut self, count: u32) -> Result<(), OutOfMemory> {
        self.leaves.ensure(count as usize)?;
        let mut groups = self.groups.iter_mut();
        groups.try_for_each(|group| group.sums.leaf.ensure(count as usize))
    }

    /// The same for inner nodes.
    fn ensure_inners(&mut self, count: u32) -> Result<(), OutOfMemory> {
        self.inners.ensure(count as usize)?;
        self.groups.iter_mut().try_for_each(|group| {
            group.sums.inner.ensure(count as usize)?;
            group.sums.rows.ensure(count as usize)
        })
    }

    /// Whether a block can be put anywhere without more nodes than there is room for.
    #[cfg(feature = "std")]
    pub(crate) fn has_spare(&self) -> bool {
        self.leaf_ids.spare() > 0 && self.inner_ids.spare() > self.depth
    }

    #[inline(always)]
    pub(crate) fn leaf(&self, id: u32) -> &Leaf<W> {
        self.leaves.get(id)
    }

    /// Block `at` of a leaf.
    #[inline(always)]
    pub(crate) fn block(&self, leaf: u32, at: usize) -> Range<u64> {
        let leaf = self.leaf(leaf);
        self.scale.address(leaf.hi[at])..self.scale.address(leaf.lo[at + 1])
    }

    /// The addresses of a gap.
    #[inline(always)]
    fn gap_of(&self, words: Range<W>) -> Range<u64> {
        self.scale.address(words.start)..self.scale.gap_end(words.end)
    }

    /// The gap below block `at` of a leaf.
    #[inline(always)]
    pub(crate) fn gap(&self, leaf: u32, at: usize) -> Range<u64> {
        let leaf = self.leaf(leaf);
        self.gap_of(leaf.lo[at]..leaf.hi[at])
    }

    /// Up to where blocks may lie.
    #[inline(always)]
    pub(crate) fn reach(&self) -> u64 {
        self.scale.reach()
    }

    /// The leaf with the lowest addresses.
    pub(crate) fn first_leaf(&self) -> u32 {
        let mut node = self.root;
        for _ in 0..self.depth {
            node = self.inners.get(node).children[0];
        }
        node
    }

    /// The leaf with the highest addresses.
    fn last_leaf(&self) -> u32 {
        let mut node = self.root;
        for _ in 0..self.depth {
            let inner = self.inners.get(node);
            node = inner.children[inner.len as usize - 1];
        }
        node
    }

    /// The gap that ends where the arena does.
    pub(crate) fn top_gap(&self) -> Range<u64> {
        let last = self.last_leaf();
        self.gap(last, self.leaf(last).len as usize - 1)
    }

    /// The largest gap.
    pub(crate) fn largest_gap(&self) -> u64 {
        if self.depth > 0 {
            let largest = self.groups.first.sums.inner.get(self.root).0[0];
            let top = self.top_gap();
            return self.scale.units(largest).max(top.end - top.start);
        }
        let len = self.leaf(self.root).len as usize;
        let gaps = (0..len).map(|at| self.gap(self.root, at));
        gaps.map(|gap| gap.end - gap.start).max().unwrap_or(0)
    }

    /// Levels, the leaves included.
    pub(crate) fn levels(&self) -> usize {
        self.depth + 1
    }

    /// Nodes in use: leaves and inner nodes.
    pub(crate) fn nodes(&self) -> (usize, usize) {
        (self.leaf_ids.used(), self.inner_ids.used())
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.groups.bytes() + self.leaves.bytes() + self.inners.bytes()
    }
}

/// A limit that gives `wanted` more numbers. Limits grow by half, small ones by more, so that copying what
/// there is costs O(1) for each number.
fn more(ids: &Ids, wanted: usize) -> Result<u32, OutOfMemory> {
    let limit = ids.limit() as usize;
    let larger = match limit {
        0 => 0,
        1..FEW => FEW,
        FEW.. => limit + limit / 2,
    };
    let count = (limit + wanted - ids.spare()).max(larger);
    u32::try_from(count)
        .ok()
        .filter(|count| *count < NONE)
        .ok_or(OutOfMemory)
}

#[cfg(test)]
mod tests;
