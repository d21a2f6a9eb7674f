//! `omp_alloc` and its family, and what the compiler calls for `allocate` clauses.

use std::ffi::{c_int, c_void};
use std::slice;

use amdahl_openmp::alloc::{self, DEFAULT_MEM_ALLOC, Handle, NULL_ALLOCATOR, Request, Trait};
use amdahl_openmp::icv::globals;
use amdahl_openmp::thread;

/// The calling thread's default allocator.
fn default() -> Handle {
    let set = match thread::known() {
        // SAFETY: the thread is the calling one.
        Some(thread) => unsafe { (*thread).at.allocator },
        None => NULL_ALLOCATOR,
    };
    match set {
        NULL_ALLOCATOR => globals().default_allocator.handle(),
        set => set,
    }
}

fn request(alignment: usize, size: usize, allocator: Handle) -> Request {
    Request {
        size,
        // Programs that ask for an alignment of 0 want none.
        alignment: alignment.max(1),
        allocator,
        is_zeroed: false,
        default: default(),
    }
}

/// Makes an allocator; 0 where it cannot be made.
///
/// # Safety
/// There are so many traits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_init_allocator(
    memspace: usize,
    count: c_int,
    traits: *const Trait,
) -> Handle {
    let count = usize::try_from(count).unwrap_or(0);
    let traits = if count == 0 || traits.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts(traits, count) }
    };
    alloc::init_allocator(memspace, traits)
}

/// The same for Fortran.
///
/// # Safety
/// As [`omp_init_allocator`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_init_allocator_(
    memspace: *const usize,
    count: *const i32,
    traits: *const Trait,
) -> Handle {
    // SAFETY: the caller's promise.
    unsafe { omp_init_allocator(memspace.read(), count.read(), traits) }
}

/// The same for Fortran, with integers of eight bytes.
///
/// # Safety
/// As [`omp_init_allocator`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_init_allocator_8_(
    memspace: *const usize,
    count: *const i64,
    traits: *const Trait,
) -> Handle {
    // SAFETY: the caller's promise.
    unsafe {
        omp_init_allocator(
            memspace.read(),
            crate::fortran::to_int(count.read()),
            traits,
        )
    }
}

/// Ends an allocator.
///
/// # Safety
/// Nothing uses it afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_destroy_allocator(allocator: Handle) {
    // SAFETY: the caller's promise.
    unsafe { alloc::destroy_allocator(allocator) };
}

/// The same for Fortran.
///
/// # Safety
/// As [`omp_destroy_allocator`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_destroy_allocator_(allocator: *const Handle) {
    // SAFETY: the caller's promise.
    unsafe { omp_destroy_allocator(allocator.read()) };
}

/// The calling thread's default allocator.
#[unsafe(no_mangle)]
pub extern "C" fn omp_set_default_allocator(allocator: Handle) {
    let allocator = match allocator {
        NULL_ALLOCATOR => DEFAULT_MEM_ALLOC,
        allocator => allocator,
    };
    // SAFETY: the thread is the calling one.
    unsafe { (*thread::current()).at.allocator = allocator };
}

/// The same for Fortran.
///
/// # Safety
/// The address is of an allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_set_default_allocator_(allocator: *const Handle) {
    // SAFETY: the caller's promise.
    omp_set_default_allocator(unsafe { allocator.read() });
}

/// The calling thread's default allocator.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_default_allocator() -> Handle {
    default()
}

/// The same for Fortran.
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_default_allocator_() -> Handle {
    default()
}

/// Memory; null where there is none.
///
/// # Safety
/// The allocator is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_alloc(size: usize, allocator: Handle) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { alloc::allocate(request(1, size, allocator)) }
}

/// The same with an alignment.
///
/// # Safety
/// The allocator is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_aligned_alloc(
    alignment: usize,
    size: usize,
    allocator: Handle,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { alloc::allocate(request(alignment, size, allocator)) }
}

/// Memory for so many elements, all zero.
///
/// # Safety
/// The allocator is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_calloc(count: usize, size: usize, allocator: Handle) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { omp_aligned_calloc(1, count, size, allocator) }
}

/// The same with an alignment.
///
/// # Safety
/// The allocator is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_aligned_calloc(
    alignment: usize,
    count: usize,
    size: usize,
    allocator: Handle,
) -> *mut c_void {
    // What cannot be counted cannot be had: left to the allocator's fallback.
    let size = count.saturating_mul(size);
    let request = Request {
        is_zeroed: true,
        ..request(alignment, size, allocator)
    };
    // SAFETY: the caller's promise.
    unsafe { alloc::allocate(request) }
}

/// A block of another size with the same content.
///
/// # Safety
/// The block is null or from this family and not freed; the allocators are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_realloc(
    block: *mut c_void,
    size: usize,
    allocator: Handle,
    free_allocator: Handle,
) -> *mut c_void {
    // The block itself says where it is from.
    let _ = free_allocator;
    // SAFETY: the caller's promise.
    unsafe { alloc::reallocate(block, request(1, size, allocator)) }
}

/// Frees a block; null is nothing.
///
/// # Safety
/// The block is from this family and not freed; its allocator is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omp_free(block: *mut c_void, allocator: Handle) {
    let _ = allocator;
    // SAFETY: the caller's promise.
    unsafe { alloc::free(block) };
}

/// Memory of a variable in an `allocate` clause: programs cannot ask whether there was any.
///
/// # Safety
/// The allocator is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_alloc(
    alignment: usize,
    size: usize,
    allocator: Handle,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let block = unsafe { omp_aligned_alloc(alignment, size, allocator) };
    if block.is_null() && size != 0 {
        amdahl_openmp::message::out_of_memory(size);
    }
    block
}

/// The end of such a variable.
///
/// # Safety
/// As [`omp_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_free(block: *mut c_void, allocator: Handle) {
    // SAFETY: the caller's promise.
    unsafe { omp_free(block, allocator) };
}

/// Fortran's `allocate` directives tell of memory from [`GOMP_alloc`].
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_add_alloc(block: *mut c_void) {
    alloc::mark(block);
}

/// Whether [`GOMP_add_alloc`] told of it, which is forgotten: `deallocate` and assignments ask.
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_is_alloc(block: *mut c_void) -> bool {
    alloc::unmark(block)
}
