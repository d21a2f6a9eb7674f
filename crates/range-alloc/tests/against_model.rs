//! Whatever is asked, the answers are those of a list that is searched from its beginning.

mod model;

use std::ops::Range;

use amdahl_range_alloc::{Policy, RangeAlloc, Request};
use model::{Ask, Model};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Alloc(Ask),
    AllocAt(u64, u64),
    /// Of the n-th block that is live, or of any address.
    Free(usize),
    FreeLazy(usize),
    FreePart(usize, u64, u64),
    FreeAny(u64),
    Purge,
    Prepare(u64, u64),
    Reserve(usize),
    Shrink,
}

fn align() -> impl Strategy<Value = u64> {
    prop_oneof![
        10 => (0..9u32).prop_map(|shift| 1 << shift),
        2 => (0..=42u32).prop_map(|shift| 1 << shift),
        1 => Just(0), 1 => Just(12),
    ]
}

fn phase() -> impl Strategy<Value = u64> {
    prop_oneof![5 => Just(0), 1 => 0..300u64]
}

fn ask(range: Range<u64>) -> impl Strategy<Value = Ask> {
    let size = prop_oneof![
        20 => 1..64u64, 4 => 1..2000u64, 1 => Just(0), 1 => 0..=u64::from(u32::MAX), 1 => any::<u64>(),
    ];
    let policy = prop_oneof![6 => Just(Policy::LowestAddress), 1 => Just(Policy::NextFit), 1 => Just(Policy::BestFit)];
    let span = range.end - range.start;
    let zone = prop_oneof![
        5 => Just(0..u64::MAX),
        2 => (0..=span, 0..=span).prop_map(move |(a, b)| range.start + a.min(b)..range.start + a.max(b)),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a..b),
    ];
    (size, align(), phase(), zone, policy).prop_map(|(size, align, phase, zone, policy)| Ask {
        size,
        align,
        phase,
        zone,
        policy,
    })
}

fn step(range: Range<u64>) -> impl Strategy<Value = Step> {
    let near = range.start.saturating_sub(5)..=range.end.saturating_add(5);
    prop_oneof![
        12 => ask(range.clone()).prop_map(Step::Alloc),
        2 => (near.clone(), 0..100u64).prop_map(|(start, size)| Step::AllocAt(start, size)),
        7 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeLazy),
        2 => (any::<usize>(), 0..64u64, 0..64u64).prop_map(|(n, at, size)| Step::FreePart(n, at, size)),
        1 => near.prop_map(Step::FreeAny),
        1 => Just(Step::Purge),
        1 => (align(), phase()).prop_map(|(align, phase)| Step::Prepare(align, phase)),
        1 => (0..300usize).prop_map(Step::Reserve),
        1 => Just(Step::Shrink),
    ]
}

fn request(ask: &Ask) -> Request {
    Request::new(ask.size)
        .align(ask.align)
        .phase(ask.phase)
        .zone(ask.zone.clone())
        .policy(ask.policy)
}

fn run(range: Range<u64>, granule: u64, steps: &[Step]) {
    let mut arena = RangeAlloc::with_granule(range.clone(), granule).unwrap();
    let mut model = Model::new(range.clone(), granule);
    let mut live: Vec<u64> = Vec::new();
    for step in steps {
        let pick = |live: &[u64], n: usize| match live.len() {
            0 => range.start,
            len => live[n % len],
        };
        match step {
            Step::Alloc(ask) => {
                let found = arena.alloc(&request(ask));
                assert_eq!(found, model.alloc(ask), "{ask:?}");
                live.extend(found.ok());
            }
            Step::AllocAt(start, size) => {
                let found = arena.alloc_at(*start, *size);
                assert_eq!(found, model.alloc_at(*start, *size));
                if found.is_ok() {
                    live.push(*start);
                }
            }
            Step::Free(n) => {
                let start = pick(&live, *n);
                assert_eq!(arena.free(start), model.free(start));
                live.retain(|kept| *kept != start);
            }
            Step::FreeLazy(n) => {
                let start = pick(&live, *n);
                assert_eq!(arena.free_lazy(start), model.free_lazy(start));
                // Kept among the live ones: freeing it again is an error.
            }
            Step::FreePart(n, at, size) => {
                let start = pick(&live, *n).saturating_add(*at);
                assert_eq!(arena.free_part(start, *size), model.free_part(start, *size));
                live.push(start.saturating_add(*size));
            }
            Step::FreeAny(start) => {
                assert_eq!(arena.free(*start), model.free(*start));
            }
            Step::Purge => {
                let mut told = Vec::new();
                let units = arena.purge(|range| told.push(range));
                assert_eq!(
                    units,
                    told.iter()
                        .map(|range| range.end - range.start)
                        .sum::<u64>()
                );
                assert_eq!(told, model.purge());
            }
            Step::Prepare(align, phase) => {
                let prepared = arena.prepare(*align, *phase);
                assert_eq!(prepared, model.prepare(*align, *phase));
            }
            Step::Reserve(blocks) => model::reserve(&mut arena, *blocks),
            Step::Shrink => model::shrink(&mut arena),
        }
        let start = pick(&live, 0).wrapping_add(3);
        assert_eq!(
            arena.lookup(start).map(|found| found.range),
            model.lookup(start)
        );
    }
    let segments = model.segments();
    assert_eq!(arena.iter().collect::<Vec<_>>(), segments);
    for at in (0..segments.len()).step_by(7) {
        let from = segments[at].range.end - 1;
        assert!(arena.iter_from(from).eq(segments[at..].iter().cloned()));
    }
    let gaps = model.gaps();
    let stats = arena.stats();
    let free: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
    assert_eq!(stats.free_units, free);
    assert_eq!(
        stats.largest_free,
        gaps.iter()
            .map(|gap| gap.end - gap.start)
            .max()
            .unwrap_or(0)
    );
    assert_eq!(stats.busy_units + stats.lazy_units + free, stats.units);
    assert_eq!(arena.allocations().count(), stats.allocations);
    let fragmentation = arena.fragmentation();
    assert_eq!(fragmentation.gaps.iter().sum::<u64>(), gaps.len() as u64);
    assert_eq!(fragmentation.units.iter().sum::<u64>(), free);
}

fn steps(range: Range<u64>, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let most = if cfg!(miri) { most / 4 } else { most };
    proptest::collection::vec(step(range), 1..most)
}

/// About as many granules as narrow words tell apart.
const REACH: u64 = u32::MAX as u64;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 300 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn small_and_full(steps in steps(3..2000, 400)) {
        run(3..2000, 1, &steps);
    }

    #[test]
    fn in_granules(steps in steps(4096..65536, 300)) {
        run(4096..65536, 16, &steps);
    }

    #[test]
    fn at_the_end_of_the_numbers(steps in steps(u64::MAX - 5000..u64::MAX, 300)) {
        run(u64::MAX - 5000..u64::MAX, 1, &steps);
    }

    /// Alignments of more bits than the arena's words have, with one start in reach or none.
    #[test]
    fn around_a_start_of_large_alignments(steps in steps((1 << 40) - 1500..(1 << 40) + 1500, 300)) {
        run((1 << 40) - 1500..(1 << 40) + 1500, 1, &steps);
    }

    /// Just too long for words of 32 bits: anywhere, which soon makes them wide.
    #[test]
    fn in_wide_words(steps in steps(5..(1 << 32) + 5, 300)) {
        run(5..(1 << 32) + 5, 1, &steps);
    }

    /// Where narrow words end, while they are narrow and as they become wide.
    #[test]
    fn around_the_reach_of_narrow_words(steps in steps(REACH - 700..REACH + 900, 300)) {
        let below = Step::AllocAt(5, REACH - 700);
        let steps: Vec<_> = [below].into_iter().chain(steps).collect();
        run(5..REACH + 900, 1, &steps);
    }

    /// The same in granules.
    #[test]
    fn around_the_reach_of_granules(steps in steps(16 * REACH - 7000..16 * REACH + 9000, 300)) {
        let below = Step::AllocAt(64, 16 * REACH - 8000);
        let steps: Vec<_> = [below].into_iter().chain(steps).collect();
        run(64..16 * REACH + 16_000, 16, &steps);
    }

    #[test]
    fn all_numbers(steps in steps(0..u64::MAX, 200)) {
        run(0..u64::MAX, 1, &steps);
    }
}
