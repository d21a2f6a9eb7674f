//! `ara_shared_*`: an arena for any number of threads.
//!
//! # Safety
//! Of all functions: pointers are null or valid, and an arena comes from `ara_shared_create` and is
//! not destroyed meanwhile.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_void};

use amdahl_range_alloc::{SharedConfig, SharedRangeAlloc};

use crate::codes::{self, AraBlock, AraRequest, AraRetire, code, put};

/// # Safety
/// Null, or from `ara_shared_create`.
unsafe fn arena<'a>(arena: *const SharedRangeAlloc) -> Result<&'a SharedRangeAlloc, c_int> {
    // SAFETY: the caller says that it is valid.
    unsafe { arena.as_ref() }.ok_or(codes::NULL)
}

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
    if to.is_null() {
        return codes::NULL;
    }
    let mut config = SharedConfig::new(start..end).granule(granule);
    if slots != 0 {
        config = config.slots(slots);
    }
    if span != 0 {
        config = config.span(span);
    }
    match config.build() {
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
pub unsafe extern "C" fn ara_shared_destroy(arena: *mut SharedRangeAlloc) {
    if !arena.is_null() {
        // SAFETY: it is the box of `ara_shared_create`, which nobody uses any more.
        drop(unsafe { Box::from_raw(arena) });
    }
}

/// Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_alloc(
    of: *const SharedRangeAlloc,
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
pub unsafe extern "C" fn ara_shared_alloc_at(
    of: *const SharedRangeAlloc,
    start: u64,
    size: u64,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        arena
            .alloc_at(start, size)
            .map_err(|error| codes::of_alloc(&error))
    })())
}

/// Frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_free(
    of: *const SharedRangeAlloc,
    start: u64,
    size: *mut u64,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
        let freed = arena.free(start).map_err(|error| codes::of_free(&error))?;
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(size, freed) };
        Ok(())
    })())
}

/// Frees, to be used again after a purge.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shared_free_lazy(of: *const SharedRangeAlloc, start: u64) -> c_int {
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
pub unsafe extern "C" fn ara_shared_purge(
    of: *const SharedRangeAlloc,
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
pub unsafe extern "C" fn ara_shared_lookup(
    of: *const SharedRangeAlloc,
    address: u64,
    block: *mut AraBlock,
) -> c_int {
    code((|| {
        // SAFETY: as the caller says.
        let arena = unsafe { arena(of)? };
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
