//! The form for many threads: what one thread sees, and what many do at once.

#![cfg(not(loom))]

#[path = "model/random.rs"]
mod random;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use amdahl_range_alloc::{
    AllocError, FreeError, Policy, RangeAlloc, Request, SharedConfig, SharedRangeAlloc, State,
};
use random::Random;

/// Addresses allocated twice or freed twice, over all threads.
struct Owners(Vec<AtomicU64>);

impl Owners {
    fn new(units: u64) -> Self {
        Owners((0..units.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn change(&self, start: u64, size: u64, to_busy: bool) {
        for unit in start..start + size {
            let bit = 1 << (unit % 64);
            let was = self.0[unit as usize / 64].fetch_xor(bit, Ordering::Relaxed) & bit != 0;
            assert_ne!(was, to_busy, "unit {unit}");
        }
    }
}

/// Threads free what others have allocated, also threads that have ended, and nearly use up the arena.
fn stress(threads: u64, turns: u64, units: u64, span: u64) {
    let config = SharedConfig::new(0..units).slots(4).span(span);
    stress_of(&config, threads, turns);
    stress_of(&config.magazines(24, 6), threads, turns);
}

fn stress_of(config: &SharedConfig, threads: u64, turns: u64) {
    // Miri takes a thousand times as long.
    let turns = if cfg!(miri) { turns / 400 } else { turns / 4 };
    let arena = config.build().unwrap();
    let units = arena.range().end;
    let owners = Owners::new(units);
    let handed = std::sync::Mutex::new(Vec::<(u64, u64)>::new());
    let refused = AtomicUsize::new(0);
    let generation = |number: u64| {
        std::thread::scope(|scope| {
            for thread in number * threads..(number + 1) * threads {
                let (arena, owners, handed, refused) = (&arena, &owners, &handed, &refused);
                scope.spawn(move || {
                    let mut random = Random(thread << 32 | 0x9e37_79b9);
                    let mut live = Vec::new();
                    for _ in 0..turns {
                        let size = 1 + random.below(64);
                        let align = 1 << random.below(9);
                        let mut request = Request::new(size).align(align);
                        let zone = units / 4..units / 2;
                        let in_zone = random.below(5) == 0;
                        if in_zone {
                            request = request.zone(zone.clone());
                        }
                        if random.below(50) == 0 {
                            request = request.policy(Policy::NextFit);
                        }
                        match arena.alloc_in(random.below(4) as usize, &request) {
                            Ok(start) => {
                                assert_eq!(start % align, 0);
                                assert!(
                                    !in_zone || zone.start <= start && start + size <= zone.end
                                );
                                owners.change(start, size, true);
                                live.push((start, size));
                            }
                            Err(AllocError::NoSpace { .. }) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{error}"),
                        }
                        let keep = 1 + random.below(60) as usize;
                        while live.len() > keep {
                            let (start, size) =
                                live.swap_remove(random.below(live.len() as u64) as usize);
                            if random.below(4) == 0 {
                                handed.lock().unwrap().push((start, size));
                                continue;
                            }
                            owners.change(start, size, false);
                            assert_eq!(arena.lookup(start).unwrap().range, start..start + size);
                            if random.below(8) == 0 {
                                assert_eq!(arena.free_lazy(start), Ok(size));
                            } else {
                                assert_eq!(arena.free(start), Ok(size));
                            }
                        }
                        let other = handed.lock().unwrap().pop();
                        if let Some((start, size)) = other {
                            owners.change(start, size, false);
                            assert_eq!(arena.free(start), Ok(size));
                        }
                        if random.below(100) == 0 {
                            arena.purge(|_| ());
                        }
                    }
                    // Who comes later frees it.
                    handed.lock().unwrap().extend(live);
                });
            }
        });
    };
    generation(0);
    generation(1);
    for (start, size) in handed.into_inner().unwrap() {
        owners.change(start, size, false);
        assert_eq!(arena.free(start), Ok(size));
    }
    arena.purge(|_| ());
    let stats = arena.stats();
    assert_eq!((stats.busy_units, stats.lazy_units), (0, 0));
    assert!(
        stats.spans <= 4,
        "each slot keeps one spare span at most: {stats:?}"
    );
    assert_eq!(arena.snapshot().len(), 1);
    // All of it can be had at once.
    assert_eq!(arena.alloc(&Request::new(units)), Ok(0));
}

#[test]
fn many_threads_in_much_space() {
    stress(8, 4000, 1 << 20, 4096);
}

#[test]
fn many_threads_in_little_space() {
    stress(8, 2000, 1 << 14, 1024);
}

/// The long tier: `cargo test -p amdahl-range-alloc --release -- --ignored`
#[test]
#[ignore = "takes minutes"]
fn sixty_four_threads_for_minutes() {
    let seconds = std::env::var("AMDAHL_STRESS_S").map_or(180, |text| text.parse().unwrap());
    let begun = std::time::Instant::now();
    while begun.elapsed().as_secs() < seconds {
        stress(64, 20_000, 1 << 17, 4096);
        stress(64, 20_000, 1 << 22, 1 << 14);
    }
}

#[test]
fn nothing_is_refused_while_a_gap_fits() {
    let arena = SharedConfig::new(0..1 << 12)
        .slots(3)
        .span(1 << 10)
        .build()
        .unwrap();
    // Every slot gets a span and leaves most of it free.
    let held: Vec<u64> = (0..3)
        .map(|slot| arena.alloc_in(slot, &Request::new(1)).unwrap())
        .collect();
    assert_eq!(held, [0, 1024, 2048]);
    assert_eq!(arena.alloc_at(3072, 1024), Ok(()));
    // One slot has so much, though another asks.
    let large = arena.alloc_in(1, &Request::new(1023)).unwrap();
    assert_eq!(large, 1);
    assert_eq!(
        arena.alloc(&Request::new(1024)),
        Err(AllocError::NoSpace { lazy: 0 })
    );
    let mut all = HashSet::new();
    for slot in 0.. {
        match arena.alloc_in(slot, &Request::new(1)) {
            Ok(start) => assert!(all.insert(start)),
            Err(error) => {
                assert_eq!(error, AllocError::NoSpace { lazy: 0 });
                break;
            }
        }
    }
    assert_eq!(all.len(), 4096 - 3 - 1024 - 1023);
    for start in held {
        arena.free_lazy(start).unwrap();
    }
    assert_eq!(
        arena.alloc(&Request::new(1)),
        Err(AllocError::NoSpace { lazy: 3 })
    );
    let mut told = Vec::new();
    assert_eq!(arena.purge(|range| told.push(range.start)), 3);
    assert_eq!(told, [0, 1024, 2048]);
    assert!(arena.alloc(&Request::new(1)).is_ok());
}

#[test]
fn wrong_frees_are_told_apart_wherever_the_address_lies() {
    let arena = SharedConfig::new(16..1 << 16)
        .slots(2)
        .span(1 << 12)
        .build()
        .unwrap();
    // What lies before the first whole span would be used first.
    arena.alloc_at(16, 4096 - 16).unwrap();
    let first = arena.alloc_in(1, &Request::new(8)).unwrap();
    let small = arena.alloc_in(1, &Request::new(8)).unwrap();
    arena.free(first).unwrap();
    let large = arena.alloc_in(1, &Request::new(1 << 13)).unwrap();
    for start in [small, large] {
        let of = arena.lookup(start).unwrap().range;
        assert_eq!(
            arena.free(start + 1),
            Err(FreeError::Inside {
                start: start + 1,
                of: of.clone()
            })
        );
        let size = of.end - of.start;
        let error = FreeError::Size { size: 1, of };
        assert_eq!(arena.free_sized(start, 1), Err(error));
        assert_eq!(arena.free_lazy(start), Ok(size));
        assert_eq!(
            arena.free_lazy(start),
            Err(FreeError::FreedLazily { start })
        );
    }
    assert_eq!(
        arena.free(small),
        Err(FreeError::FreedLazily { start: small })
    );
    assert_eq!(arena.free(15), Err(FreeError::Outside { start: 15 }));
    assert_eq!(
        arena.free(1 << 16),
        Err(FreeError::Outside { start: 1 << 16 })
    );
    // The beginning of a span is nothing that anybody has allocated.
    let span = small & !4095;
    assert_ne!(span, small);
    assert_eq!(
        arena.free(span),
        Err(FreeError::NotAllocated { start: span })
    );
    arena.purge(|_| ());
    assert_eq!(
        arena.free(small),
        Err(FreeError::NotAllocated { start: small })
    );
}

/// Sizes that are no multiples were told as those that they are rounded up to, and the largest as 0.
#[test]
fn a_wrong_size_is_told_as_it_was_asked_for() {
    let shared = SharedConfig::new(0..1 << 16).granule(16).build().unwrap();
    let mut plain = RangeAlloc::with_granule(0..1 << 16, 16).unwrap();
    // In a slot, and beyond what slots serve.
    for block in [48, 1 << 14] {
        let request = Request::new(block);
        let (ours, theirs) = (
            plain.alloc(&request).unwrap(),
            shared.alloc(&request).unwrap(),
        );
        for size in [17, 31, block + 1, u64::MAX] {
            let error = |start| {
                Err(FreeError::Size {
                    size,
                    of: start..start + block,
                })
            };
            assert_eq!(plain.free_sized(ours, size), error(ours));
            assert_eq!(shared.free_sized(theirs, size), error(theirs));
        }
        // Rounded up as the request was.
        assert_eq!(plain.free_sized(ours, block - 15), Ok(()));
        assert_eq!(shared.free_sized(theirs, block - 15), Ok(()));
    }
}

/// It waited for itself.
#[test]
#[should_panic(expected = "purged within a purge")]
fn retiring_may_not_purge() {
    let arena = SharedRangeAlloc::new(0..1 << 20).unwrap();
    let start = arena.alloc(&Request::new(1)).unwrap();
    arena.free_lazy(start).unwrap();
    arena.purge(|_| {
        arena.purge(|_| ());
    });
}

/// A purge that panicked kept others out.
#[test]
fn another_purge_goes_on_where_one_has_panicked() {
    let arena = SharedRangeAlloc::new(0..1 << 20).unwrap();
    let start = arena.alloc(&Request::new(1)).unwrap();
    arena.free_lazy(start).unwrap();
    let purge = || arena.purge(|_| panic!("not now"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(purge)).is_err());
    assert_eq!(arena.purge(|_| ()), 1);
}

/// What was freed below meanwhile ended the purge, with the rest undone.
#[test]
fn retiring_may_free() {
    for block in [1, 1 << 14] {
        let arena = SharedConfig::new(0..1 << 20)
            .slots(1)
            .span(1 << 12)
            .build()
            .unwrap();
        let blocks: Vec<u64> = (0..40)
            .map(|_| arena.alloc_in(0, &Request::new(block)).unwrap())
            .collect();
        for &start in &blocks[10..] {
            arena.free_lazy(start).unwrap();
        }
        let (mut told, mut below) = (Vec::new(), blocks[..10].iter().rev());
        arena.purge(|range| {
            told.push(range.start);
            if let Some(&start) = below.next() {
                arena.free_lazy(start).unwrap();
            }
        });
        assert_eq!(told, blocks[10..]);
        assert_eq!(arena.stats().lazy_units, 10 * block);
        assert_eq!(arena.purge(|_| ()), 10 * block);
    }
}

#[test]
fn retiring_may_allocate() {
    let arena = SharedRangeAlloc::new(0..1 << 20).unwrap();
    let first = arena.alloc(&Request::new(4)).unwrap();
    arena.free_lazy(first).unwrap();
    let mut during = None;
    arena.purge(|range| {
        assert_eq!(range, first..first + 4);
        assert!(arena.lookup(first).unwrap().is_lazy);
        during = arena.alloc(&Request::new(4)).ok();
    });
    assert_ne!(during, Some(first));
    let busy = arena
        .snapshot()
        .into_iter()
        .filter(|segment| segment.state == State::Busy);
    assert_eq!(busy.count(), 1);
}

/// A block in a magazine is free, whoever asks.
#[test]
fn what_is_in_a_magazine_is_free() {
    let config = SharedConfig::new(0..1 << 16).slots(2).span(1 << 12);
    let arena = config.magazines(16, 4).build().unwrap();
    let starts: Vec<u64> = (0..8)
        .map(|_| arena.alloc_in(0, &Request::new(8)).unwrap())
        .collect();
    assert_eq!(starts[7], 56);
    for start in [8, 24, 40] {
        assert_eq!(arena.free(start), Ok(8));
    }
    let stats = arena.stats();
    assert_eq!((stats.busy_units, stats.cached_units), (5 * 8, 3 * 8));
    assert_eq!(stats.held_units, stats.span_units - 5 * 8);
    assert_eq!(
        (stats.allocations, stats.free_units),
        (5, stats.units - 5 * 8)
    );
    // The lowest comes first, once; what another size gets are gaps.
    assert_eq!(arena.alloc_in(0, &Request::new(7)), Ok(64));
    assert_eq!(arena.alloc_in(0, &Request::new(8)), Ok(8));
    // Where alignment, phase and zone are met.
    let third = Request::new(8).align(16).phase(8).zone(30..1000);
    assert_eq!(arena.alloc_in(0, &third), Ok(40));
    let none = Request::new(8).align(32);
    assert_eq!(arena.alloc_in(0, &none), Ok(96), "24 is no multiple");
    assert_eq!(arena.stats().cached_units, 8);

    assert_eq!(arena.lookup(24), None);
    assert_eq!(arena.lookup(31), None);
    for inside in [24, 27] {
        let error = FreeError::NotAllocated { start: inside };
        assert_eq!(arena.free_sized(inside, 8), Err(error.clone()));
        assert_eq!(arena.free(inside), Err(error.clone()));
        assert_eq!(arena.free_lazy(inside), Err(error.clone()));
        assert_eq!(arena.free_part(inside, 1), Err(error));
        // Those who were refused have put it back into the gaps.
        assert_eq!(arena.stats().cached_units, 0);
        assert_eq!(arena.alloc_in(0, &Request::new(8)), Ok(24));
        assert_eq!(arena.free(24), Ok(8));
        assert_eq!(arena.stats().cached_units, 8);
    }
    let gaps = |arena: &SharedRangeAlloc| {
        let all = arena.snapshot().into_iter();
        let free = all.filter(|segment| segment.state == State::Free);
        free.map(|segment| segment.range).collect::<Vec<_>>()
    };
    assert_eq!(gaps(&arena), [24..32, 71..96, 104..1 << 16]);
    assert_eq!(arena.alloc_in(0, &Request::new(8)), Ok(24));
    assert_eq!(arena.free(24), Ok(8));
    let plain = arena.to_plain().unwrap();
    assert_eq!(plain.gaps().collect::<Vec<_>>(), gaps(&arena));
    assert_eq!(format!("{arena}"), format!("{plain}"));
    assert_eq!(arena.alloc_in(0, &Request::new(8)), Ok(24));
    assert_eq!(arena.free(24), Ok(8));
    // What lies there may be taken at its address.
    assert_eq!(arena.free(16), Ok(8));
    assert_eq!(arena.alloc_at(20, 8), Ok(()));
    assert_eq!(arena.stats().cached_units, 0);
}

/// More than a magazine holds goes back to the gaps: the highest.
#[test]
fn a_full_magazine_keeps_the_lowest() {
    let config = SharedConfig::new(0..1 << 16).slots(1).span(1 << 12);
    let arena = config.magazines(16, 2).build().unwrap();
    let one = Request::new(4);
    let starts: Vec<u64> = (0..9).map(|_| arena.alloc(&one).unwrap()).collect();
    for start in [starts[1], starts[7], starts[3], starts[5]] {
        arena.free(start).unwrap();
    }
    assert_eq!(arena.stats().cached_units, 8);
    // Of a size that has no other gap so low.
    let rest: Vec<u64> = (0..4)
        .map(|_| arena.alloc(&Request::new(3)).unwrap())
        .collect();
    assert_eq!(rest, [starts[5], starts[7], starts[8] + 4, starts[8] + 7]);
    assert_eq!(arena.alloc(&one), Ok(starts[1]));
    assert_eq!(arena.alloc(&one), Ok(starts[3]));
}

/// Magazines of one CPU do not keep another from what fits, nor a span from going back.
#[test]
fn magazines_are_emptied_for_others() {
    let config = SharedConfig::new(0..1 << 12).slots(2).span(1 << 10);
    let arena = config.magazines(16, 64).build().unwrap();
    let one = Request::new(16);
    let all: Vec<u64> = (0..256).map(|_| arena.alloc_in(0, &one).unwrap()).collect();
    for start in all {
        arena.free(start).unwrap();
    }
    let stats = arena.stats();
    assert_eq!((stats.busy_units, stats.spans), (0, 1), "one spare span");
    assert_eq!(stats.cached_units, 64 * 16, "all of it in a magazine");
    let zone = Request::new(100).zone(0..100);
    assert_eq!(arena.alloc_in(1, &zone), Ok(0));
    assert_eq!(arena.alloc_in(1, &Request::new((1 << 12) - 100)), Ok(100));
    assert_eq!(
        arena.alloc_in(0, &one),
        Err(AllocError::NoSpace { lazy: 0 })
    );
}

/// Most of something at one time, as a bound from above: counted before it is there and until it is gone.
#[derive(Default)]
struct Peak {
    now: AtomicU64,
    most: AtomicU64,
}

impl Peak {
    fn add(&self, count: u64) {
        let now = self.now.fetch_add(count, Ordering::SeqCst) + count;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn remove(&self, count: u64) {
        self.now.fetch_sub(count, Ordering::SeqCst);
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::SeqCst)
    }
}

/// Threads allocate and free as they come, some what others have allocated. No address is ever used above the spans that slots
/// need for what they had at most.
///
/// A slot takes a span, the lowest that nobody holds, only if none of its gaps fits. Each gap then has `wasted` units at most: one less than the largest
/// size and its padding. There is no more than one for each block and each span. So of `spans` spans of a slot
/// `spans * SPAN <= units + (blocks + spans) * wasted` before it takes one more.
fn drift(config: &SharedConfig, threads: u64, size: u64, align_bits: u64, picks_slot: bool) {
    const SLOTS: usize = 2;
    const SPAN: u64 = 1 << 10;
    let config = config.clone().slots(SLOTS).span(SPAN);
    let arena = config.build().unwrap();
    let (mut units, mut blocks) = (Vec::new(), Vec::new());
    for _ in 0..SLOTS {
        units.push(Peak::default());
        blocks.push(Peak::default());
    }
    let highest = AtomicU64::new(0);
    let handed = std::sync::Mutex::new(Vec::<(u64, u64, usize)>::new());
    let turns = if cfg!(miri) { 60 } else { 6000 };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (arena, units, blocks) = (&arena, &units, &blocks);
            let (highest, handed) = (&highest, &handed);
            scope.spawn(move || {
                let mut random = Random(thread << 32 | 0x9e37_79b9);
                let mut live: Vec<(u64, u64, usize)> = Vec::new();
                let free = |(start, size, slot): (u64, u64, usize)| {
                    assert_eq!(arena.free(start), Ok(size));
                    units[slot].remove(size);
                    blocks[slot].remove(1);
                };
                let mut keep = 0;
                for turn in 0..turns {
                    let size = 1 + random.below(size);
                    let request = Request::new(size).align(1 << random.below(align_bits + 1));
                    // Without a choice all counts as one slot's.
                    let slot = if picks_slot {
                        thread as usize % SLOTS
                    } else {
                        0
                    };
                    units[slot].add(size);
                    blocks[slot].add(1);
                    let start = if picks_slot {
                        arena.alloc_in(slot, &request)
                    } else {
                        arena.alloc(&request)
                    };
                    let start = start.unwrap();
                    highest.fetch_max(start + size, Ordering::SeqCst);
                    live.push((start, size, slot));
                    // Comes and goes.
                    if turn % 500 == 0 {
                        keep = random.below(1500) as usize;
                    }
                    while live.len() > keep {
                        let at = random.below(live.len() as u64) as usize;
                        let block = live.swap_remove(at);
                        if random.below(4) == 0 {
                            handed.lock().unwrap().push(block);
                        } else {
                            free(block);
                        }
                    }
                    let other = handed.lock().unwrap().pop();
                    if let Some(block) = other {
                        free(block);
                    }
                }
                live.into_iter().for_each(free);
            });
        }
    });
    let wasted = size + (1 << align_bits) - 2;
    let spans = |slot: usize| {
        // Without the block for which the last one was taken.
        let (units, blocks) = (units[slot].most() - 1, blocks[slot].most() - 1);
        1 + (units + blocks * wasted) / (SPAN - wasted)
    };
    let spans: u64 = if picks_slot {
        (0..SLOTS).map(spans).sum()
    } else {
        SLOTS as u64 * spans(0)
    };
    let highest = highest.into_inner();
    assert!(
        highest <= spans * SPAN,
        "{highest} is beyond {spans} spans of {SPAN}"
    );
    // Far less than there is: nothing was taken from other slots.
    assert!(spans * SPAN < arena.range().end / 2);
}

#[test]
fn addresses_of_many_threads_stay_within_what_slots_need() {
    let plain = SharedConfig::new(0..1 << 24);
    let cached = plain.clone().magazines(16, 8);
    for config in [plain, cached] {
        for threads in [2, 8] {
            for picks_slot in [true, false] {
                drift(&config, threads, 1, 0, picks_slot);
                drift(&config, threads, 40, 5, picks_slot);
            }
        }
    }
}
