//! Arenas with a handful of blocks, which all kinds of programs make by the thousand.
//!
//! A loop with a branch on each gap is faster there than one without: the processor guesses how it
//! ends, and goes on without waiting for what the last change has stored.

use super::Tree;
use super::edit::{Emptied, Filled, Free};
use super::find::Sought;
use super::node::{close_bit, open_bit};
use crate::isa::Isa;
use crate::request::Wanted;
use crate::word::Word;

/// Words of a tiny leaf that are looked at.
const FEW: usize = 8;

impl<W: Word> Tree<W> {
    /// Whether one more block leaves all words that mean something within the first few.
    #[inline(always)]
    pub(super) fn is_tiny(&self) -> bool {
        self.depth == 0 && (self.leaves.get(self.root).len as usize) < FEW - 1
    }

    /// Puts a block at the lowest start that fits, if it is within the zone.
    #[inline(always)]
    pub(super) fn place_in_tiny<I: Isa<W>>(
        &mut self,
        wanted: &Wanted,
        sought: &Sought<W>,
    ) -> Option<Filled> {
        let scale = self.scale;
        let leaf = self.leaves.get(self.root);
        let (los, his) = (&leaf.lo[..FEW], &leaf.hi[..FEW]);
        let at = (0..leaf.len as usize % FEW)
            .find(|at| sought.grid.usable(los[*at], his[*at]) >= sought.size)?;
        let (lo, hi) = (los[at], his[at]);
        let first = lo.wrapping_add(sought.grid.pad(lo));
        let start = scale.address(first);
        if start >= wanted.to || wanted.to - start < wanted.size {
            return None;
        }
        self.note_found(sought, hi);
        self.note_gap(&(lo..first));
        let leaf = self.leaves.get_mut(self.root);
        I::open(few(&mut leaf.hi), at, first);
        I::open(few(&mut leaf.lo), at + 1, first.wrapping_add(sought.size));
        leaf.lazy = open_bit(u64::from(leaf.lazy), at) as u32;
        leaf.len += 1;
        Some(Filled {
            gap: self.gap_of(lo..hi),
            block: start..start + wanted.size,
        })
    }

    /// Takes out a block, unless there is an error to be told.
    #[inline(always)]
    pub(super) fn free_in_tiny<I: Isa<W>>(&mut self, free: &Free) -> Option<Emptied> {
        let scale = self.scale;
        let leaf = self.leaves.get_mut(self.root);
        let word = scale.word::<W>(free.start);
        let (los, his) = (&leaf.lo[..FEW], &leaf.hi[..FEW]);
        // Not the last one, which is the end of the arena.
        let at = (0..leaf.len as usize % FEW - 1).find(|at| his[*at] == word)?;
        let block = scale.address(word)..scale.address(los[at + 1]);
        let is_other = free
            .size
            .is_some_and(|size| size != block.end - block.start);
        if is_other || block.start != free.start || leaf.lazy >> at & 1 == 1 {
            return None;
        }
        let (lo, hi) = (los[at], his[at + 1]);
        I::close(few(&mut leaf.hi), at);
        I::close(few(&mut leaf.lo), at + 1);
        leaf.lazy = close_bit(u64::from(leaf.lazy), at) as u32;
        leaf.len -= 1;
        self.note_gap(&(lo..hi));
        let gap = self.gap_of(lo..hi);
        Some(Emptied { block, gap })
    }
}

#[inline(always)]
fn few<W, const N: usize>(words: &mut [W; N]) -> &mut [W; FEW] {
    (&mut words[..FEW]).try_into().expect("a leaf has more")
}
