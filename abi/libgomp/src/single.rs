//! `single`, and `scope` with reductions over tasks.

use std::ffi::c_void;
use std::ptr;

use amdahl_openmp::loops::{self, Extras};
use amdahl_openmp::{single, thread};

/// Whether the calling thread is the one to do it.
///
/// # Safety
/// All threads of the team call it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_single_start() -> bool {
    // SAFETY: the thread is the calling one.
    unsafe { single::start(thread::current()) }
}

/// Null for the one to do it, who then calls [`GOMP_single_copy_end`]; for the others what it gave there.
///
/// # Safety
/// All threads of the team call it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_single_copy_start() -> *mut c_void {
    // SAFETY: the thread is the calling one.
    unsafe { single::copy_start(thread::current()) }
}

/// Gives `data` to the others.
///
/// # Safety
/// [`GOMP_single_copy_start`] returned null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_single_copy_end(data: *mut c_void) {
    // SAFETY: the thread is the calling one.
    unsafe { single::copy_end(thread::current(), data) };
}

/// A scope with reductions over tasks begins.
///
/// # Safety
/// All threads of the team call it; the reductions are as the compiler makes them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_scope_start(reductions: *mut usize) {
    let extras = Extras {
        reductions,
        memory: ptr::null_mut(),
    };
    // SAFETY: the thread is the calling one.
    unsafe { loops::enter(thread::current(), extras, |_, _| {}) };
}
