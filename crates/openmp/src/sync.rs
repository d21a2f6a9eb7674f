//! The one door to atomics and to blocking: the standard library's and futexes, or loom's under `--cfg loom`.

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

/// Keeps what one thread writes off the lines that others read. Two lines: x86 fetches them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line<T>(pub T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The line at that address, which the caller will write soon, comes from whoever has it while the caller goes on. Any address will do.
#[inline(always)]
pub fn fetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which never faults.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint, which never faults.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}
