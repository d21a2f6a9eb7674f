//! Locks that are held.

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::kind::Kind;
use super::kind::sealed::Mode;

/// A lock to take, by its place in the array.
pub(super) type Claim = (usize, Mode);

/// The lock of a key, held until this is dropped. Stays with its thread.
#[must_use = "the lock is released when the guard is dropped"]
pub struct KeyGuard<'a, K: Kind> {
    lock: &'a K,
    mode: Mode,
    _held: Held,
}

impl<'a, K: Kind> KeyGuard<'a, K> {
    /// `lock`, of the array `id`, was acquired by this thread.
    #[inline]
    pub(super) fn new(lock: &'a K, mode: Mode, id: usize) -> Self {
        KeyGuard {
            lock,
            mode,
            _held: Held::new(id),
        }
    }
}

impl<K: Kind> Drop for KeyGuard<'_, K> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: acquired by this thread in this mode before the guard was made, and released only here.
        unsafe { self.lock.release(self.mode) }
    }
}

/// The locks of several keys, held until this is dropped. Stays with its thread.
#[must_use = "the locks are released when the guard is dropped"]
pub struct KeysGuard<'a, K: Kind> {
    locks: SmallVec<[(&'a K, Mode); 8]>,
    _held: Held,
}

impl<'a, K: Kind> KeysGuard<'a, K> {
    /// Of the array `id`, with nothing yet.
    pub(super) fn new(id: usize, capacity: usize) -> Self {
        KeysGuard {
            locks: SmallVec::with_capacity(capacity),
            _held: Held::new(id),
        }
    }

    /// `lock` was acquired by this thread.
    pub(super) fn push(&mut self, lock: &'a K, mode: Mode) {
        self.locks.push((lock, mode));
    }

    /// How many locks are held: no more than there were keys.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }
}

impl<K: Kind> Drop for KeysGuard<'_, K> {
    fn drop(&mut self) {
        for (lock, mode) in self.locks.drain(..).rev() {
            // SAFETY: acquired by this thread in this mode before it was pushed, and released only here.
            unsafe { lock.release(mode) }
        }
    }
}

/// A guard of an array is alive on this thread; with debug assertions it is known which.
struct Held {
    /// parking_lot's locks are released by the thread that took them.
    _not_send: PhantomData<*mut ()>,
    #[cfg(debug_assertions)]
    id: usize,
}

#[cfg(not(debug_assertions))]
impl Held {
    #[inline]
    fn new(_: usize) -> Self {
        Held {
            _not_send: PhantomData,
        }
    }
}

/// Does nothing without debug assertions.
#[cfg(not(debug_assertions))]
#[inline]
pub(super) fn assert_free(_: usize) {}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    thread_local! {
        /// The arrays of which this thread has guards, once for each guard.
        pub(super) static ARRAYS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }
}

#[cfg(debug_assertions)]
impl Held {
    fn new(id: usize) -> Self {
        // A thread that is ending has no list any more.
        let _ = held::ARRAYS.try_with(|arrays| arrays.borrow_mut().push(id));
        Held {
            _not_send: PhantomData,
            id,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let _ = held::ARRAYS.try_with(|arrays| {
            let mut arrays = arrays.borrow_mut();
            if let Some(at) = arrays.iter().rposition(|&id| id == self.id) {
                arrays.remove(at);
            }
        });
    }
}

/// Before waiting for a lock of the array `id`.
///
/// # Panics
/// If this thread has a guard of it.
#[cfg(debug_assertions)]
pub(super) fn assert_free(id: usize) {
    let has = held::ARRAYS.try_with(|arrays| arrays.borrow().contains(&id));
    assert!(
        has != Ok(true),
        "this thread would wait for a lock of an array of which it holds a guard: take all keys together"
    );
}
