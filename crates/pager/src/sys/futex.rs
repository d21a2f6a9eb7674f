//! Sleeping on a word of memory. Async-signal-safe.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while `word` is `expected`, for `at_most`. May return early.
pub(crate) fn wait(word: &AtomicU32, expected: u32, at_most: Duration) {
    let time = Timespec {
        tv_sec: at_most.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    let _ = futex::wait(word, Flags::PRIVATE, expected, Some(&time));
}

/// Wakes all who sleep on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
}

/// Wakes one who sleeps on `word`.
pub(crate) fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, 1);
}
