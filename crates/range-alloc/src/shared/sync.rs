//! What the tests under loom replace.

#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard, TryLockError,
    atomic::{AtomicU32, Ordering},
};

#[cfg(loom)]
pub(super) use {
    loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    std::sync::TryLockError,
};

/// The place of the calling thread, which may change at any time: only locality depends on it.
#[cfg(not(loom))]
pub(super) fn home() -> usize {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: there is no condition; without the system call it answers -1.
        let cpu = unsafe { libc::sched_getcpu() };
        if let Ok(cpu) = usize::try_from(cpu) {
            return cpu;
        }
    }
    use std::sync::atomic::AtomicUsize;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static HOME: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    HOME.with(|home| *home)
}

#[cfg(loom)]
pub(super) fn home() -> usize {
    0
}

/// How many slots there are if nobody says so.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
