//! Parallel regions.

use std::ffi::{c_uint, c_void};

use amdahl_openmp::{degree, share::Share, team, thread};

/// A region of `num_threads` threads (0: as many as the variables say).
///
/// # Safety
/// `body` may be called with `data` by all threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel(
    body: team::Body,
    data: *mut c_void,
    num_threads: c_uint,
    flags: c_uint,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let thread = thread::current();
        let threads = degree::resolve(thread, num_threads, 0);
        team::begin(thread, body, data, threads, |team| {
            team.set_proc_bind(flags)
        });
        body(data);
        team::end(thread);
    }
}

/// The older form: the caller runs the body itself.
///
/// # Safety
/// As [`GOMP_parallel`]; [`GOMP_parallel_end`] follows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel_start(
    body: team::Body,
    data: *mut c_void,
    num_threads: c_uint,
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let thread = thread::current();
        let threads = degree::resolve(thread, num_threads, 0);
        team::begin(thread, body, data, threads, |_| {});
    }
}

/// The end of the innermost region that the calling thread has begun.
///
/// # Safety
/// There is one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_parallel_end() {
    // SAFETY: the caller's promise.
    unsafe { team::end(thread::current()) };
}

/// A barrier.
///
/// # Safety
/// All threads of the team call it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_barrier() {
    // SAFETY: the caller's promise; outside of all regions there is nothing to wait for.
    unsafe { team::barrier(thread::current()) };
}

/// A barrier in a region that may be cancelled. True: it was.
///
/// # Safety
/// All threads of the team call it, or cancel.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn GOMP_barrier_cancel() -> bool {
    // SAFETY: the caller's promise.
    unsafe { team::barrier_cancellable(thread::current()) }
}

/// Begins a region whose first work share `prepare` makes, of at most `useful` threads where the program leaves the
/// number open (0: of any).
///
/// # Safety
/// As [`GOMP_parallel_start`].
pub(crate) unsafe fn begin_shared(
    (body, data): (team::Body, *mut c_void),
    num_threads: c_uint,
    useful: c_uint,
    flags: c_uint,
    prepare: impl FnOnce(&mut Share, u32),
) {
    // SAFETY: the caller's promise; the thread is the calling one.
    unsafe {
        let thread = thread::current();
        let threads = degree::resolve(thread, num_threads, useful);
        team::begin(thread, body, data, threads, |team| {
            team.set_proc_bind(flags);
            prepare(team.shares.first_mut(), threads);
        });
    }
}
