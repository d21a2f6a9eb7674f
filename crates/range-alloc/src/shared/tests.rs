//! What slots hold, and how far addresses drift, after whatever is done by one thread.

use core::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::iter::{Segment, State};
use crate::request::Wanted;

const UNITS: u64 = 4096;
const SPAN: u64 = 128;
const SLOTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize, u64, u32, bool),
    AllocAt(u64, u64),
    /// Of the n-th block.
    Free(usize),
    FreeLazy(usize),
    FreePart(usize, u64, u64),
    Purge,
    Prepare(u32),
    Shrink,
}

fn steps(size: impl Strategy<Value = u64> + Clone + 'static) -> impl Strategy<Value = Vec<Step>> {
    let aligned = (0..SLOTS, size.clone(), 0..6u32, prop::bool::weighted(0.1));
    let alloc = aligned.prop_map(|(slot, size, align, zone)| Step::Alloc(slot, size, align, zone));
    let step = prop_oneof![
        12 => alloc,
        1 => (0..UNITS, size).prop_map(|(start, size)| Step::AllocAt(start, size)),
        7 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeLazy),
        1 => (any::<usize>(), 0..8u64, 1..8u64).prop_map(|(n, at, size)| Step::FreePart(n, at, size)),
        1 => Just(Step::Purge),
        1 => (0..6u32).prop_map(Step::Prepare),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 40 } else { 400 })
}

fn arena(units: u64) -> SharedRangeAlloc {
    let config = SharedConfig::new(0..units).slots(SLOTS).span(SPAN);
    config.build().unwrap()
}

/// Magazines for most of the sizes.
fn cached(units: u64) -> SharedRangeAlloc {
    let config = SharedConfig::new(0..units).slots(SLOTS).span(SPAN);
    config.magazines(12, 4).build().unwrap()
}

/// What a slot has, blocks in magazines being free.
fn segments(slot: &Slot) -> Vec<Segment> {
    let mut all: Vec<Segment> = Vec::new();
    for mut segment in slot.segments_from(0) {
        if slot.is_cached(&segment.range) {
            assert_eq!(segment.state, State::Busy);
            segment.state = State::Free;
        }
        match all.last_mut() {
            Some(last) if last.state == State::Free && segment.state == State::Free => {
                last.range.end = segment.range.end;
            }
            _ => all.push(segment),
        }
    }
    all
}

fn busy(arena: &SharedRangeAlloc) -> Vec<Range<u64>> {
    let entry = |segment: &Segment| arena.entry(segment.range.start).load(Ordering::Relaxed);
    let mut all: Vec<Segment> = Vec::new();
    // A snapshot would empty the magazines.
    all.extend(lock(&arena.global.0).iter().filter(|it| entry(it) == 0));
    for (slot, owner) in arena.slots.iter().zip(1..) {
        let own = segments(&lock(&slot.0)).into_iter();
        all.extend(own.filter(|it| entry(it) == owner));
    }
    all.retain(|segment| segment.state != State::Free);
    all.sort_unstable_by_key(|segment| segment.range.start);
    all.into_iter().map(|segment| segment.range).collect()
}

/// What nobody holds, and what a slot has, free.
fn gaps(arena: &SharedRangeAlloc, slot: usize) -> Vec<Range<u64>> {
    let mut all: Vec<_> = lock(&arena.global.0).gaps().collect();
    let own = segments(&lock(&arena.slots[slot].0)).into_iter();
    all.extend(
        own.filter(|segment| segment.state == State::Free)
            .map(|segment| segment.range),
    );
    all
}

/// Each slot knows how many spans it has and how many of them are empty, and has nothing free elsewhere.
fn check(arena: &SharedRangeAlloc) {
    let bits = arena.span_bits;
    for (slot, owner) in arena.slots.iter().zip(1..) {
        let slot = lock(&slot.0);
        let entries = arena.directory.iter().zip(0u64..);
        let held: Vec<u64> = entries
            .filter(|(entry, _)| entry.load(Ordering::Relaxed) == owner)
            .map(|(_, span)| span)
            .collect();
        assert_eq!(slot.held(), held.len());
        let segments = segments(&slot);
        let empty = held.iter().filter(|span| {
            let (start, end) = (*span << bits, (*span + 1) << bits);
            let mut free = segments.iter().filter(|it| it.state == State::Free);
            free.any(|it| it.range.start <= start && it.range.end >= end)
        });
        assert_eq!(slot.spare(), empty.count());
        for segment in segments {
            if segment.state == State::Free {
                let mut spans = segment.range.start >> bits..=(segment.range.end - 1) >> bits;
                assert!(spans.all(|span| held.contains(&span)), "{segment:?}");
            }
        }
    }
}

/// Where the highest span ends that a slot holds.
fn held_up_to(arena: &SharedRangeAlloc) -> u64 {
    let entries = arena.directory.iter().zip(1u64..);
    let held = entries.filter(|(entry, _)| entry.load(Ordering::Relaxed) != 0);
    held.map(|(_, end)| end << arena.span_bits)
        .max()
        .unwrap_or(0)
}

/// Whoever is served above all that was ever in use fits nowhere below, but in what others hold.
fn run(arena: &SharedRangeAlloc, steps: &[Step], is_of_units: bool) {
    let mut top = 0;
    for step in steps {
        let live = busy(arena);
        let end = live.last().map_or(0, |last| last.end);
        top = top.max(end).max(held_up_to(arena));
        let pick = |n: &usize| match live.len() {
            0 => 0,
            len => live[n % len].start,
        };
        match step {
            Step::Alloc(slot, size, align, in_zone) => {
                let align = if is_of_units { 1 } else { 1 << align };
                let mut request = Request::new(*size).align(align);
                if *in_zone && !is_of_units {
                    request = request.zone(UNITS / 4 + 5..UNITS / 2);
                }
                let (before, gaps) = (arena.stats(), gaps(arena, *slot));
                let Ok(start) = arena.alloc_in(*slot, &request) else {
                    continue;
                };
                if start < top {
                    continue;
                }
                if is_of_units {
                    let bound = before.busy_units + before.lazy_units + before.held_units;
                    assert!(start <= bound, "{start} is beyond {before:?}");
                }
                let wanted = Wanted::new(&request, &arena.range, 1).unwrap();
                for gap in gaps {
                    let fits = wanted.block_in(&gap).filter(|block| block.start < start);
                    let is_own = !arena.suits_slots(&request) && {
                        let entry = arena.entry(gap.start).load(Ordering::Relaxed);
                        entry as usize == *slot + 1
                    };
                    assert!(
                        fits.is_none() || is_own,
                        "{request:?} at {start} fits in {gap:?}"
                    );
                }
            }
            Step::AllocAt(start, size) => {
                let _ = arena.alloc_at(*start, *size);
            }
            Step::Free(n) => {
                let _ = arena.free(pick(n));
            }
            Step::FreeLazy(n) => {
                let _ = arena.free_lazy(pick(n));
            }
            Step::FreePart(n, at, size) => {
                let _ = arena.free_part(pick(n) + at, *size);
            }
            Step::Purge => {
                arena.purge(|_| ());
            }
            Step::Prepare(align) => assert_eq!(arena.prepare(1 << align, 0), Ok(())),
            Step::Shrink => assert_eq!(arena.shrink_to_fit(), Ok(())),
        }
        check(arena);
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 200 },
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_rises_fits_nowhere_below(steps in steps(prop_oneof![9 => 1..17u64, 1 => 1..300u64])) {
        run(&arena(UNITS), &steps, false);
    }

    #[test]
    fn units_drift_by_what_slots_hold_free(steps in steps(Just(1))) {
        run(&arena(UNITS), &steps, true);
    }

    /// Spans change hands all the time.
    #[test]
    fn in_hardly_any_space(steps in steps(prop_oneof![9 => 1..17u64, 1 => 1..300u64])) {
        run(&arena(UNITS / 8), &steps, false);
    }

    #[test]
    fn with_magazines_what_rises_fits_nowhere_below(steps in steps(prop_oneof![9 => 1..17u64, 1 => 1..300u64])) {
        run(&cached(UNITS), &steps, false);
    }

    #[test]
    fn with_magazines_units_drift_by_what_slots_hold_free(steps in steps(Just(1))) {
        run(&cached(UNITS), &steps, true);
    }

    #[test]
    fn with_magazines_in_hardly_any_space(steps in steps(prop_oneof![9 => 1..17u64, 1 => 1..300u64])) {
        run(&cached(UNITS / 8), &steps, false);
    }
}

/// Each allocation at an address, and each request that was about to be refused, dissolved all slots. The next small request
/// then took a span of its own, and 100 of them lay 100 spans apart.
#[test]
fn slots_stay_where_they_are() {
    let far = SPAN * 200;
    let starts: Vec<u64> = {
        let arena = arena(far + 200);
        let one = |turn| {
            arena.alloc_at(far + turn, 1).unwrap();
            arena.alloc_in(0, &Request::new(1)).unwrap()
        };
        (0..100).map(one).collect()
    };
    assert_eq!(starts, (0..100).collect::<Vec<_>>());

    let arena = arena(far);
    arena.alloc_at(far - 10, 10).unwrap();
    let full = Request::new(1).zone(far - 10..far);
    let one = |_| {
        assert_eq!(
            arena.alloc_in(0, &full),
            Err(AllocError::NoSpace { lazy: 0 })
        );
        arena.alloc_in(0, &Request::new(1)).unwrap()
    };
    assert_eq!(
        (0..100).map(one).collect::<Vec<_>>(),
        (0..100).collect::<Vec<_>>()
    );
    assert_eq!(arena.stats().spans, 1);
}

/// Spans were taken from above holes that were large enough.
#[test]
fn holes_are_filled_before_a_span_is_taken() {
    let arena = arena(UNITS);
    let large: Vec<u64> = (0..4)
        .map(|_| arena.alloc(&Request::new(SPAN / 2 + 1)).unwrap())
        .collect();
    assert_eq!(large[1], SPAN / 2 + 1);
    arena.free(large[1]).unwrap();
    let mut starts = (0..SPAN / 2 + 1).map(|_| arena.alloc_in(1, &Request::new(1)).unwrap());
    assert!(starts.all(|start| start < large[2]));
    // Between the last large one and the first whole span.
    assert_eq!(
        arena.alloc_in(1, &Request::new(1)),
        Ok(large[3] + SPAN / 2 + 1)
    );
}

/// An allocation across the spans of two slots moves what is in them, and nothing else; what was freed lazily stays so.
#[test]
fn what_lies_across_two_slots_is_the_global_allocators() {
    let arena = arena(UNITS);
    for slot in 0..SLOTS {
        for size in [3, 5, 7] {
            arena.alloc_in(slot, &Request::new(size)).unwrap();
        }
    }
    arena.free_lazy(SPAN + 3).unwrap();
    let before = busy(&arena);
    assert_eq!(
        arena.alloc_at(SPAN - 1, 1 + 1),
        Err(AllocError::Occupied { by: SPAN..SPAN + 3 })
    );
    assert_eq!(arena.stats().spans, 3);
    assert_eq!(arena.alloc_at(2 * SPAN - 3, 3), Ok(()));
    assert_eq!(arena.stats().spans, 3, "one slot has it all");
    arena.free_part(2 * SPAN, 3).unwrap();
    assert_eq!(
        arena.alloc_at(SPAN + 100, SPAN - 100 + 3 - 3),
        Err(AllocError::Occupied {
            by: 2 * SPAN - 3..2 * SPAN
        })
    );
    arena.free(2 * SPAN - 3).unwrap();
    assert_eq!(arena.alloc_at(2 * SPAN - 3, 6), Ok(()));
    assert_eq!(arena.stats().spans, 1, "the first slot keeps its own");
    check(&arena);
    let mut after = before;
    after.retain(|block| block.start != 2 * SPAN);
    let at = after.partition_point(|block| block.start < 2 * SPAN - 3);
    after.insert(at, 2 * SPAN - 3..2 * SPAN + 3);
    assert_eq!(busy(&arena), after);
    assert!(arena.lookup(SPAN + 4).unwrap().is_lazy);
    assert_eq!(arena.purge(|_| ()), 5);
}

/// What was half changed by a bug gives no addresses any more; all others go on.
#[test]
fn after_a_panic_within_a_slot_it_is_not_used_again() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let arena = arena(UNITS);
    let one = Request::new(1);
    let (a, b) = (arena.alloc_in(0, &one), arena.alloc_in(1, &one));
    let bug = AssertUnwindSafe(|| {
        let _slot = lock(&arena.slots[0].0);
        panic!("a bug");
    });
    assert!(catch_unwind(bug).is_err());
    let panics = |call: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    panics(&|| _ = arena.alloc_in(0, &one));
    panics(&|| _ = arena.free(a.clone().unwrap()));
    panics(&|| _ = arena.stats());
    panics(&|| _ = arena.try_snapshot());
    assert_eq!(arena.free(b.unwrap()), Ok(1));
    assert!(arena.alloc_in(1, &one).is_ok());
}
