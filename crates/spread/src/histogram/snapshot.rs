//! What a histogram had recorded at some time.

use super::{Buckets, HistogramError};

/// Counts of values, owned by one thread.
///
/// Of a histogram that was recorded into meanwhile, the counts and the total may differ by the records that were under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    buckets: Buckets,
    /// For each bucket, then of the values above them all.
    counts: Box<[u64]>,
    /// Of the values, modulo 2^64.
    total: u64,
}

/// One bucket that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its least value.
    pub least: u64,
    /// Its largest value; `u64::MAX` for all that is above the buckets.
    pub largest: u64,
    /// How many values were between them.
    pub count: u64,
}

impl Snapshot {
    /// Nothing recorded yet. It takes 8 bytes for each bucket, 1.7 MB at most.
    pub fn new(buckets: Buckets) -> Self {
        Snapshot {
            buckets,
            counts: vec![0; buckets.count() + 1].into(),
            total: 0,
        }
    }

    /// Which values count together.
    pub fn buckets(&self) -> Buckets {
        self.buckets
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// In the order in which a histogram keeps them.
    pub(super) fn sums_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.counts.iter_mut().chain(Some(&mut self.total))
    }

    /// How many values were recorded, those above the largest bucket included.
    pub fn count(&self) -> u64 {
        self.counts.iter().copied().fold(0, u64::wrapping_add)
    }

    /// How many values were above the largest bucket.
    pub fn above(&self) -> u64 {
        self.counts[self.buckets.count()]
    }

    /// The sum of the values, those above the largest bucket included, modulo 2^64.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The mean of the values, exact as long as [`total`](Self::total) is; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        match self.count() {
            0 => None,
            count => Some(self.total as f64 / count as f64),
        }
    }

    /// A value that a share `q` of the values does not exceed: of the smallest that can be said of, the largest value of its
    /// bucket. It is at least the true quantile (of rank `ceil(q * count)`), and at most
    /// [`Buckets::relative_error`] above it; `u64::MAX` where the true one is above all buckets.
    /// `None` if nothing was recorded, or `q` is not from 0 to 1. O(buckets).
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 || !(0.0..=1.0).contains(&q) {
            return None;
        }
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0_u64;
        self.iter().find_map(|bucket| {
            seen = seen.saturating_add(bucket.count);
            (seen >= rank).then_some(bucket.largest)
        })
    }

    /// The buckets that are not empty, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = Recorded> + '_ {
        let bounds = |index| {
            let above = (self.buckets.max().saturating_add(1), u64::MAX);
            self.buckets.bounds(index).unwrap_or(above)
        };
        let filled = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count != 0);
        filled.map(move |(index, &count)| {
            let (least, largest) = bounds(index);
            Recorded {
                least,
                largest,
                count,
            }
        })
    }

    /// Adds what `other` recorded.
    ///
    /// # Errors
    /// [`HistogramError::Different`] if the buckets are others.
    pub fn merge(&mut self, other: &Snapshot) -> Result<(), HistogramError> {
        self.combine(other, u64::wrapping_add)
    }

    /// Takes away what `earlier`, a snapshot of the same histogram, had recorded: what is left came between the two.
    ///
    /// # Errors
    /// [`HistogramError::Different`] if the buckets are others.
    pub fn subtract(&mut self, earlier: &Snapshot) -> Result<(), HistogramError> {
        self.combine(earlier, u64::wrapping_sub)
    }

    fn combine(
        &mut self,
        other: &Snapshot,
        with: fn(u64, u64) -> u64,
    ) -> Result<(), HistogramError> {
        HistogramError::unless_equal(self.buckets, other.buckets)?;
        for (ours, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *ours = with(*ours, *theirs);
        }
        self.total = with(self.total, other.total);
        Ok(())
    }
}
