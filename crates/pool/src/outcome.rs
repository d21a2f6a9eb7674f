//! How a piece of work ended, and who wants to know.
//!
//! One word says how far it is and whether somebody waits; work that nobody waits for yet ends without a lock.

use std::cell::UnsafeCell;
use std::task::Waker;

use crate::latch::Latch;
use crate::spawn::JoinError;
use crate::sync::{AtomicU32, Mutex, Ordering, lock_of_handle};

const QUEUED: u32 = 0;
const RUNNING: u32 = 1;
/// Claimed by who cancels it.
const CANCELLED: u32 = 2;
/// The result is there, or was.
const DONE: u32 = 3;
/// Beside these: there may be a waiter.
const WAITED: u32 = 4;

pub(crate) enum Waiter {
    /// In the frame of a worker that waits.
    Latch(*const Latch),
    Waker(Waker),
}

// SAFETY: a latch may be set by any thread.
unsafe impl Send for Waiter {}

pub(crate) struct Outcome<T> {
    state: AtomicU32,
    /// Belongs to who has claimed the work until it is `DONE`, and to the handle from then on.
    result: UnsafeCell<Option<Result<T, JoinError>>>,
    waiter: Mutex<Option<Waiter>>,
}

// SAFETY: `result` has one owner at a time, which it goes to by the state.
unsafe impl<T: Send> Sync for Outcome<T> {}

impl<T> Outcome<T> {
    pub(crate) fn new() -> Self {
        Outcome {
            state: AtomicU32::new(QUEUED),
            result: UnsafeCell::new(None),
            waiter: Mutex::new(None),
        }
    }

    /// Whether the caller is to run the work, and then calls [`finish`](Self::finish).
    pub(crate) fn begin(&self) -> bool {
        self.claim(RUNNING)
    }

    /// Whether nobody will run it. Then the caller drops it, and calls [`finish`](Self::finish).
    pub(crate) fn cancel(&self) -> bool {
        self.claim(CANCELLED)
    }

    /// Whether somebody has begun with it, and has not ended: for who may be the one.
    pub(crate) fn is_begun(&self) -> bool {
        self.state.load(Ordering::Relaxed) & !WAITED == RUNNING
    }

    /// Nobody will run it any more, nor go on with it. By the last one who could.
    pub(crate) fn abandon(&self) {
        if self.is_begun() || self.cancel() {
            self.finish(Err(JoinError::Cancelled));
        }
    }

    fn claim(&self, to: u32) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & !WAITED == QUEUED {
            let claimed = to | state & WAITED;
            match self.state.compare_exchange_weak(
                state,
                claimed,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(found) => state = found,
            }
        }
        false
    }

    /// By who has claimed it, once.
    pub(crate) fn finish(&self, result: Result<T, JoinError>) {
        // SAFETY: claimed, and not done.
        unsafe { *self.result.get() = Some(result) };
        // Release: pairs with the Acquire in `is_over`. Acquire: the waiter that the bit tells of.
        let before = self.state.swap(DONE, Ordering::AcqRel);
        debug_assert_ne!(before & !WAITED, DONE, "finished twice");
        if before & WAITED != 0 {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        let mut place = lock_of_handle(&self.waiter);
        match place.take() {
            // SAFETY: a worker stays in the frame of its latch until it is set. Its parker may be another pool's, which
            // may go once the worker has: it waits for this lock before it returns.
            Some(Waiter::Latch(latch)) => unsafe { Latch::set(latch) },
            Some(Waiter::Waker(waker)) => {
                drop(place);
                waker.wake();
            }
            None => {}
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) & !WAITED == DONE
    }

    /// False if it is over already.
    pub(crate) fn register(&self, waiter: Waiter) -> bool {
        let mut place = lock_of_handle(&self.waiter);
        let before = place.replace(waiter);
        let is_over = self.state.fetch_or(WAITED, Ordering::AcqRel) & !WAITED == DONE;
        // Nobody is told twice, and who finishes may look for somebody yet.
        let own = is_over.then(|| place.take());
        // What goes is foreign, and may want the lock.
        drop(place);
        drop((before, own));
        !is_over
    }

    /// Whoever has set the latch that was registered has left its parker.
    pub(crate) fn wait_for_finisher(&self) {
        drop(lock_of_handle(&self.waiter));
    }

    /// # Safety
    /// It is over, and nobody else takes the result.
    pub(crate) unsafe fn take(&self) -> Result<T, JoinError> {
        debug_assert!(self.is_over());
        // SAFETY: done, and the caller is the only one.
        let result = unsafe { (*self.result.get()).take() };
        result.expect("a handle is not polled after its end")
    }

    /// The result; `None` if it is not over, and then the waker is called when it is.
    ///
    /// # Safety
    /// Nobody else takes the result.
    pub(crate) unsafe fn take_or_register(&self, waker: &Waker) -> Option<Result<T, JoinError>> {
        let is_known = !self.is_over()
            && matches!(&*lock_of_handle(&self.waiter), Some(Waiter::Waker(known)) if known.will_wake(waker));
        let waits = is_known || !self.is_over() && self.register(Waiter::Waker(waker.clone()));
        if waits && !self.is_over() {
            return None;
        }
        // SAFETY: over, and the caller is the only one.
        Some(unsafe { self.take() })
    }
}
