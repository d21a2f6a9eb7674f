//! The form for many threads, used by one, beside the list: it may choose another address, but nothing else.

use std::ops::Range;

use amdahl_range_alloc::{AllocError, FreeError, Policy, Request, SharedConfig, State};

use super::model::{Ask, Model};

#[derive(Clone, Debug)]
pub enum Step {
    Alloc(usize, Ask),
    AllocAt(u64, u64),
    /// Of the n-th block that is live, or of any address.
    Free(usize),
    FreeSized(usize, u64),
    FreeLazy(usize),
    FreePart(usize, u64, u64),
    FreeAny(u64),
    Purge,
    Prepare(u64, u64),
    Shrink,
}

pub fn run(
    range: Range<u64>,
    granule: u64,
    span: u64,
    slots: usize,
    depth: usize,
    steps: impl IntoIterator<Item = Step>,
) {
    let config = SharedConfig::new(range.clone()).granule(granule);
    let config = config.slots(slots).span(span);
    // For most of the sizes that are asked for.
    let config = config.magazines(24 * granule, depth);
    let arena = config.build().expect("an arena");
    let mut model = Model::new(range.clone(), granule);
    let mut live: Vec<u64> = Vec::new();
    for step in steps {
        let pick = |n: usize| match live.len() {
            0 => range.start,
            len => live[n % len],
        };
        match step {
            Step::Alloc(slot, ask) => {
                let request = Request::new(ask.size)
                    .align(ask.align)
                    .phase(ask.phase)
                    .zone(ask.zone.clone())
                    .policy(ask.policy);
                match arena.alloc_in(slot, &request) {
                    Ok(start) => {
                        let size = ask.size.next_multiple_of(granule);
                        let align = ask.align.max(granule);
                        assert_eq!(start & (align - 1), ask.phase, "{ask:?}");
                        assert!(
                            ask.zone.start <= start && start + size <= ask.zone.end,
                            "{ask:?}"
                        );
                        assert_eq!(model.alloc_at(start, ask.size), Ok(()), "{ask:?}");
                        live.push(start);
                    }
                    Err(error) => {
                        let policy = Policy::LowestAddress;
                        let asked = model.alloc(&Ask {
                            policy,
                            ..ask.clone()
                        });
                        assert_eq!(asked, Err(error), "{ask:?}");
                    }
                }
            }
            Step::AllocAt(start, size) => {
                let placed = arena.alloc_at(start, size);
                assert_eq!(placed, model.alloc_at(start, size));
                live.extend(placed.is_ok().then_some(start));
            }
            Step::Free(n) => {
                let start = pick(n);
                assert_eq!(arena.free(start), model.free(start));
                live.retain(|kept| *kept != start);
                let found = arena.lookup(start).map(|found| found.range);
                assert_eq!(found, model.lookup(start));
                // Freed twice, and inside of what is gone.
                for start in [start, start.saturating_add(granule)] {
                    assert_eq!(arena.free(start), model.free(start));
                    live.retain(|kept| *kept != start);
                }
            }
            Step::FreeSized(n, more) => {
                let start = pick(n);
                let of = model.lookup(start).unwrap_or(start..start);
                let size = of.end - of.start + more * granule;
                match arena.free_sized(start, size) {
                    Ok(()) => assert_eq!(model.free(start), Ok(size)),
                    Err(FreeError::Size { size: said, of: is }) => {
                        assert!(more > 0);
                        assert_eq!((said, is), (size, of));
                    }
                    Err(error) => assert_eq!(model.free(start), Err(error)),
                }
            }
            Step::FreeLazy(n) => {
                let start = pick(n);
                assert_eq!(arena.free_lazy(start), model.free_lazy(start));
            }
            Step::FreePart(n, at, size) => {
                let start = pick(n).saturating_add(at);
                assert_eq!(arena.free_part(start, size), model.free_part(start, size));
                live.push(start.saturating_add(size));
            }
            Step::FreeAny(start) => assert_eq!(arena.free(start), model.free(start)),
            Step::Purge => {
                let mut told = Vec::new();
                let units = arena.purge(|range| told.push(range));
                told.sort_by_key(|range| range.start);
                let sizes = told.iter().map(|range| range.end - range.start);
                assert_eq!(units, sizes.sum::<u64>());
                assert_eq!(told, model.purge());
            }
            Step::Prepare(align, phase) => {
                assert_eq!(arena.prepare(align, phase), model.prepare(align, phase));
            }
            Step::Shrink => {
                let before = arena.stats();
                assert_eq!(arena.shrink_to_fit(), Ok(()));
                let now = arena.stats();
                assert_eq!(
                    (now.spans, now.held_units),
                    (before.spans, before.held_units)
                );
                assert_eq!(now.cached_units, 0);
                assert!(now.alignments <= before.alignments);
            }
        }
        let address = live
            .first()
            .map_or(range.start, |start| start.wrapping_add(3));
        let found = arena.lookup(address).map(|found| found.range);
        assert_eq!(found, model.lookup(address));
        // Blocks are in magazines here; a snapshot would empty them.
        let segments = model.segments();
        let count = |state| {
            let of = segments.iter().filter(|segment| segment.state == state);
            of.fold((0_usize, 0_u64), |(blocks, units), segment| {
                (
                    blocks + 1,
                    units + (segment.range.end - segment.range.start),
                )
            })
        };
        let stats = arena.stats();
        assert_eq!((stats.allocations, stats.busy_units), count(State::Busy));
        assert_eq!(
            (stats.lazy_allocations, stats.lazy_units),
            count(State::Lazy)
        );
        assert_eq!(stats.free_units, count(State::Free).1);
        assert!(stats.cached_units <= stats.held_units && stats.held_units <= stats.free_units);
    }
    let segments = model.segments();
    assert_eq!(arena.snapshot(), segments);
    let plain = arena.to_plain().expect("there is memory");
    assert!(plain.iter().eq(segments.iter().cloned()));
    assert_eq!(arena.fragmentation(), plain.fragmentation());
    let units = |state| -> u64 {
        let of = segments.iter().filter(|segment| segment.state == state);
        of.map(|segment| segment.range.end - segment.range.start)
            .sum()
    };
    let stats = arena.stats();
    assert_eq!(stats.busy_units, units(State::Busy));
    assert_eq!(stats.lazy_units, units(State::Lazy));
    // What the arena for one thread tells is told here, too.
    let told = plain.stats();
    assert_eq!(stats.units, told.units);
    assert_eq!(stats.free_units, told.free_units);
    assert_eq!(stats.allocations, told.allocations);
    assert_eq!(stats.lazy_allocations, told.lazy_allocations);
    assert!(stats.largest_free <= told.largest_free && stats.held_units <= stats.free_units);
    assert!(stats.levels >= 1 && stats.leaves >= 1 && stats.alignments >= 1);
    assert_eq!(arena.largest_free(), Ok(told.largest_free));
    // Whatever slots hold: all of it can be had at once.
    for segment in segments
        .into_iter()
        .filter(|segment| segment.state == State::Busy)
    {
        arena.free(segment.range.start).expect("it is allocated");
    }
    arena.purge(|_| ());
    let all = range.end - range.start;
    assert_eq!(arena.alloc(&Request::new(all)), Ok(range.start));
    let one = arena.alloc(&Request::new(granule));
    assert_eq!(one, Err(AllocError::NoSpace { lazy: 0 }));
}
