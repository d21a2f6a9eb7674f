//! The form for many threads.
//!
//! A *span* is an aligned power of two of addresses. One allocator, the *global* one, has all
//! addresses; each CPU has a *slot*, an allocator over the spans that it has taken from the global
//! one. A span is an allocation there. `directory` says for each span which slot has it.
//!
//! Locks, in their order: the slots by number, then the global one. An entry of the directory
//! changes under the locks of its slot and of the global one, so that either holds it still.

mod slot;
mod sync;

use core::ops::Range;
use std::boxed::Box;
use std::vec::Vec;

use crate::arena::{Allocation, RangeAlloc};
use crate::error::{AllocError, ArenaError, FreeError, OutOfMemory};
use crate::iter::{Segment, State};
use crate::request::{MAX_ALIGN, Policy, Request};
use slot::Slot;
use sync::{AtomicU32, Mutex, MutexGuard, Ordering};

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
///   nothing fits there, the CPU takes the lowest free span. So addresses drift from the lowest ones
///   by what other CPUs hold free: a CPU holds no more spans than an exact allocator that serves
///   that CPU alone would touch, and one spare. Zone and alignment are always kept.
/// - **Other policies, and sizes or alignments above an eighth of a span,** are served by the global allocator,
///   as are all requests when there is no free span left.
/// - **No request fails while any gap fits**: before one does, all CPUs give their spans back. That
///   takes all locks, and O(n).
/// - Slots belong to CPUs, not to threads: threads may die and move at any time. Anybody may free what
///   anybody has allocated.
pub struct SharedRangeAlloc {
    slots: Box<[Padded<Mutex<Slot>>]>,
    global: Padded<Mutex<RangeAlloc>>,
    /// For each span 0 or the number of its slot plus 1.
    directory: Box<[AtomicU32]>,
    /// One purge at a time.
    purge: Mutex<()>,
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
}

impl SharedConfig {
    /// Granule 1, a slot for each CPU, spans of 65,536 units.
    pub fn new(range: Range<u64>) -> Self {
        SharedConfig {
            range,
            granule: 1,
            slots: None,
            span: 1 << 16,
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
            let slot = Slot::new(self.range.clone(), self.granule, span_bits)?;
            slots.push(Padded(Mutex::new(slot)));
        }
        let mut directory = with_room((last - first) as usize + 1)?;
        directory.extend((first..=last).map(|_| AtomicU32::new(0)));
        Ok(SharedRangeAlloc {
            // Neither has more room than it needs, so that nothing moves.
            slots: slots.into_boxed_slice(),
            global: Padded(Mutex::new(global)),
            directory: directory.into_boxed_slice(),
            purge: Mutex::new(()),
            range: self.range.clone(),
            granule: self.granule,
            span_bits,
        })
    }
}

/// The largest span that keeps the directory within its size for all numbers of 64 bits.
const MAX_SPAN: u64 = 1 << 47;

/// How a shared arena stands. Units are those of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// Addresses of the arena.
    pub units: u64,
    /// Units allocated.
    pub busy_units: u64,
    /// Units freed lazily and not purged.
    pub lazy_units: u64,
    /// Units free that CPUs hold.
    pub held_units: u64,
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

/// # Panics
/// When a thread has panicked inside of the allocator, which only a broken invariant does.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic within the allocator")
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
        self.alloc_in(sync::home(), request)
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
        let mut global = lock(&self.global.0);
        let span = 1 << self.span_bits;
        let whole = Request::new(span)
            .align(span.min(MAX_ALIGN))
            .zone(request.zone.clone());
        match global.alloc(&whole) {
            Ok(start) if start & (span - 1) == 0 => {
                if let Err(error) = slot.import(start >> self.span_bits) {
                    global.free(start).expect("just allocated");
                    return Err(error);
                }
                // Release: whoever reads it finds the slot as it is now, under the slot's lock.
                self.entry(start)
                    .store(number as u32 + 1, Ordering::Release);
                drop(global);
                return slot.alloc(request);
            }
            Ok(start) => {
                global.free(start).expect("just allocated");
            }
            Err(AllocError::OutOfMemory) => return Err(AllocError::OutOfMemory),
            Err(_) => {}
        }
        let found = global.alloc(request);
        drop((global, slot));
        match found {
            Err(AllocError::NoSpace { .. }) => self.gather(|global| global.alloc(request)),
            answer => answer,
        }
    }

    fn suits_slots(&self, request: &Request) -> bool {
        let most = (1 << self.span_bits) / PER_SPAN;
        request.policy == Policy::LowestAddress && request.size <= most && request.align <= most
    }

    fn alloc_anywhere(&self, request: &Request) -> Result<u64, AllocError> {
        let found = lock(&self.global.0).alloc(request);
        match found {
            Err(AllocError::NoSpace { .. }) => self.gather(|global| global.alloc(request)),
            answer => answer,
        }
    }

    /// Allocates `size` units at `start`. Takes all locks, and O(n) when CPUs hold spans.
    ///
    /// # Errors
    /// As for [`RangeAlloc::alloc_at`].
    pub fn alloc_at(&self, start: u64, size: u64) -> Result<(), AllocError> {
        self.gather(|global| global.alloc_at(start, size))
    }

    /// Lets the global allocator have everything, and asks it.
    fn gather<T>(
        &self,
        ask: impl FnOnce(&mut RangeAlloc) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let mut slots = with_room(self.slots.len())?;
        slots.extend(self.slots.iter().map(|slot| lock(&slot.0)));
        let mut global = lock(&self.global.0);
        // All memory is taken before anything changes.
        let held: usize = slots.iter().map(|slot| slot.spans().len()).sum();
        let mut spans: Vec<u64> = with_room(held)?;
        let mut fresh = with_room(slots.len())?;
        for slot in &slots {
            spans.extend(slot.spans());
            let emptied = (!slot.spans().is_empty()).then(|| slot.emptied());
            let emptied = emptied.transpose().map_err(|_| AllocError::OutOfMemory)?;
            fresh.push(emptied);
        }
        let of_slots = || {
            let of_slot = |slot| Slot::spans(slot).iter().map(move |span| (slot, *span));
            let spans = slots.iter().flat_map(move |slot| of_slot(&**slot));
            spans.flat_map(|(slot, span)| slot.blocks(span))
        };
        let mut blocks: Vec<Segment> = with_room(of_slots().count())?;
        blocks.extend(of_slots());
        global.reserve(blocks.len())?;
        for span in &spans {
            global
                .free(span << self.span_bits)
                .expect("spans are allocations");
            self.entry(span << self.span_bits)
                .store(0, Ordering::Release);
        }
        for Segment { range, state } in blocks {
            let placed = global.alloc_at(range.start, range.end - range.start);
            placed.expect("it was in a span, and nodes were reserved");
            if state == State::Lazy {
                global.free_lazy(range.start).expect("it is there");
            }
        }
        for (slot, fresh) in slots.iter_mut().zip(fresh) {
            if let Some(fresh) = fresh {
                **slot = fresh;
            }
        }
        ask(&mut global)
    }

    fn entry(&self, address: u64) -> &AtomicU32 {
        let first = self.range.start >> self.span_bits;
        &self.directory[((address >> self.span_bits) - first) as usize]
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

    /// Gives a span of a slot back to the global allocator.
    fn give_back(&self, slot: &mut Slot, span: Option<u64>) {
        let Some(span) = span else { return };
        let start = span << self.span_bits;
        let mut global = lock(&self.global.0);
        if slot.export(span) {
            global.free(start).expect("spans are allocations");
            self.entry(start).store(0, Ordering::Release);
        }
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
    pub fn purge(&self, mut retire: impl FnMut(Range<u64>)) -> u64 {
        // A panic of `retire` leaves everything as it is.
        let _one = self
            .purge
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
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

    /// Sums, each slot at its own time.
    pub fn stats(&self) -> SharedStats {
        let global = lock(&self.global.0).stats();
        let mut all = SharedStats {
            units: global.units,
            busy_units: global.busy_units,
            lazy_units: global.lazy_units,
            held_units: 0,
            spans: 0,
            span_units: 1 << self.span_bits,
            footprint_bytes: global.footprint_bytes + self.directory.len() * size_of::<AtomicU32>(),
        };
        for slot in &self.slots {
            let slot = lock(&slot.0);
            let (lazy, free, bytes) = slot.units();
            all.busy_units = all.busy_units.saturating_sub(free + lazy);
            all.lazy_units += lazy;
            all.held_units += free;
            all.spans += slot.spans().len();
            all.footprint_bytes += bytes;
        }
        all
    }

    /// Allocations and gaps in the order of addresses, at one time. Takes all locks, and O(n); ends the
    /// process, as vectors do, if there is no memory for the answer.
    pub fn snapshot(&self) -> Vec<Segment> {
        let slots: Vec<_> = self.slots.iter().map(|slot| lock(&slot.0)).collect();
        let global = lock(&self.global.0);
        let is_ours = |segment: &Segment| {
            let is_span = self.entry(segment.range.start).load(Ordering::Relaxed) != 0;
            segment.state != State::Free && !is_span
        };
        let mut blocks: Vec<Segment> = global.iter().filter(is_ours).collect();
        for slot in &slots {
            blocks.extend(slot.spans().iter().flat_map(|span| slot.blocks(*span)));
        }
        blocks.sort_unstable_by_key(|block| block.range.start);
        let mut all = Vec::with_capacity(2 * blocks.len() + 1);
        let mut from = self.range.start;
        for block in blocks {
            if from < block.range.start {
                let (range, state) = (from..block.range.start, State::Free);
                all.push(Segment { range, state });
            }
            from = block.range.end;
            all.push(block);
        }
        if from < self.range.end {
            let (range, state) = (from..self.range.end, State::Free);
            all.push(Segment { range, state });
        }
        all
    }

    /// What sizes and starts are multiples of.
    pub fn granule(&self) -> u64 {
        self.granule
    }
}
