//! One thread sleeps, others wake it. A wake-up before the sleep is not lost.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering};

const EMPTY: u32 = 0;
const PARKED: u32 = 1;
const NOTIFIED: u32 = 2;

/// Holds at most one wake-up, as `std::thread::park` does.
#[derive(Debug)]
pub(crate) struct Parker {
    state: AtomicU32,
    /// When it was last woken, by the clock of the pool.
    notified_ns: std::sync::atomic::AtomicU64,
    #[cfg(loom)]
    gate: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Default for Parker {
    fn default() -> Self {
        Parker {
            state: AtomicU32::new(EMPTY),
            notified_ns: Default::default(),
            #[cfg(loom)]
            gate: Default::default(),
        }
    }
}

impl Parker {
    /// Its thread only: sleeps until [`unpark`](Self::unpark) was called since the last return, or until the time
    /// is over. Whether it was woken. May not return early.
    #[inline(never)]
    pub(crate) fn park(&self, timeout: Option<Duration>) -> bool {
        // Acquire: pairs with the Release in `unpark`.
        if self
            .state
            .compare_exchange(EMPTY, PARKED, Ordering::Acquire, Ordering::Acquire)
            .is_ok()
        {
            self.sleep(timeout);
        }
        self.state.swap(EMPTY, Ordering::Acquire) == NOTIFIED
    }

    /// As [`unpark`](Self::unpark), and leaves the time.
    pub(crate) fn unpark_at(&self, now_ns: u64) -> bool {
        self.notified_ns
            .store(now_ns, std::sync::atomic::Ordering::Relaxed);
        self.unpark()
    }

    /// The time that an [`unpark_at`](Self::unpark_at) since the last call left, if there was one.
    pub(crate) fn take_notified_ns(&self) -> Option<u64> {
        let at = self
            .notified_ns
            .swap(0, std::sync::atomic::Ordering::Relaxed);
        (at > 0).then_some(at)
    }

    /// Any thread: wakes the sleeper, now or when it is about to sleep. Whether a system call was needed.
    pub(crate) fn unpark(&self) -> bool {
        // Release: what was written before is seen by the woken.
        if self.state.swap(NOTIFIED, Ordering::Release) != PARKED {
            return false;
        }
        self.wake();
        true
    }

    #[cfg(not(loom))]
    #[inline(never)]
    fn sleep(&self, timeout: Option<Duration>) {
        let until = timeout.map(|t| std::time::Instant::now() + t);
        while self.state.load(Ordering::Acquire) == PARKED {
            let left = until.map(|u| u.saturating_duration_since(std::time::Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            crate::sys::futex_wait(&self.state, PARKED, left);
        }
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        crate::sys::futex_wake(&self.state, 1);
    }

    /// What the kernel's futex does: compares and sleeps in one step.
    #[cfg(loom)]
    fn sleep(&self, _timeout: Option<Duration>) {
        let mut gate = self.gate.0.lock().unwrap();
        while self.state.load(Ordering::Acquire) == PARKED {
            gate = self.gate.1.wait(gate).unwrap();
        }
    }

    #[cfg(loom)]
    fn wake(&self) {
        drop(self.gate.0.lock().unwrap());
        self.gate.1.notify_one();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_wake_up_before_the_sleep_is_kept_once() {
        let parker = Parker::default();
        parker.unpark();
        parker.unpark();
        assert!(parker.park(None));
        assert!(!parker.park(Some(Duration::from_nanos(1))));
    }

    #[test]
    fn two_threads_take_turns() {
        let (a, b) = (Arc::new(Parker::default()), Arc::new(Parker::default()));
        let other = {
            let (a, b) = (a.clone(), b.clone());
            std::thread::spawn(move || {
                for _ in 0..200 {
                    assert!(a.park(None));
                    b.unpark();
                }
            })
        };
        for _ in 0..200 {
            a.unpark();
            assert!(b.park(None));
        }
        other.join().unwrap();
    }
}
