//! Regions begin, meet, end, by the functions that the compiler's calls are made of.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use amdahl_openmp::{team, thread};

/// Runs `body` on `nthreads` threads.
fn parallel<F: Fn(u32, u32) + Sync>(nthreads: u32, body: F) {
    unsafe extern "C-unwind" fn call<F: Fn(u32, u32) + Sync>(data: *mut c_void) {
        // SAFETY: `data` is the closure below, which outlives the region.
        unsafe {
            let at = (*thread::current()).at;
            (*data.cast_const().cast::<F>())(at.id, (*at.team).nthreads);
        }
    }
    let data = (&raw const body).cast_mut().cast();
    let thread = thread::current();
    // SAFETY: the calling thread's; the closure may be called by all at once.
    unsafe {
        team::begin(thread, call::<F>, data, nthreads, |_| {});
        call::<F>(data);
        team::end(thread);
    }
}

fn barrier() {
    // SAFETY: the calling thread's.
    unsafe { team::barrier(thread::current()) };
}

#[test]
fn each_thread_runs_once_in_teams_of_any_size_after_another() {
    for nthreads in [1, 2, 3, 8, 9, 4, 1, 17, 65, 2, 64, 100, 1, 5] {
        let ran: Vec<AtomicU32> = (0..nthreads).map(|_| AtomicU32::new(0)).collect();
        for round in 1..=20 {
            parallel(nthreads, |id, size| {
                assert_eq!(size, nthreads);
                ran[id as usize].fetch_add(1, Ordering::Relaxed);
            });
            assert!(ran.iter().all(|r| r.load(Ordering::Relaxed) == round));
        }
    }
}

#[test]
fn nobody_goes_on_before_all_have_come() {
    for nthreads in [1, 2, 4, 9, 33] {
        let steps: Vec<AtomicU32> = (0..nthreads).map(|_| AtomicU32::new(0)).collect();
        parallel(nthreads, |id, _| {
            for step in 1..=200 {
                steps[id as usize].store(step, Ordering::Relaxed);
                barrier();
                assert!(steps.iter().all(|s| s.load(Ordering::Relaxed) >= step));
                barrier();
            }
        });
    }
}

#[test]
fn regions_in_regions() {
    let inner = AtomicU32::new(0);
    for _ in 0..50 {
        inner.store(0, Ordering::Relaxed);
        parallel(3, |_, _| {
            parallel(4, |_, _| {
                barrier();
                parallel(2, |_, _| {
                    inner.fetch_add(1, Ordering::Relaxed);
                });
            });
            barrier();
        });
        assert_eq!(inner.load(Ordering::Relaxed), 24);
    }
}

#[test]
fn threads_come_and_go_with_teams_of_their_own() {
    let ran = AtomicU32::new(0);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for nthreads in [3, 1, 5, 2] {
                        parallel(nthreads, |_, _| {
                            barrier();
                            ran.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
    }
    assert_eq!(ran.load(Ordering::Relaxed), 20 * 4 * 11);
}
