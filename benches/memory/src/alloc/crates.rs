//! The crates that one finds for this. None of them does all of it: what they leave out is said
//! at each, and left out of their requests.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::rivals::{Adopt, Allocator, Ask, gaps};

/// `vm-allocator`: an interval tree. No zones; alignment.
pub struct VmAllocator(vm_allocator::AddressAllocator);

impl VmAllocator {
    pub fn new(arena: Range<u64>) -> Self {
        // It cannot free what begins at 0.
        let (start, size) = (arena.start + 4096, arena.end - arena.start);
        VmAllocator(vm_allocator::AddressAllocator::new(start, size).expect("an arena"))
    }
}

impl Allocator for VmAllocator {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let first = vm_allocator::AllocPolicy::FirstMatch;
        let found = self.0.allocate(ask.size, ask.align, first).ok()?;
        Some(found.start())
    }

    fn free(&mut self, start: u64, size: u64) {
        let range = vm_allocator::RangeInclusive::new(start, start + size - 1).expect("a range");
        self.0.free(&range).expect("it is allocated");
    }
}

/// `range-alloc`: a vector of free ranges, best fit. No zones, no busy ranges; alignment.
pub struct GfxRangeAlloc(range_alloc::RangeAllocator<u64>);

impl GfxRangeAlloc {
    pub fn new(arena: Range<u64>) -> Self {
        GfxRangeAlloc(range_alloc::RangeAllocator::new(arena))
    }
}

impl Adopt for GfxRangeAlloc {
    fn adopt(arena: Range<u64>, layout: &[(u64, u64)]) -> Self {
        let mut all = GfxRangeAlloc::new(arena.clone());
        all.0
            .allocate_range(arena.end - arena.start)
            .expect("all of it");
        gaps(&arena, layout).for_each(|gap| all.0.free_range(gap));
        all
    }
}

impl Allocator for GfxRangeAlloc {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let found = self.0.allocate_range_aligned(ask.size, ask.align).ok()?;
        Some(found.start)
    }

    fn free(&mut self, start: u64, size: u64) {
        self.0.free_range(start..start + size);
    }
}

/// `rangemap`: the free ranges as a `RangeSet`, searched from the zone's beginning. Exact.
pub struct FreeSet {
    free: rangemap::RangeSet<u64>,
    arena: Range<u64>,
}

impl Adopt for FreeSet {
    fn adopt(arena: Range<u64>, layout: &[(u64, u64)]) -> Self {
        let free = gaps(&arena, layout).collect();
        FreeSet { free, arena }
    }
}

impl Allocator for FreeSet {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let zone = ask.zone.as_ref().unwrap_or(&self.arena);
        let start = self.free.overlapping(zone).find_map(|gap| {
            let start = gap.start.max(zone.start).next_multiple_of(ask.align);
            (start + ask.size <= gap.end.min(zone.end)).then_some(start)
        })?;
        self.free.remove(start..start + ask.size);
        Some(start)
    }

    fn free(&mut self, start: u64, size: u64) {
        self.free.insert(start..start + size);
    }
}

/// `vmem`: segregated lists, instant fit; no order of addresses. Its constrained allocation loses the
/// rest of each range that it takes from (version 1.0.0: the second call finds nothing), so that it is asked for size +
/// align - 1 units, which its caller would align. No zones.
pub struct Vmem(vmem::Arena<'static, 'static, Tags, Mutex<()>>);

/// Memory for its boundary tags.
pub struct Tags;

// SAFETY: each tag is a box of its own.
unsafe impl vmem::Allocator for Tags {
    fn allocate(&self) -> Option<NonNull<vmem::Bt>> {
        let tag = Box::new(std::mem::MaybeUninit::<vmem::Bt>::uninit());
        NonNull::new(Box::into_raw(tag).cast())
    }

    unsafe fn deallocate(&self, tag: NonNull<vmem::Bt>) {
        // SAFETY: the caller gives back what `allocate` made, a box of such memory.
        drop(unsafe { Box::<std::mem::MaybeUninit<vmem::Bt>>::from_raw(tag.as_ptr().cast()) });
    }
}

impl Vmem {
    pub fn new(arena: Range<u64>) -> Self {
        let vmem = vmem::Arena::create("bench", 1, None, Tags).expect("an arena");
        let size = arena.end - arena.start;
        vmem.add_span(arena.start as usize, size as usize)
            .expect("a span");
        Vmem(vmem)
    }
}

impl Allocator for Vmem {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let size = ask.size + ask.align - 1;
        let found = self.0.alloc(size as usize, vmem::AllocPolicy::InstantFit);
        Some(found.ok()? as u64)
    }

    fn free(&mut self, start: u64, _size: u64) {
        self.0.free(start as usize).expect("it is allocated");
    }
}
