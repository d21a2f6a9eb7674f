//! Median of repeated measurements, and how sure it is.

use amdahl_figures::Target;
use serde::Serialize;

/// Width of the 95 % interval of a ratio of wall times that needs no further rounds; nobody asks what the ratio is before. What is
/// nearer than this is not told apart.
pub const RESOLUTION: f64 = 0.01;

/// An interval of so wide tells nothing of differences as small as those between two tools.
const TOO_WIDE: f64 = 0.04;

/// Median with an interval that holds it with at least 95 % confidence, whatever the
/// distribution: order statistics chosen by the binomial distribution.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Median {
    /// The median.
    pub value: f64,
    /// Ends of the interval; `None` for fewer than six values, which cannot give 95 %.
    pub interval: Option<[f64; 2]>,
    /// How many values.
    pub count: usize,
}

impl Median {
    /// Of what is in `what`, how sure it is, and whether it is told from the limit of the target that it reaches.
    pub fn versus(&self, what: &str, target: Target) -> String {
        let mut text = format!("{what}; median of {} rounds", self.count);
        if let Some([low, high]) = self.interval {
            text.push_str(&format!(", 95 % between {low:.3} and {high:.3}"));
        }
        if let Target::NotAbove { limit, .. } = target
            && self.value > limit
            && target.is_reached(self.value)
        {
            text.push_str(", not told apart");
        }
        text
    }
}

/// What a ratio of our cost to that of another tool should be. Where its interval is wider than [`TOO_WIDE`] and holds 1, runs differ
/// by more than is looked for: then `taken` decides, an account of what ours takes / of what the other takes, if there is one.
pub fn beside_another(ratio: Option<&Median>, taken: Option<f64>) -> Target {
    let limit = 1.0;
    let is_little = taken.is_some_and(|taken| taken <= limit);
    let interval = ratio.and_then(|ratio| ratio.interval);
    match (decided_by_account(limit, ratio, is_little), interval) {
        (Some(target), _) => target,
        (None, Some([low, _])) => Target::NotAbove {
            limit,
            low,
            resolution: RESOLUTION,
        },
        (None, None) => Target::AtMost(limit),
    }
}

/// What a ratio of our cost to none should be, at most `limit`, by the same rule: `taken` is the share of all CPU time that ours
/// takes by account.
pub fn beside_nobody(limit: f64, ratio: Option<&Median>, taken: Option<f64>) -> Target {
    let is_little = taken.is_some_and(|taken| taken <= limit - 1.0);
    decided_by_account(limit, ratio, is_little).unwrap_or(Target::AtMost(limit))
}

/// The target of a ratio whose interval is too wide, and holds 1, where little is taken by account.
fn decided_by_account(limit: f64, ratio: Option<&Median>, is_little: bool) -> Option<Target> {
    let [low, high] = ratio?.interval?;
    (is_little && high - low > TOO_WIDE && low <= 1.0).then_some(Target::NotAbove {
        limit,
        low,
        resolution: high - limit,
    })
}

/// `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<Median> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let value = match count {
        0 => return None,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    };
    let interval = outside_rank(count).map(|rank| [sorted[rank], sorted[count - 1 - rank]]);
    Some(Median {
        value,
        interval,
        count,
    })
}

/// Largest index `k` such that the `k`-th smallest and the `k`-th largest of `count` values
/// enclose the median in 95 % of all cases.
fn outside_rank(count: usize) -> Option<usize> {
    // P(at most k of count fair coins show heads) on each side.
    let mut term = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut tail = term;
    let mut rank = None;
    for k in 0..count / 2 {
        if tail > 0.025 {
            break;
        }
        rank = Some(k);
        term *= (count - k) as f64 / (k + 1) as f64;
        tail += term;
    }
    rank
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_ranks_are_those_of_the_tables() {
        // Conover, Practical Nonparametric Statistics, table of the sign test.
        let known = [
            (5, None),
            (6, Some(0)),
            (8, Some(0)),
            (9, Some(1)),
            (12, Some(2)),
            (20, Some(5)),
        ];
        for (count, rank) in known {
            assert_eq!(outside_rank(count), rank, "{count} values");
        }
    }

    #[test]
    fn an_account_decides_where_wall_times_cannot() {
        let of = |value, interval| Median {
            value,
            interval: Some(interval),
            count: 15,
        };
        let is_ok =
            |median: &Median, taken| beside_another(Some(median), taken).is_reached(median.value);
        let wide = of(1.05, [0.93, 1.12]);
        assert!(is_ok(&wide, Some(0.8)));
        assert!(!is_ok(&wide, Some(1.1)) && !is_ok(&wide, None));
        // These tell.
        assert!(!is_ok(&of(1.05, [1.01, 1.12]), Some(0.8)));
        assert!(!is_ok(&of(1.015, [0.99, 1.02]), Some(0.8)));
        assert!(is_ok(&of(0.98, [0.9, 1.02]), Some(1.1)));
        let is_cheap = |median: &Median, taken| {
            beside_nobody(1.02, Some(median), taken).is_reached(median.value)
        };
        assert!(is_cheap(&wide, Some(0.01)));
        assert!(!is_cheap(&wide, Some(0.03)) && !is_cheap(&wide, None));
        assert!(!is_cheap(&of(1.05, [1.01, 1.12]), Some(0.01)));
        assert!(!is_cheap(&of(1.025, [1.0, 1.03]), Some(0.01)));
        assert!(is_cheap(&of(1.015, [1.01, 1.12]), Some(0.5)));
    }

    proptest! {
        #[test]
        fn the_median_lies_in_its_interval(values in prop::collection::vec(0.0..10.0f64, 1..60)) {
            let found = median(values.iter().copied()).expect("there are values");
            let below = values.iter().filter(|value| **value <= found.value).count();
            let above = values.iter().filter(|value| **value >= found.value).count();
            prop_assert!(2 * below >= values.len() && 2 * above >= values.len());
            prop_assert_eq!(found.interval.is_some(), values.len() >= 6);
            if let Some([low, high]) = found.interval {
                prop_assert!(low <= found.value && found.value <= high);
            }
        }
    }
}
