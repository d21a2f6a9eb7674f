//! The mutex around the state of a leaf: held for tens of nanoseconds, and left without a read-modify-write.
//!
//! Loom cannot see that a spinning thread waits. There a mutex that it knows stands in for the gate, and the gate is
//! explored on its own.

#[cfg(loom)]
pub(crate) use with_mutex::{Gate, Inside};
#[cfg(not(loom))]
pub(crate) use {Spinning as Gate, SpinningInside as Inside};

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, UnsafeCell, UnsafeCellMut, spin_loop, thread};

const OPEN: u32 = 0;
const SHUT: u32 = 1;

/// Rounds of 1, 2, 4, ... pauses, then of giving the CPU away, then of sleep: the holder may have lost its CPU, and may
/// be of a priority that gets none while somebody spins.
const SPIN_ROUNDS: u32 = 7;
const YIELD_ROUNDS: u32 = 32;
const NAP: Duration = Duration::from_micros(50);

// The word first: it lies in the line of what is looked at next.
#[repr(C)]
pub(crate) struct Spinning<T> {
    word: AtomicU32,
    inside: UnsafeCell<T>,
}

// SAFETY: only one thread at a time gets at what is inside.
unsafe impl<T: Send> Sync for Spinning<T> {}
// SAFETY: it owns what is inside.
unsafe impl<T: Send> Send for Spinning<T> {}

/// Inside of a gate.
pub(crate) struct SpinningInside<'a, T> {
    gate: &'a Spinning<T>,
    inside: UnsafeCellMut<T>,
}

impl<T> Spinning<T> {
    pub(crate) fn new(inside: T) -> Self {
        Spinning {
            word: AtomicU32::new(OPEN),
            inside: UnsafeCell::new(inside),
        }
    }

    #[inline]
    pub(crate) fn try_enter(&self) -> Option<SpinningInside<'_, T>> {
        // Acquire: pairs with the Release in `drop`.
        let entered = self
            .word
            .compare_exchange(OPEN, SHUT, Ordering::Acquire, Ordering::Relaxed);
        entered.is_ok().then(|| SpinningInside {
            gate: self,
            inside: self.inside.get_mut(),
        })
    }

    /// Waits for those inside.
    #[cold]
    pub(crate) fn wait_and_enter(&self) -> SpinningInside<'_, T> {
        let mut round = 0;
        loop {
            if self.word.load(Ordering::Relaxed) == OPEN
                && let Some(inside) = self.try_enter()
            {
                return inside;
            }
            match round {
                _ if cfg!(loom) => thread::yield_now(),
                0..SPIN_ROUNDS => (0..1 << round).for_each(|_| spin_loop()),
                SPIN_ROUNDS..YIELD_ROUNDS => thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
            round = round.saturating_add(1);
        }
    }
}

impl<T> Deref for SpinningInside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the word is shut by us, so nobody else has a reference; ours is bound to `self`.
        unsafe { self.inside.deref() }
    }
}

impl<T> DerefMut for SpinningInside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { self.inside.deref() }
    }
}

impl<T> Drop for SpinningInside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.inside.leave();
        // Release: pairs with the Acquire in `try_enter`.
        self.gate.word.store(OPEN, Ordering::Release);
    }
}

#[cfg(loom)]
mod with_mutex {
    use crate::sync::{Mutex, MutexGuard};

    pub(crate) struct Gate<T>(Mutex<T>);

    pub(crate) type Inside<'a, T> = MutexGuard<'a, T>;

    impl<T> Gate<T> {
        pub(crate) fn new(inside: T) -> Self {
            Gate(Mutex::new(inside))
        }

        pub(crate) fn try_enter(&self) -> Option<Inside<'_, T>> {
            self.0.try_lock().ok()
        }

        pub(crate) fn wait_and_enter(&self) -> Inside<'_, T> {
            self.0.lock().expect("no panic")
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use crate::sync::{Arc, thread};

    use super::Spinning;

    #[test]
    fn one_at_a_time_is_inside() {
        loom::model(|| {
            let gate = Arc::new(Spinning::new(0));
            let other = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || *gate.wait_and_enter() += 1)
            };
            *gate.wait_and_enter() += 1;
            other.join().expect("no panic");
            assert_eq!(*gate.wait_and_enter(), 2);
        });
    }
}
