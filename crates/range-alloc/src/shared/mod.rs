//! The form for many threads.
//!
//! A *span* is an aligned power of two of addresses. One allocator, the *global* one, has all
//! addresses; each CPU has a *slot*, an allocator over the spans that it has taken from the global
//! one. A span is an allocation there. `directory` says for each span which slot has it.
//!
//! With magazines (`cache`), blocks that a slot keeps for the next request of their size stand in its tree as if they were
//! allocated.
//!
//! Locks, in their order: the slots by number, then the global one. An entry of the directory
//! changes under the locks of its slot and of the global one, so that either holds it still.

mod across;
mod apart;
mod cache;
mod content;
mod known;
mod magazine;
mod slot;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use core::ops::Range;
use std::boxed::Box;
use std::vec::Vec;

use crate::arena::{Allocation, RangeAlloc};
use crate::error::{AllocError, ArenaError, FreeError, OutOfMemory};
use crate::request::{self, MAX_ALIGN, Policy, Request};
use cache::Cache;
use content::Content;
use known::Known;
use magazine::Magazines;
use slot::{Slot, is_in};
use sync::{Alone, AtomicU32, Homes, Mutex, MutexGuard, Ordering, TryLockError};

/// Entries of the directory at most.
const SPANS: u64 = 1 << 18;
/// A span has the room of so many allocations of the largest size that slots serve.
const PER_SPAN: u64 = 8;

/// Keeps neighbours out of the line, and out of the line that is fetched along with it.
#[repr(align(128))]
struct Padded<T>(T);

/// Allocates ranges of addresses for many threads at once.
///
/// What differs from [`RangeAlloc`], which says everything else:
///
/// - **Order.** A request is served at the lowest address within the spans of the caller's CPU; if
///   nothing fits there, at the lowest address of all that no CPU holds, and the CPU takes the span
///   around it if all of that is free. So addresses drift from the lowest ones
///   by what other CPUs hold free: the highest address rises beyond all that were ever in use only if a request fits nowhere
///   below but there. For requests of one unit it is then no more than the sum of the units that are allocated, freed
///   lazily, and [held](SharedStats::held_units). A CPU holds spans in which it has something, and one spare. (A CPU that finds
///   others in the global allocator takes the lowest free span, though something may fit below; so it does not meet them
///   again.) Zone and alignment are always kept.
/// - **Other policies, and sizes or alignments above an eighth of a span,** are served by the global allocator,
///   as are requests that fit where no span is free as a whole. They do not look at what CPUs hold, the caller's own included, as
///   long as they fit elsewhere.
/// - **No request fails while any gap fits**: before one does, it is looked for in what other CPUs hold, the lowest
///   address then not being sought; the last look takes all locks, and O(log n) for each border between spans of
///   different CPUs. Each CPU keeps its spans, but for those that a range must cross.
/// - Slots belong to CPUs, not to threads: threads may die and move at any time. Anybody may free what
///   anybody has allocated.
///
/// # Panics
/// Whatever is asked, no call panics but those that say so. If one does for another reason, that is a bug of this crate, and what it had locked
/// may be half changed. From then on all calls that need that lock panic, rather than give addresses to two: mostly those for one CPU's
/// spans, and those that take all locks. Nothing of the caller's runs under these locks, so that no panic of
/// a caller leads there.
pub struct SharedRangeAlloc {
    slots: Box<[Padded<Mutex<Slot>>]>,
    global: Padded<Mutex<RangeAlloc>>,
    /// For each span 0 or the number of its slot plus 1.
    directory: Box<[AtomicU32]>,
    homes: Homes,
    /// One purge at a time.
    purge: Alone,
    range: Range<u64>,
    granule: u64,
    span_bits: u32,
}

/// How a [`SharedRangeAlloc`] is made.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    range: Range<u64>,
    granule: u64,
    slots: Option<usize>,
    span: u64,
    /// Largest size and depth.
    magazines: (u64, usize),
}

impl SharedConfig {
    /// Granule 1, a slot for each CPU that may be used now, spans of 65,536 units.
    pub fn new(range: Range<u64>) -> Self {
        SharedConfig {
            range,
            granule: 1,
            slots: None,
            span: 1 << 16,
            magazines: (0, 0),
        }
    }

    /// What sizes and starts are multiples of: a power of two.
    pub fn granule(mut self, granule: u64) -> Self {
        self.granule = granule;
        self
    }

    /// How many slots there are: at least one. CPUs share slots when there are fewer.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots.max(1));
        self
    }

    /// Units of a span, rounded up to a power of two; more if the range has more than 2^18 of them.
    ///
    /// Smaller spans keep addresses lower, larger ones are taken less often.
    pub fn span(mut self, span: u64) -> Self {
        self.span = span;
        self
    }

    /// Lets each slot keep up to `depth` freed blocks of each size up to `largest` units, so that the next request of the size takes one of
    /// them, the lowest that it may have: allocations and frees then mostly leave the tree as it is. None by default.
    ///
    /// Such a block comes before a gap that is lower. In all other respects it is free; but a request of another size does
    /// not get it before it would otherwise be refused or take a span of addresses, or another CPU would be refused. So a slot keeps at most
    /// `depth` times the sum of the sizes back. `largest` is rounded down to granules, to 64 of them and an eighth of a span at most; `depth` is
    /// 64 at most.
    pub fn magazines(mut self, largest: u64, depth: usize) -> Self {
        self.magazines = (largest, depth);
        self
    }

    /// Makes the arena, with all of its addresses free.
    ///
    /// # Errors
    /// As for [`RangeAlloc::with_granule`].
    pub fn build(&self) -> Result<SharedRangeAlloc, ArenaError> {
        let global = RangeAlloc::with_granule(self.range.clone(), self.granule)?;
        let least = (self.range.end - self.range.start).div_ceil(SPANS);
        let span = self
            .span
            .max(least)
            .max(self.granule.saturating_mul(PER_SPAN));
        let span = span.clamp(1, MAX_SPAN).next_power_of_two();
        let span_bits = span.trailing_zeros();
        let (first, last) = (
            self.range.start >> span_bits,
            (self.range.end - 1) >> span_bits,
        );
        let count = self.slots.unwrap_or_else(sync::cpus);
        let mut slots = with_room(count)?;
        for _ in 0..count {
            let cache = self.cache(span_bits)?;
            let slot = Slot::new(self.range.clone(), self.granule, span_bits, cache)?;
            slots.push(Padded(Mutex::new(slot)));
        }
        let mut directory = with_room((last - first) as usize + 1)?;
        directory.extend((first..=last).map(|_| AtomicU32::new(0)));
        Ok(SharedRangeAlloc {
            // Neither has more room than it needs, so that nothing moves.
            slots: slots.into_boxed_slice(),
            global: Padded(Mutex::new(global)),
            directory: directory.into_boxed_slice(),
            homes: Homes::of_this_thread()?,
            purge: Alone::default(),
            range: self.range.clone(),
            granule: self.granule,
            span_bits,
        })
    }
}

impl SharedConfig {
    /// What a slot keeps freed blocks in, if any.
    fn cache(&self, span_bits: u32) -> Result<Option<Cache>, OutOfMemory> {
        let (largest, depth) = self.magazines;
        let largest = largest
            .min((1 << span_bits) / PER_SPAN)
            .min(self.granule.saturating_mul(magazine::SIZES));
        let largest = largest & !(self.granule - 1);
        if largest == 0 || depth == 0 {
            return Ok(None);
        }
        let magazines = Magazines::new(largest, depth.min(magazine::DEPTH), self.granule)?;
        let content = Content::new(&self.range, span_bits)?;
        Ok(Some(Cache {
            magazines,
            known: Known::new(self.granule)?,
            content,
        }))
    }
}

/// The largest span that keeps the directory within its size for all numbers of 64 bits.
const MAX_SPAN: u64 = 1 << 47;

/// How a shared arena stands: what [`Stats`](crate::Stats) tells, and what CPUs hold. Units are those of its addresses.
///
/// The parts are looked at one after the other, each at its own time. So sums are exact as long as nobody changes anything meanwhile, and
/// otherwise off by what changes meanwhile, of which a span that goes from one to another is a part as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// Addresses of the arena.
    pub units: u64,
    /// Units allocated.
    pub busy_units: u64,
    /// Units freed lazily and not purged.
    pub lazy_units: u64,
    /// Units in gaps, those that CPUs hold among them.
    pub free_units: u64,
    /// Allocations.
    pub allocations: usize,
    /// Allocations freed lazily and not purged.
    pub lazy_allocations: usize,
    /// The largest gap that one CPU holds or none does; blocks in [magazines](SharedConfig::magazines) are no part of one here. One that goes on beyond a border
    /// between spans of different CPUs counts as several. [`largest_free`](SharedRangeAlloc::largest_free) has it as a whole, with what is in magazines.
    pub largest_free: u64,
    /// Levels of the highest tree.
    pub levels: usize,
    /// Leaves of all trees.
    pub leaves: usize,
    /// Inner nodes of all trees.
    pub inner_nodes: usize,
    /// Pairs of alignment and phase that are kept for searches, in the tree that keeps most.
    pub alignments: usize,
    /// Units free that CPUs hold.
    pub held_units: u64,
    /// Units of them that are in [magazines](SharedConfig::magazines).
    pub cached_units: u64,
    /// Spans that CPUs hold.
    pub spans: usize,
    /// Units of a span.
    pub span_units: u64,
    /// Bytes on the heap for bookkeeping.
    pub footprint_bytes: usize,
}

/// A vector that takes no memory for so many.
fn with_room<T>(count: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
    Ok(all)
}

const BROKEN: &str = "an earlier call panicked here: addresses may be wrong";

/// # Panics
/// When a thread has panicked inside of the allocator, which only a broken invariant does.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(BROKEN)
}

impl SharedRangeAlloc {
    /// An arena with all of its addresses free, with defaults for everything else.
    ///
    /// # Errors
    /// The range is empty, or there is no memory.
    pub fn new(range: Range<u64>) -> Result<Self, ArenaError> {
        SharedConfig::new(range).build()
    }

    /// The addresses.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Allocates; answers with the start. O(log n), without a shared line as long as the CPU's spans
    /// have a gap that fits.
    ///
    /// # Errors
    /// As for [`RangeAlloc::alloc`].
    pub fn alloc(&self, request: &Request) -> Result<u64, AllocError> {
        self.alloc_in(self.homes.here(), request)
    }

    /// The same with the slot of the caller's choice, modulo their number, instead of that of the CPU:
    /// for a queue or a tenant that wants its addresses together.
    ///
    /// # Errors
    /// As for [`RangeAlloc::alloc`].
    pub fn alloc_in(&self, slot: usize, request: &Request) -> Result<u64, AllocError> {
        if !self.suits_slots(request) {
            return self.alloc_anywhere(request);
        }
        let number = slot % self.slots.len();
        let mut slot = lock(&self.slots[number].0);
        match slot.alloc(request) {
            Err(AllocError::NoSpace { .. }) => {}
            answer => return answer,
        }
        match self.alloc_more(number, &mut slot, request) {
            Err(AllocError::NoSpace { .. }) => {}
            answer => return answer,
        }
        drop(slot);
        self.alloc_elsewhere(number, request)
    }

    fn suits_slots(&self, request: &Request) -> bool {
        let most = (1 << self.span_bits) / PER_SPAN;
        request.policy == Policy::LowestAddress && request.size <= most && request.align <= most
    }

    fn alloc_anywhere(&self, request: &Request) -> Result<u64, AllocError> {
        let found = lock(&self.global.0).alloc(request);
        match found {
            Err(AllocError::NoSpace { .. }) => self.alloc_elsewhere(0, request),
            answer => answer,
        }
    }

    /// Allocates from what no slot holds: the slot, which has no gap that fits, takes the span if all of it is free.
    #[cold]
    fn alloc_more(
        &self,
        number: usize,
        slot: &mut Slot,
        request: &Request,
    ) -> Result<u64, AllocError> {
        let (mut global, met) = self.enter_global();
        if met && let Some(start) = self.lowest_span(&mut global, &request.zone) {
            self.hand_over(number, slot, &mut global, start)?;
            drop(global);
            return slot.alloc(request);
        }
        let filled = global.fill(request)?;
        let start = filled.block.start;
        let span = self.whole_span(start);
        let Some(span) = span.filter(|it| is_in(it, &filled.gap) && is_in(it, &request.zone))
        else {
            return Ok(start);
        };
        global.free(start).expect("just allocated");
        global.alloc_at(span.start, span.end - span.start)?;
        self.hand_over(number, slot, &mut global, span.start)?;
        drop(global);
        slot.alloc(request)
    }

    /// Locks the global allocator; tells whether others were there.
    fn enter_global(&self) -> (MutexGuard<'_, RangeAlloc>, bool) {
        match self.global.0.try_lock() {
            Ok(global) => (global, false),
            Err(TryLockError::WouldBlock) => (lock(&self.global.0), true),
            Err(TryLockError::Poisoned(_)) => panic!("{BROKEN}"),
        }
    }

    /// The span that holds an address, unless it reaches beyond the numbers.
    fn whole_span(&self, address: u64) -> Option<Range<u64>> {
        let start = address >> self.span_bits << self.span_bits;
        Some(start..start.checked_add(1 << self.span_bits)?)
    }

    /// Allocates the lowest span that is free as a whole and in a zone.
    fn lowest_span(&self, global: &mut RangeAlloc, zone: &Range<u64>) -> Option<u64> {
        let span = 1 << self.span_bits;
        let whole = Request::new(span)
            .align(span.min(MAX_ALIGN))
            .zone(zone.clone());
        let start = global.alloc(&whole).ok()?;
        if start & (span - 1) != 0 {
            global.free(start).expect("just allocated");
            return None;
        }
        Some(start)
    }

    /// Gives a slot a span that has just been allocated for it.
    fn hand_over(
        &self,
        number: usize,
        slot: &mut Slot,
        global: &mut RangeAlloc,
        start: u64,
    ) -> Result<(), AllocError> {
        if let Err(error) = slot.import(start >> self.span_bits) {
            global.free(start).expect("just allocated");
            return Err(error);
        }
        // Release: whoever reads it finds the slot as it is now, under the slot's lock.
        self.entry(start)
            .store(number as u32 + 1, Ordering::Release);
        Ok(())
    }

    /// Allocates from what other slots hold, for a slot that has nothing that fits: where neither it nor the global allocator has.
    #[cold]
    fn alloc_elsewhere(&self, home: usize, request: &Request) -> Result<u64, AllocError> {
        let is_small = self.suits_slots(request);
        let lowest = request.clone().policy(Policy::LowestAddress);
        let count = self.slots.len();
        for number in (home..home + count).map(|number| number % count) {
            let mut slot = lock(&self.slots[number].0);
            if is_small
                && number != home
                && let Some(span) = slot.export_any(&request.zone)
            {
                self.take_back(&mut lock(&self.global.0), span);
                drop(slot);
                let mut own = lock(&self.slots[home].0);
                match self.alloc_more(home, &mut own, request) {
                    Err(AllocError::NoSpace { .. }) => continue,
                    answer => return answer,
                }
            }
            match slot.alloc(&lowest) {
                Err(AllocError::NoSpace { .. }) => {}
                answer => return answer,
            }
        }
        self.alloc_across(request)
    }

    /// Allocates `size` units at `start`. O(log n) if one CPU holds the range or none does, else it takes all locks, and
    /// O(log n) for each span in the range and each allocation in those of them that CPUs hold.
    ///
    /// # Errors
    /// As for [`RangeAlloc::alloc_at`].
    pub fn alloc_at(&self, start: u64, size: u64) -> Result<(), AllocError> {
        let block = request::block_at(start, size, &self.range, self.granule)?;
        let owner = self.entry(start).load(Ordering::Acquire);
        if self.is_all_of(&block, owner) {
            // Whoever has the lock of the owner keeps entries that name it from changing.
            if owner == 0 {
                let mut global = lock(&self.global.0);
                if self.is_all_of(&block, owner) {
                    return global.alloc_at(start, size);
                }
            } else {
                let mut slot = lock(&self.slots[owner as usize - 1].0);
                if self.is_all_of(&block, owner) {
                    return slot.alloc_at(start, size);
                }
            }
        }
        self.alloc_at_across(&block)
    }

    /// Whether one owner has all spans that a range touches.
    fn is_all_of(&self, block: &Range<u64>, owner: u32) -> bool {
        let mut entries =
            self.directory[self.index(block.start)..=self.index(block.end - 1)].iter();
        // Acquire: as in `with_owner`.
        entries.all(|entry| entry.load(Ordering::Acquire) == owner)
    }

    /// Where the directory has the span of an address.
    fn index(&self, address: u64) -> usize {
        ((address >> self.span_bits) - (self.range.start >> self.span_bits)) as usize
    }

    fn entry(&self, address: u64) -> &AtomicU32 {
        &self.directory[self.index(address)]
    }

    /// Does something with whoever answers for an address.
    fn with_owner<T>(
        &self,
        address: u64,
        with_slot: impl FnOnce(&mut Slot) -> T,
        with_global: impl FnOnce(&mut RangeAlloc) -> T,
    ) -> T {
        let entry = self.entry(address);
        loop {
            // Acquire: pairs with the Release of whoever gave the span to the slot.
            let owner = entry.load(Ordering::Acquire);
            if owner == 0 {
                let mut global = lock(&self.global.0);
                if entry.load(Ordering::Acquire) == 0 {
                    return with_global(&mut global);
                }
            } else {
                let mut slot = lock(&self.slots[owner as usize - 1].0);
                if entry.load(Ordering::Acquire) == owner {
                    return with_slot(&mut slot);
                }
            }
        }
    }

    /// Frees the allocation that begins at `start`; answers with its size. O(log n). Allocates no
    /// memory: should giving an unused span back take some, the CPU keeps it.
    ///
    /// # Errors
    /// No allocation begins there; the error says what there is instead.
    pub fn free(&self, start: u64) -> Result<u64, FreeError> {
        self.check_inside(start)?;
        let free = |slot: &mut Slot| {
            let (size, spare) = slot.free(start, None)?;
            self.give_back(slot, spare);
            Ok(size)
        };
        self.with_owner(start, free, |global| global.free(start))
    }

    /// The same for callers who know the size (rounded up to granules), so that it is checked.
    ///
    /// # Errors
    /// No allocation of this size begins there; the error says what there is instead.
    pub fn free_sized(&self, start: u64, size: u64) -> Result<(), FreeError> {
        self.check_inside(start)?;
        let whole = size.checked_next_multiple_of(self.granule).unwrap_or(0);
        let free = |slot: &mut Slot| {
            let freed = slot.free(start, Some(whole));
            let (_, spare) = freed.map_err(|error| error.for_size(size))?;
            self.give_back(slot, spare);
            Ok(())
        };
        self.with_owner(start, free, |global| global.free_sized(start, size))
    }

    /// Frees a part of an allocation; what is left stays allocated, as one allocation or as two. O(log n).
    ///
    /// # Errors
    /// As for [`RangeAlloc::free_part`].
    pub fn free_part(&self, start: u64, size: u64) -> Result<(), FreeError> {
        self.check_inside(start)?;
        let free = |slot: &mut Slot| {
            let spare = slot.free_part(start, size)?;
            self.give_back(slot, spare);
            Ok(())
        };
        self.with_owner(start, free, |global| global.free_part(start, size))
    }

    /// Gives spans of a slot with nothing in them back to the global allocator, but for one.
    fn give_back(&self, slot: &mut Slot, spans: Option<Range<u64>>) {
        let Some(spans) = spans else { return };
        let mut global = lock(&self.global.0);
        for span in spans.rev() {
            if slot.has_too_many() && slot.export(span) {
                self.take_back(&mut global, span);
            }
        }
    }

    /// Lets the global allocator have a span that a slot has given away; the slot is still locked.
    fn take_back(&self, global: &mut RangeAlloc, span: u64) {
        let start = span << self.span_bits;
        global.free(start).expect("spans are allocations");
        self.entry(start).store(0, Ordering::Release);
    }

    /// Frees, but lets the addresses not be used again before [`purge`](SharedRangeAlloc::purge).
    ///
    /// # Errors
    /// As [`free`](SharedRangeAlloc::free).
    pub fn free_lazy(&self, start: u64) -> Result<u64, FreeError> {
        self.check_inside(start)?;
        let slot = |slot: &mut Slot| slot.free_lazy(start);
        self.with_owner(start, slot, |global| global.free_lazy(start))
    }

    /// Lets everything that was freed lazily before the call be used again; answers with the number
    /// of units. What is freed lazily meanwhile may be among it.
    ///
    /// Each range is told to `retire` first. It is called without a lock on busy or free ranges, so
    /// that other threads go on, and may itself allocate and free, but not purge.
    ///
    /// # Panics
    /// `retire` purges the same arena. If it panics itself, the next purge tells what it was told once more.
    pub fn purge(&self, mut retire: impl FnMut(Range<u64>)) -> u64 {
        let _one = self.purge.enter();
        let mut units = 0;
        for number in 0..=self.slots.len() {
            // Whatever is freed below meanwhile is left to the next purge.
            let mut from = self.range.start;
            while let Some(range) = self.first_lazy_from(number, from) {
                from = range.end;
                units += range.end - range.start;
                retire(range.clone());
                let reclaim = |slot: &mut Slot| {
                    let spare = slot.reclaim(range.start);
                    self.give_back(slot, spare);
                };
                self.with_owner(range.start, reclaim, |global| {
                    global.reclaim(range.start);
                });
            }
        }
        units
    }

    fn first_lazy_from(&self, number: usize, from: u64) -> Option<Range<u64>> {
        match self.slots.get(number) {
            Some(slot) => lock(&slot.0).first_lazy_from(from),
            None => lock(&self.global.0).first_lazy_from(from),
        }
    }

    /// The allocation that holds an address. O(log n).
    pub fn lookup(&self, address: u64) -> Option<Allocation> {
        self.check_inside(address).ok()?;
        let slot = |slot: &mut Slot| slot.lookup(address);
        self.with_owner(address, slot, |global| global.lookup(address))
    }

    fn check_inside(&self, start: u64) -> Result<(), FreeError> {
        if self.range.contains(&start) {
            Ok(())
        } else {
            Err(FreeError::Outside { start })
        }
    }

    /// Sums, each slot at its own time: see [`SharedStats`]. O(slots), one lock after the other.
    pub fn stats(&self) -> SharedStats {
        let global = lock(&self.global.0).stats();
        let mut all = SharedStats {
            units: global.units,
            busy_units: global.busy_units,
            lazy_units: global.lazy_units,
            free_units: 0,
            allocations: global.allocations,
            lazy_allocations: global.lazy_allocations,
            largest_free: global.largest_free,
            levels: global.levels,
            leaves: global.leaves,
            inner_nodes: global.inner_nodes,
            alignments: global.alignments,
            held_units: 0,
            cached_units: 0,
            spans: 0,
            span_units: 1 << self.span_bits,
            footprint_bytes: global.footprint_bytes + self.fixed_bytes(),
        };
        for slot in &self.slots {
            let slot = lock(&slot.0);
            let own = slot.stats();
            let free_or_lazy = own.free_units + own.lazy_units;
            all.busy_units = all.busy_units.saturating_sub(free_or_lazy);
            all.lazy_units += own.lazy_units;
            // Each span is an allocation of the global allocator.
            all.allocations = (all.allocations + own.allocations).saturating_sub(slot.held());
            all.lazy_allocations += own.lazy_allocations;
            all.largest_free = all.largest_free.max(own.largest_free);
            all.levels = all.levels.max(own.levels);
            all.leaves += own.leaves;
            all.inner_nodes += own.inner_nodes;
            all.alignments = all.alignments.max(own.alignments);
            all.held_units += own.free_units;
            all.cached_units += slot.cached_units();
            all.spans += slot.held();
            all.footprint_bytes += own.footprint_bytes;
        }
        let taken = all.busy_units + all.lazy_units;
        all.free_units = all.units.saturating_sub(taken);
        all
    }

    /// Bytes on the heap that do not depend on what is allocated.
    fn fixed_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.directory) + self.homes.bytes()
    }

    /// Prepares all CPUs for requests of an alignment and phase, one after the other; see [`RangeAlloc::prepare`].
    ///
    /// # Errors
    /// The same as for a request.
    pub fn prepare(&self, align: u64, phase: u64) -> Result<(), AllocError> {
        for slot in &self.slots {
            lock(&slot.0).prepare(align, phase)?;
        }
        lock(&self.global.0).prepare(align, phase)
    }

    /// Gives back memory for bookkeeping, one CPU after the other; see [`RangeAlloc::shrink_to_fit`]. Others wait for the one
    /// whose turn it is.
    ///
    /// # Errors
    /// There is no memory for a smaller copy; allocations are as they were.
    pub fn shrink_to_fit(&self) -> Result<(), OutOfMemory> {
        for slot in &self.slots {
            lock(&slot.0).shrink_to_fit()?;
        }
        lock(&self.global.0).shrink_to_fit()
    }

    /// What sizes and starts are multiples of.
    pub fn granule(&self) -> u64 {
        self.granule
    }
}
