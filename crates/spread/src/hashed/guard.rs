//! Locks that are held.

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::Padded;
use super::kind::Kind;
use super::kind::sealed::Mode;

/// A lock to take: twice its index, one more if it is shared. So they sort by index, exclusive first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim(u32);

/// Few enough to be in the guard itself.
pub(super) type Claims = SmallVec<[Claim; 8]>;

impl Claim {
    #[inline]
    pub fn new(index: usize, mode: Mode) -> Self {
        Claim((index as u32) << 1 | u32::from(mode == Mode::Shared))
    }

    #[inline]
    pub fn index(self) -> usize {
        (self.0 >> 1) as usize
    }

    #[inline]
    fn mode(self) -> Mode {
        match self.0 & 1 {
            0 => Mode::Exclusive,
            _ => Mode::Shared,
        }
    }
}

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
    pub(super) fn new(lock: &'a K, mode: Mode, id: Id) -> Self {
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
    array: &'a [Padded<K>],
    claims: Claims,
    /// How many of the claims are held, from the first on.
    held: usize,
    _held: Held,
}

impl<'a, K: Kind> KeysGuard<'a, K> {
    /// With nothing yet.
    #[inline]
    fn new(array: &'a [Padded<K>], claims: Claims, id: Id) -> Self {
        KeysGuard {
            array,
            claims,
            held: 0,
            _held: Held::new(id),
        }
    }

    /// Waits for one after the other.
    #[inline]
    pub(super) fn acquire(array: &'a [Padded<K>], claims: Claims, id: Id) -> Self {
        let mut guard = Self::new(array, claims, id);
        for claim in &guard.claims {
            array[claim.index()].0.acquire(claim.mode());
            guard.held += 1;
        }
        guard
    }

    /// All or none.
    #[inline]
    pub(super) fn try_acquire(array: &'a [Padded<K>], claims: Claims, id: Id) -> Option<Self> {
        let mut guard = Self::new(array, claims, id);
        for claim in &guard.claims {
            if !array[claim.index()].0.try_acquire(claim.mode()) {
                return None;
            }
            guard.held += 1;
        }
        Some(guard)
    }

    /// How many locks are held: no more than there were keys.
    pub fn locks(&self) -> usize {
        self.held
    }
}

impl<K: Kind> Drop for KeysGuard<'_, K> {
    #[inline]
    fn drop(&mut self) {
        for claim in self.claims[..self.held].iter().rev() {
            // SAFETY: acquired by this thread in this mode before it was counted, and released only here.
            unsafe { self.array[claim.index()].0.release(claim.mode()) }
        }
    }
}

/// A guard of an array is alive on this thread; with debug assertions it is known which.
struct Held {
    /// parking_lot's locks are released by the thread that took them.
    _not_send: PhantomData<*mut ()>,
    #[cfg(debug_assertions)]
    id: Id,
}

/// The number of an array; without debug assertions there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(#[cfg(debug_assertions)] u64);

impl Id {
    pub fn new() -> Self {
        #[cfg(debug_assertions)]
        {
            use std::sync::atomic::{AtomicU64, Ordering};
            static NEXT: AtomicU64 = AtomicU64::new(0);
            Id(NEXT.fetch_add(1, Ordering::Relaxed))
        }
        #[cfg(not(debug_assertions))]
        Id()
    }
}

#[cfg(not(debug_assertions))]
impl Held {
    #[inline]
    fn new(_: Id) -> Self {
        Held {
            _not_send: PhantomData,
        }
    }
}

/// Does nothing without debug assertions.
#[cfg(not(debug_assertions))]
#[inline]
pub(super) fn assert_free(_: Id) {}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    thread_local! {
        /// The arrays of which this thread has guards, once for each guard.
        pub(super) static ARRAYS: RefCell<Vec<super::Id>> = const { RefCell::new(Vec::new()) };
    }
}

#[cfg(debug_assertions)]
impl Held {
    fn new(id: Id) -> Self {
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
pub(super) fn assert_free(id: Id) {
    let has = held::ARRAYS.try_with(|arrays| arrays.borrow().contains(&id));
    assert!(
        has != Ok(true),
        "this thread would wait for a lock of an array of which it holds a guard: take all keys together"
    );
}
