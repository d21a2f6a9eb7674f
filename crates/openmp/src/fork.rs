//! What is filled once, by whoever needs it first, must not be half filled in a child: who fills it there is no more, and everybody waits for ever. So a fork
//! waits for who fills something, as POSIX advises for locks (`pthread_atfork`).

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{sys, worker};

/// Who fills something holds it, and who forks. The same thread may hold it several times.
struct Filling(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is used by the functions of pthreads alone, and written only where there is one thread.
unsafe impl Sync for Filling {}

static FILLING: Filling = Filling(UnsafeCell::new(
    libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
));

/// While it is there nobody else fills anything, and the process does not fork.
pub(crate) struct Held(());

/// Waits for others who fill something, or fork.
pub(crate) fn hold() -> Held {
    lock();
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        unlock();
    }
}

fn lock() {
    // SAFETY: it is never destroyed.
    unsafe { libc::pthread_mutex_lock(FILLING.0.get()) };
}

fn unlock() {
    // SAFETY: as above; the calling thread holds it.
    unsafe { libc::pthread_mutex_unlock(FILLING.0.get()) };
}

/// To be called before there are threads, as when the library is loaded; later calls do nothing. Not while something is held: C libraries before glibc 2.36 have
/// a lock of their own here and while they wait for us.
pub fn init() {
    extern "C" fn before() {
        lock();
    }
    extern "C" fn in_parent() {
        unlock();
    }
    extern "C" fn in_child() {
        // It is held by a thread with another number.
        // SAFETY: there is no other thread.
        unsafe { *FILLING.0.get() = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP };
        worker::in_child();
    }
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing else is known by it.
    if !IS_DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions are there as long as this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// What is in `cell`, filled by `fill` if nobody has yet.
pub(crate) fn filled<T>(cell: &OnceLock<T>, fill: impl FnOnce() -> T) -> &T {
    match cell.get() {
        Some(value) => value,
        None => {
            let _whole = sys::not_cancelled();
            let _held = hold();
            cell.get_or_init(fill)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    /// A fork while a thread fills something: the child finds it filled.
    #[test]
    fn a_child_finds_what_was_being_filled() {
        static CELL: OnceLock<u32> = OnceLock::new();
        static IS_FILLING: AtomicBool = AtomicBool::new(false);
        static HAS_FORKED: AtomicBool = AtomicBool::new(false);
        init();
        thread::scope(|scope| {
            scope.spawn(|| {
                filled(&CELL, || {
                    IS_FILLING.store(true, Ordering::SeqCst);
                    // Where a fork does not wait for this, this waits for the fork.
                    let mut turns = 0..100_000;
                    while !HAS_FORKED.load(Ordering::SeqCst) && turns.next().is_some() {
                        thread::yield_now();
                    }
                    7
                });
            });
            while !IS_FILLING.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            // SAFETY: the child does nothing that needs a lock but to look.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let is_filled = CELL.get() == Some(&7);
                drop(hold());
                // SAFETY: nothing is cleaned up in a child.
                unsafe { libc::_exit(i32::from(!is_filled)) };
            }
            HAS_FORKED.store(true, Ordering::SeqCst);
            let mut status = 0;
            // SAFETY: the child is ours.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        });
    }
}
