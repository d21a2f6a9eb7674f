//! `ara_*`: an arena for one thread at a time.
//!
//! # Safety
//! Of all functions: pointers are null or valid, an arena comes from `ara_create` and is not
//! destroyed, and no other thread uses it meanwhile.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_void};

use amdahl_range_alloc::RangeAlloc;

use crate::call::{self, put, with};
use crate::codes::{self, AraBlock, AraRequest, AraRetire, AraStats};

/// Makes an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_create(
    start: u64,
    end: u64,
    granule: u64,
    to: *mut *mut RangeAlloc,
) -> c_int {
    let made = RangeAlloc::with_granule(start..end, granule);
    // SAFETY: as the caller says.
    unsafe { call::create(made, to) }
}

/// Ends an arena; null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_destroy(arena: *mut RangeAlloc) {
    // SAFETY: as the caller says.
    unsafe { call::destroy(arena) }
}

/// Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_alloc(
    of: *mut RangeAlloc,
    request: *const AraRequest,
    start: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::alloc_range(of.as_mut(), request, start) }
}

/// Allocates at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_alloc_at(of: *mut RangeAlloc, start: u64, size: u64) -> c_int {
    // SAFETY: as the caller says.
    call::alloc_at(unsafe { of.as_mut() }, start, size)
}

/// Frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free(of: *mut RangeAlloc, start: u64, size: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::free(of.as_mut(), start, size) }
}

/// Frees, to be used again after a purge.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free_lazy(of: *mut RangeAlloc, start: u64) -> c_int {
    // SAFETY: as the caller says.
    call::free_lazy(unsafe { of.as_mut() }, start)
}

/// Lets what was freed lazily be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_purge(
    of: *mut RangeAlloc,
    retire: AraRetire,
    context: *mut c_void,
    units: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::purge(of.as_mut(), retire, context, units) }
}

/// Finds what holds an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_lookup(
    of: *const RangeAlloc,
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

/// Takes memory beforehand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_reserve(of: *mut RangeAlloc, allocations: usize) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_mut() }, |arena| {
        arena.reserve(allocations).map_err(|_| codes::NO_MEMORY)
    })
}

/// Gets ready for an alignment and phase.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_prepare(of: *mut RangeAlloc, align: u64, phase: u64) -> c_int {
    // SAFETY: as the caller says.
    call::prepare(unsafe { of.as_mut() }, align, phase)
}

/// Frees what must have a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free_sized(of: *mut RangeAlloc, start: u64, size: u64) -> c_int {
    // SAFETY: as the caller says.
    call::free_sized(unsafe { of.as_mut() }, start, size)
}

/// Frees a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free_part(of: *mut RangeAlloc, start: u64, size: u64) -> c_int {
    // SAFETY: as the caller says.
    call::free_part(unsafe { of.as_mut() }, start, size)
}

/// Finds the segment that holds an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_next(
    of: *const RangeAlloc,
    address: u64,
    block: *mut AraBlock,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        if !arena.range().contains(&address) {
            return Err(codes::OUTSIDE);
        }
        let found = arena.iter_from(address).next().ok_or(codes::OUTSIDE)?;
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(block, found.into()) };
        Ok(())
    })
}

/// Sums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_stats(of: *const RangeAlloc, stats: *mut AraStats) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        let now = arena.stats();
        let now = AraStats {
            units: now.units,
            busy_units: now.busy_units,
            lazy_units: now.lazy_units,
            free_units: now.free_units,
            allocations: now.allocations as u64,
            lazy_allocations: now.lazy_allocations as u64,
            largest_free: now.largest_free,
            footprint_bytes: now.footprint_bytes as u64,
        };
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(stats, now) };
        Ok(())
    })
}
