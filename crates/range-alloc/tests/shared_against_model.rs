//! What one thread sees of the form for many, against a list that is searched from its beginning: no overlap, zone and alignment
//! kept, nothing refused for which there is room, what was freed lazily there again after a purge.

#![cfg(not(loom))]

mod model;
#[path = "model/shared.rs"]
mod shared;

use std::ops::Range;

use amdahl_range_alloc::Policy;
use model::Ask;
use proptest::prelude::*;
use shared::Step;

fn align() -> impl Strategy<Value = u64> {
    prop_oneof![
        10 => (0..7u32).prop_map(|shift| 1 << shift),
        1 => (0..=42u32).prop_map(|shift| 1 << shift),
        1 => Just(12),
    ]
}

fn phase() -> impl Strategy<Value = u64> {
    prop_oneof![8 => Just(0), 1 => 0..64u64]
}

fn ask(range: Range<u64>) -> impl Strategy<Value = Ask> {
    let size = prop_oneof![20 => 1..32u64, 3 => 1..600u64, 1 => Just(0), 1 => any::<u64>()];
    let policy = prop_oneof![
        9 => Just(Policy::LowestAddress), 1 => Just(Policy::NextFit), 1 => Just(Policy::BestFit),
    ];
    let zone = prop_oneof![
        6 => Just(0..u64::MAX),
        2 => (range.clone(), range).prop_map(|(a, b)| a.min(b)..a.max(b)),
    ];
    let all = (size, align(), phase(), zone, policy);
    all.prop_map(|(size, align, phase, zone, policy)| Ask {
        size,
        align,
        phase,
        zone,
        policy,
    })
}

fn steps(range: Range<u64>) -> impl Strategy<Value = Vec<Step>> {
    let near = range.start.saturating_sub(5)..=range.end.saturating_add(5);
    let step = prop_oneof![
        14 => (0..3usize, ask(range)).prop_map(|(slot, ask)| Step::Alloc(slot, ask)),
        2 => (near.clone(), 0..300u64).prop_map(|(start, size)| Step::AllocAt(start, size)),
        6 => any::<usize>().prop_map(Step::Free),
        1 => (any::<usize>(), 0..3u64).prop_map(|(n, more)| Step::FreeSized(n, more)),
        2 => any::<usize>().prop_map(Step::FreeLazy),
        2 => (any::<usize>(), 0..64u64, 0..64u64).prop_map(|(n, at, size)| Step::FreePart(n, at, size)),
        1 => near.prop_map(Step::FreeAny),
        1 => Just(Step::Purge),
        1 => (align(), phase()).prop_map(|(align, phase)| Step::Prepare(align, phase)),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 60 } else { 300 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 300 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn small_and_full(steps in steps(3..2000), slots in 1..4usize, depth in 0..5usize) {
        shared::run(3..2000, 1, 64, slots, depth, steps);
    }

    #[test]
    fn in_granules(steps in steps(4096..36_864), slots in 1..4usize, depth in 0..5usize) {
        shared::run(4096..36_864, 16, 1024, slots, depth, steps);
    }

    #[test]
    fn with_room_for_all(steps in steps(0..1 << 20), slots in 1..4usize, depth in 0..5usize) {
        shared::run(0..1 << 20, 1, 256, slots, depth, steps);
    }

    #[test]
    fn at_the_end_of_the_numbers(steps in steps(u64::MAX - 3000..u64::MAX), slots in 1..4usize, depth in 0..5usize) {
        shared::run(u64::MAX - 3000..u64::MAX, 1, 128, slots, depth, steps);
    }
}
