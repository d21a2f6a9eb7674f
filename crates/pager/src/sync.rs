//! The one door to atomics and sleeping on a word: the standard library's and futexes, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Lets another thread run that is about to finish with what is waited for. Async-signal-safe.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Keeps what is written by one CPU off the lines that others read. Two lines: x86 fetches them in pairs.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// A number on whose change threads can wait.
pub(crate) struct Word {
    value: AtomicU32,
    #[cfg(loom)]
    asleep: loom::sync::Mutex<()>,
    #[cfg(loom)]
    change: loom::sync::Condvar,
}

impl Word {
    pub(crate) fn new() -> Word {
        Word {
            value: AtomicU32::new(0),
            #[cfg(loom)]
            asleep: loom::sync::Mutex::new(()),
            #[cfg(loom)]
            change: loom::sync::Condvar::new(),
        }
    }

    pub(crate) fn value(&self) -> &AtomicU32 {
        &self.value
    }

    /// Sleeps while the value is `expected`. May return early, does so after `at_most`.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, expected: u32, at_most: std::time::Duration) {
        crate::sys::futex::wait(&self.value, expected, at_most);
    }

    /// Wakes all.
    #[cfg(not(loom))]
    pub(crate) fn wake_all(&self) {
        crate::sys::futex::wake_all(&self.value);
    }

    /// Wakes one.
    #[cfg(not(loom))]
    pub(crate) fn wake_one(&self) {
        crate::sys::futex::wake_one(&self.value);
    }

    #[cfg(loom)]
    pub(crate) fn sleep(&self, expected: u32, _at_most: std::time::Duration) {
        // As the kernel does: looks at the value under the lock of its queue. No time passes here, so who is never woken
        // makes loom say that all are stuck.
        let mut asleep = self.asleep.lock().unwrap();
        if self.value.load(Ordering::SeqCst) == expected {
            asleep = self.change.wait(asleep).unwrap();
        }
        drop(asleep);
    }

    #[cfg(loom)]
    pub(crate) fn wake_all(&self) {
        let _asleep = self.asleep.lock().unwrap();
        self.change.notify_all();
    }

    #[cfg(loom)]
    #[allow(dead_code)] // Nothing that runs under loom wakes one alone.
    pub(crate) fn wake_one(&self) {
        self.wake_all();
    }
}
