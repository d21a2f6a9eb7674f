//! Whole changes, each compiled for every instruction set and word: search, check, change.

use core::ops::Range;

use super::find::Sought;
use super::shape::MakeRoom;
use super::{Path, Tree};
use crate::error::{AllocError, FreeError, OutOfMemory};
use crate::isa::{Isa, Job, Look};
use crate::request::Wanted;
use crate::word::Word;

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
    pub wanted: &'a Wanted,
}

impl Job for Place<'_> {
    type Out = Result<Option<Filled>, OutOfMemory>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let wanted = self.wanted;
        let Some(sought) = tree.sought(wanted) else {
            return Ok(None);
        };
        if tree.depth > 0
            && sought.size > tree.below_top
            && let Some(filled) = tree.place_on_top::<I>(wanted, &sought)
        {
            return Ok(Some(filled));
        }
        let is_simple = sought.from == W::ZERO;
        if is_simple && tree.is_tiny() {
            return Ok(tree.place_in_tiny::<I>(wanted, &sought));
        }
        let path = &mut Path::new();
        let found = if is_simple && tree.depth == 0 {
            path.leaf = tree.root;
            tree.fit_in::<I>(tree.root, &sought)
        } else if let Some(class) = tree.class(wanted.grid).filter(|_| is_simple) {
            tree.asked |= class.bit();
            tree.find::<I>(class, &sought, path)
        } else {
            return I::apart(tree, PlaceAbove { wanted, sought });
        };
        match found {
            Some(found) if tree.has_room(path.leaf) => {
                Ok(tree.fill::<I>(wanted, &sought, path, found))
            }
            None if tree.depth == 0 => Ok(None),
            _ => I::apart(tree, PlaceAbove { wanted, sought }),
        }
    }
}

/// The same, whatever there is to take care of.
struct PlaceAbove<'a, S> {
    wanted: &'a Wanted,
    sought: Sought<S>,
}

impl<S: Word> Job for PlaceAbove<'_, S> {
    type Out = Result<Option<Filled>, OutOfMemory>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let (wanted, sought) = (self.wanted, self.sought.cast::<W>());
        let path = &mut Path::new();
        loop {
            let found = if tree.depth == 0 {
                path.leaf = tree.root;
                tree.fit_above::<I>(tree.root, &sought)
            } else {
                let class = match tree.class(wanted.grid) {
                    Some(class) => class,
                    None => tree.add_class(wanted.grid, sought.grid)?,
                };
                tree.asked |= class.bit();
                tree.find_above::<I>(class, &sought, path)
            };
            let Some(found) = found else {
                return Ok(None);
            };
            if tree.has_room(path.leaf) {
                return Ok(tree.fill::<I>(wanted, &sought, path, found));
            }
            if !tree.is_within(wanted, found.1) {
                return Ok(None);
            }
            let address = found.1.get();
            I::aside(tree, MakeRoom { address })?;
        }
    }
}

/// Puts a block where the caller says, within the arena.
pub(crate) struct PlaceAt {
    pub block: Range<u64>,
}

impl Job for PlaceAt {
    type Out = Result<Filled, AllocError>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let Range { start, end } = self.block;
        let first = tree.scale.word(start);
        let path = &mut Path::new();
        loop {
            tree.locate::<I>(first, path);
            let below = tree.block_at::<I>(path.leaf, first);
            let at = below.map_or(0, |below| below + 1);
            if let Some(by) = below
                .map(|below| tree.block(path.leaf, below))
                .filter(|by| by.end > start)
            {
                return Err(AllocError::Occupied { by });
            }
            let gap = tree.gap(path.leaf, at);
            if end > gap.end {
                let by = tree.block(path.leaf, at);
                return Err(AllocError::Occupied { by });
            }
            if tree.has_room(path.leaf) {
                tree.insert::<I>(path, at, first..tree.scale.word(end));
                let block = start..end;
                return Ok(Filled { gap, block });
            }
            I::aside(
                tree,
                MakeRoom {
                    address: first.get(),
                },
            )?;
        }
    }
}

/// Finds the block that holds an address, and whether it is freed lazily.
pub(crate) struct Lookup {
    pub address: u64,
}

impl Look for Lookup {
    type Out = Option<(Range<u64>, bool)>;

    #[inline(always)]
    fn look<W: Word, I: Isa<W>>(self, tree: &Tree<W>) -> Self::Out {
        let path = &mut Path::new();
        let word = tree.scale.word(self.address);
        tree.locate::<I>(word, path);
        let at = tree.block_at::<I>(path.leaf, word)?;
        let block = tree.block(path.leaf, at);
        let is_lazy = tree.leaf(path.leaf).lazy >> at & 1 == 1;
        (self.address < block.end).then_some((block, is_lazy))
    }
}

impl<W: Word> Tree<W> {
    /// What is wanted in words, if words can say it.
    #[inline(always)]
    pub(super) fn sought(&self, wanted: &Wanted) -> Option<Sought<W>> {
        let from = match wanted.from {
            0 => W::ZERO,
            from if from > self.reach() => return None,
            from => self.scale.word_above(from),
        };
        Some(Sought {
            size: self.scale.size(wanted.size)?,
            grid: self.scale.grid(wanted.grid)?,
            from,
        })
    }

    /// Whether what is wanted may begin at the lowest start that there is. Whatever lies higher
    /// begins higher.
    #[inline(always)]
    fn is_within(&self, wanted: &Wanted, start: W) -> bool {
        let start = self.scale.address(start);
        start < wanted.to && wanted.to - start >= wanted.size
    }

    /// Puts a block where it was found to fit, unless that is above the zone.
    #[inline(always)]
    fn fill<I: Isa<W>>(
        &mut self,
        wanted: &Wanted,
        sought: &Sought<W>,
        path: &Path,
        (at, first): (usize, W),
    ) -> Option<Filled> {
        if !self.is_within(wanted, first) {
            return None;
        }
        let gap = self.gap(path.leaf, at);
        let start = self.scale.address(first);
        let block = start..start + wanted.size;
        self.note_found(sought, self.leaf(path.leaf).hi[at]);
        self.insert::<I>(path, at, first..self.scale.word(block.end));
        Some(Filled { gap, block })
    }

    /// The gap around block `at` once it is gone.
    #[inline(always)]
    fn gap_without(&self, path: &Path, at: usize) -> Range<u64> {
        let leaf = self.leaf(path.leaf);
        let end = if at + 1 < leaf.len as usize {
            leaf.hi[at + 1]
        } else {
            self.leaf(leaf.next).hi[0]
        };
        self.gap_of(leaf.lo[at]..end)
    }

    /// The block that begins at `start` and is not freed lazily.
    #[inline(always)]
    fn owned<I: Isa<W>>(&self, start: u64, path: &mut Path) -> Result<usize, FreeError> {
        let at = self.owner::<I>(start, path)?;
        let of = self.block(path.leaf, at);
        if of.start == start {
            Ok(at)
        } else {
            Err(FreeError::Inside { start, of })
        }
    }

    /// The block that is to be freed, if it is as the caller says.
    #[inline(always)]
    fn sized<I: Isa<W>>(
        &self,
        free: &Free,
        path: &mut Path,
    ) -> Result<(usize, Range<u64>), FreeError> {
        let at = self.owned::<I>(free.start, path)?;
        let block = self.block(path.leaf, at);
        match free.size.filter(|size| *size != block.end - block.start) {
            None => Ok((at, block)),
            Some(size) => Err(FreeError::Size { size, of: block }),
        }
    }

    /// Takes out block `at` of the path's leaf. The path is of no use afterwards.
    #[inline(always)]
    fn take_out<I: Isa<W>>(&mut self, path: &Path, at: usize, block: Range<u64>) -> Emptied {
        let gap = self.gap_without(path, at);
        self.remove::<I>(path, at);
        self.settle_shape::<I>(path);
        Emptied { block, gap }
    }

    /// The block that holds `start` and is not freed lazily.
    #[inline(always)]
    fn owner<I: Isa<W>>(&self, start: u64, path: &mut Path) -> Result<usize, FreeError> {
        let word = self.scale.word(start);
        self.locate::<I>(word, path);
        let at = self.block_at::<I>(path.leaf, word);
        let at = at.filter(|at| start < self.block(path.leaf, *at).end);
        let at = at.ok_or(FreeError::NotAllocated { start })?;
        if self.leaf(path.leaf).lazy >> at & 1 == 1 {
            return Err(FreeError::FreedLazily { start });
        }
        Ok(at)
    }
}

/// Takes out the block that begins at `start`.
pub(crate) struct Free {
    pub start: u64,
    /// Its size, if the caller says so.
    pub size: Option<u64>,
}

impl Job for Free {
    type Out = Result<Emptied, FreeError>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        if tree.is_tiny()
            && let Some(emptied) = tree.free_in_tiny::<I>(&self)
        {
            return Ok(emptied);
        }
        let path = &mut Path::new();
        let (at, block) = tree.sized::<I>(&self, path)?;
        Ok(tree.take_out::<I>(path, at, block))
    }
}

/// The same, but leaves small blocks where they are.
#[cfg(feature = "std")]
pub(crate) struct FreeLarge {
    pub free: Free,
    /// Units of a block that is small, or more than it has.
    pub small: u64,
}

/// What became of a block that was to be freed.
#[cfg(feature = "std")]
pub(crate) enum Freed {
    /// It is allocated, and small.
    Left(Range<u64>),
    /// It is gone.
    Emptied(Emptied),
}

#[cfg(feature = "std")]
impl Job for FreeLarge {
    type Out = Result<Freed, FreeError>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let path = &mut Path::new();
        let (at, block) = tree.sized::<I>(&self.free, path)?;
        if block.end - block.start <= self.small {
            return Ok(Freed::Left(block));
        }
        Ok(Freed::Emptied(tree.take_out::<I>(path, at, block)))
    }
}

/// Marks the block that begins at `start` as freed lazily; answers with the block.
pub(crate) struct FreeLazily {
    pub start: u64,
}

impl Job for FreeLazily {
    type Out = Result<Range<u64>, FreeError>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let path = &mut Path::new();
        let at = tree.owned::<I>(self.start, path)?;
        tree.mark_lazy(path, at);
        Ok(tree.block(path.leaf, at))
    }
}

/// Takes out the block at `start`, which is freed lazily.
pub(crate) struct Reclaim {
    pub start: u64,
}

impl Job for Reclaim {
    type Out = Emptied;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let path = &mut Path::new();
        let word = tree.scale.word(self.start);
        tree.locate::<I>(word, path);
        let at = tree.block_at::<I>(path.leaf, word);
        let at = at.expect("it was freed lazily");
        assert!(tree.leaf(path.leaf).lazy >> at & 1 == 1, "not twice");
        let block = tree.block(path.leaf, at);
        let gap = tree.gap_without(path, at);
        tree.remove::<I>(path, at);
        tree.forget_lazy(path);
        tree.settle_shape::<I>(path);
        Emptied { block, gap }
    }
}

/// Cuts a part that is not the whole out of a block.
pub(crate) struct Cut {
    pub part: Range<u64>,
}

impl Job for Cut {
    /// The block before, and the gap that there is now.
    type Out = Result<Emptied, FreeError>;

    #[inline(always)]
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out {
        let Range { start, end } = self.part;
        let path = &mut Path::new();
        let mut at = tree.owner::<I>(start, path)?;
        let block = tree.block(path.leaf, at);
        if end > block.end {
            let size = end - start;
            return Err(FreeError::Part { start, size });
        }
        if start == block.start && end == block.end {
            return Free { start, size: None }.run::<W, I>(tree);
        }
        let (first, last) = (tree.scale.word(start), tree.scale.word(end));
        if start == block.start {
            let gap = tree.gap(path.leaf, at).start..end;
            tree.raise_start::<I>(path, at, last);
            return Ok(Emptied { block, gap });
        }
        if end == block.end {
            let gap = start..tree.gap_without(path, at).end;
            tree.lower_end::<I>(path, at, first);
            return Ok(Emptied { block, gap });
        }
        if !tree.has_room(path.leaf) {
            I::aside(
                tree,
                MakeRoom {
                    address: first.get(),
                },
            )?;
            at = tree.owner::<I>(start, path)?;
        }
        // Both ends stay in this leaf, which has the room.
        tree.raise_start::<I>(path, at, last);
        let below = tree.scale.word(block.start);
        tree.insert::<I>(path, at, below..first);
        Ok(Emptied {
            block,
            gap: start..end,
        })
    }
}
