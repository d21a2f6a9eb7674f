//! The one door to atomics, mutexes and parking: the standard library's, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, Thread},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, Thread},
};

use std::sync::{LockResult, PoisonError};

/// Takes what a mutex guards, whoever panicked: only a broken invariant panics inside, and it is found again.
pub(crate) fn whole<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what is written by one CPU off the lines that others read. Two lines: x86 fetches them in pairs.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
