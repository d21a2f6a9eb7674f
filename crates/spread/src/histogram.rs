//! Distributions that many threads record values of.

mod buckets;
mod snapshot;

use std::fmt;
use std::sync::Arc;

pub use buckets::Buckets;
pub use snapshot::{Recorded, Snapshot};

use crate::llc_map::LlcMap;
use crate::memory::OutOfMemory;
use crate::parts::{Parts, Placement};

/// Counts of values in log-linear buckets, spread over CPUs or last-level caches like a [`Counter`](crate::Counter).
///
/// Recording allocates nothing, takes no lock and shares no cache line with threads far away. It takes as long as
/// two additions to a counter. What was recorded is looked at in a [`Snapshot`]: quantiles with a stated
/// relative error, mean, merging, differences between two points in time.
///
/// Memory: `8 * (buckets + 2)` bytes for each possible CPU (or LLC), of which only what is written to
/// becomes real.
///
/// ```
/// use amdahl_spread::{Buckets, Histogram};
/// // Up to ten seconds in nanoseconds, with an error of 1/32.
/// let latency_ns = Histogram::new(Buckets::new(5, 10_000_000_000)?);
/// for value in 1..=1000 {
///     latency_ns.record(value * 1000);
/// }
/// let seen = latency_ns.snapshot();
/// let p99 = seen.quantile(0.99).unwrap();
/// assert!((990_000..=990_000 * 33 / 32).contains(&p99));
/// # Ok::<(), amdahl_spread::HistogramError>(())
/// ```
pub struct Histogram {
    buckets: Buckets,
    /// A sum for each bucket, then what was above them all, then the total of the values.
    parts: Parts,
}

/// Why histograms do not go together, or cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistogramError {
    /// More precise than [`Buckets::PRECISION_MAX`].
    #[error(
        "a precision of {precision} bits: at most {} are supported",
        Buckets::PRECISION_MAX
    )]
    Precision {
        /// As given.
        precision: u32,
    },
    /// Two histograms have different buckets.
    #[error("buckets differ: {ours:?} and {theirs:?}")]
    Different {
        /// Of the histogram that was to change.
        ours: Buckets,
        /// Of the other.
        theirs: Buckets,
    },
    /// No memory for so many buckets on so many CPUs.
    #[error("a histogram: {0}")]
    OutOfMemory(#[from] OutOfMemory),
}

impl HistogramError {
    fn unless_equal(ours: Buckets, theirs: Buckets) -> Result<(), Self> {
        match ours == theirs {
            true => Ok(()),
            false => Err(HistogramError::Different { ours, theirs }),
        }
    }
}

impl Histogram {
    /// An empty one with [`Placement::best`].
    ///
    /// # Panics
    /// As [`on`](Self::on).
    pub fn new(buckets: Buckets) -> Self {
        Self::on(buckets, Placement::best(), LlcMap::of_this_machine())
    }

    /// An empty one with all that can be chosen.
    ///
    /// # Panics
    /// There is no address space for it; [`try_on`](Self::try_on) says so instead.
    pub fn on(buckets: Buckets, placement: Placement, map: Arc<LlcMap>) -> Self {
        Self::try_on(buckets, placement, map).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`on`](Self::on).
    ///
    /// # Errors
    /// [`HistogramError::OutOfMemory`].
    pub fn try_on(
        buckets: Buckets,
        placement: Placement,
        map: Arc<LlcMap>,
    ) -> Result<Self, HistogramError> {
        Ok(Histogram {
            buckets,
            parts: Parts::alone(placement, map, buckets.count() + 2)?,
        })
    }

    /// Which values count together.
    pub fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// How it is spread.
    pub fn placement(&self) -> Placement {
        self.parts.placement()
    }

    /// Counts `value`.
    #[inline]
    pub fn record(&self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts `value` as often as `times` says.
    #[inline]
    pub fn record_n(&self, value: u64, times: u64) {
        let bucket = self.buckets.index(value);
        self.parts.add(bucket.unwrap_or(self.above()), times as i64);
        self.parts
            .add(self.above() + 1, value.wrapping_mul(times) as i64);
    }

    #[inline]
    fn above(&self) -> usize {
        self.parts.count() - 2
    }

    /// What has been recorded: each record that happened before this call, and any of those that happen meanwhile.
    /// O(parts x buckets); allocates.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new(self.buckets);
        self.fill(&mut snapshot);
        snapshot
    }

    /// As [`snapshot`](Self::snapshot), into memory that is there already.
    ///
    /// # Errors
    /// [`HistogramError::Different`] if `snapshot` is of other buckets.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) -> Result<(), HistogramError> {
        HistogramError::unless_equal(snapshot.buckets(), self.buckets)?;
        snapshot.clear();
        self.fill(snapshot);
        Ok(())
    }

    fn fill(&self, snapshot: &mut Snapshot) {
        for row in 0..self.parts.rows() {
            for (sum, into) in snapshot.sums_mut().enumerate() {
                let part = self.parts.load(row, sum);
                *into = into.wrapping_add(part as u64);
            }
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("buckets", &self.buckets)
            .field("placement", &self.placement())
            .finish_non_exhaustive()
    }
}
