//! The mutex around the state of a leaf: held for tens of nanoseconds, and left without a read-modify-write.
//!
//! Who leaves may post a *token* on it. As long as nobody has been inside since, the token can be taken off again by who knows it, with
//! one instruction and without going in; who goes in next learns whether it was.
//!
//! Loom cannot see that a spinning thread waits. There a mutex that it knows stands in for the gate, and the gate is
//! explored on its own.

#[cfg(loom)]
pub(crate) use with_mutex::{Gate, Inside};
#[cfg(not(loom))]
pub(crate) use {Spinning as Gate, SpinningInside as Inside};

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{AtomicU64, Ordering, UnsafeCell, UnsafeCellMut, spin_loop, thread};

/// What the low bits of the word say; the others are the token.
const OPEN: u64 = 0;
const SHUT: u64 = 1;
const POSTED: u64 = 2;
const TAKEN_OFF: u64 = 3;
const STATE: u64 = 3;

/// Bits of a word that can tell tokens apart.
pub(crate) const TOKEN_BITS: u64 = !STATE;

/// Rounds of 1, 2, 4, ... pauses, then of giving the CPU away, then of sleep: the holder may have lost its CPU, and may
/// be of a priority that gets none while somebody spins.
const SPIN_ROUNDS: u32 = 7;
const YIELD_ROUNDS: u32 = 32;
const NAP: Duration = Duration::from_micros(50);

// The word first: it lies in the line of what is looked at next.
#[repr(C)]
pub(crate) struct Spinning<T> {
    word: AtomicU64,
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
    /// The word as it was found, and how it is left.
    found: u64,
    leave: u64,
}

impl<T> Spinning<T> {
    pub(crate) fn new(inside: T) -> Self {
        Spinning {
            word: AtomicU64::new(OPEN),
            inside: UnsafeCell::new(inside),
        }
    }

    #[inline]
    pub(crate) fn try_enter(&self) -> Option<SpinningInside<'_, T>> {
        let found = self.shut();
        (found != SHUT).then(|| SpinningInside {
            gate: self,
            inside: self.inside.get_mut(),
            found,
            leave: OPEN,
        })
    }

    /// Shuts the gate; what the word said before.
    #[cfg(not(loom))]
    #[inline]
    fn shut(&self) -> u64 {
        // Acquire: pairs with the Release in `drop` and `take_off`. A swap, since it is not known what the word says when the gate is
        // open; looking first would fetch the line twice.
        self.word.swap(SHUT, Ordering::Acquire)
    }

    /// The same without a store where it is shut already: loom lets such a store come after the one that opens the gate.
    #[cfg(loom)]
    fn shut(&self) -> u64 {
        let shut = |word| (word != SHUT).then_some(SHUT);
        let before = self
            .word
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, shut);
        before.unwrap_or_else(|shut| shut)
    }

    /// Takes a token off that was posted, without going in. `false`: somebody has been inside since, or is now.
    #[inline]
    pub(crate) fn take_off(&self, token: u64) -> bool {
        // Release: pairs with the Acquire in `try_enter`: what was done until now is done before what the next one does.
        let taken = self.word.compare_exchange(
            token & TOKEN_BITS | POSTED,
            TAKEN_OFF,
            Ordering::Release,
            Ordering::Relaxed,
        );
        taken.is_ok()
    }

    /// Enters if nobody is inside, without a store if somebody is.
    #[cold]
    pub(crate) fn look_and_enter(&self) -> Option<SpinningInside<'_, T>> {
        match self.word.load(Ordering::Relaxed) {
            SHUT => None,
            _ => self.try_enter(),
        }
    }

    /// Waits for those inside.
    #[cold]
    pub(crate) fn wait_and_enter(&self) -> SpinningInside<'_, T> {
        let mut rounds = Rounds::default();
        loop {
            if let Some(inside) = self.look_and_enter() {
                return inside;
            }
            rounds.wait();
        }
    }
}

/// Waits between two looks, longer and longer.
#[derive(Default)]
pub(crate) struct Rounds(u32);

impl Rounds {
    #[cold]
    pub(crate) fn wait(&mut self) {
        match self.0 {
            _ if cfg!(loom) => thread::yield_now(),
            round @ 0..SPIN_ROUNDS => (0..1 << round).for_each(|_| spin_loop()),
            SPIN_ROUNDS..YIELD_ROUNDS => thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
        self.0 = self.0.saturating_add(1);
    }
}

impl<T> SpinningInside<'_, T> {
    /// Whether a token was posted when somebody left last, and has been taken off.
    #[inline]
    pub(crate) fn was_taken_off(&self) -> bool {
        self.found == TAKEN_OFF
    }

    /// Posts a token when this is left. Those that are posted one after the other differ.
    #[inline]
    pub(crate) fn post(&mut self, token: u64) {
        self.leave = token & TOKEN_BITS | POSTED;
    }

    /// Lets stay what is posted, because nothing was changed inside.
    #[inline]
    pub(crate) fn leave_as_found(&mut self) {
        if self.found & STATE == POSTED {
            self.leave = self.found;
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
        self.gate.word.store(self.leave, Ordering::Release);
    }
}

#[cfg(loom)]
mod with_mutex {
    use std::ops::{Deref, DerefMut};

    use super::{OPEN, POSTED, STATE, TAKEN_OFF, TOKEN_BITS};
    use crate::sync::{Mutex, MutexGuard};

    /// The word, and what is inside.
    pub(crate) struct Gate<T>(Mutex<(u64, T)>);

    pub(crate) struct Inside<'a, T> {
        locked: MutexGuard<'a, (u64, T)>,
        found: u64,
    }

    impl<T> Gate<T> {
        pub(crate) fn new(inside: T) -> Self {
            Gate(Mutex::new((OPEN, inside)))
        }

        pub(crate) fn try_enter(&self) -> Option<Inside<'_, T>> {
            self.0.try_lock().ok().map(Inside::new)
        }

        pub(crate) fn look_and_enter(&self) -> Option<Inside<'_, T>> {
            self.try_enter()
        }

        pub(crate) fn wait_and_enter(&self) -> Inside<'_, T> {
            Inside::new(self.0.lock().expect("no panic"))
        }

        pub(crate) fn take_off(&self, token: u64) -> bool {
            let posted = token & TOKEN_BITS | POSTED;
            let word = self.0.try_lock().ok().filter(|word| word.0 == posted);
            word.map(|mut word| word.0 = TAKEN_OFF).is_some()
        }
    }

    impl<'a, T> Inside<'a, T> {
        fn new(mut locked: MutexGuard<'a, (u64, T)>) -> Self {
            let found = std::mem::replace(&mut locked.0, OPEN);
            Inside { locked, found }
        }

        pub(crate) fn was_taken_off(&self) -> bool {
            self.found == TAKEN_OFF
        }

        pub(crate) fn post(&mut self, token: u64) {
            self.locked.0 = token & TOKEN_BITS | POSTED;
        }

        pub(crate) fn leave_as_found(&mut self) {
            if self.found & STATE == POSTED {
                self.locked.0 = self.found;
            }
        }
    }

    impl<T> Deref for Inside<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.locked.1
        }
    }

    impl<T> DerefMut for Inside<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.locked.1
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

    /// Something that is held by a mark inside, given back by a token or, if somebody was inside meanwhile, by hand: one at a time holds
    /// it, and nobody's giving back is lost.
    #[test]
    fn what_is_given_back_by_a_token_is_free_once() {
        #[derive(Default)]
        struct Inner {
            held: bool,
            tokens: u64,
        }
        struct Shared {
            gate: Spinning<Inner>,
            number: loom::cell::UnsafeCell<u32>,
        }
        impl Shared {
            fn hold(&self, leaves_token: bool) -> bool {
                let mut inside = self.gate.wait_and_enter();
                if inside.was_taken_off() {
                    inside.held = false;
                }
                if inside.held {
                    if leaves_token {
                        inside.leave_as_found();
                    }
                    return false;
                }
                inside.held = true;
                inside.tokens += 1 << 2;
                let token = inside.tokens;
                inside.post(token);
                drop(inside);
                // SAFETY: it is held; loom checks that.
                self.number.with_mut(|number| unsafe { *number += 1 });
                if !self.gate.take_off(token) {
                    let mut inside = self.gate.wait_and_enter();
                    assert!(inside.held && !inside.was_taken_off());
                    inside.held = false;
                }
                true
            }
        }
        loom::model(|| {
            let shared = Arc::new(Shared {
                gate: Spinning::new(Inner::default()),
                number: loom::cell::UnsafeCell::new(0),
            });
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.hold(true))
            };
            let held = u32::from(shared.hold(false)) + u32::from(other.join().expect("no panic"));
            assert!(shared.hold(true), "nobody has it any more");
            // SAFETY: the other thread has ended.
            shared
                .number
                .with(|number| assert_eq!(unsafe { *number }, held + 1));
        });
    }
}
