//! `ara_*`: an arena for one thread at a time.
//!
//! # Safety
//! Of all functions: pointers are null or valid, an arena comes from `ara_create` and is not
//! destroyed, and no other thread uses it meanwhile.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_void};

use amdahl_range_alloc::{RangeAlloc, State};

use crate::codes::{self, AraBlock, AraRequest, AraRetire, AraStats, code, put};

/// # Safety
/// Null, or from `ara_create` and used by nobody else.
unsafe fn arena<'a>(arena: *mut RangeAlloc) -> Result<&'a mut RangeAlloc, c_int> {
    // SAFETY: the caller says that it is valid and not shared.
    unsafe { arena.as_mut() }.ok_or(codes::NULL)
}

/// Makes an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_create(
    start: u64,
    end: u64,
    granule: u64,
    to: *mut *mut RangeAlloc,
) -> c_int {
    if to.is_null() {
        return codes::NULL;
    }
    match RangeAlloc::with_granule(start..end, granule) {
        Ok(arena) => {
            // SAFETY: it is not null, and the caller says that it is valid.
            unsafe { to.write(Box::into_raw(Box::new(arena))) };
            codes::OK
        }
        Err(error) => codes::of_arena(&error),
    }
}

/// Ends an arena; null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_destroy(arena: *mut RangeAlloc) {
    if !arena.is_null() {
        // SAFETY: it is the box of `ara_create`, which nobody uses any more.
        drop(unsafe { Box::from_raw(arena) });
    }
}

/// Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_alloc(
    of: *mut RangeAlloc,
    request: *const AraRequest,
    start: *mut u64,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says of all pointers.
        let (arena, request) = unsafe { (arena(of)?, request.as_ref().ok_or(codes::NULL)?) };
        if start.is_null() {
            return Err(codes::NULL);
        }
        let found = arena.alloc(&request.request()?);
        let found = found.map_err(|error| codes::of_alloc(&error))?;
        // SAFETY: it is not null, and the caller says that it is valid.
        unsafe { put(start, found) };
        Ok(())
    })())
}

/// Allocates at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_alloc_at(of: *mut RangeAlloc, start: u64, size: u64) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        arena
            .alloc_at(start, size)
            .map_err(|error| codes::of_alloc(&error))
    })())
}

/// Takes memory beforehand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_reserve(of: *mut RangeAlloc, allocations: usize) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        arena.reserve(allocations).map_err(|_| codes::NO_MEMORY)
    })())
}

/// Frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free(of: *mut RangeAlloc, start: u64, size: *mut u64) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        let freed = arena.free(start).map_err(|error| codes::of_free(&error))?;
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(size, freed) };
        Ok(())
    })())
}

/// Frees what must have a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free_sized(of: *mut RangeAlloc, start: u64, size: u64) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        arena
            .free_sized(start, size)
            .map_err(|error| codes::of_free(&error))
    })())
}

/// Frees a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free_part(of: *mut RangeAlloc, start: u64, size: u64) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        arena
            .free_part(start, size)
            .map_err(|error| codes::of_free(&error))
    })())
}

/// Frees, to be used again after a purge.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_free_lazy(of: *mut RangeAlloc, start: u64) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        let freed = arena
            .free_lazy(start)
            .map_err(|error| codes::of_free(&error));
        freed.map(|_| ())
    })())
}

/// Lets what was freed lazily be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_purge(
    of: *mut RangeAlloc,
    retire: AraRetire,
    context: *mut c_void,
    units: *mut u64,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        let purged = arena.purge(|range| {
            if let Some(retire) = retire {
                // SAFETY: the caller gave the function for this context.
                unsafe { retire(context, range.start, range.end - range.start) };
            }
        });
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(units, purged) };
        Ok(())
    })())
}

/// Finds what holds an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_lookup(
    of: *const RangeAlloc,
    address: u64,
    block: *mut AraBlock,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { of.as_ref() }.ok_or(codes::NULL)?;
        let found = arena.lookup(address).ok_or(codes::NOT_ALLOCATED)?;
        let found = AraBlock {
            start: found.range.start,
            size: found.range.end - found.range.start,
            is_lazy: u32::from(found.is_lazy),
            is_free: 0,
        };
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(block, found) };
        Ok(())
    })())
}

/// Finds the segment that holds an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_next(
    of: *const RangeAlloc,
    address: u64,
    block: *mut AraBlock,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { of.as_ref() }.ok_or(codes::NULL)?;
        if !arena.range().contains(&address) {
            return Err(codes::OUTSIDE);
        }
        let found = arena.iter_from(address).next().ok_or(codes::OUTSIDE)?;
        let found = AraBlock {
            start: found.range.start,
            size: found.range.end - found.range.start,
            is_lazy: u32::from(found.state == State::Lazy),
            is_free: u32::from(found.state == State::Free),
        };
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(block, found) };
        Ok(())
    })())
}

/// Sums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_stats(of: *const RangeAlloc, stats: *mut AraStats) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { of.as_ref() }.ok_or(codes::NULL)?;
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
    })())
}
