//! By which factor two small samples differ, without assuming a distribution.
//!
//! The Mann-Whitney test, inverted: the interval holds every factor by which one sample may be
//! multiplied so that the test still takes both for the same. Its ends are order statistics of
//! the ratios of all pairs (Hodges and Lehmann 1963). Run times are skewed and few, so neither a
//! normal distribution nor a bootstrap of medians (which is too narrow for five runs) would do.

/// Pairs beyond this many runs a side would cost memory and add nothing.
const RUNS_MAX: usize = 1000;
/// Up to here the distribution of the rank sum is counted exactly.
const EXACT_UP_TO: usize = 30;
/// Two-sided error of 5 %.
const TAIL: f64 = 0.025;
/// Its quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The 95 % interval of the factor from `before` to `after`; `None` when there are too few runs
/// (fewer than 4 and 4, or 3 and 5) or times that are not positive.
pub(super) fn factor_interval(before: &[f64], after: &[f64]) -> Option<[f64; 2]> {
    let before = &before[..before.len().min(RUNS_MAX)];
    let after = &after[..after.len().min(RUNS_MAX)];
    if !before
        .iter()
        .chain(after)
        .all(|run| run.is_finite() && *run > 0.0)
    {
        return None;
    }
    let mut ratios: Vec<f64> = before
        .iter()
        .flat_map(|b| after.iter().map(move |a| a / b))
        .collect();
    let skipped = extremes_to_skip(before.len(), after.len())?;
    // Two of up to a million: selecting is linear, sorting is not.
    let upper = ratios.len() - 1 - skipped;
    let high = *ratios.select_nth_unstable_by(upper, f64::total_cmp).1;
    let low = *ratios[..=upper]
        .select_nth_unstable_by(skipped, f64::total_cmp)
        .1;
    Some([low, high])
}

/// How many of the lowest (and highest) pair ratios lie outside the interval: the largest `k`
/// such that U is at most `k` with a probability of at most [`TAIL`].
fn extremes_to_skip(n: usize, m: usize) -> Option<usize> {
    if n == 0 || m == 0 {
        return None;
    }
    if n.max(m) > EXACT_UP_TO {
        let (n, m) = (n as f64, m as f64);
        let mean = n * m / 2.0;
        let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
        let k = (mean - Z * deviation - 0.5).floor();
        return (k >= 0.0).then_some(k as usize);
    }
    let counts = rank_sum_counts(n, m);
    let total: f64 = counts.iter().sum();
    let mut below = 0.0;
    let mut last = None;
    for (u, count) in counts.iter().enumerate() {
        below += count;
        if below > TAIL * total {
            break;
        }
        last = Some(u);
    }
    last
}

/// In how many of the orders of `n` and `m` runs U has the value of the index. The generating
/// function is the Gaussian binomial coefficient: multiply by `1 - x^(m+i)`, divide by `1 - x^i`.
fn rank_sum_counts(n: usize, m: usize) -> Vec<f64> {
    let mut counts = vec![0.0; n * m + 1];
    counts[0] = 1.0;
    for i in 1..=n {
        for u in (m + i..counts.len()).rev() {
            counts[u] -= counts[u - m - i];
        }
        for u in i..counts.len() {
            counts[u] += counts[u - i];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_tables() {
        assert_eq!(rank_sum_counts(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(rank_sum_counts(5, 5).iter().sum::<f64>(), 252.0);
        // Critical values of U, two-sided 5 % (Mann and Whitney 1947 and every table since).
        for (n, m, critical) in [
            (3, 5, Some(0)),
            (4, 4, Some(0)),
            (5, 5, Some(2)),
            (8, 8, Some(13)),
            (10, 10, Some(23)),
            (20, 20, Some(127)),
            (3, 4, None),
            (2, 7, None),
        ] {
            assert_eq!(extremes_to_skip(n, m), critical, "{n} and {m}");
        }
    }

    #[test]
    fn the_approximation_joins_the_exact_counts() {
        let exact = extremes_to_skip(30, 30).unwrap();
        let next = extremes_to_skip(31, 31).unwrap();
        assert!(exact < next && next < exact + 40, "{exact} {next}");
    }

    #[test]
    fn swapping_the_sides_inverts_the_interval() {
        let (a, b) = ([1.0, 1.1, 1.2, 1.05, 1.15], [2.0, 2.2, 1.9, 2.1, 2.3]);
        let [low, high] = factor_interval(&a, &b).unwrap();
        let [inverse_low, inverse_high] = factor_interval(&b, &a).unwrap();
        assert!(
            (low * inverse_high - 1.0).abs() < 1e-12 && (high * inverse_low - 1.0).abs() < 1e-12
        );
        assert!(1.5 < low && low < 2.0 && 2.0 < high && high < 2.5);
        assert_eq!(factor_interval(&a, &[0.0; 5]), None);
        assert_eq!(factor_interval(&a[..3], &b[..3]), None);
    }
}
