//! `ara_*`: an arena for one thread at a time.
//!
//! # Safety
//! Of all functions: pointers are null or valid, an arena comes from `ara_create` and is not
//! destroyed, and no other thread uses it meanwhile.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_void};

use amdahl_range_alloc::RangeAlloc;

use crate::call::{self, put, with};
use crate::codes::{self, AraBlock, AraFragmentation, AraRequest, AraRetire, AraStats, AraWrite};

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

/// Makes an arena of a layout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_parse(
    text: *const c_char,
    bytes: usize,
    to: *mut *mut RangeAlloc,
    line: *mut u64,
) -> c_int {
    if text.is_null() {
        return codes::NULL;
    }
    // SAFETY: it is not null, and the caller says that there are so many bytes.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) };
    // Up to where it is no text it may be a layout, whose last line is wrong then.
    let read = match str::from_utf8(text) {
        Ok(text) => text
            .parse::<RangeAlloc>()
            .map_err(|error| codes::of_layout(&error)),
        Err(error) => {
            let lines = text[..error.valid_up_to()].split(|&byte| byte == b'\n');
            Err((codes::BAD_LAYOUT, lines.count() as u64))
        }
    };
    let read = read.map_err(|(code, wrong)| {
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(line, wrong) };
        code
    });
    // SAFETY: as the caller says.
    unsafe { call::hand_out(read, to) }
}

/// What it was made with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_range(
    of: *const RangeAlloc,
    start: *mut u64,
    end: *mut u64,
    granule: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        with(of.as_ref(), |arena| {
            put(start, arena.range().start);
            put(end, arena.range().end);
            put(granule, arena.granule());
            Ok(())
        })
    }
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
    unsafe { call::alloc_range(of.as_mut(), request, start, RangeAlloc::alloc) }
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
pub unsafe extern "C" fn ara_free_lazy(of: *mut RangeAlloc, start: u64, size: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { call::free_lazy(of.as_mut(), start, size) }
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

/// Gives memory back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_shrink_to_fit(of: *mut RangeAlloc) -> c_int {
    // SAFETY: as the caller says.
    call::shrink_to_fit(unsafe { of.as_mut() })
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
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(stats, arena.stats().into()) };
        Ok(())
    })
}

/// Gaps by size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_fragmentation(
    of: *const RangeAlloc,
    fragmentation: *mut AraFragmentation,
) -> c_int {
    // SAFETY: as the caller says.
    with(unsafe { of.as_ref() }, |arena| {
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(fragmentation, arena.fragmentation().into()) };
        Ok(())
    })
}

/// What a size cannot use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_unusable(fragmentation: *const AraFragmentation, size: u64) -> f64 {
    // SAFETY: as the caller says.
    let fragmentation = unsafe { fragmentation.as_ref() };
    fragmentation.map_or(0.0, |fragmentation| fragmentation.unusable(size))
}

/// The layout as text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_layout(
    of: *const RangeAlloc,
    write: AraWrite,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        call::show(of.as_ref(), write, context, |arena, out| {
            write!(out, "{}", arena.layout())
        })
    }
}

/// A map for people.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ara_map(
    of: *const RangeAlloc,
    segments: c_int,
    write: AraWrite,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        call::show(of.as_ref(), write, context, |arena, out| match segments {
            0 => write!(out, "{arena}"),
            _ => write!(out, "{arena:#}"),
        })
    }
}
