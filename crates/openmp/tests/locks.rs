//! Locks with real threads.

mod common;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use amdahl_openmp::lock::{Lock, NestLock, ThreadNestLock};
use amdahl_openmp::sys;
use common::{barrier, parallel};

/// A number that only one thread at a time may use.
#[derive(Default)]
struct Guarded(UnsafeCell<u64>);

// SAFETY: the tests use it under a lock; that is what they are about.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// # Safety
    /// Nobody else uses it.
    unsafe fn add(&self) {
        // SAFETY: the caller's promise. In two steps, so that two threads at once are noticed.
        unsafe {
            let value = self.0.get().read_volatile();
            std::hint::spin_loop();
            self.0.get().write_volatile(value + 1);
        }
    }

    fn get(self) -> u64 {
        self.0.into_inner()
    }
}

const ROUNDS: u64 = 3_000;

#[test]
fn one_thread_at_a_time() {
    // More threads than CPUs sleep at once; two may spin.
    for nthreads in [1, 2, 16] {
        let (lock, number) = (Lock::new(), Guarded::default());
        parallel(nthreads, |_, _| {
            for round in 0..ROUNDS {
                if round % 3 != 0 || !lock.try_acquire() {
                    lock.acquire();
                }
                // SAFETY: under the lock.
                unsafe { number.add() };
                if round % 64 == 0 {
                    // Lets others come to the lock while it is taken.
                    std::thread::yield_now();
                }
                lock.release();
            }
        });
        assert!(lock.try_acquire());
        assert_eq!(number.get(), ROUNDS * u64::from(nthreads));
    }
}

#[test]
fn a_lock_may_be_given_back_by_another_thread() {
    let lock = Lock::new();
    let turn = AtomicU32::new(0);
    parallel(2, |_, id| {
        for round in 0..500 {
            if id == 0 {
                lock.acquire();
                turn.store(round + 1, Ordering::Release);
            } else {
                while turn.load(Ordering::Acquire) != round + 1 {
                    std::thread::yield_now();
                }
                assert!(!lock.try_acquire());
                lock.release();
            }
        }
    });
    assert!(lock.try_acquire());
}

#[test]
fn nested_by_the_task_that_has_it() {
    for nthreads in [1, 2, 12] {
        let (lock, number) = (NestLock::default(), Guarded::default());
        parallel(nthreads, |thread, _| {
            for round in 0..ROUNDS / 3 {
                // SAFETY: the calling thread's; under the lock.
                unsafe {
                    if round % 2 == 0 || lock.try_acquire(thread) == 0 {
                        assert_eq!(lock.acquire(thread), 1);
                    }
                    assert_eq!(lock.acquire(thread), 2);
                    assert_eq!(lock.try_acquire(thread), 3);
                    number.add();
                    lock.release();
                    lock.release();
                    number.add();
                }
                lock.release();
            }
            barrier(thread);
            // SAFETY: as above.
            unsafe {
                // Another task of the same thread is somebody else.
                lock.acquire(thread);
                parallel(1, |inner, _| assert_eq!(lock.try_acquire(inner), 0));
                lock.release();
            }
        });
        assert_eq!(number.get(), 2 * (ROUNDS / 3) * u64::from(nthreads));
    }
}

#[test]
fn nested_by_the_thread_that_has_it() {
    for nthreads in [1, 2, 12] {
        let (lock, number) = (ThreadNestLock::default(), Guarded::default());
        parallel(nthreads, |thread, _| {
            let own = sys::thread_number();
            for round in 0..ROUNDS / 3 {
                if round % 2 == 0 || lock.try_acquire(own) == 0 {
                    assert_eq!(lock.acquire(own), 1);
                }
                assert_eq!(lock.acquire(own), 2);
                // SAFETY: under the lock.
                unsafe { number.add() };
                lock.release();
                // SAFETY: as above.
                unsafe { number.add() };
                lock.release();
            }
            barrier(thread);
            lock.acquire(own);
            // The same thread, whatever it executes.
            parallel(1, |_, _| assert_eq!(lock.try_acquire(own), 2));
            lock.release();
            lock.release();
        });
        assert_eq!(number.get(), 2 * (ROUNDS / 3) * u64::from(nthreads));
    }
}
