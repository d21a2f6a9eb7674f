//! `ara_shared_*`: an arena for any number of threads.
//!
//! # Safety
//! Of all functions: pointers are null or valid, and an arena comes from `ara_shared_create` and is
//! not destroyed meanwhile.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_void};

use amdahl_range_alloc::{Fragmentation, RangeAlloc, Request, SharedConfig, SharedRangeAlloc};

use crate::call::{self, put, with};
use crate::codes::{
    self, AraBlock, AraFragmentation, AraRequest, AraRetire, AraSharedConfig, AraSharedStats,
    AraVisit,
};

/// Makes an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_create(
    start: u64,
    end: u64,
    granule: u64,
    slots: usize,
    span: u64,
    to: *mut *mut SharedRangeAlloc,
) -> c_int {
    let mut config = SharedConfig::new(start..end).granule(granule);
    if slots != 0 {
        config = config.slots(slots);
    }
    if span != 0 {
        config = config.span(span);
    }
    // SAFETY: as the caller says.
    unsafe { call::create(config.build(), to) }
}

/// Makes an arena with all that can be chosen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_create_with(
    config: *const AraSharedConfig,
    to: *mut *mut SharedRangeAlloc,
) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { AraSharedConfig::read(config) } {
        // SAFETY: as the caller says.
        Ok(config) => unsafe { call::create(config.config().build(), to) },
        Err(code) => code,
    }
}

/// Ends an arena; null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_destroy(arena: *mut SharedRangeAlloc) {
    // SAFETY: as the caller says.
    unsafe { call::destroy(arena) }
}

/// Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_alloc(
    of: *const SharedRangeAlloc,
    request: *const AraRequest,
    start: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::alloc_range(of.as_ref(), request, start, SharedRangeAlloc::alloc) }
}

/// Allocates from a slot of the caller's choice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_alloc_in(
    of: *const SharedRangeAlloc,
    slot: usize,
    request: *const AraRequest,
    start: *mut u64,
) -> c_int {
    let alloc = |arena: &SharedRangeAlloc, request: &Request| arena.alloc_in(slot, request);
    // SAFETY: as the caller says.
    unsafe { call::alloc_range(of.as_ref(), request, start, alloc) }
}

/// What it was made with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_range(
    of: *const SharedRangeAlloc,
    start: *mut u64,
    end: *mut u64,
    granule: *mut u64,
    slots: *mut usize,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        with(of.as_ref(), |arena| {
            put(start, arena.range().start);
            put(end, arena.range().end);
            put(granule, arena.granule());
            put(slots, arena.slots());
            Ok(())
        })
    }
}

/// Allocates at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_alloc_at(
    of: *const SharedRangeAlloc,
    start: u64,
    size: u64,
) -> c_int {
    // SAFETY: as the caller says.
    call::alloc_at(unsafe { of.as_ref() }, start, size)
}

/// Frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_free(
    of: *const SharedRangeAlloc,
    start: u64,
    size: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::free(of.as_ref(), start, size) }
}

/// Frees what must have a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_free_sized(
    of: *const SharedRangeAlloc,
    start: u64,
    size: u64,
) -> c_int {
    // SAFETY: as the caller says.
    call::free_sized(unsafe { of.as_ref() }, start, size)
}

/// Frees a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_free_part(
    of: *const SharedRangeAlloc,
    start: u64,
    size: u64,
) -> c_int {
    // SAFETY: as the caller says.
    call::free_part(unsafe { of.as_ref() }, start, size)
}

/// Frees, to be used again after a purge.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_free_lazy(
    of: *const SharedRangeAlloc,
    start: u64,
    size: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::free_lazy(of.as_ref(), start, size) }
}

/// Lets what was freed lazily be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_purge(
    of: *const SharedRangeAlloc,
    retire: AraRetire,
    context: *mut c_void,
    units: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::purge(of.as_ref(), retire, context, units) }
}

/// Finds what holds an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_lookup(
    of: *const SharedRangeAlloc,
    address: u64,
    block: *mut AraBlock,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        with(of.as_ref(), |arena| {
            call::tell(arena.lookup(address), block)
        })
    }
}

/// Gets ready for an alignment and phase.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_prepare(
    of: *const SharedRangeAlloc,
    align: u64,
    phase: u64,
) -> c_int {
    // SAFETY: as the caller says.
    call::prepare(unsafe { of.as_ref() }, align, phase)
}

/// Gives memory back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_shrink_to_fit(of: *const SharedRangeAlloc) -> c_int {
    // SAFETY: as the caller says.
    call::shrink_to_fit(unsafe { of.as_ref() })
}

/// Tells all segments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_each(
    of: *const SharedRangeAlloc,
    visit: AraVisit,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        let visit = visit.ok_or(codes::NULL)?;
        let all = arena.try_snapshot().map_err(|_| codes::NO_MEMORY)?;
        for segment in all {
            let block = AraBlock::from(segment);
            // SAFETY: the caller gave the function for this context.
            unsafe { visit(context, &raw const block) };
        }
        Ok(())
    })
}

/// Sums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_stats(
    of: *const SharedRangeAlloc,
    stats: *mut AraSharedStats,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(stats, arena.stats().into()) };
        Ok(())
    })
}

/// The largest gap of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_largest_free(
    of: *const SharedRangeAlloc,
    units: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        let largest = arena.largest_free().map_err(|_| codes::NO_MEMORY)?;
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(units, largest) };
        Ok(())
    })
}

/// Gaps by size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_fragmentation(
    of: *const SharedRangeAlloc,
    fragmentation: *mut AraFragmentation,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        let all = arena.try_snapshot().map_err(|_| codes::NO_MEMORY)?;
        let now: Fragmentation = all.into_iter().collect();
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(fragmentation, now.into()) };
        Ok(())
    })
}

/// A copy for one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_to_plain(
    of: *const SharedRangeAlloc,
    plain: *mut *mut RangeAlloc,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        if plain.is_null() {
            return Err(codes::NULL);
        }
        let made = arena.to_plain().map_err(|error| codes::of_alloc(&error));
        // SAFETY: it is not null, and the caller says that it is valid.
        match unsafe { call::hand_out(made, plain) } {
            codes::OK => Ok(()),
            code => Err(code),
        }
    })
}
