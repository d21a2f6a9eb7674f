//! Histograms against sorted values.

mod threads;

use std::sync::Arc;
use std::thread;

use amdahl_spread::{Buckets, Histogram, HistogramError, LlcMap, Placement, Snapshot};
use amdahl_topology::Topology;
use proptest::prelude::*;

const PLACEMENTS: [Placement; 2] = [Placement::PerCpu, Placement::PerLlc];

fn histogram(buckets: Buckets, placement: Placement) -> Histogram {
    Histogram::on(buckets, placement, LlcMap::of_this_machine())
}

fn values() -> impl Strategy<Value = Vec<u64>> {
    let value = (any::<u64>(), 0_u32..64).prop_map(|(bits, shift)| bits >> shift);
    prop::collection::vec(value, 0..if cfg!(miri) { 20 } else { 200 })
}

/// The promise of `quantile`.
fn check(seen: &Snapshot, sorted: &[u64]) {
    let buckets = seen.buckets();
    assert_eq!(seen.count() as usize, sorted.len());
    let total = sorted.iter().copied().fold(0, u64::wrapping_add);
    assert_eq!(seen.total(), total);
    let above = sorted.iter().filter(|value| **value > buckets.max());
    assert_eq!(seen.above() as usize, above.count());
    for q in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
        let Some(said) = seen.quantile(q) else {
            assert!(sorted.is_empty());
            continue;
        };
        let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
        let truth = sorted[rank - 1];
        assert!(said >= truth, "{q}: {said} for {truth}");
        match truth > buckets.max() {
            true => assert_eq!(said, u64::MAX),
            false => {
                let allowed = truth as f64 * (1.0 + buckets.relative_error());
                assert!(said as f64 <= allowed, "{q}: {said} for {truth}");
            }
        }
    }
    for recorded in seen.iter() {
        let within = sorted.iter();
        let within = within.filter(|v| (recorded.least..=recorded.largest).contains(v));
        assert_eq!(within.count() as u64, recorded.count);
    }
}

/// Miri is slow: few buckets.
fn small_for_miri(max: u64) -> u64 {
    if cfg!(miri) { max % 100 } else { max }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

    #[test]
    fn quantiles_are_within_the_error(
        (mut first, second) in (values(), values()),
        precision in 0_u32..if cfg!(miri) { 2 } else { 8 },
        max in prop_oneof![Just(u64::MAX), any::<u64>(), 0_u64..1000].prop_map(small_for_miri),
    ) {
        let buckets = Buckets::new(precision, max).unwrap();
        for placement in PLACEMENTS {
            let histogram = histogram(buckets, placement);
            first.iter().for_each(|&value| histogram.record(value));
            let earlier = histogram.snapshot();
            first.sort_unstable();
            check(&earlier, &first);
            second.iter().for_each(|&value| histogram.record(value));

            // What came later, and both together in two ways.
            let both = histogram.snapshot();
            let mut later = Snapshot::new(buckets);
            histogram.snapshot_into(&mut later).unwrap();
            prop_assert_eq!(&later, &both);
            later.subtract(&earlier).unwrap();
            let mut sorted = second.clone();
            sorted.sort_unstable();
            check(&later, &sorted);
            later.merge(&earlier).unwrap();
            prop_assert_eq!(&later, &both);
            sorted.extend(&first);
            sorted.sort_unstable();
            check(&both, &sorted);
        }
    }
}

/// So many threads record the values below `values` and others, and jump from CPU to CPU meanwhile.
fn migrate(threads: usize, values: u64) {
    let buckets = Buckets::new(3, 1 << 20).unwrap();
    let large = Topology::synthetic("4 llc x 8 core").expect("valid");
    let cpus = threads::allowed();
    for map in [LlcMap::of_this_machine(), Arc::new(LlcMap::new(&large, 64))] {
        for placement in PLACEMENTS {
            let histogram = Histogram::on(buckets, placement, map.clone());
            thread::scope(|scope| {
                for number in 0..threads {
                    let (histogram, cpus) = (&histogram, &cpus);
                    scope.spawn(move || {
                        for value in 0..values {
                            if value % 100 == 0 {
                                threads::move_to(cpus[(number + value as usize) % cpus.len()]);
                            }
                            histogram.record(value);
                        }
                        histogram.record_n(7, 100);
                    });
                }
            });
            let mut sorted: Vec<u64> = (0..threads).flat_map(|_| 0..values).collect();
            sorted.extend(vec![7; 100 * threads]);
            sorted.sort_unstable();
            check(&histogram.snapshot(), &sorted);
        }
    }
}

#[test]
fn records_of_threads_that_move_are_all_there() {
    migrate(6, if cfg!(miri) { 60 } else { 3000 });
}

#[test]
#[ignore = "takes two minutes"]
fn records_of_sixty_four_threads_that_move_are_all_there_for_minutes() {
    threads::for_minutes(|| migrate(64, 20_000));
}

#[test]
fn what_does_not_fit_is_an_error_or_nothing() {
    let (a, b) = (Buckets::new(3, 100).unwrap(), Buckets::new(4, 100).unwrap());
    let mut snapshot = Snapshot::new(a);
    let different = HistogramError::Different { ours: a, theirs: b };
    assert_eq!(snapshot.merge(&Snapshot::new(b)), Err(different));
    assert_eq!(snapshot.subtract(&Snapshot::new(b)), Err(different));
    assert_eq!(
        Histogram::new(b).snapshot_into(&mut snapshot),
        Err(different)
    );
    let precision = 13;
    assert_eq!(
        Buckets::new(precision, 1),
        Err(HistogramError::Precision { precision })
    );
    assert_eq!((snapshot.quantile(0.5), snapshot.mean()), (None, None));
    let histogram = Histogram::new(a);
    histogram.record(5);
    let seen = histogram.snapshot();
    for q in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert_eq!(seen.quantile(q), None);
    }
    assert_eq!(seen.mean(), Some(5.0));
}
