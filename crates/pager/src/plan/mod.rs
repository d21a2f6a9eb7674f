//! The pure core: what is where, what to fetch next. No system calls (but the sleeping of `waits`), no clock.

pub(crate) mod fill;
pub(crate) mod in_flight;
pub(crate) mod near;
pub(crate) mod pages;
pub(crate) mod rate;
pub(crate) mod record;
pub(crate) mod share;
pub(crate) mod space;
pub(crate) mod stream;
pub(crate) mod waits;
pub(crate) mod working_set;

/// Spreads the numbers of threads over tables, by the high bits (Fibonacci hashing): numbers of neighbours are far from each other.
pub(crate) fn scatter(thread: u64) -> u64 {
    thread.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(all(test, loom))]
mod models;
