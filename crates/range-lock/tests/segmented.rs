//! Segmented locks: who waits for whom, segment by segment.

mod model;

use std::ops::RangeInclusive;

use model::Step;
use proptest::prelude::*;

fn ranges() -> impl Strategy<Value = RangeInclusive<u64>> {
    let start = prop_oneof![4 => 0..40_u64, 1 => u64::MAX - 9..=u64::MAX];
    let more = prop_oneof![6 => 0..6_u64, 2 => 0..20_u64, 1 => Just(u64::MAX)];
    (start, more).prop_map(|(start, more)| start..=start.saturating_add(more))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (ranges(), any::<bool>()).prop_map(|(range, writes)| Step::Request(range, writes)),
        2 => (ranges(), any::<bool>()).prop_map(|(range, writes)| Step::Try(range, writes)),
        6 => any::<usize>().prop_map(Step::Drop),
        2 => any::<usize>().prop_map(Step::Downgrade),
        2 => (any::<usize>(), 0..45_u64).prop_map(|(which, at)| Step::Split(which, at)),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 256 }))]

    #[test]
    fn segments_are_taken_in_order_and_as_soon_as_they_are_free(
        steps in steps(),
        granule in 0..4_u32,
        segments in 0..5_u32,
    ) {
        model::run(1 << granule, 1 << segments, steps);
    }
}
