//! Mutexes and reader-writer locks, taken and released by hand.

use parking_lot::lock_api::{RawMutex as _, RawRwLock as _};

/// A lock without data. Sealed: [`Mutex`] and [`RwLock`] are all there are.
pub trait Kind: Default + sealed::Acquire {}

/// A lock that one thread has at a time.
pub struct Mutex(parking_lot::RawMutex);

/// A lock that several threads can share.
pub struct RwLock(parking_lot::RawRwLock);

pub(super) mod sealed {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Mode {
        Exclusive,
        Shared,
    }

    pub trait Acquire {
        fn acquire(&self, mode: Mode);

        fn try_acquire(&self, mode: Mode) -> bool;

        /// # Safety
        /// This thread has the lock in this mode.
        unsafe fn release(&self, mode: Mode);
    }
}

use sealed::Mode;

impl Kind for Mutex {}
impl Kind for RwLock {}

impl Default for Mutex {
    fn default() -> Self {
        Mutex(parking_lot::RawMutex::INIT)
    }
}

impl Default for RwLock {
    fn default() -> Self {
        RwLock(parking_lot::RawRwLock::INIT)
    }
}

impl sealed::Acquire for Mutex {
    #[inline]
    fn acquire(&self, _: Mode) {
        self.0.lock();
    }

    #[inline]
    fn try_acquire(&self, _: Mode) -> bool {
        self.0.try_lock()
    }

    #[inline]
    unsafe fn release(&self, _: Mode) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock() }
    }
}

impl sealed::Acquire for RwLock {
    #[inline]
    fn acquire(&self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.0.lock_exclusive(),
            Mode::Shared => self.0.lock_shared(),
        }
    }

    #[inline]
    fn try_acquire(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.0.try_lock_exclusive(),
            Mode::Shared => self.0.try_lock_shared(),
        }
    }

    #[inline]
    unsafe fn release(&self, mode: Mode) {
        // SAFETY: the caller's promise.
        unsafe {
            match mode {
                Mode::Exclusive => self.0.unlock_exclusive(),
                Mode::Shared => self.0.unlock_shared(),
            }
        }
    }
}
