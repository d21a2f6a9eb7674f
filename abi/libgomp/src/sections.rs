//! Sections. Those that give one return its number, from 1; 0: there is none left for the calling thread.

use std::ffi::{c_uint, c_void};

use amdahl_openmp::loops::{self, Extras};
use amdahl_openmp::{share, team, thread};

use crate::parallel::begin_shared;

/// The calling thread comes to `count` sections.
///
/// # Safety
/// All threads of the team do.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_sections_start(count: c_uint) -> c_uint {
    // SAFETY: the thread is the calling one.
    unsafe {
        let thread = thread::current();
        share::enter(thread, |share, threads| {
            loops::sections(share, count, threads);
        });
        loops::next_section(thread)
    }
}

/// The same with reductions over tasks, and memory; see [`Extras`].
///
/// # Safety
/// All threads of the team do; the pointers are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_sections2_start(
    count: c_uint,
    reductions: *mut usize,
    memory: *mut *mut c_void,
) -> c_uint {
    // SAFETY: the thread is the calling one.
    unsafe {
        let thread = thread::current();
        loops::enter(thread, Extras { reductions, memory }, |share, threads| {
            loops::sections(share, count, threads);
        });
        loops::next_section(thread)
    }
}

/// The next one.
///
/// # Safety
/// The thread is in sections.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_sections_next() -> c_uint {
    // SAFETY: the thread is the calling one.
    unsafe { loops::next_section(thread::current()) }
}

/// Begins a region that begins with sections; the caller runs the body itself.
///
/// # Safety
/// `body` may be called with `data` by all threads at once; `GOMP_parallel_end` follows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel_sections_start(
    body: team::Body,
    data: *mut c_void,
    num_threads: c_uint,
    count: c_uint,
) {
    // SAFETY: the caller's promise.
    unsafe {
        begin_shared((body, data), num_threads, count, 0, |share, threads| {
            loops::sections(share, count, threads);
        });
    }
}

/// A region that begins with sections.
///
/// # Safety
/// `body` may be called with `data` by all threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel_sections(
    body: team::Body,
    data: *mut c_void,
    num_threads: c_uint,
    count: c_uint,
    flags: c_uint,
) {
    // SAFETY: the caller's promise.
    unsafe {
        begin_shared((body, data), num_threads, count, flags, |share, threads| {
            loops::sections(share, count, threads);
        });
        body(data);
        team::end(thread::current());
    }
}

/// The end of sections: all threads meet.
///
/// # Safety
/// All threads of the team call it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_sections_end() {
    // SAFETY: the caller's promise.
    unsafe { team::barrier(thread::current()) };
}

/// The end of sections in a region that may be cancelled. True: it was.
///
/// # Safety
/// All threads of the team call it, or cancel.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_sections_end_cancel() -> bool {
    // SAFETY: the caller's promise.
    unsafe { team::barrier_cancellable(thread::current()) }
}

/// The end of sections after which nobody waits.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn GOMP_sections_end_nowait() {
    // The thread leaves the work share when it comes to the next one.
}
