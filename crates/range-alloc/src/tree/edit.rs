//! Whole changes, each compiled for every instruction set: search, check, change.

use core::ops::Range;

use super::{Class, Path, Tree};
use crate::error::{AllocError, FreeError, OutOfMemory};
use crate::isa::{Isa, Job};
use crate::request::Wanted;

/// A gap before a change, and the block that lies in it now.
pub(crate) struct Filled {
    pub gap: Range<u64>,
    pub block: Range<u64>,
}

/// A block that was taken out, and the gap that it leaves.
pub(crate) struct Emptied {
    pub block: Range<u64>,
    pub gap: Range<u64>,
}

/// Puts a block at the lowest start that fits.
pub(crate) struct Place<'a> {
    pub tree: &'a mut Tree,
    pub class: Class,
    pub wanted: &'a Wanted,
}

impl Job for Place<'_> {
    type Out = Result<Option<Filled>, OutOfMemory>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let Wanted {
            size,
            grid,
            from,
            to,
        } = *self.wanted;
        let path = &mut Path::new();
        loop {
            let found = self.tree.find::<I>(self.class, grid, size, from, path);
            let Some((at, start)) = found else {
                return Ok(None);
            };
            // Whatever lies higher begins higher.
            if start >= to || to - start < size {
                return Ok(None);
            }
            if self.tree.has_room(path.leaf) {
                let gap = self.tree.gap(path, at);
                let block = start..start + size;
                self.tree.insert::<I>(path, at, block.start, block.end);
                return Ok(Some(Filled { gap, block }));
            }
            self.tree.make_room(start)?;
        }
    }
}

/// Puts a block where the caller says, within the arena.
pub(crate) struct PlaceAt<'a> {
    pub tree: &'a mut Tree,
    pub block: Range<u64>,
}

impl Job for PlaceAt<'_> {
    type Out = Result<Filled, AllocError>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let Range { start, end } = self.block;
        let path = &mut Path::new();
        loop {
            self.tree.locate::<I>(start, path);
            let below = self.tree.block_at::<I>(path.leaf, start);
            let at = below.map_or(0, |below| below + 1);
            if let Some(by) = below
                .map(|below| self.tree.block(path, below))
                .filter(|by| by.end > start)
            {
                return Err(AllocError::Occupied { by });
            }
            let gap = self.tree.gap(path, at);
            if end > gap.end {
                let by = self.tree.block(path, at);
                return Err(AllocError::Occupied { by });
            }
            if self.tree.has_room(path.leaf) {
                self.tree.insert::<I>(path, at, start, end);
                let block = start..end;
                return Ok(Filled { gap, block });
            }
            self.tree.make_room(start)?;
        }
    }
}

/// Finds the block that holds an address, and whether it is freed lazily.
pub(crate) struct Lookup<'a> {
    pub tree: &'a Tree,
    pub address: u64,
}

impl Job for Lookup<'_> {
    type Out = Option<(Range<u64>, bool)>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let path = &mut Path::new();
        self.tree.locate::<I>(self.address, path);
        let at = self.tree.block_at::<I>(path.leaf, self.address)?;
        let block = self.tree.block(path, at);
        let is_lazy = self.tree.leaf(path.leaf).lazy >> at & 1 == 1;
        (self.address < block.end).then_some((block, is_lazy))
    }
}

impl Tree {
    #[inline(always)]
    pub(crate) fn block(&self, path: &Path, at: usize) -> Range<u64> {
        let leaf = self.leaf(path.leaf);
        leaf.hi[at]..leaf.lo[at + 1]
    }

    #[inline(always)]
    fn gap(&self, path: &Path, at: usize) -> Range<u64> {
        let leaf = self.leaf(path.leaf);
        leaf.lo[at]..leaf.hi[at]
    }

    /// The gap around block `at` once it is gone.
    #[inline(always)]
    pub(crate) fn gap_without(&self, path: &Path, at: usize) -> Range<u64> {
        let leaf = self.leaf(path.leaf);
        let end = if at + 1 < leaf.len as usize {
            leaf.hi[at + 1]
        } else {
            self.leaf(leaf.next).hi[0]
        };
        leaf.lo[at]..end
    }

    /// The block that begins at `start` and is not freed lazily.
    #[inline(always)]
    fn owned<I: Isa>(&self, start: u64, path: &mut Path) -> Result<usize, FreeError> {
        let at = self.owner::<I>(start, path)?;
        let of = self.block(path, at);
        if of.start == start {
            Ok(at)
        } else {
            Err(FreeError::Inside { start, of })
        }
    }

    /// The block that holds `start` and is not freed lazily.
    #[inline(always)]
    fn owner<I: Isa>(&self, start: u64, path: &mut Path) -> Result<usize, FreeError> {
        self.locate::<I>(start, path);
        let at = self.block_at::<I>(path.leaf, start);
        let at = at.filter(|at| start < self.block(path, *at).end);
        let at = at.ok_or(FreeError::NotAllocated { start })?;
        if self.leaf(path.leaf).lazy >> at & 1 == 1 {
            return Err(FreeError::FreedLazily { start });
        }
        Ok(at)
    }
}

/// Takes out the block that begins at `start`.
pub(crate) struct Free<'a> {
    pub tree: &'a mut Tree,
    pub start: u64,
    /// Its size, if the caller says so.
    pub size: Option<u64>,
}

impl Job for Free<'_> {
    type Out = Result<Emptied, FreeError>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let path = &mut Path::new();
        let at = self.tree.owned::<I>(self.start, path)?;
        let block = self.tree.block(path, at);
        if let Some(size) = self.size.filter(|size| *size != block.end - block.start) {
            return Err(FreeError::Size { size, of: block });
        }
        let gap = self.tree.gap_without(path, at);
        self.tree.remove::<I>(path, at);
        self.tree.settle_shape(path);
        Ok(Emptied { block, gap })
    }
}

/// Marks the block that begins at `start` as freed lazily; answers with the block.
pub(crate) struct FreeLazily<'a> {
    pub tree: &'a mut Tree,
    pub start: u64,
}

impl Job for FreeLazily<'_> {
    type Out = Result<Range<u64>, FreeError>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let path = &mut Path::new();
        let at = self.tree.owned::<I>(self.start, path)?;
        self.tree.mark_lazy(path, at);
        Ok(self.tree.block(path, at))
    }
}

/// Takes out the block at `start`, which is freed lazily.
pub(crate) struct Reclaim<'a> {
    pub tree: &'a mut Tree,
    pub start: u64,
}

impl Job for Reclaim<'_> {
    type Out = Emptied;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let path = &mut Path::new();
        self.tree.locate::<I>(self.start, path);
        let at = self.tree.block_at::<I>(path.leaf, self.start);
        let at = at.expect("it was freed lazily");
        assert!(self.tree.leaf(path.leaf).lazy >> at & 1 == 1, "not twice");
        let block = self.tree.block(path, at);
        let gap = self.tree.gap_without(path, at);
        self.tree.remove::<I>(path, at);
        self.tree.forget_lazy(path);
        self.tree.settle_shape(path);
        Emptied { block, gap }
    }
}

/// Cuts a part that is not the whole out of a block.
pub(crate) struct Cut<'a> {
    pub tree: &'a mut Tree,
    pub part: Range<u64>,
}

impl Job for Cut<'_> {
    /// The block before, and the gap that there is now.
    type Out = Result<Emptied, FreeError>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Self::Out {
        let Range { start, end } = self.part;
        let path = &mut Path::new();
        let mut at = self.tree.owner::<I>(start, path)?;
        let block = self.tree.block(path, at);
        if end > block.end {
            let size = end - start;
            return Err(FreeError::Part { start, size });
        }
        if start == block.start && end == block.end {
            let (tree, size) = (self.tree, None);
            return Free { tree, start, size }.run::<I>();
        }
        if start == block.start {
            let gap = self.tree.gap(path, at).start..end;
            self.tree.raise_start::<I>(path, at, end);
            return Ok(Emptied { block, gap });
        }
        if end == block.end {
            let gap = start..self.tree.gap_without(path, at).end;
            self.tree.lower_end::<I>(path, at, start);
            return Ok(Emptied { block, gap });
        }
        if !self.tree.has_room(path.leaf) {
            self.tree.make_room(start)?;
            at = self.tree.owner::<I>(start, path)?;
        }
        // Both ends stay in this leaf, which has the room.
        self.tree.raise_start::<I>(path, at, end);
        self.tree.insert::<I>(path, at, block.start, start);
        Ok(Emptied {
            block,
            gap: start..end,
        })
    }
}
