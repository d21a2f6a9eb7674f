//! What concerns several slots at once, and so takes all locks.

use core::fmt::{self, Display, Formatter};
use core::ops::Range;
use std::vec::Vec;

use super::slot::{Slot, segment_at};
use super::sync::{MutexGuard, Ordering};
use super::{SharedRangeAlloc, lock, with_room};
use crate::arena::RangeAlloc;
use crate::error::{AllocError, OutOfMemory};
use crate::iter::{Segment, State};
use crate::request::{Policy, Request, Wanted};
use crate::stats::{Fragmentation, Stats};

/// All slots and the global allocator, locked.
struct All<'a> {
    slots: Vec<MutexGuard<'a, Slot>>,
    global: MutexGuard<'a, RangeAlloc>,
}

impl All<'_> {
    /// The allocation or gap of an owner that holds an address.
    fn segment_at(&self, owner: u32, address: u64) -> Segment {
        match owner.checked_sub(1) {
            None => segment_at(&self.global, address),
            Some(slot) => self.slots[slot as usize].segment_at(address),
        }
    }

    /// The lowest allocation of an owner in a range of its own.
    fn first_in(&self, owner: u32, range: &Range<u64>) -> Option<Range<u64>> {
        let first = |segments: &mut dyn Iterator<Item = Segment>| {
            let inside = segments.take_while(|segment| segment.range.start < range.end);
            let mut busy = inside.filter(|segment| segment.state != State::Free);
            busy.next().map(|segment| segment.range)
        };
        match owner.checked_sub(1) {
            None => first(&mut self.global.iter_from(range.start)),
            Some(slot) => first(&mut self.slots[slot as usize].segments_from(range.start)),
        }
    }

    fn lazy(&self) -> u64 {
        let slots = self.slots.iter().map(|slot| slot.stats().lazy_units);
        slots.sum::<u64>() + self.global.stats().lazy_units
    }
}

impl SharedRangeAlloc {
    /// `room` is for a guard of each slot. Nothing is in magazines then.
    fn lock_all<'a>(&'a self, mut room: Vec<MutexGuard<'a, Slot>>) -> All<'a> {
        room.extend(self.slots.iter().map(|slot| lock(&slot.0)));
        for slot in &mut room {
            slot.put_back();
        }
        All {
            slots: room,
            global: lock(&self.global.0),
        }
    }

    /// Who has the span with a number; all is locked.
    fn owner(&self, span: u64) -> u32 {
        // Relaxed: whoever has changed it has left the locks.
        self.entry(self.address(span)).load(Ordering::Relaxed)
    }

    /// An address of the arena in a span.
    fn address(&self, span: u64) -> u64 {
        (span << self.span_bits).max(self.range.start)
    }

    /// Allocates wherever there is a gap, whoever has its parts.
    pub(super) fn alloc_across(&self, request: &Request) -> Result<u64, AllocError> {
        let mut all = self.lock_all(with_room(self.slots.len())?);
        // Others may have freed since the caller looked.
        match all.global.alloc(request) {
            Err(AllocError::NoSpace { .. }) => {}
            answer => return answer,
        }
        let lowest = request.clone().policy(Policy::LowestAddress);
        for slot in &mut all.slots {
            match slot.alloc(&lowest) {
                Err(AllocError::NoSpace { .. }) => {}
                answer => return answer,
            }
        }
        let wanted = Wanted::new(request, &self.range, self.granule)?;
        let Some(block) = self.find_across(&all, |gap| wanted.block_in(gap)) else {
            return Err(AllocError::NoSpace { lazy: all.lazy() });
        };
        self.claim(&mut all, &block)?;
        Ok(block.start)
    }

    /// What is found first in the gaps that cross a border between owners, from the lowest on.
    fn find_across<T>(
        &self,
        all: &All<'_>,
        mut find: impl FnMut(&Range<u64>) -> Option<T>,
    ) -> Option<T> {
        let (mut span, last) = (
            self.range.start >> self.span_bits,
            (self.range.end - 1) >> self.span_bits,
        );
        // The gap up to the border that was looked at last, and beyond it.
        let mut gap = 0..0;
        while span < last {
            let (below, above) = (self.owner(span), self.owner(span + 1));
            span += 1;
            if below == above {
                continue;
            }
            let border = span << self.span_bits;
            let (left, right) = (
                all.segment_at(below, border - 1),
                all.segment_at(above, border),
            );
            if left.state != State::Free || right.state != State::Free {
                continue;
            }
            let start = if gap.end == border {
                gap.start
            } else {
                left.range.start
            };
            gap = start..right.range.end;
            if let Some(found) = find(&gap) {
                return Some(found);
            }
        }
        None
    }

    /// Allocates at an address, whoever has the spans there.
    pub(super) fn alloc_at_across(&self, block: &Range<u64>) -> Result<(), AllocError> {
        let mut all = self.lock_all(with_room(self.slots.len())?);
        let mut from = block.start;
        while from < block.end {
            let owner = self.entry(from).load(Ordering::Relaxed);
            // Up to where the owner changes.
            let mut to = from;
            while to < block.end && self.entry(to).load(Ordering::Relaxed) == owner {
                to = self.whole_span(to).map_or(block.end, |span| span.end);
            }
            let to = to.min(block.end);
            if let Some(by) = all.first_in(owner, &(from..to)) {
                return Err(AllocError::Occupied { by });
            }
            from = to;
        }
        self.claim(&mut all, block)
    }

    /// Allocates a range that is free: the spans that it touches become the global allocator's, with what is in them. After an
    /// error nothing has changed.
    fn claim(&self, all: &mut All<'_>, block: &Range<u64>) -> Result<(), AllocError> {
        let spans = self.without_crossings(all, block);
        let held = |slot: usize| {
            spans
                .clone()
                .filter(move |span| self.owner(*span) as usize == slot + 1)
        };
        let slots = 0..self.slots.len();
        // All memory is taken before anything changes.
        let count = |all: &All<'_>| -> usize {
            let of = |slot: usize| held(slot).map(move |span| (slot, span));
            let pairs = slots.clone().flat_map(of);
            pairs
                .map(|(slot, span)| all.slots[slot].blocks(span).count())
                .sum()
        };
        let mut blocks: Vec<Segment> = with_room(count(all))?;
        for slot in slots.clone() {
            let spans = held(slot).count();
            if spans > 0 {
                all.slots[slot].reserve(spans)?;
                blocks.extend(held(slot).flat_map(|span| all.slots[slot].blocks(span)));
            }
        }
        all.global.reserve(blocks.len() + 1)?;
        for slot in slots {
            let is_mine = |start: u64| self.owner(start >> self.span_bits) as usize == slot + 1;
            all.slots[slot].withdraw(held(slot), &blocks, is_mine);
        }
        for span in spans.filter(|span| self.owner(*span) != 0) {
            self.take_back(&mut all.global, span);
        }
        for Segment { range, state } in blocks {
            let placed = all.global.alloc_at(range.start, range.end - range.start);
            placed.expect("it was in a span, and nodes were reserved");
            if state == State::Lazy {
                all.global.free_lazy(range.start).expect("it is there");
            }
        }
        let placed = all.global.alloc_at(block.start, block.end - block.start);
        placed.expect("the range is free, and nodes were reserved");
        Ok(())
    }

    /// The numbers of the spans that a range touches, and of those around that have allocations of slots in common with them.
    fn without_crossings(&self, all: &All<'_>, block: &Range<u64>) -> Range<u64> {
        let bits = self.span_bits;
        let (mut first, mut last) = (block.start >> bits, (block.end - 1) >> bits);
        while self.owner(first) != 0 {
            let at = all.segment_at(self.owner(first), first << bits);
            if at.state == State::Free || at.range.start >= first << bits {
                break;
            }
            first -= 1;
        }
        while self.owner(last) != 0 {
            let end = (last + 1) << bits;
            let at = all.segment_at(self.owner(last), end - 1);
            if at.state == State::Free || at.range.end <= end {
                break;
            }
            last += 1;
        }
        first..last + 1
    }

    /// The largest gap, whoever holds its parts, at one time: the largest request without an alignment that can be met. Takes all
    /// locks, and O(log n) for each border between spans of different CPUs.
    ///
    /// # Errors
    /// There is no memory for a list of the locks.
    pub fn largest_free(&self) -> Result<u64, OutOfMemory> {
        let all = self.lock_all(with_room(self.slots.len())?);
        let slots = all.slots.iter().map(|slot| slot.stats().largest_free);
        let mut largest = slots.fold(all.global.stats().largest_free, u64::max);
        self.find_across(&all, |gap| {
            largest = largest.max(gap.end - gap.start);
            None::<()>
        });
        Ok(largest)
    }

    /// Allocations and gaps in the order of addresses, at one time. Takes all locks, and O(n log n).
    ///
    /// # Panics
    /// There is no memory for the answer; [`try_snapshot`](SharedRangeAlloc::try_snapshot) says so instead.
    pub fn snapshot(&self) -> Vec<Segment> {
        self.try_snapshot()
            .expect("memory for a list of all allocations")
    }

    /// The same.
    ///
    /// # Errors
    /// There is no memory for the answer.
    pub fn try_snapshot(&self) -> Result<Vec<Segment>, OutOfMemory> {
        let all = self.lock_all(with_room(self.slots.len())?);
        let count = |stats: Stats| stats.allocations + stats.lazy_allocations;
        let of_slots: usize = all.slots.iter().map(|slot| count(slot.stats())).sum();
        let mut blocks: Vec<Segment> = with_room(of_slots + count(all.global.stats()))?;
        let mut add = |owner: u32, segments: &mut dyn Iterator<Item = Segment>| {
            let is_of = |segment: &Segment| {
                let entry = self.entry(segment.range.start).load(Ordering::Relaxed);
                segment.state != State::Free && entry == owner
            };
            blocks.extend(segments.filter(is_of));
        };
        add(0, &mut all.global.iter());
        for (slot, owner) in all.slots.iter().zip(1..) {
            add(owner, &mut slot.segments_from(self.range.start));
        }
        drop(all);
        blocks.sort_unstable_by_key(|block| block.range.start);
        let mut segments = with_room(2 * blocks.len() + 1)?;
        let mut from = self.range.start;
        for block in blocks {
            if from < block.range.start {
                let (range, state) = (from..block.range.start, State::Free);
                segments.push(Segment { range, state });
            }
            from = block.range.end;
            segments.push(block);
        }
        if from < self.range.end {
            let (range, state) = (from..self.range.end, State::Free);
            segments.push(Segment { range, state });
        }
        Ok(segments)
    }

    /// Counts the gaps by size, at one time. As [`snapshot`](SharedRangeAlloc::snapshot).
    ///
    /// # Panics
    /// There is no memory for a list of all allocations.
    pub fn fragmentation(&self) -> Fragmentation {
        self.snapshot().into_iter().collect()
    }

    /// An arena for one thread with the same allocations, as they are at one time: for its layout as text, and whatever
    /// else a [`RangeAlloc`] tells. As [`snapshot`](SharedRangeAlloc::snapshot).
    ///
    /// # Errors
    /// There is no memory for its bookkeeping.
    pub fn to_plain(&self) -> Result<RangeAlloc, AllocError> {
        let made = RangeAlloc::with_granule(self.range.clone(), self.granule);
        let mut plain = made.map_err(|_| AllocError::OutOfMemory)?;
        for Segment { range, state } in self.try_snapshot()? {
            if state == State::Free {
                continue;
            }
            plain.alloc_at(range.start, range.end - range.start)?;
            if state == State::Lazy {
                plain.free_lazy(range.start).expect("just allocated");
            }
        }
        Ok(plain)
    }
}

/// As that of [`RangeAlloc`]. Takes all locks.
impl Display for SharedRangeAlloc {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let plain = self.to_plain().map_err(|_| fmt::Error)?;
        Display::fmt(&plain, out)
    }
}

impl fmt::Debug for SharedRangeAlloc {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.debug_struct("SharedRangeAlloc")
            .field("range", &self.range)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
