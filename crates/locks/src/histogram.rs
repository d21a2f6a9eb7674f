//! How long waits were, in buckets whose width is a sixteenth of their value.
//!
//! Log-linear after HdrHistogram: sixteen buckets for each power of two. Values below 32 are
//! exact; a quantile of larger ones is off by at most 1/32 of its value, since the middle of
//! a bucket stands for it. Only buckets in use take memory: 4 bytes each, 976 at most.

use std::ops::Range;

/// Each power of two is divided into `1 << BITS` buckets.
const BITS: u32 = 4;
/// Bits of a count that lie beside its bucket.
const LOW_BITS: u32 = 22;
const LOW_MASK: u32 = (1 << LOW_BITS) - 1;

/// The relative error of [`Histogram::quantile`], at most.
pub const QUANTILE_ERROR: f64 = 1.0 / 32.0;

/// Counts of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Buckets in use, in their order, with the low bits of their counts.
    buckets: Vec<u32>,
    /// What few counts have beyond those bits, by bucket.
    high: Vec<(u16, u64)>,
}

fn bucket_of(value: u64) -> u16 {
    if value < 1 << (BITS + 1) {
        return value as u16;
    }
    let power = value.ilog2();
    let inside = (value >> (power - BITS)) as u16 & ((1 << BITS) - 1);
    (((power - BITS + 1) as u16) << BITS) + inside
}

fn bucket_in(packed: u32) -> u16 {
    (packed >> LOW_BITS) as u16
}

/// Smallest value of a bucket and how many there are.
fn range_of(bucket: u16) -> (u64, u64) {
    if bucket < 1 << (BITS + 1) {
        return (u64::from(bucket), 1);
    }
    let shift = u32::from(bucket >> BITS) - 1;
    let inside = u64::from(bucket & ((1 << BITS) - 1));
    (((1 << BITS) + inside) << shift, 1 << shift)
}

impl Histogram {
    /// Counts a value. Cost: logarithmic in the buckets in use, some tens.
    pub fn add(&mut self, value: u64) {
        self.add_count(bucket_of(value), 1);
    }

    fn find(&self, bucket: u16) -> Result<usize, usize> {
        let of = |&packed: &u32| bucket_in(packed);
        self.buckets.binary_search_by_key(&bucket, of)
    }

    fn add_count(&mut self, bucket: u16, count: u64) {
        let at = self.find(bucket).unwrap_or_else(|at| {
            // Many have one value for ever, and none needs room for as many again.
            if self.buckets.len() == self.buckets.capacity() {
                self.buckets.reserve_exact(self.buckets.len() / 2 + 1);
            }
            self.buckets.insert(at, u32::from(bucket) << LOW_BITS);
            at
        });
        let low = u64::from(self.buckets[at] & LOW_MASK).saturating_add(count);
        self.set_low(at, low as u32 & LOW_MASK);
        if low > u64::from(LOW_MASK) {
            let high = self.high_of(bucket);
            self.set_high(bucket, high.saturating_add(low >> LOW_BITS << LOW_BITS));
        }
    }

    fn set_low(&mut self, at: usize, low: u32) {
        self.buckets[at] = self.buckets[at] & !LOW_MASK | low;
    }

    /// What a count has beyond its low bits.
    fn high_of(&self, bucket: u16) -> u64 {
        let at = self.high.binary_search_by_key(&bucket, |&(of, _)| of);
        at.map_or(0, |at| self.high[at].1)
    }

    fn set_high(&mut self, bucket: u16, count: u64) {
        match self.high.binary_search_by_key(&bucket, |&(of, _)| of) {
            Ok(at) if count == 0 => {
                self.high.remove(at);
            }
            Ok(at) => self.high[at].1 = count,
            Err(at) => self.high.insert(at, (bucket, count)),
        }
    }

    /// Buckets in use, in their order, and their counts.
    fn counts(&self) -> impl Iterator<Item = (u16, u64)> {
        self.buckets.iter().map(|&packed| {
            let (bucket, low) = (bucket_in(packed), u64::from(packed & LOW_MASK));
            (bucket, self.high_of(bucket).saturating_add(low))
        })
    }

    /// Takes a value back that was counted; false if there is none like it.
    pub fn remove(&mut self, value: u64) -> bool {
        let bucket = bucket_of(value);
        let Ok(at) = self.find(bucket) else {
            return false;
        };
        let high = self.high_of(bucket);
        match self.buckets[at] & LOW_MASK {
            0 => {
                self.set_high(bucket, high - (1 << LOW_BITS));
                self.set_low(at, LOW_MASK);
            }
            1 if high == 0 => {
                self.buckets.remove(at);
            }
            low => self.set_low(at, low - 1),
        }
        true
    }

    /// Bytes beside its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u32>() + self.high.capacity() * size_of::<(u16, u64)>()
    }

    /// Counts all values of another one.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in other.counts() {
            self.add_count(bucket, count);
        }
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts()
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The value that `fraction` of all do not exceed, within [`QUANTILE_ERROR`]; `None` without
    /// values. Nearest rank: the 0.99-quantile of ten values is the largest.
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        quantile(fraction, self.count(), self.counts())
    }
}

fn quantile(fraction: f64, all: u64, counts: impl Iterator<Item = (u16, u64)>) -> Option<u64> {
    let rank = (fraction.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
    let (mut seen, mut last) = (0_u64, None);
    for (bucket, count) in counts {
        let (low, width) = range_of(bucket);
        seen = seen.saturating_add(count);
        if seen >= rank {
            return Some(low + (width - 1) / 2);
        }
        last = Some(low);
    }
    last
}

/// Buckets there are.
const BUCKETS: usize = 976;

/// Counts of many histograms together: a place for each bucket, so that adding one takes as many steps as it has buckets
/// in use.
pub(crate) struct Total {
    counts: Box<[u64; BUCKETS]>,
    /// Where there are any.
    used: Range<usize>,
}

impl Default for Total {
    fn default() -> Total {
        Total {
            counts: Box::new([0; BUCKETS]),
            used: 0..0,
        }
    }
}

impl Total {
    pub fn add(&mut self, other: &Histogram) {
        let ends = (other.buckets.first(), other.buckets.last());
        let (Some(&first), Some(&last)) = ends else {
            return;
        };
        let (first, end) = (
            usize::from(bucket_in(first)),
            usize::from(bucket_in(last)) + 1,
        );
        self.used = if self.used.is_empty() {
            first..end
        } else {
            self.used.start.min(first)..self.used.end.max(end)
        };
        for (bucket, count) in other.counts() {
            let sum = &mut self.counts[usize::from(bucket)];
            *sum = sum.saturating_add(count);
        }
    }

    /// As [`Histogram::quantile`].
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        let counts = &self.counts[self.used.clone()];
        let all = counts
            .iter()
            .fold(0_u64, |sum, &count| sum.saturating_add(count));
        let buckets = self.used.clone().map(|bucket| bucket as u16);
        let counts = buckets.zip(counts.iter().copied());
        quantile(fraction, all, counts.filter(|&(_, count)| count > 0))
    }

    pub fn clear(&mut self) {
        self.counts[self.used.clone()].fill(0);
        self.used = 0..0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut next = 0_u64;
        for bucket in 0..bucket_of(u64::MAX) {
            let (low, width) = range_of(bucket);
            assert_eq!(low, next);
            assert_eq!(bucket_of(low), bucket);
            assert_eq!(bucket_of(low + (width - 1)), bucket);
            next = low + width;
        }
        assert_eq!(usize::from(bucket_of(u64::MAX)), BUCKETS - 1);
    }

    #[test]
    fn counts_of_any_size() {
        let mut histogram = Histogram::default();
        histogram.add_count(bucket_of(7), (1 << LOW_BITS) - 1);
        histogram.add(3);
        histogram.add(7);
        assert_eq!(histogram.count(), (1 << LOW_BITS) + 1);
        let mut sum = histogram.clone();
        (0..1 << 10).for_each(|_| sum.merge(&histogram));
        assert_eq!(sum.count(), histogram.count() * 1025);
        assert_eq!(sum.quantile(0.5), Some(7));
        assert!(histogram.remove(7) && histogram.remove(7) && histogram.remove(3));
        assert_eq!(histogram.count(), (1 << LOW_BITS) - 2);
        assert!(!histogram.remove(3));
        let mut same = Histogram::default();
        same.add_count(bucket_of(7), (1 << LOW_BITS) - 2);
        assert_eq!(histogram, same);
        same.add_count(bucket_of(9), u64::MAX);
        same.add_count(bucket_of(9), u64::MAX);
        assert_eq!(same.count(), u64::MAX);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_the_stated_error(
            mut values in proptest::collection::vec(0_u64..1 << 44, 1..200),
            more in proptest::collection::vec(0_u64..1 << 44, 0..50),
            fraction in 0.0_f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            let mut other = Histogram::default();
            values.iter().for_each(|&value| histogram.add(value));
            more.iter().for_each(|&value| other.add(value));
            let mut total = Total::default();
            total.add(&other);
            total.clear();
            [&histogram, &other].into_iter().for_each(|of| total.add(of));
            histogram.merge(&other);
            prop_assert_eq!(histogram.quantile(fraction), total.quantile(fraction));
            prop_assert!(more.iter().all(|&value| histogram.remove(value)));
            values.sort_unstable();
            let rank = (fraction * values.len() as f64).ceil().max(1.0) as usize;
            let exact = values[rank - 1] as f64;
            let found = histogram.quantile(fraction).unwrap() as f64;
            prop_assert!((found - exact).abs() <= exact * QUANTILE_ERROR, "{found} {exact}");
            prop_assert_eq!(histogram.count(), values.len() as u64);
        }
    }
}
