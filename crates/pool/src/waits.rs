//! Waits are counted where they happen: how often, how long in all, the longest.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Buckets of a quarter of a power of two: percentiles within 25 %.
const BUCKETS: usize = 160;

/// Counters of one place.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) what: &'static str,
    times: AtomicU64,
    sleeps: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// What was counted until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCount {
    /// Waits that are over.
    pub times: u64,
    /// Those that slept in the kernel.
    pub sleeps: u64,
    /// Nanoseconds of all.
    pub total_ns: u64,
    /// Nanoseconds of the longest.
    pub max_ns: u64,
    /// Nanoseconds that 99 of 100 did not exceed, within 25 %.
    pub p99_ns: u64,
}

impl WaitCount {
    /// The waits of two places; the percentile is the larger one's.
    pub(crate) fn plus(self, other: WaitCount) -> WaitCount {
        WaitCount {
            times: self.times + other.times,
            sleeps: self.sleeps + other.sleeps,
            total_ns: self.total_ns + other.total_ns,
            max_ns: self.max_ns.max(other.max_ns),
            p99_ns: self.p99_ns.max(other.p99_ns),
        }
    }
}

/// The relative error of [`WaitCount::p99_ns`].
pub(crate) const P99_ERROR: f64 = 0.25;

fn bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let octave = 63 - ns.leading_zeros();
    let quarter = (ns >> (octave - 2)) & 3;
    (((octave - 2) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn bound(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket as u32 / 4 + 2, bucket as u64 % 4);
    ((5 + quarter) << (octave - 2)) - 1
}

impl Waits {
    pub(crate) const fn new(what: &'static str) -> Self {
        Waits {
            what,
            times: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    pub(crate) fn record(&self, waited: Duration, slept: bool) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.times.fetch_add(1, Ordering::Relaxed);
        self.sleeps.fetch_add(u64::from(slept), Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> WaitCount {
        let counted: u64 = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).sum();
        let max_ns = self.max_ns.load(Ordering::Relaxed);
        let mut left = counted - counted / 100;
        let p99 = self.buckets.iter().position(|b| {
            left = left.saturating_sub(b.load(Ordering::Relaxed));
            left == 0
        });
        WaitCount {
            times: self.times.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
            total_ns: self.total_ns.load(Ordering::Relaxed).max(max_ns),
            max_ns,
            p99_ns: p99.map_or(0, |b| bound(b).min(max_ns)),
        }
    }
}

/// A mutex that counts waits. An uncontended one is one exchange and reads no clock.
#[derive(Debug)]
pub(crate) struct Counted<T> {
    inner: Mutex<T>,
    pub(crate) waits: Waits,
}

pub(crate) struct CountedGuard<'a, T>(MutexGuard<'a, T>);

impl<T> Counted<T> {
    pub(crate) fn new(what: &'static str, inside: T) -> Self {
        Counted {
            inner: Mutex::new(inside),
            waits: Waits::new(what),
        }
    }

    /// As [`lock`].
    pub(crate) fn lock(&self) -> CountedGuard<'_, T> {
        CountedGuard(lock(&self.inner, &self.waits))
    }
}

/// Locks a mutex whose waits are counted elsewhere: there may be many, of short life. Panics inside are broken invariants of
/// this crate, which the next one finds too.
pub(crate) fn lock<'a, T>(mutex: &'a Mutex<T>, waits: &Waits) -> MutexGuard<'a, T> {
    match mutex.try_lock() {
        Ok(guard) => return guard,
        Err(TryLockError::Poisoned(p)) => return p.into_inner(),
        Err(TryLockError::WouldBlock) => {}
    }
    let begun = Instant::now();
    let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    waits.record(begun.elapsed(), true);
    guard
}

/// Locks and waits that belong to no pool: handles and channels go from one to another. Counted for all of the process.
pub(crate) static HANDLES: Waits = Waits::new("handles of all pools");
pub(crate) static HANDLE_JOINS: Waits = Waits::new("threads outside: end of work");
pub(crate) static CHANNELS: Waits = Waits::new("lists of waiters of all channels");
pub(crate) static SENDERS: Waits = Waits::new("channels: senders asleep");
pub(crate) static RECEIVERS: Waits = Waits::new("channels: receivers asleep");

impl<T> Deref for CountedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CountedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for ns in [
            0,
            1,
            4,
            5,
            7,
            8,
            1000,
            1_000_000,
            123_456_789,
            u64::from(u32::MAX),
        ] {
            let b = bucket(ns);
            assert!(ns <= bound(b), "{ns}");
            assert!(
                ns < 4 || bound(b) as f64 <= ns as f64 * 1.25 + 1.0,
                "{ns}: {}",
                bound(b)
            );
        }
    }

    #[test]
    fn waits_add_up() {
        let waits = Waits::new("x");
        for n in 1..=100 {
            waits.record(Duration::from_micros(n), n % 2 == 0);
        }
        let count = waits.count();
        assert_eq!((count.times, count.sleeps), (100, 50));
        assert_eq!((count.total_ns, count.max_ns), (5_050_000, 100_000));
        assert!(
            (99_000..=100_000).contains(&count.p99_ns),
            "{}",
            count.p99_ns
        );
    }

    #[test]
    fn a_lock_that_is_free_counts_nothing() {
        let lock = Counted::new("x", 1);
        *lock.lock() += 1;
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.waits.count(), WaitCount::default());
    }
}
