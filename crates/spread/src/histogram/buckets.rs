//! Log-linear buckets.

use super::HistogramError;

/// Which values count together: each power of two is divided into `2^precision` buckets of equal width, values
/// below `2^precision` have a bucket each. So a bucket is at most `2^-precision` of its values wide.
///
/// The layout of HdrHistogram (G. Tene), with powers of two for its decimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buckets {
    precision: u32,
    max: u64,
}

impl Buckets {
    /// The finest there is: 0.02 % and up to 217,088 buckets.
    pub const PRECISION_MAX: u32 = 12;

    /// Buckets for values up to `max`, with a relative error of `2^-precision`.
    ///
    /// # Errors
    /// [`HistogramError::Precision`] above [`Self::PRECISION_MAX`].
    pub fn new(precision: u32, max: u64) -> Result<Self, HistogramError> {
        if precision > Self::PRECISION_MAX {
            return Err(HistogramError::Precision { precision });
        }
        Ok(Buckets { precision, max })
    }

    /// The largest value that has a bucket.
    pub fn max(self) -> u64 {
        self.max
    }

    /// Log2 of the buckets in which each power of two is divided.
    pub fn precision(self) -> u32 {
        self.precision
    }

    /// By how much of the value a bucket's bounds differ at most.
    pub fn relative_error(self) -> f64 {
        // Exact, as a power by a function of floating-point numbers need not be.
        1.0 / (1_u64 << self.precision) as f64
    }

    /// How many buckets there are: `(1 + log2(max) - precision) * 2^precision` or less.
    pub fn count(self) -> usize {
        self.place(self.max) + 1
    }

    /// The bucket of `value`, from 0; `None` above the largest.
    #[inline]
    pub fn index(self, value: u64) -> Option<usize> {
        (value <= self.max).then(|| self.place(value))
    }

    #[inline]
    fn place(self, value: u64) -> usize {
        // The leading bit and `precision` bits after it; small values as they are.
        let log = (value | 1 << self.precision).ilog2();
        let shift = log - self.precision;
        ((shift as usize) << self.precision) + (value >> shift) as usize
    }

    /// The least and the largest value of the bucket `index`.
    pub fn bounds(self, index: usize) -> Option<(u64, u64)> {
        if index >= self.count() {
            return None;
        }
        // The first two powers are as wide as their values.
        let shift = (index >> self.precision).saturating_sub(1);
        let leading = (index - (shift << self.precision)) as u64;
        let least = leading << shift;
        Some((least, (least + ((1 << shift) - 1)).min(self.max)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Miri takes a thousand times as long.
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 },
            ..ProptestConfig::default()
        })]

        #[test]
        fn each_value_is_in_its_bucket(
            precision in 0..=Buckets::PRECISION_MAX,
            max in any::<u64>(),
            // As many small ones as large ones.
            value in (any::<u64>(), 0_u32..64).prop_map(|(bits, shift)| bits >> shift),
        ) {
            let buckets = Buckets::new(precision, max).unwrap();
            match buckets.index(value) {
                None => prop_assert!(value > max),
                Some(index) => {
                    let (least, largest) = buckets.bounds(index).unwrap();
                    prop_assert!((least..=largest).contains(&value));
                    let width = (largest - least) as f64;
                    prop_assert!(width <= least as f64 * buckets.relative_error());
                    if least > 0 {
                        prop_assert_eq!(buckets.index(least - 1), Some(index - 1));
                    }
                    if largest < max {
                        prop_assert_eq!(buckets.index(largest + 1), Some(index + 1));
                    }
                }
            }
        }
    }

    #[test]
    fn ends_are_buckets() {
        let all = Buckets::new(5, u64::MAX).unwrap();
        assert_eq!(all.count(), 60 * 32);
        assert_eq!(all.index(u64::MAX), Some(all.count() - 1));
        assert_eq!(all.bounds(all.count() - 1).unwrap().1, u64::MAX);
        assert_eq!(all.bounds(all.count()), None);
        let one = Buckets::new(0, 0).unwrap();
        assert_eq!(
            (one.count(), one.index(0), one.index(1)),
            (1, Some(0), None)
        );
        assert!(Buckets::new(13, 1).is_err());
    }
}
