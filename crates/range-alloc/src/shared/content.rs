//! How many blocks there are in each span of a slot. Where blocks stand in a tree that are free, gaps do not tell which spans have
//! nothing in them.

use core::ops::Range;

use super::apart::Apart;
use crate::error::OutOfMemory;

/// Blocks that touch a span, by the span's number.
pub(super) struct Content {
    /// From the arena's first span up to the highest that the slot has had.
    blocks: Apart<u32>,
    first: u64,
    span_bits: u32,
}

impl Content {
    pub(super) fn new(arena: &Range<u64>, span_bits: u32) -> Result<Self, OutOfMemory> {
        Ok(Content {
            blocks: Apart::new(0)?,
            first: arena.start >> span_bits,
            span_bits,
        })
    }

    /// Makes room for a span, in which there is nothing.
    pub(super) fn ensure(&mut self, span: u64) -> Result<(), OutOfMemory> {
        self.blocks.ensure((span - self.first) as usize + 1)
    }

    /// The spans that a block touches.
    #[inline]
    fn touched(&self, block: &Range<u64>) -> Range<usize> {
        let of = |address: u64| ((address >> self.span_bits) - self.first) as usize;
        of(block.start)..of(block.end - 1) + 1
    }

    /// A block is there now; answers with how many spans had nothing in them.
    #[inline]
    pub(super) fn add(&mut self, block: &Range<u64>) -> usize {
        let mut bare = 0;
        let touched = self.touched(block);
        for blocks in &mut self.blocks[touched] {
            bare += usize::from(*blocks == 0);
            *blocks += 1;
        }
        bare
    }

    /// A block is gone; answers with how many spans have nothing in them by that.
    #[inline]
    pub(super) fn remove(&mut self, block: &Range<u64>) -> usize {
        let mut bare = 0;
        let touched = self.touched(block);
        for blocks in &mut self.blocks[touched] {
            *blocks -= 1;
            bare += usize::from(*blocks == 0);
        }
        bare
    }

    /// Of the spans that a block touched, which has been taken out or cut: those with nothing in them.
    pub(super) fn bare(&self, block: &Range<u64>) -> Range<u64> {
        let touched = self.touched(block);
        let is_bare = |span: &usize| self.blocks[*span] == 0;
        let first = touched.clone().find(is_bare).unwrap_or(touched.end);
        let end = touched.rev().find(is_bare).map_or(first, |last| last + 1);
        first as u64 + self.first..end as u64 + self.first
    }

    /// Whether there is nothing in a span.
    pub(super) fn is_bare(&self, span: u64) -> bool {
        self.blocks[(span - self.first) as usize] == 0
    }

    /// Another has a span, and what is in it.
    pub(super) fn forget(&mut self, span: u64) {
        self.blocks[(span - self.first) as usize] = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes()
    }
}
