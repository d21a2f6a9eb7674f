//! Something has happened: set once by one thread, waited for by one other.

use std::sync::Arc;

use crate::parker::Parker;
use crate::spawn::ThreadParker;
use crate::sync::{AtomicU32, Ordering};

const UNSET: u32 = 0;
/// The waiter is about to sleep or sleeps.
const SLEEPING: u32 = 1;
const SET: u32 = 2;

/// Waited for by the thread of a slot, whose parker lives as long as the pool.
pub(crate) struct Latch {
    state: AtomicU32,
    waiter: *const Parker,
}

impl Latch {
    #[inline(always)]
    pub(crate) fn new(waiter: &Parker) -> Self {
        Latch {
            state: AtomicU32::new(UNSET),
            waiter,
        }
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // Acquire: pairs with the Release in `set`.
        self.state.load(Ordering::Acquire) == SET
    }

    /// Announces that the waiter will park; false if the latch is set.
    pub(crate) fn will_sleep(&self) -> bool {
        match self
            .state
            .compare_exchange(UNSET, SLEEPING, Ordering::Relaxed, Ordering::Acquire)
        {
            Ok(_) => true,
            Err(found) => found == SLEEPING,
        }
    }

    /// The waiter is awake again.
    pub(crate) fn has_woken(&self) {
        let _ = self
            .state
            .compare_exchange(SLEEPING, UNSET, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// # Safety
    /// `this` and the waiter's parker live at the call. The latch may be gone once it is set: the waiter goes on.
    pub(crate) unsafe fn set(this: *const Self) {
        // SAFETY: it lives until the swap below.
        let waiter = unsafe { (*this).waiter };
        // SAFETY: as above. Release: pairs with the Acquire in `is_set`.
        if unsafe { (*this).state.swap(SET, Ordering::AcqRel) } == SLEEPING {
            // SAFETY: parkers of slots outlive the jobs of their pool.
            unsafe { (*waiter).unpark() };
        }
    }
}

// SAFETY: the pointer is only used for `unpark`, which any thread may call.
unsafe impl Send for Latch {}
// SAFETY: as above; the rest is atomic.
unsafe impl Sync for Latch {}

/// Waited for by a thread that has nothing to do with the pool.
pub(crate) struct ThreadLatch {
    state: AtomicU32,
    parker: Arc<ThreadParker>,
}

impl ThreadLatch {
    pub(crate) fn new(parker: Arc<ThreadParker>) -> Self {
        ThreadLatch {
            state: AtomicU32::new(UNSET),
            parker,
        }
    }

    pub(crate) fn wait(&self) {
        while self.state.load(Ordering::Acquire) != SET {
            crate::states::join(&self.parker.0, None);
        }
    }

    /// # Safety
    /// `this` lives at the call; it may be gone once it is set.
    pub(crate) unsafe fn set(this: *const Self) {
        // SAFETY: it lives until the store below; its parker is kept beyond.
        let parker = unsafe { (*this).parker.clone() };
        // SAFETY: as above.
        unsafe { (*this).state.store(SET, Ordering::Release) };
        parker.0.unpark();
    }
}
