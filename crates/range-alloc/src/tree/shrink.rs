//! A tree in no more memory than it needs: the nodes in use, numbered anew, and the alignments that requests still have.

use super::node::{Inner, Leaf, NONE};
use super::{Class, Tree};
use crate::error::OutOfMemory;
use crate::isa::Grid;
use crate::pool::Ids;
use crate::word::Word;

/// How many nodes have been copied.
#[derive(Default)]
struct Copied {
    leaves: u32,
    inners: u32,
}

impl<W: Word> Tree<W> {
    /// The same blocks in new nodes, the leaves in the order of addresses. Alignments that were neither prepared nor needed by a search
    /// since the last time are left out. O(n) for each of the others.
    pub(super) fn shrunk(&self) -> Result<Tree<W>, OutOfMemory> {
        let mut small = self.bare::<W>(self.asked | self.prepared)?;
        small.asked = 0;
        let (leaves, inners) = self.nodes();
        small.ensure_leaves(leaves as u32)?;
        small.leaf_ids = Ids::all_taken(leaves as u32);
        if inners > 0 {
            small.ensure_inners(inners as u32)?;
            small.inner_ids = Ids::all_taken(inners as u32);
        }
        small.root = self.copy_below(&mut small, self.root, 0, &mut Copied::default());
        (small.depth, small.below_top) = (self.depth, self.below_top);
        for group in 0..small.groups.len() {
            small.summarise(group);
        }
        Ok(small)
    }

    /// Copies a node and all below it; answers with its new number.
    fn copy_below(&self, to: &mut Tree<W>, node: u32, level: usize, copied: &mut Copied) -> u32 {
        if level == self.depth {
            let id = copied.leaves;
            copied.leaves += 1;
            let prev = id.checked_sub(1).unwrap_or(NONE);
            let next = NONE;
            *to.leaves.get_mut(id) = Leaf {
                prev,
                next,
                ..*self.leaves.get(node)
            };
            if prev != NONE {
                to.leaves.get_mut(prev).next = id;
            }
            return id;
        }
        let id = copied.inners;
        copied.inners += 1;
        let mut inner: Inner<W> = *self.inners.get(node);
        for pos in 0..inner.len as usize {
            inner.children[pos] = self.copy_below(to, inner.children[pos], level + 1, copied);
        }
        *to.inners.get_mut(id) = inner;
        id
    }

    /// A tree over the same addresses with nothing in it but the classes whose bit is set: nothing is to be summed up yet.
    pub(super) fn bare<V: Word>(&self, kept: u64) -> Result<Tree<V>, OutOfMemory> {
        let (arena, shift) = self.scale.arena();
        let granule = Grid {
            mask: (1 << shift) - 1,
            phase: 0,
        };
        let mut bare = Tree::<V>::new(&arena, shift, granule)?;
        self.give_classes(&mut bare, kept)?;
        Ok(bare)
    }

    /// Adds classes to a tree with one leaf, those whose bit is set, and tells it which of them were asked for and prepared.
    ///
    /// Those with a phase and more bits than words have are left out: the next request for one makes it a class again.
    fn give_classes<V: Word>(&self, to: &mut Tree<V>, kept: u64) -> Result<(), OutOfMemory> {
        for (grid, class) in self.grids().filter(|(_, class)| kept & class.bit() != 0) {
            let Some(words) = to.scale.grid(grid) else {
                continue;
            };
            let new = match to.class(grid) {
                Some(new) => new,
                None => to.add_class(grid, words)?,
            };
            for (from, to) in [
                (self.asked, &mut to.asked),
                (self.prepared, &mut to.prepared),
            ] {
                if from & class.bit() != 0 {
                    *to |= new.bit();
                }
            }
        }
        Ok(())
    }

    /// The alignments and phases that there are classes for, but for some that words do not tell apart.
    fn grids(&self) -> impl Iterator<Item = (Grid, Class)> + '_ {
        let plain = self.plain.iter().zip(0..).filter_map(|(class, bits)| {
            let mask = (1 << bits) - 1;
            Some((Grid { mask, phase: 0 }, (*class)?))
        });
        let groups = self.groups.iter().zip(0..);
        let all = groups.flat_map(|(group, number)| {
            let lanes = group.grids().zip(0..);
            lanes.map(move |(grid, lane)| {
                let group = number;
                (grid, Class { group, lane })
            })
        });
        let phased = all.filter_map(|(grid, class)| Some((self.scale.grid_of(grid)?, class)));
        plain.chain(phased.filter(|(grid, _)| grid.phase != 0))
    }
}
