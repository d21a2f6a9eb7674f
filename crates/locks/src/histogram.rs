//! How long waits were, in buckets whose width is a sixteenth of their value.
//!
//! Log-linear after HdrHistogram: sixteen buckets for each power of two. Values below 32 are
//! exact; a quantile of larger ones is off by at most 1/32 of its value, since the middle of
//! a bucket stands for it. Only buckets in use take memory: 16 bytes each, 976 at most.

/// Each power of two is divided into `1 << BITS` buckets.
const BITS: u32 = 4;

/// The relative error of [`Histogram::quantile`], at most.
pub const QUANTILE_ERROR: f64 = 1.0 / 32.0;

/// Counts of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Bucket and count, by bucket.
    buckets: Vec<(u16, u64)>,
}

fn bucket_of(value: u64) -> u16 {
    if value < 1 << (BITS + 1) {
        return value as u16;
    }
    let power = value.ilog2();
    let inside = (value >> (power - BITS)) as u16 & ((1 << BITS) - 1);
    (((power - BITS + 1) as u16) << BITS) + inside
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

    fn add_count(&mut self, bucket: u16, count: u64) {
        match self.buckets.binary_search_by_key(&bucket, |&(at, _)| at) {
            Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
            Err(at) => {
                // Many have one value for ever.
                if self.buckets.is_empty() {
                    self.buckets.reserve_exact(1);
                }
                self.buckets.insert(at, (bucket, count));
            }
        }
    }

    /// Takes a value back that was counted; false if there is none like it.
    pub fn remove(&mut self, value: u64) -> bool {
        let bucket = bucket_of(value);
        let Ok(at) = self.buckets.binary_search_by_key(&bucket, |&(at, _)| at) else {
            return false;
        };
        self.buckets[at].1 -= 1;
        if self.buckets[at].1 == 0 {
            self.buckets.remove(at);
        }
        true
    }

    /// Counts all values of another one.
    pub fn merge(&mut self, other: &Histogram) {
        for &(bucket, count) in &other.buckets {
            self.add_count(bucket, count);
        }
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, &(_, count)| sum.saturating_add(count))
    }

    /// The value that `fraction` of all do not exceed, within [`QUANTILE_ERROR`]; `None` without
    /// values. Nearest rank: the 0.99-quantile of ten values is the largest.
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        let rank = (fraction.clamp(0.0, 1.0) * self.count() as f64)
            .ceil()
            .max(1.0) as u64;
        let mut seen = 0_u64;
        for &(bucket, count) in &self.buckets {
            seen = seen.saturating_add(count);
            if seen >= rank {
                let (low, width) = range_of(bucket);
                return Some(low + (width - 1) / 2);
            }
        }
        self.buckets.last().map(|&(bucket, _)| range_of(bucket).0)
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
        assert_eq!(bucket_of(u64::MAX), 975);
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
            histogram.merge(&other);
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
