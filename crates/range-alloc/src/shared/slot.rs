//! What a CPU has at hand: an allocator of its own over the spans that it holds.

use core::ops::Range;

use super::cache::Cache;
use crate::arena::RangeAlloc;
use crate::error::{AllocError, ArenaError, FreeError, OutOfMemory};
use crate::iter::{Segment, State};
use crate::request::Request;
use crate::stats::Stats;
use crate::tree::edit::{Emptied, Filled};

/// Busy and free ranges of some spans. Addresses of others are allocated to nobody.
pub(super) struct Slot {
    pub(super) arena: RangeAlloc,
    /// How many spans it holds.
    held: usize,
    /// How many of them have nothing allocated in them.
    pub(super) spare: usize,
    /// How many of the arena's blocks are addresses of others.
    foreign: usize,
    span_bits: u32,
    /// Free blocks that still stand in `arena`, if there may be any.
    pub(super) cache: Option<Cache>,
}

impl Slot {
    pub(super) fn new(
        range: Range<u64>,
        granule: u64,
        span_bits: u32,
        cache: Option<Cache>,
    ) -> Result<Self, ArenaError> {
        let mut arena = RangeAlloc::with_granule(range.clone(), granule)?;
        arena
            .alloc_at(range.start, range.end - range.start)
            .map_err(ArenaError::Request)?;
        Ok(Slot {
            arena,
            held: 0,
            spare: 0,
            foreign: 1,
            span_bits,
            cache,
        })
    }

    fn span(&self, number: u64) -> Range<u64> {
        span(number, self.span_bits)
    }

    /// Takes a span over, all of it free.
    pub(super) fn import(&mut self, number: u64) -> Result<(), AllocError> {
        // For this, and for giving it back.
        self.arena.reserve(2)?;
        if let Some(cache) = &mut self.cache {
            cache.content.ensure(number)?;
        }
        let span = self.span(number);
        let own = self.arena.blocks - self.foreign;
        match self.arena.free_part(span.start, span.end - span.start) {
            Ok(()) => {}
            Err(FreeError::OutOfMemory) => return Err(AllocError::OutOfMemory),
            Err(error) => unreachable!("the span was nobody's: {error}"),
        }
        // Cutting the span out may leave two of one.
        self.foreign = self.arena.blocks - own;
        self.held += 1;
        self.spare += 1;
        Ok(())
    }

    pub(super) fn alloc(&mut self, request: &Request) -> Result<u64, AllocError> {
        if self.cache.is_some() {
            return self.alloc_cached(request);
        }
        let filled = self.arena.fill(request)?;
        self.has_filled(&filled);
        Ok(filled.block.start)
    }

    /// Allocates at an address of a span that it holds; what is allocated lies in such spans as a whole.
    pub(super) fn alloc_at(&mut self, start: u64, size: u64) -> Result<(), AllocError> {
        if self.cache.is_some() {
            // What is in the way may be free.
            self.put_back_in(&(start..start.saturating_add(size)));
        }
        let filled = self.arena.fill_at(start, size)?;
        self.has_filled(&filled);
        Ok(())
    }

    #[inline]
    pub(super) fn has_filled(&mut self, filled: &Filled) {
        if let Some(cache) = &mut self.cache {
            self.spare -= cache.content.add(&filled.block);
            return;
        }
        if (filled.gap.end - filled.gap.start) >> self.span_bits != 0 {
            let spans = self.spans_in(&filled.block, &filled.gap);
            self.spare -= (spans.end - spans.start) as usize;
        }
    }

    /// Frees; answers with the size, and with spans that it may have no use for.
    pub(super) fn free(
        &mut self,
        start: u64,
        size: Option<u64>,
    ) -> Result<(u64, Option<Range<u64>>), FreeError> {
        if self.cache.is_some() {
            return self.free_cached(start, size);
        }
        let emptied = self.arena.empty(start, size)?;
        Ok((
            emptied.block.end - emptied.block.start,
            self.spare_of(&emptied),
        ))
    }

    /// Frees a part of an allocation; answers with spans that it may have no use for.
    pub(super) fn free_part(
        &mut self,
        start: u64,
        size: u64,
    ) -> Result<Option<Range<u64>>, FreeError> {
        if self.cache.is_some() {
            return self.free_part_cached(start, size);
        }
        let emptied = self.arena.empty_part(start, size)?;
        Ok(self.spare_of(&emptied))
    }

    pub(super) fn free_lazy(&mut self, start: u64) -> Result<u64, FreeError> {
        self.put_back_at(start);
        if let Some(cache) = &mut self.cache {
            cache.known.take(start);
        }
        self.arena.free_lazy(start)
    }

    pub(super) fn first_lazy_from(&self, from: u64) -> Option<Range<u64>> {
        self.arena.first_lazy_from(from)
    }

    /// Lets a lazily freed range be used again; answers with spans that it may have no use for.
    pub(super) fn reclaim(&mut self, start: u64) -> Option<Range<u64>> {
        let emptied = self.arena.reclaim(start);
        self.spare_of(&emptied)
    }

    /// Notes the spans with nothing in them any more; answers with them if they are more than the one that is kept for
    /// the next allocation.
    #[inline]
    pub(super) fn spare_of(&mut self, emptied: &Emptied) -> Option<Range<u64>> {
        if self.cache.is_some() {
            return self.has_lost(&emptied.block);
        }
        let Emptied { block, gap } = emptied;
        if (gap.end - gap.start) >> self.span_bits == 0 {
            return None;
        }
        let spans = self.spans_in(block, gap);
        self.spare += (spans.end - spans.start) as usize;
        (self.spare > 1 && !spans.is_empty()).then_some(spans)
    }

    /// The spans that a block touches and that lie in the gap around it as a whole.
    fn spans_in(&self, block: &Range<u64>, gap: &Range<u64>) -> Range<u64> {
        let bits = self.span_bits;
        let (mut first, mut end) = (block.start >> bits, ((block.end - 1) >> bits) + 1);
        if !is_in(&self.span(first), gap) {
            first += 1;
        }
        if first < end && !is_in(&self.span(end - 1), gap) {
            end -= 1;
        }
        first..end.max(first)
    }

    /// Whether it has spans to give back.
    pub(super) fn has_too_many(&self) -> bool {
        self.spare > 1
    }

    /// Gives a span away in which nothing is allocated, unless that takes memory; tells whether it
    /// did.
    pub(super) fn export(&mut self, number: u64) -> bool {
        let span = self.span(number);
        self.put_back_in(&span);
        if !self.arena.has_spare_at(span.start) {
            return false;
        }
        let taken = self.arena.alloc_at(span.start, span.end - span.start);
        taken.expect("the span is free, and there are nodes");
        self.foreign += 1;
        self.held -= 1;
        self.spare -= 1;
        true
    }

    /// Gives away a span in which nothing is allocated, within a zone. O(n) if it has one, O(1) if not.
    pub(super) fn export_any(&mut self, zone: &Range<u64>) -> Option<u64> {
        if self.spare == 0 {
            return None;
        }
        self.put_back();
        let bits = self.span_bits;
        let number = self.arena.gaps().find_map(|gap| {
            let (from, to) = (gap.start.max(zone.start), gap.end.min(zone.end));
            let first = from.checked_add((1 << bits) - 1)? >> bits;
            (first < to >> bits).then_some(first)
        })?;
        self.export(number).then_some(number)
    }

    /// Takes the memory for giving away so many spans with what is in them.
    pub(super) fn reserve(&mut self, spans: usize) -> Result<(), OutOfMemory> {
        self.arena.reserve(spans)
    }

    /// Gives away spans whose blocks, which all lie in them as a whole, have been noted by the caller, and for which there is
    /// memory. `blocks` may be of others, too. Nothing is cached.
    pub(super) fn withdraw(
        &mut self,
        spans: impl Iterator<Item = u64> + Clone,
        blocks: &[Segment],
        is_mine: impl Fn(u64) -> bool,
    ) {
        if let Some(cache) = &mut self.cache {
            cache.known.clear();
        }
        for number in spans.clone() {
            self.spare -= usize::from(self.is_spare(number));
            self.held -= 1;
            if let Some(cache) = &mut self.cache {
                cache.content.forget(number);
            }
        }
        for block in blocks.iter().filter(|block| is_mine(block.range.start)) {
            if block.state == State::Lazy {
                self.arena.reclaim(block.range.start);
            } else {
                self.arena.free(block.range.start).expect("it is there");
            }
        }
        for number in spans {
            let span = self.span(number);
            let taken = self.arena.alloc_at(span.start, span.end - span.start);
            taken.expect("the span is free, and nodes were reserved");
            self.foreign += 1;
        }
    }

    /// Gives back memory for bookkeeping, but for what giving a span away may take.
    pub(super) fn shrink_to_fit(&mut self) -> Result<(), OutOfMemory> {
        self.put_back();
        self.arena.shrink_to_fit()?;
        self.arena.reserve(2)
    }

    fn is_spare(&self, number: u64) -> bool {
        if let Some(cache) = &self.cache {
            return cache.content.is_bare(number);
        }
        let span = self.span(number);
        let at = self.segment_at(span.start);
        at.state == State::Free && is_in(&span, &at.range)
    }

    /// The allocation or gap that holds an address.
    pub(super) fn segment_at(&self, address: u64) -> Segment {
        segment_at(&self.arena, address)
    }

    /// The allocations and gaps from that one on which holds an address; of spans that it does not hold they mean nothing.
    pub(super) fn segments_from(&self, address: u64) -> impl Iterator<Item = Segment> + '_ {
        self.arena.iter_from(address)
    }

    /// How many spans it holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// How many of them have nothing allocated in them.
    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare
    }

    /// Ranges allocated or freed lazily in a span, those that begin in it.
    pub(super) fn blocks(&self, number: u64) -> impl Iterator<Item = Segment> + '_ {
        let span = self.span(number);
        let segments = self.arena.iter_from(span.start);
        let from = span.clone();
        segments
            .take_while(move |segment| segment.range.start < span.end)
            .filter(move |segment| {
                segment.range.start >= from.start && segment.state != State::Free
            })
    }

    pub(super) fn prepare(&mut self, align: u64, phase: u64) -> Result<(), AllocError> {
        self.arena.prepare(align, phase)
    }

    pub(super) fn lookup(&self, address: u64) -> Option<crate::Allocation> {
        let found = self.arena.lookup(address)?;
        (!self.is_cached(&found.range)).then_some(found)
    }

    /// How it stands, what is in magazines being free; but `units` and `busy_units` have the addresses of others in them, and
    /// `largest_free` is a gap of the tree.
    pub(super) fn stats(&self) -> Stats {
        let mut stats = self.arena.stats();
        stats.allocations -= self.foreign;
        if let Some(cache) = &self.cache {
            stats.allocations -= cache.magazines.blocks();
            stats.busy_units -= cache.magazines.units();
            stats.free_units += cache.magazines.units();
            stats.footprint_bytes += cache.bytes();
        }
        stats
    }

    /// Units that are free, and in magazines.
    pub(super) fn cached_units(&self) -> u64 {
        let cache = self.cache.as_ref();
        cache.map_or(0, |cache| cache.magazines.units())
    }
}
/// The allocation or gap of an arena that holds one of its addresses.
pub(super) fn segment_at(arena: &RangeAlloc, address: u64) -> Segment {
    let segment = arena.iter_from(address).next();
    segment.expect("segments have all addresses of the arena")
}

fn span(number: u64, bits: u32) -> Range<u64> {
    let start = number << bits;
    start..start + (1 << bits)
}

pub(super) fn is_in(inner: &Range<u64>, outer: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
