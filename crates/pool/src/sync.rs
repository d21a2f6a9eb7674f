//! The one door to atomics, fences and blocking: the standard library's, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Locks what belongs to a handle or a token, and to no pool. Waits are counted with those of all handles.
#[cfg(not(loom))]
pub(crate) fn lock_of_handle<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> {
    crate::waits::lock(mutex, &crate::waits::HANDLES)
}

/// The same in models.
#[cfg(loom)]
pub(crate) fn lock_of_handle<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> {
    mutex.lock().unwrap()
}

/// Keeps what is written by one CPU off the lines that others read. Two lines: x86 fetches them in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The frequent side of an asymmetric fence: keeps the compiler from reordering, costs nothing.
/// Partner: [`heavy_fence`], which makes every running thread of the process pass a full fence.
#[inline(always)]
pub(crate) fn light_fence() {
    #[cfg(any(loom, miri))]
    fence(Ordering::SeqCst);
    #[cfg(not(any(loom, miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The rare side: after it, a [`light_fence`] of another thread counts as a full one. False where the
/// system has no such thing, and then nothing was done.
pub(crate) fn heavy_fence() -> bool {
    #[cfg(any(loom, miri))]
    {
        fence(Ordering::SeqCst);
        true
    }
    #[cfg(not(any(loom, miri)))]
    crate::sys::membarrier()
}
