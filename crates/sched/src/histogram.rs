//! Distributions of durations in bounded memory.

/// Steps per factor of two: the relative error of a quantile is at most 1/16.
const STEPS: u64 = 16;

/// A log-linear histogram of nanoseconds. Quantiles are at most 1/16 too large, sum, count and maximum
/// are exact. Holds only the buckets that are used, some ten for most threads; where they are many, those
/// from the first to the last one, 976 at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Buckets,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

/// Used buckets that are searched. More are a table: a search in hundreds misses the cache at each step.
const FEW: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Buckets {
    /// (Bucket, count) in rising order, [`FEW`] at most.
    Few(Vec<(u16, u64)>),
    /// Counts from the first used bucket to the last one.
    Many { first: u16, counts: Vec<u64> },
}

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets::Few(Vec::new())
    }
}

impl Buckets {
    fn add(&mut self, bucket: u16, count: u64) {
        match self {
            Buckets::Few(used) => match used.binary_search_by_key(&bucket, |entry| entry.0) {
                Ok(i) => used[i].1 += count,
                Err(i) if used.len() < FEW => used.insert(i, (bucket, count)),
                Err(_) => {
                    let (first, last) = (used[0].0, used[FEW - 1].0);
                    let mut counts = vec![0; usize::from(last - first) + 1];
                    for &(bucket, count) in &*used {
                        counts[usize::from(bucket - first)] = count;
                    }
                    *self = Buckets::Many { first, counts };
                    self.add(bucket, count);
                }
            },
            Buckets::Many { first, counts } => {
                if bucket < *first {
                    let before = usize::from(*first - bucket);
                    counts.splice(..0, std::iter::repeat_n(0, before));
                    *first = bucket;
                }
                let at = usize::from(bucket - *first);
                if at >= counts.len() {
                    counts.resize(at + 1, 0);
                }
                counts[at] += count;
            }
        }
    }

    /// Used ones in rising order.
    fn iter(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let (few, first, many): (&[_], _, &[_]) = match self {
            Buckets::Few(used) => (used, 0, &[]),
            Buckets::Many { first, counts } => (&[], *first, counts),
        };
        let many = (first..).zip(many.iter().copied());
        let few = few.iter().copied();
        few.chain(many.filter(|&(_, count)| count > 0))
    }
}

impl Histogram {
    /// Adds one duration. O(1), or O(buckets) for the first of its size.
    pub fn add(&mut self, ns: u64) {
        self.buckets.add(bucket(ns), 1);
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all durations of another.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in other.buckets.iter() {
            self.buckets.add(bucket, count);
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Their mean; 0 if there are none.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The smallest duration that at least the fraction `q` does not exceed, at most 1/16 too
    /// large; 0 if there are none.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter() {
            seen += count;
            if seen >= rank {
                return last_of(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// (Longest duration of the bucket, count) in rising order, by powers of two.
    pub fn by_power_of_two(&self) -> Vec<(u64, u64)> {
        let mut rows: Vec<(u64, u64)> = Vec::new();
        for (bucket, count) in self.buckets.iter() {
            let upper = last_of(bucket)
                .checked_next_power_of_two()
                .unwrap_or(u64::MAX);
            match rows.last_mut() {
                Some(row) if row.0 == upper => row.1 += count,
                _ => rows.push((upper, count)),
            }
        }
        rows
    }
}

fn bucket(ns: u64) -> u16 {
    if ns < STEPS {
        return ns as u16;
    }
    let exponent = u64::from(ns.ilog2());
    let step = (ns >> (exponent - 4)) - STEPS;
    ((exponent - 3) * STEPS + step) as u16
}

/// The largest duration in a bucket.
fn last_of(bucket: u16) -> u64 {
    let (power, step) = (u64::from(bucket) / STEPS, u64::from(bucket) % STEPS);
    if power == 0 {
        return step;
    }
    let first = u128::from(STEPS + step) << (power - 1);
    (first + (1 << (power - 1)) - 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ends_of_the_range_have_buckets() {
        for ns in [0, 1, 15, 16, 17, 1 << 32, u64::MAX] {
            assert!(last_of(bucket(ns)) >= ns, "{ns}");
        }
        assert_eq!(bucket(u64::MAX), 975);
        assert_eq!(Histogram::default().quantile_ns(0.5), 0);
    }

    #[test]
    fn rows_of_a_factor_of_two_add_up() {
        let mut all = Histogram::default();
        for ns in [3, 1000, 1020, 1_000_000] {
            all.add(ns);
        }
        let rows = all.by_power_of_two();
        assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 4);
        assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    proptest! {
        /// In whatever order, and however many sizes there are.
        #[test]
        fn what_was_added_is_there_once(
            values in prop::collection::vec(0u64..1 << 50, 0..300),
            cut in 0usize..300,
        ) {
            let of = |values: &[u64]| {
                let mut all = Histogram::default();
                values.iter().for_each(|&ns| all.add(ns));
                all
            };
            let mut naive = std::collections::BTreeMap::<u16, u64>::new();
            values.iter().for_each(|&ns| *naive.entry(bucket(ns)).or_default() += 1);
            let all = of(&values);
            prop_assert_eq!(all.buckets.iter().collect::<Vec<_>>(), naive.into_iter().collect::<Vec<_>>());
            let (left, right) = values.split_at(cut.min(values.len()));
            let mut merged = of(right);
            merged.merge(&of(left));
            prop_assert_eq!(merged, all);
        }

        #[test]
        fn quantiles_are_right_within_a_sixteenth(
            mut values in prop::collection::vec(0u64..1 << 40, 1..200),
            q in 0.0f64..1.0,
            cut in 0usize..200,
        ) {
            let cut = cut.min(values.len());
            let (mut all, mut rest) = (Histogram::default(), Histogram::default());
            values[..cut].iter().for_each(|&ns| all.add(ns));
            values[cut..].iter().for_each(|&ns| rest.add(ns));
            all.merge(&rest);
            values.sort_unstable();
            let rank = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len());
            let (exact, found) = (values[rank - 1], all.quantile_ns(q));
            prop_assert!(found >= exact && found - exact <= exact / 16, "{found} {exact}");
            prop_assert_eq!(all.sum_ns(), values.iter().sum::<u64>());
            prop_assert_eq!(all.max_ns(), *values.last().unwrap());
        }
    }
}
