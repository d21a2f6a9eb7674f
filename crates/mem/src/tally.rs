//! Counts and times, of a bounded number of things.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// How often and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// All together, in nanoseconds.
    pub ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

impl Tally {
    /// Adds one of `ns` nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.merge(Tally {
            count: 1,
            ns,
            max_ns: ns,
        });
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: Tally) {
        self.count = self.count.saturating_add(other.count);
        self.ns = self.ns.saturating_add(other.ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// Tallies by key. When there are more than `max`, the half with the least time is folded.
#[derive(Clone, Debug)]
pub struct Tallies<K> {
    all: FxHashMap<K, Tally>,
    max: usize,
}

impl<K: Copy + Eq + Hash + Ord> Tallies<K> {
    /// None, and `max` of them at most (plus those that others are folded into).
    pub fn new(max: usize) -> Tallies<K> {
        Tallies {
            all: FxHashMap::default(),
            max: max.max(2),
        }
    }

    /// Adds one to `key`; `fold` tells what a key becomes when there are too many. Returns whether
    /// keys were folded. Amortised constant time.
    pub fn add(&mut self, key: K, ns: u64, fold: impl Fn(K) -> K) -> bool {
        self.merge(
            key,
            Tally {
                count: 1,
                ns,
                max_ns: ns,
            },
            fold,
        )
    }

    /// Adds a tally to `key`, as [`add`](Self::add).
    pub fn merge(&mut self, key: K, tally: Tally, fold: impl Fn(K) -> K) -> bool {
        self.all.entry(key).or_default().merge(tally);
        if self.all.len() <= self.max {
            return false;
        }
        let least = self.sorted().split_off(self.max / 2);
        for (key, _) in &least {
            self.all.remove(key);
        }
        for (key, tally) in least {
            self.all.entry(fold(key)).or_default().merge(tally);
        }
        true
    }

    /// The tally of `key`.
    pub fn get(&self, key: &K) -> Option<Tally> {
        self.all.get(key).copied()
    }

    /// All, those with the most time first, then with the most of them, then by key.
    pub fn sorted(&self) -> Vec<(K, Tally)> {
        let mut all: Vec<(K, Tally)> = self.all.iter().map(|(&key, &tally)| (key, tally)).collect();
        all.sort_unstable_by(|(a, x), (b, y)| (y.ns, y.count).cmp(&(x.ns, x.count)).then(a.cmp(b)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lost(adds in proptest::collection::vec((1u32..100, 0u64..1000), 0..400), max in 2usize..20) {
            let mut tallies = Tallies::new(max);
            for &(key, ns) in &adds {
                tallies.add(key, ns, |_| 0);
            }
            let all = tallies.sorted();
            prop_assert!(all.len() <= max + 1);
            let sum = all.iter().fold((0, 0), |sum, (_, t)| (sum.0 + t.count, sum.1 + t.ns));
            let expected = adds.iter().map(|(_, ns)| ns).sum::<u64>();
            prop_assert_eq!(sum, (adds.len() as u64, expected));
            prop_assert!(all.windows(2).all(|pair| pair[0].1.ns >= pair[1].1.ns));
        }
    }
}
