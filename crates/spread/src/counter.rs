//! A number that many threads add to.

use std::fmt;
use std::sync::Arc;

use crate::llc_map::LlcMap;
use crate::memory::OutOfMemory;
use crate::parts::{Parts, Placement};

/// A sum that any thread adds to and subtracts from without sharing a cache line with threads that
/// are far away. Nothing is ever folded into one global line.
///
/// # What `read` gives
/// Additions that happened before `read` began are in the result; additions that happen meanwhile may be or not,
/// each wholly. So the result is exact when nobody adds meanwhile, lies between two true values where all additions have the same sign, and
/// is otherwise off any value the sum had meanwhile by less than the additions that overlap `read` amount to.
/// Additions order nothing else (they are `Relaxed`).
///
/// # Range
/// Sums are `i64` and wrap at both ends, like `wrapping_add`; a part may wrap while the sum does not. As `u64`
/// (`counter.read() as u64`) the same sum counts modulo 2^64.
///
/// # Cost
/// Per CPU an addition takes as long as to a thread-local variable, and each counter takes 8 bytes for each possible CPU;
/// per last-level cache (LLC) it takes an atomic instruction whose line stays in that cache, and 128 bytes for each LLC.
/// `read` is O(possible CPUs) cache misses, or O(LLCs).
///
/// # Threads, signals, forks
/// A part belongs to a CPU or an LLC, not to a thread: threads may move and die at any time. Additions
/// may be made in signal handlers (but see DESIGN.md on C libraries other than glibc from 2.35 on). After a fork
/// parent and child have separate counters with equal sums. Making and dropping a counter takes a
/// lock, so a child that was forked from several threads should do neither.
///
/// ```
/// let counter = amdahl_spread::Counter::new();
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..1000).for_each(|_| counter.add(1)));
///     }
/// });
/// counter.sub(1);
/// assert_eq!(counter.read(), 3999);
/// ```
pub struct Counter {
    parts: Parts,
}

impl Counter {
    /// With [`Placement::best`]: for counters that are added to much more often than read.
    ///
    /// # Panics
    /// As [`on`](Self::on).
    pub fn new() -> Self {
        Self::with(Placement::best())
    }

    /// With a part for each LLC: for counters that are read often, or that there are very many of.
    ///
    /// # Panics
    /// As [`on`](Self::on).
    pub fn per_llc() -> Self {
        Self::with(Placement::PerLlc)
    }

    /// With a placement of choice; [`Placement::PerCpu`] becomes [`Placement::PerLlc`] where this process cannot have it.
    ///
    /// # Panics
    /// As [`on`](Self::on).
    pub fn with(placement: Placement) -> Self {
        Self::on(placement, LlcMap::of_this_machine())
    }

    /// On a machine that may be another than this one.
    ///
    /// # Panics
    /// There is no memory for the rows of so many CPUs, of which 512 counters have them in common; [`try_on`](Self::try_on) says so instead.
    pub fn on(placement: Placement, map: Arc<LlcMap>) -> Self {
        Self::try_on(placement, map).unwrap_or_else(|error| panic!("a counter: {error}"))
    }

    /// As [`on`](Self::on).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_on(placement: Placement, map: Arc<LlcMap>) -> Result<Self, OutOfMemory> {
        Ok(Counter {
            parts: Parts::pooled(placement, map, 1)?,
        })
    }

    /// How the sum is spread.
    pub fn placement(&self) -> Placement {
        self.parts.placement()
    }

    /// Adds `delta`.
    #[inline]
    pub fn add(&self, delta: i64) {
        self.parts.add(0, delta);
    }

    /// Subtracts `delta`.
    #[inline]
    pub fn sub(&self, delta: i64) {
        self.parts.add(0, delta.wrapping_neg());
    }

    /// The sum; see above for what it means while others add.
    pub fn read(&self) -> i64 {
        self.parts.sum(0)
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter")
            .field("sum", &self.read())
            .field("placement", &self.placement())
            .finish_non_exhaustive()
    }
}
