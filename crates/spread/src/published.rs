//! A counter whose approximate sum is read often.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::llc_map::LlcMap;
use crate::parts::{Parts, Placement};
use crate::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// Where a [`PublishedCounter`] has its time from.
pub trait Clock {
    /// Nanoseconds since some instant; never less than before.
    fn now_ns(&self) -> u64;

    /// The same, late by some milliseconds perhaps, and cheaper to ask for.
    fn coarse_ns(&self) -> u64 {
        self.now_ns()
    }
}

/// The system's monotonic clock; the coarse one is late by the kernel's tick, 1 to 10 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        ask(libc::CLOCK_MONOTONIC)
    }

    #[cfg(target_os = "linux")]
    fn coarse_ns(&self) -> u64 {
        ask(libc::CLOCK_MONOTONIC_COARSE)
    }
}

fn ask(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "the clock exists");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A [`Counter`](crate::Counter) that publishes its sum now and then in one line, which readers read instead of
/// all parts: for sums that are read as often as they change, such as the load of a group of tasks.
///
/// # What `read` gives
/// Additions go to parts. A part that has moved by `threshold` since it last said so has the sum published, unless
/// that happened less than [`INTERVAL_NS`](Self::INTERVAL_NS) ago; then the next reader or part after that time does it.
/// So what [`read`](Self::read) returns differs from the true sum by
/// - less than `threshold` for each [part](Self::parts) if all additions have the same sign, and less than
///   three times that otherwise,
/// - plus what was added within the last [`INTERVAL_NS`](Self::INTERVAL_NS); if nobody has added since, readers may notice up to a
///   tick of the kernel later, because they ask the [coarse clock](Clock::coarse_ns),
/// - plus what is being added or published at that moment by threads that have not finished.
///
/// [`read_exact`](Self::read_exact) is what [`Counter::read`](crate::Counter::read) is. The line changes at most
/// twice an interval: when the sum is published, and when that becomes due.
///
/// After the rate limit of `update_tg_load_avg` in the kernel's scheduler ("sched/fair: Ratelimit update to tg->load_avg", 2023).
///
/// ```
/// use std::num::NonZeroU64;
/// let load = amdahl_spread::PublishedCounter::new(NonZeroU64::new(64).unwrap());
/// load.add(1000);
/// assert!(load.read().abs_diff(load.read_exact()) <= 1000);
/// ```
pub struct PublishedCounter<C = Monotonic> {
    /// Two sums: the value, and what it was when a row last said that it had moved (only rows matter, not its total).
    parts: Parts,
    threshold: u64,
    clock: C,
    front: Front,
}

/// What readers read. In lines of its own.
#[repr(align(128))]
struct Front {
    sum: AtomicI64,
    /// When `sum` was published.
    at_ns: AtomicU64,
    /// A part has moved since, perhaps.
    pending: AtomicBool,
    /// The process of the one thread that publishes, or [`NOBODY`].
    publishing: AtomicU32,
}

const NOBODY: u32 = 0;

const VALUE: usize = 0;
const MARK: usize = 1;

impl PublishedCounter {
    /// With a part for each last-level cache, so that the bound is tight.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    pub fn new(threshold: NonZeroU64) -> Self {
        Self::with(
            threshold,
            Placement::PerLlc,
            LlcMap::of_this_machine(),
            Monotonic,
        )
    }
}

impl<C: Clock> PublishedCounter<C> {
    /// The sum is published at most once in this time: 1 ms, as in the kernel.
    pub const INTERVAL_NS: u64 = 1_000_000;

    /// With all that can be chosen.
    ///
    /// # Panics
    /// There is no memory, as for [`Counter::on`](crate::Counter::on).
    pub fn with(threshold: NonZeroU64, placement: Placement, map: Arc<LlcMap>, clock: C) -> Self {
        let at_ns = AtomicU64::new(clock.now_ns());
        let parts = Parts::pooled(placement, map, 2);
        PublishedCounter {
            parts: parts.unwrap_or_else(|error| panic!("a counter: {error}")),
            threshold: threshold.get(),
            clock,
            front: Front {
                sum: AtomicI64::new(0),
                at_ns,
                pending: AtomicBool::new(false),
                publishing: AtomicU32::new(NOBODY),
            },
        }
    }

    /// How many parts there are, each of which may differ from what was published.
    pub fn parts(&self) -> usize {
        self.parts.rows()
    }

    /// Adds `delta`.
    #[inline]
    pub fn add(&self, delta: i64) {
        let (row, value) = self.parts.add_fetch(VALUE, delta);
        let mark = self.parts.cell(row, MARK).load(Ordering::Relaxed);
        // A single large step could end near a mark that another thread is just now moving away from it.
        let moved = value
            .wrapping_sub(mark)
            .unsigned_abs()
            .max(delta.unsigned_abs());
        if moved >= self.threshold {
            self.crossed(row, mark, value);
        }
    }

    /// Subtracts `delta`.
    #[inline]
    pub fn sub(&self, delta: i64) {
        self.add(delta.wrapping_neg());
    }

    /// The sum that was published last; see above for how far it may be off. Loads one line, and once in a
    /// while publishes itself.
    #[inline]
    pub fn read(&self) -> i64 {
        if self.front.pending.load(Ordering::Relaxed) {
            // Late, never early: what is due by it is due.
            self.publish_if_due(self.clock.coarse_ns());
        }
        self.front.sum.load(Ordering::Relaxed)
    }

    /// The sum, as [`Counter::read`](crate::Counter::read) gives it. O(parts).
    pub fn read_exact(&self) -> i64 {
        self.parts.sum(VALUE)
    }

    /// A part has moved away from its mark.
    #[cold]
    fn crossed(&self, row: usize, mark: i64, value: i64) {
        // Whoever moves the mark first has seen the value furthest back; others have moved on from it.
        let _ = self.parts.cell(row, MARK).compare_exchange(
            mark,
            value,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // Pairs with the fence in `publish`: either that sum has our addition in it, or we see that `pending` was
        // cleared before it.
        fence(Ordering::SeqCst);
        if !self.front.pending.load(Ordering::Relaxed) {
            // Release: pairs with the Acquire in `publish`, whose sum has our addition in it if it clears this.
            self.front.pending.swap(true, Ordering::Release);
        }
        self.publish_if_due(self.clock.now_ns());
    }

    #[inline]
    fn publish_if_due(&self, now_ns: u64) {
        if self.is_due(now_ns) {
            self.publish();
        }
    }

    fn is_due(&self, now_ns: u64) -> bool {
        let at_ns = self.front.at_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(at_ns) >= Self::INTERVAL_NS
    }

    #[cold]
    fn publish(&self) {
        // The caller's code, which may do anything, before others are kept out.
        let now_ns = self.clock.now_ns();
        if !self.begin_to_publish() {
            return;
        }
        if self.is_due(now_ns) {
            // Acquire: pairs with the Release in `crossed`, the fence with the fence there.
            self.front.pending.swap(false, Ordering::Acquire);
            fence(Ordering::SeqCst);
            let sum = self.read_exact();
            self.front.sum.store(sum, Ordering::Relaxed);
            self.front.at_ns.store(now_ns, Ordering::Relaxed);
        }
        self.front.publishing.store(NOBODY, Ordering::Release);
    }

    /// Whether this thread is to publish, and no other meanwhile. Who was at it in a process that was forked meanwhile does not go on in the child.
    fn begin_to_publish(&self) -> bool {
        let us = std::process::id();
        // Acquire: pairs with the Release in `publish`, so that `at_ns` is the last publisher's.
        let begin = |before| {
            let publishing = &self.front.publishing;
            publishing.compare_exchange(before, us, Ordering::Acquire, Ordering::Relaxed)
        };
        match begin(NOBODY) {
            Err(other) if other != us => begin(other).is_ok(),
            done => done.is_ok(),
        }
    }
}

impl<C: Clock> fmt::Debug for PublishedCounter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedCounter")
            .field("published", &self.front.sum.load(Ordering::Relaxed))
            .field("exact", &self.read_exact())
            .field("threshold", &self.threshold)
            .field("parts", &self.parts())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// In the child nobody published any more.
    #[test]
    fn who_published_in_the_process_before_a_fork_does_not_go_on() {
        let counter = PublishedCounter::new(NonZeroU64::MIN);
        counter.front.at_ns.store(0, Ordering::Relaxed);
        counter
            .front
            .publishing
            .store(std::process::id(), Ordering::Relaxed);
        counter.add(5);
        assert_eq!(counter.read(), 0, "another thread is at it");
        counter
            .front
            .publishing
            .store(std::process::id() ^ 1, Ordering::Relaxed);
        counter.add(2);
        assert_eq!(counter.read(), 7);
    }
}
