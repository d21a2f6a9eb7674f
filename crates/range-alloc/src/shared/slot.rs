//! What a CPU has at hand: an allocator of its own over the spans that it holds.

use core::ops::Range;

use crate::arena::RangeAlloc;
use crate::error::{AllocError, ArenaError, FreeError};
use crate::request::Request;
use crate::tree::edit::Emptied;

/// Busy and free ranges of some spans. Addresses of others are allocated to nobody.
pub(super) struct Slot {
    arena: RangeAlloc,
    /// Spans that it holds, in no order.
    spans: Vec<u64>,
    /// Spans among them with nothing allocated.
    spare: usize,
    span_bits: u32,
}

impl Slot {
    pub(super) fn new(range: Range<u64>, granule: u64, span_bits: u32) -> Result<Self, ArenaError> {
        let mut arena = RangeAlloc::with_granule(range.clone(), granule)?;
        arena
            .alloc_at(range.start, range.end - range.start)
            .map_err(ArenaError::Request)?;
        Ok(Slot {
            arena,
            spans: Vec::new(),
            spare: 0,
            span_bits,
        })
    }

    fn span(&self, number: u64) -> Range<u64> {
        span(number, self.span_bits)
    }

    /// Takes a span over, all of it free.
    pub(super) fn import(&mut self, number: u64) -> Result<(), AllocError> {
        self.spans
            .try_reserve(1)
            .map_err(|_| AllocError::OutOfMemory)?;
        // For this, and for giving it back.
        self.arena.reserve(2)?;
        let span = self.span(number);
        match self.arena.free_part(span.start, span.end - span.start) {
            Ok(()) => {}
            Err(FreeError::OutOfMemory) => return Err(AllocError::OutOfMemory),
            Err(error) => unreachable!("the span was nobody's: {error}"),
        }
        self.spans.push(number);
        self.spare += 1;
        Ok(())
    }

    pub(super) fn alloc(&mut self, request: &Request) -> Result<u64, AllocError> {
        let filled = self.arena.fill(request)?;
        if (filled.gap.end - filled.gap.start) >> self.span_bits != 0 {
            let used =
                filled.block.start >> self.span_bits..=(filled.block.end - 1) >> self.span_bits;
            self.spare -= used
                .filter(|number| is_in(&self.span(*number), &filled.gap))
                .count();
        }
        Ok(filled.block.start)
    }

    /// Frees; answers with the size, and with a span that it has no use for.
    pub(super) fn free(
        &mut self,
        start: u64,
        size: Option<u64>,
    ) -> Result<(u64, Option<u64>), FreeError> {
        let emptied = self.arena.empty(start, size)?;
        Ok((
            emptied.block.end - emptied.block.start,
            self.spare_of(&emptied),
        ))
    }

    pub(super) fn free_lazy(&mut self, start: u64) -> Result<u64, FreeError> {
        self.arena.free_lazy(start)
    }

    pub(super) fn first_lazy_from(&self, from: u64) -> Option<Range<u64>> {
        self.arena.first_lazy_from(from)
    }

    /// Lets a lazily freed range be used again; answers with a span that it has no use for.
    pub(super) fn reclaim(&mut self, start: u64) -> Option<u64> {
        let emptied = self.arena.reclaim(start);
        self.spare_of(&emptied)
    }

    fn spare_of(&mut self, emptied: &Emptied) -> Option<u64> {
        let Emptied { block, gap } = emptied;
        if (gap.end - gap.start) >> self.span_bits == 0 {
            return None;
        }
        let touched = block.start >> self.span_bits..=(block.end - 1) >> self.span_bits;
        let mut last = None;
        let bits = self.span_bits;
        for number in touched.filter(|number| is_in(&span(*number, bits), gap)) {
            self.spare += 1;
            last = Some(number);
        }
        // One is kept for the next allocation.
        last.filter(|_| self.spare > 1)
    }

    /// Gives a span away in which nothing is allocated, unless that takes memory; tells whether it
    /// did.
    pub(super) fn export(&mut self, number: u64) -> bool {
        let span = self.span(number);
        if !self.arena.has_spare_at(span.start) {
            return false;
        }
        let taken = self.arena.alloc_at(span.start, span.end - span.start);
        taken.expect("the span is free, and there are nodes");
        let at = self.spans.iter().position(|held| *held == number);
        self.spans.swap_remove(at.expect("it holds the span"));
        self.spare -= 1;
        true
    }

    pub(super) fn spans(&self) -> &[u64] {
        &self.spans
    }

    /// Ranges allocated or freed lazily in a span, those that begin in it.
    pub(super) fn blocks(&self, number: u64) -> impl Iterator<Item = crate::Segment> + '_ {
        let span = self.span(number);
        let segments = self.arena.iter_from(span.start);
        let from = span.clone();
        segments
            .take_while(move |segment| segment.range.start < span.end)
            .filter(move |segment| {
                segment.range.start >= from.start && segment.state != crate::State::Free
            })
    }

    /// A slot like this one that holds nothing.
    pub(super) fn emptied(&self) -> Result<Self, ArenaError> {
        Slot::new(self.arena.range(), self.arena.granule(), self.span_bits)
    }

    pub(super) fn lookup(&self, address: u64) -> Option<crate::Allocation> {
        self.arena.lookup(address)
    }

    /// Units freed lazily and free, and bytes of bookkeeping.
    pub(super) fn units(&self) -> (u64, u64, usize) {
        let stats = self.arena.stats();
        (stats.lazy_units, stats.free_units, stats.footprint_bytes)
    }
}

fn span(number: u64, bits: u32) -> Range<u64> {
    let start = number << bits;
    start..start + (1 << bits)
}

fn is_in(inner: &Range<u64>, outer: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
