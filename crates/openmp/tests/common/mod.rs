//! Regions for tests.

use std::ffi::c_void;

use amdahl_openmp::thread::{self, Thread};
use amdahl_openmp::{share::Share, team};

/// Runs `body` on `nthreads` threads, which begin in the work share that `prepare` makes.
pub fn region<F: Fn(*mut Thread, u32) + Sync>(
    nthreads: u32,
    prepare: impl FnOnce(&mut Share),
    body: F,
) {
    unsafe extern "C-unwind" fn call<F: Fn(*mut Thread, u32) + Sync>(data: *mut c_void) {
        let thread = thread::current();
        // SAFETY: `data` is the closure below, which outlives the region.
        unsafe { (*data.cast_const().cast::<F>())(thread, (*thread).at.id) };
    }
    let data = (&raw const body).cast_mut().cast();
    let thread = thread::current();
    // SAFETY: the calling thread's; the closure may be called by all at once.
    unsafe {
        team::begin(thread, call::<F>, data, nthreads, |team| {
            prepare(team.shares.first_mut());
        });
        call::<F>(data);
        team::end(thread);
    }
}

/// Runs `body` on `nthreads` threads.
pub fn parallel<F: Fn(*mut Thread, u32) + Sync>(nthreads: u32, body: F) {
    region(nthreads, |_| {}, body);
}

/// All threads of the region meet.
pub fn barrier(thread: *mut Thread) {
    // SAFETY: the calling thread's.
    unsafe { team::barrier(thread) };
}
