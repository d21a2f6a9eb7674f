//! A B+-tree of blocks in address order. The gaps between blocks are not stored: a leaf holds the
//! ends of its blocks, and each inner node the largest usable gap below each child, once for each
//! class of alignment in use. So a search never enters a node in vain, and one node holds what a
//! binary tree has in five levels.
//!
//! `find` searches, `change` inserts and removes in a leaf and corrects what is above, `shape`
//! splits and merges, `classes` adds alignments.

mod change;
mod classes;
pub(crate) mod edit;
mod find;
mod lazy;
pub(crate) mod node;
mod shape;

use alloc::vec::Vec;

use crate::error::OutOfMemory;
use crate::isa::Grid;
use crate::pool::{Ids, Pool};
use node::{DEPTH, Group, INNERS_A_CHUNK, Inner, LEAVES_A_CHUNK, Leaf, NONE};

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

pub(crate) struct Tree {
    leaves: Pool<Leaf, LEAVES_A_CHUNK>,
    inners: Pool<Inner, INNERS_A_CHUNK>,
    leaf_ids: Ids,
    inner_ids: Ids,
    /// The first has, in lane 0, the alignment that every start has.
    groups: Vec<Group>,
    /// The class of each alignment without a phase.
    plain: [Option<Class>; 41],
    root: u32,
    /// Levels of inner nodes: at least one.
    depth: usize,
}

impl Tree {
    /// One gap. Starts are on `grid` at least.
    pub(crate) fn new(start: u64, end: u64, grid: Grid) -> Result<Self, OutOfMemory> {
        let mut groups = Vec::new();
        groups.try_reserve(node::GROUPS).map_err(|_| OutOfMemory)?;
        groups.push(Group::new(grid));
        let mut tree = Tree {
            leaves: Pool::new(),
            inners: Pool::new(),
            leaf_ids: Ids::new(),
            inner_ids: Ids::new(),
            groups,
            plain: [None; 41],
            root: 0,
            depth: 1,
        };
        tree.reserve(1, 1)?;
        let leaf = tree.leaf_ids.take();
        let first = tree.leaves.get_mut(leaf);
        (first.lo[0], first.hi[0], first.lo[1]) = (start, end, end);
        (first.len, first.lazy, first.next, first.prev) = (1, 0, NONE, NONE);
        first.clear_above();
        tree.root = tree.inner_ids.take();
        let root = tree.inners.get_mut(tree.root);
        (root.len, root.children[0], root.lazy) = (1, leaf, 0);
        tree.plain[grid.mask.count_ones() as usize] = Some(Class { group: 0, lane: 0 });
        tree.summarise();
        Ok(tree)
    }

    /// Makes sure that so many nodes can be taken.
    pub(crate) fn reserve(&mut self, leaves: usize, inners: usize) -> Result<(), OutOfMemory> {
        if self.leaf_ids.spare() < leaves {
            let count = more(&self.leaf_ids, leaves, LEAVES_A_CHUNK)?;
            self.leaves.ensure(count as usize)?;
            for group in &mut self.groups {
                group.leaf.ensure(count as usize)?;
            }
            self.leaf_ids.grow(count)?;
        }
        if self.inner_ids.spare() < inners {
            let count = more(&self.inner_ids, inners, INNERS_A_CHUNK)?;
            self.inners.ensure(count as usize)?;
            for group in &mut self.groups {
                group.inner.ensure(count as usize)?;
                group.rows.ensure(count as usize)?;
            }
            self.inner_ids.grow(count)?;
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn leaf(&self, id: u32) -> &Leaf {
        self.leaves.get(id)
    }

    /// The leaf with the lowest addresses.
    pub(crate) fn first_leaf(&self) -> u32 {
        let mut node = self.root;
        for _ in 0..self.depth {
            node = self.inners.get(node).children[0];
        }
        node
    }

    /// The largest gap.
    pub(crate) fn largest_gap(&self) -> u64 {
        self.groups[0].inner.get(self.root).0[0]
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
        let groups: usize = self.groups.iter().map(Group::bytes).sum();
        groups
            + self.groups.capacity() * size_of::<Group>()
            + self.leaves.bytes()
            + self.inners.bytes()
            + self.leaf_ids.bytes()
            + self.inner_ids.bytes()
    }
}

/// A limit that gives `wanted` more numbers, and whole chunks.
fn more(ids: &Ids, wanted: usize, chunk: usize) -> Result<u32, OutOfMemory> {
    let count = ids.limit() as usize + wanted - ids.spare();
    let count = count.next_multiple_of(chunk);
    u32::try_from(count)
        .ok()
        .filter(|count| *count < NONE)
        .ok_or(OutOfMemory)
}

#[cfg(test)]
mod tests;
