//! What the process has one of, which a child of `fork` must be able to use.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Something of the process's under a lock for which nobody waits: who finds it taken does without.
pub(crate) struct Kept<T: 'static> {
    first: Mutex<Option<T>>,
    /// Another one in a child of `fork`, if it has to be; null: the first.
    another: AtomicPtr<Mutex<Option<T>>>,
}

impl<T> Kept<T> {
    pub(crate) const fn new() -> Kept<T> {
        Kept {
            first: Mutex::new(None),
            another: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn lock(&self) -> &Mutex<Option<T>> {
        // SAFETY: null, or made by `in_child` and never freed.
        unsafe { self.another.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.first)
    }

    /// Of all threads only the one that called `fork` is there. One that had the lock would never give it back: what is
    /// under it is forgotten, not freed, since it may have been changing.
    pub(crate) fn in_child(&self) {
        if self.lock().try_lock().is_err() {
            let new = Box::into_raw(Box::new(Mutex::new(None)));
            self.another.store(new, Ordering::Release);
        }
    }
}
