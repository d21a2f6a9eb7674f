//! The one door to atomics, mutexes and parking: the standard library's, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, Thread},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, Thread},
};

pub(crate) use cell::{UnsafeCell, UnsafeCellMut};

use std::sync::{LockResult, PoisonError};

/// Takes what a mutex guards, whoever panicked: only a broken invariant panics inside, and it is found again.
pub(crate) fn whole<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// A number that tells this thread from all others that run.
#[cfg(not(loom))]
#[inline]
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(loom)]
pub(crate) fn this_thread() -> usize {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    thread::current().id().hash(&mut hasher);
    hasher.finish() as usize
}

/// Keeps what is written by one CPU off the lines that others read. Two lines: x86 fetches them in pairs.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Cells whose use loom checks.
#[cfg(not(loom))]
mod cell {
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);
    pub(crate) struct UnsafeCellMut<T>(*mut T);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(inside: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(inside))
        }

        #[inline]
        pub(crate) fn get_mut(&self) -> UnsafeCellMut<T> {
            UnsafeCellMut(self.0.get())
        }
    }

    impl<T> UnsafeCellMut<T> {
        /// # Safety
        /// The cell lives, and there is no other reference to what is inside.
        #[inline]
        #[allow(clippy::mut_from_ref)]
        pub(crate) unsafe fn deref(&self) -> &mut T {
            // SAFETY: as promised by the caller.
            unsafe { &mut *self.0 }
        }

        /// The access is over.
        #[inline]
        pub(crate) fn leave(&mut self) {}
    }
}

#[cfg(loom)]
mod cell {
    pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);
    pub(crate) struct UnsafeCellMut<T>(Option<loom::cell::MutPtr<T>>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(inside: T) -> Self {
            UnsafeCell(loom::cell::UnsafeCell::new(inside))
        }

        pub(crate) fn get_mut(&self) -> UnsafeCellMut<T> {
            UnsafeCellMut(Some(self.0.get_mut()))
        }
    }

    impl<T> UnsafeCellMut<T> {
        /// # Safety
        /// The cell lives, and there is no other reference to what is inside.
        #[allow(clippy::mut_from_ref)]
        pub(crate) unsafe fn deref(&self) -> &mut T {
            // SAFETY: as promised by the caller.
            unsafe { self.0.as_ref().expect("the access is not over").deref() }
        }

        pub(crate) fn leave(&mut self) {
            self.0 = None;
        }
    }
}
