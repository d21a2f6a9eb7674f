//! What the functions of both kinds of arena do, once.
//!
//! # Safety
//! Of all functions: pointers are null or valid. An arena that is none is a null pointer of the caller.

use std::alloc::{Layout, alloc};
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ops::Range;

use amdahl_range_alloc::{
    AllocError, Allocation, ArenaError, FreeError, OutOfMemory, RangeAlloc, Request,
    SharedRangeAlloc,
};

use crate::codes::{self, AraBlock, AraRequest, AraRetire, AraWrite};

/// A reference to an arena, as exclusive as its functions need it.
pub trait Arena {
    fn alloc_at(self, start: u64, size: u64) -> Result<(), AllocError>;
    fn free(self, start: u64) -> Result<u64, FreeError>;
    fn free_sized(self, start: u64, size: u64) -> Result<(), FreeError>;
    fn free_part(self, start: u64, size: u64) -> Result<(), FreeError>;
    fn free_lazy(self, start: u64) -> Result<u64, FreeError>;
    fn purge(self, retire: impl FnMut(Range<u64>)) -> u64;
    fn prepare(self, align: u64, phase: u64) -> Result<(), AllocError>;
    fn shrink_to_fit(self) -> Result<(), OutOfMemory>;
}

macro_rules! arena {
    ($reference:ty, $arena:ident) => {
        impl Arena for $reference {
            fn alloc_at(self, start: u64, size: u64) -> Result<(), AllocError> {
                $arena::alloc_at(self, start, size)
            }
            fn free(self, start: u64) -> Result<u64, FreeError> {
                $arena::free(self, start)
            }
            fn free_sized(self, start: u64, size: u64) -> Result<(), FreeError> {
                $arena::free_sized(self, start, size)
            }
            fn free_part(self, start: u64, size: u64) -> Result<(), FreeError> {
                $arena::free_part(self, start, size)
            }
            fn free_lazy(self, start: u64) -> Result<u64, FreeError> {
                $arena::free_lazy(self, start)
            }
            fn purge(self, retire: impl FnMut(Range<u64>)) -> u64 {
                $arena::purge(self, retire)
            }
            fn prepare(self, align: u64, phase: u64) -> Result<(), AllocError> {
                $arena::prepare(self, align, phase)
            }
            fn shrink_to_fit(self) -> Result<(), OutOfMemory> {
                $arena::shrink_to_fit(self)
            }
        }
    };
}

arena!(&mut RangeAlloc, RangeAlloc);
arena!(&SharedRangeAlloc, SharedRangeAlloc);

/// 0 or the code of what was done with an arena.
pub fn with<A>(arena: Option<A>, run: impl FnOnce(A) -> Result<(), c_int>) -> c_int {
    let result = arena.ok_or(codes::NULL).and_then(run);
    result.err().unwrap_or(codes::OK)
}

/// Stores a value where a pointer says so.
///
/// # Safety
/// The pointer is null or valid for a write.
pub unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller says that it is valid.
        unsafe { to.write(value) };
    }
}

/// # Safety
/// As at the top.
pub unsafe fn create<T>(made: Result<T, ArenaError>, to: *mut *mut T) -> c_int {
    let made = made.map_err(|error| codes::of_arena(&error));
    // SAFETY: as the caller says.
    unsafe { hand_out(made, to) }
}

/// Gives an arena to the caller, who destroys it.
///
/// # Safety
/// As at the top.
pub unsafe fn hand_out<T>(made: Result<T, c_int>, to: *mut *mut T) -> c_int {
    const { assert!(size_of::<T>() > 0) };
    if to.is_null() {
        return codes::NULL;
    }
    let arena = match made {
        Ok(arena) => arena,
        Err(code) => return code,
    };
    // SAFETY: an arena has a size.
    let memory: *mut T = unsafe { alloc(Layout::new::<T>()) }.cast();
    if memory.is_null() {
        return codes::NO_MEMORY;
    }
    // SAFETY: the memory is new and of this layout; the caller says that `to` is valid.
    unsafe {
        memory.write(arena);
        to.write(memory);
    }
    codes::OK
}

/// # Safety
/// Null, or from `create` and used by nobody any more.
pub unsafe fn destroy<T>(arena: *mut T) {
    if !arena.is_null() {
        // SAFETY: it was allocated by `create` with the layout that a box has.
        drop(unsafe { Box::from_raw(arena) });
    }
}

/// # Safety
/// As at the top.
pub unsafe fn alloc_range<A>(
    arena: Option<A>,
    request: *const AraRequest,
    start: *mut u64,
    alloc: impl FnOnce(A, &Request) -> Result<u64, AllocError>,
) -> c_int {
    with(arena, |arena| {
        // SAFETY: the caller says that it is null or valid.
        let request = unsafe { request.as_ref() }.ok_or(codes::NULL)?;
        if start.is_null() {
            return Err(codes::NULL);
        }
        let found = alloc(arena, &request.request()?);
        let found = found.map_err(|error| codes::of_alloc(&error))?;
        // SAFETY: it is not null, and the caller says that it is valid.
        unsafe { start.write(found) };
        Ok(())
    })
}

pub fn alloc_at(arena: Option<impl Arena>, start: u64, size: u64) -> c_int {
    with(arena, |arena| {
        let placed = arena.alloc_at(start, size);
        placed.map_err(|error| codes::of_alloc(&error))
    })
}

pub fn prepare(arena: Option<impl Arena>, align: u64, phase: u64) -> c_int {
    with(arena, |arena| {
        let prepared = arena.prepare(align, phase);
        prepared.map_err(|error| codes::of_alloc(&error))
    })
}

pub fn shrink_to_fit(arena: Option<impl Arena>) -> c_int {
    with(arena, |arena| {
        let shrunk = arena.shrink_to_fit();
        shrunk.map_err(|OutOfMemory| codes::NO_MEMORY)
    })
}

/// # Safety
/// As at the top.
pub unsafe fn free(arena: Option<impl Arena>, start: u64, size: *mut u64) -> c_int {
    with(arena, |arena| {
        let freed = arena.free(start).map_err(|error| codes::of_free(&error))?;
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(size, freed) };
        Ok(())
    })
}

pub fn free_sized(arena: Option<impl Arena>, start: u64, size: u64) -> c_int {
    with(arena, |arena| {
        let freed = arena.free_sized(start, size);
        freed.map_err(|error| codes::of_free(&error))
    })
}

pub fn free_part(arena: Option<impl Arena>, start: u64, size: u64) -> c_int {
    with(arena, |arena| {
        let freed = arena.free_part(start, size);
        freed.map_err(|error| codes::of_free(&error))
    })
}

/// # Safety
/// As at the top.
pub unsafe fn free_lazy(arena: Option<impl Arena>, start: u64, size: *mut u64) -> c_int {
    with(arena, |arena| {
        let freed = arena.free_lazy(start);
        let freed = freed.map_err(|error| codes::of_free(&error))?;
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(size, freed) };
        Ok(())
    })
}

/// # Safety
/// As at the top, and `retire` may be called with `context`.
pub unsafe fn purge(
    arena: Option<impl Arena>,
    retire: AraRetire,
    context: *mut c_void,
    units: *mut u64,
) -> c_int {
    with(arena, |arena| {
        let purged = arena.purge(|range| {
            if let Some(retire) = retire {
                // SAFETY: the caller gave the function for this context.
                unsafe { retire(context, range.start, range.end - range.start) };
            }
        });
        // SAFETY: the caller says that it is null or valid.
        unsafe { put(units, purged) };
        Ok(())
    })
}

/// A text goes piece by piece to the caller's function.
struct Pieces {
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> c_int,
    context: *mut c_void,
}

impl fmt::Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the caller gave the function for this context, and says that it is valid.
        let wants_no_more = unsafe { (self.write)(self.context, text.as_ptr().cast(), text.len()) };
        if wants_no_more == 0 {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// Shows something of an arena.
///
/// # Safety
/// As at the top, and `write` may be called with `context`.
pub unsafe fn show<A>(
    arena: Option<A>,
    write: AraWrite,
    context: *mut c_void,
    text: impl FnOnce(A, &mut dyn fmt::Write) -> fmt::Result,
) -> c_int {
    with(arena, |arena| {
        let write = write.ok_or(codes::NULL)?;
        // What is shown takes no memory: only the caller ends it early.
        text(arena, &mut Pieces { write, context }).map_err(|fmt::Error| codes::STOPPED)
    })
}

/// Tells what holds an address.
///
/// # Safety
/// As at the top.
pub unsafe fn tell(found: Option<Allocation>, block: *mut AraBlock) -> Result<(), c_int> {
    let found = found.ok_or(codes::NOT_ALLOCATED)?;
    let found = AraBlock {
        start: found.range.start,
        size: found.range.end - found.range.start,
        is_lazy: u32::from(found.is_lazy),
        is_free: 0,
    };
    // SAFETY: the caller says that it is null or valid.
    unsafe { put(block, found) };
    Ok(())
}
