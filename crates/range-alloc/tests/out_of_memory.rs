//! Every allocation of memory fails once: the answer is an error, nothing has changed, and
//! everything goes on. Freeing takes none.

#![cfg(not(any(loom, miri)))]

mod model;
#[path = "model/random.rs"]
mod random;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use amdahl_range_alloc::{
    AllocError, ArenaError, FreeError, OutOfMemory, Policy, RangeAlloc, Request, Segment,
    SharedConfig, SharedRangeAlloc, State, Stats,
};
use model::{Ask, Model};
use random::Random;

thread_local! {
    /// Allocations of this thread that still succeed before one fails.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Allocations of this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread has taken and not given back.
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

struct Failing;

fn may_allocate() -> bool {
    COUNT.set(COUNT.get() + 1);
    let left = LEFT.get();
    // The one that fails is the only one.
    LEFT.set(left.checked_sub(1).unwrap_or(u64::MAX));
    left > 0
}

// SAFETY: the system's allocator, or null.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !may_allocate() {
            return std::ptr::null_mut();
        }
        BYTES.set(BYTES.get().wrapping_add(layout.size() as u64));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(layout.size() as u64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static FAILING: Failing = Failing;

/// Runs it while the allocation after `left` others fails; tells how many are left then.
fn failing<T>(left: &mut u64, run: impl FnOnce() -> T) -> T {
    LEFT.set(*left);
    let found = run();
    *left = LEFT.replace(u64::MAX);
    found
}

/// Runs it; it takes no memory.
fn frugal<T>(run: impl FnOnce() -> T) -> T {
    let before = COUNT.get();
    let found = run();
    assert_eq!(COUNT.get(), before, "no memory is taken");
    found
}

/// Runs for each number of allocations before the one that fails, until none does.
fn each_failure(run: impl Fn(&mut u64)) {
    for k in 0.. {
        let mut left = k;
        run(&mut left);
        // Counted down past the failure, or not as far as that.
        if left <= k {
            assert!(k > 5, "there was something to fail");
            return;
        }
    }
}

/// Does a thing once more if there was no memory for it, after which everything is as the model is.
fn again<T, E: PartialEq + std::fmt::Debug>(
    arena: &mut RangeAlloc,
    model: &Model,
    left: &mut u64,
    lack: &E,
    run: impl Fn(&mut RangeAlloc) -> Result<T, E>,
) -> Result<T, E> {
    match failing(left, || run(arena)) {
        Err(error) if error == *lack => {
            assert!(arena.iter().eq(model.segments()), "nothing has changed");
            let stats = arena.stats();
            assert_eq!(stats.allocations, arena.allocations().count());
            run(arena)
        }
        answer => answer,
    }
}

/// Every operation, in an arena that gets some levels, several groups of alignments and the index of the best fit.
fn everything(range: std::ops::Range<u64>, left: &mut u64) {
    let made = failing(left, || RangeAlloc::new(range.clone()));
    let mut arena = match made {
        Err(ArenaError::OutOfMemory) => RangeAlloc::new(range.clone()).unwrap(),
        made => made.unwrap(),
    };
    let mut model = Model::new(range.clone(), 1);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut live: Vec<u64> = Vec::with_capacity(4096);
    for turn in 0..1100u64 {
        let ask = Ask {
            size: 1 + random.below(40),
            align: 1 << random.below(9),
            phase: 0,
            zone: match random.below(5) {
                0 => range.start + 50..range.start + 9000,
                _ => 0..u64::MAX,
            },
            policy: match random.below(12) {
                0 => Policy::NextFit,
                1 if turn > 900 => Policy::BestFit,
                _ => Policy::LowestAddress,
            },
        };
        // Phases make classes without end.
        let phase = if turn % 20 == 0 {
            (turn / 20) % ask.align
        } else {
            0
        };
        let ask = Ask { phase, ..ask };
        let request = Request::new(ask.size)
            .align(ask.align)
            .phase(ask.phase)
            .zone(ask.zone.clone())
            .policy(ask.policy);
        let lack = AllocError::OutOfMemory;
        let found = again(&mut arena, &model, left, &lack, |arena| {
            arena.alloc(&request)
        });
        assert_eq!(found, model.alloc(&ask));
        live.extend(found.ok());
        let pick = |random: &mut Random, live: &mut Vec<u64>| {
            let at = random.below(live.len() as u64) as usize;
            live.swap_remove(at)
        };
        match random.below(12) {
            0 => {
                let start = range.start + random.below(30_000);
                let found = again(&mut arena, &model, left, &lack, |arena| {
                    arena.alloc_at(start, 7)
                });
                assert_eq!(found, model.alloc_at(start, 7));
                live.extend(found.ok().map(|()| start));
            }
            1 => {
                let start = pick(&mut random, &mut live);
                assert_eq!(frugal(|| arena.free(start)), model.free(start));
            }
            2 => {
                let start = pick(&mut random, &mut live);
                let size = arena.lookup(start).unwrap().range.end - start;
                frugal(|| arena.free_sized(start, size)).unwrap();
                model.free(start).unwrap();
            }
            3 => {
                let start = pick(&mut random, &mut live);
                assert_eq!(frugal(|| arena.free_lazy(start)), model.free_lazy(start));
            }
            4 | 5 => {
                let at = random.below(live.len() as u64) as usize;
                let block = frugal(|| arena.lookup(live[at])).unwrap().range;
                assert_eq!(model.lookup(live[at]), Some(block.clone()));
                let (start, size) = (block.start + 1, 1);
                if start + size < block.end {
                    let lack = FreeError::OutOfMemory;
                    let cut = again(&mut arena, &model, left, &lack, |arena| {
                        arena.free_part(start, size)
                    });
                    assert_eq!(cut, model.free_part(start, size));
                    live.push(start + size);
                }
            }
            6 if turn % 8 == 0 => {
                let mut units = 0;
                frugal(|| arena.purge(|range| units += range.end - range.start));
                let purged = model.purge().into_iter();
                assert_eq!(units, purged.map(|range| range.end - range.start).sum());
            }
            7 if turn % 16 == 0 => {
                let prepared = again(&mut arena, &model, left, &lack, |arena| {
                    arena.prepare(1 << 20, turn)
                });
                prepared.unwrap();
            }
            8 if turn % 64 == 0 => {
                let reserved = failing(left, || arena.reserve(3));
                if reserved.is_err() {
                    arena.reserve(3).unwrap();
                }
                assert!(frugal(|| arena.alloc(&Request::new(1).zone(0..1))).is_err());
            }
            9 if turn % 32 == 0 => {
                let bytes = arena.stats().footprint_bytes;
                if failing(left, || arena.shrink_to_fit()).is_err() {
                    assert!(arena.iter().eq(model.segments()), "as it was");
                    assert_eq!(arena.stats().footprint_bytes, bytes);
                    arena.shrink_to_fit().unwrap();
                }
                assert!(arena.stats().footprint_bytes <= bytes);
                assert!(arena.iter().eq(model.segments()));
            }
            _ => {}
        }
    }
    assert!(arena.iter().eq(model.segments()));
    assert!(arena.stats().levels > 1);
    for start in live {
        assert_eq!(frugal(|| arena.free(start)), model.free(start));
    }
    frugal(|| arena.purge(|_| ()));
    model.purge();
    assert!(arena.iter().eq(model.segments()));
}

#[test]
fn in_narrow_words() {
    each_failure(|left| everything(100..60_000, left));
}

#[test]
fn in_wide_words() {
    each_failure(|left| everything(100..1 << 40, left));
}

/// An arena in narrow words, with levels, holes, marks, 21 alignments and phases, the index of the best fit, and a
/// top gap that goes on beyond their reach.
fn narrow() -> RangeAlloc {
    let mut arena = RangeAlloc::new(100..1 << 40).unwrap();
    for phase in 0..12 {
        arena.prepare(16, phase).unwrap();
    }
    let starts: Vec<u64> = (0..700)
        .map(|turn| {
            let request = Request::new(1 + turn % 30).align(1 << (turn % 9));
            arena.alloc(&request).unwrap()
        })
        .collect();
    for chunk in starts.chunks_exact(7) {
        arena.free(chunk[1]).unwrap();
        arena.free_lazy(chunk[4]).unwrap();
    }
    // The second one lets the index have room to spare.
    for _ in 0..2 {
        let request = Request::new(5).policy(Policy::BestFit);
        arena.alloc(&request).unwrap();
    }
    arena
}

/// Words are made wide: what fails has changed nothing, loses nothing and works the second time.
fn widens<E: PartialEq + std::fmt::Debug>(
    lack: E,
    far: Option<u64>,
    run: impl Fn(&mut RangeAlloc) -> Result<(), E>,
) {
    let all_bytes = BYTES.get();
    let (mut k, mut failures) = (0, 0);
    loop {
        let mut arena = narrow();
        let before: Vec<_> = arena.iter().collect();
        let (stats, bytes) = (arena.stats(), BYTES.get());
        let mut left = k;
        match failing(&mut left, || run(&mut arena)) {
            Ok(()) => assert!(left <= k, "a failure was told"),
            Err(error) => {
                assert_eq!(error, lack);
                assert!(arena.iter().eq(before.iter().cloned()), "as it was");
                let Stats {
                    footprint_bytes, ..
                } = arena.stats();
                if footprint_bytes == stats.footprint_bytes {
                    assert_eq!(BYTES.get(), bytes, "what was taken is given back");
                    failures += 1;
                }
                let mut now = arena.stats();
                now.footprint_bytes = stats.footprint_bytes;
                assert_eq!(now, stats);
                // It is of use as it is, and takes no memory for what was there before.
                let start = arena.allocations().nth(300).unwrap().start;
                let size = frugal(|| arena.free(start)).unwrap();
                frugal(|| arena.alloc_at(start, size)).unwrap();
                run(&mut arena).unwrap();
            }
        }
        assert!(arena.stats().footprint_bytes > stats.footprint_bytes);
        let at = |address| arena.lookup(address).map(|found| found.range);
        assert_eq!(far.and_then(at), far.map(|far| far..far + 40));
        let is_old =
            |segment: &Segment| segment.state != State::Free && Some(segment.range.start) != far;
        let old = before.into_iter().filter(is_old);
        assert!(arena.iter().filter(is_old).eq(old));
        drop(arena);
        if left <= k {
            assert!(failures > 8, "there was something to fail: {failures}");
            break;
        }
        k += 1;
    }
    assert_eq!(BYTES.get(), all_bytes, "nothing is lost");
}

#[test]
fn while_words_become_wide() {
    let (far, lack) = (1 << 39, AllocError::OutOfMemory);
    let policies = [Policy::LowestAddress, Policy::NextFit, Policy::BestFit];
    for policy in policies {
        let request = Request::new(40).zone(far..1 << 40).policy(policy);
        widens(lack.clone(), Some(far), |arena| {
            arena.alloc(&request).map(|_| ())
        });
    }
    widens(lack.clone(), Some(far), |arena| arena.alloc_at(far, 40));
    widens(lack, None, |arena| arena.prepare(1 << 40, 0));
    widens(OutOfMemory, None, |arena| arena.reserve(3));
}

/// What was reserved is there: no allocation takes memory.
#[test]
fn what_is_reserved_is_enough() {
    for many in [1, 30, 31, 500, 5000] {
        let mut arena = RangeAlloc::new(0..1 << 30).unwrap();
        arena.prepare(16, 0).unwrap();
        arena.reserve(many).unwrap();
        frugal(|| {
            for turn in 0..many as u64 {
                // From the top, in the middle, and from below.
                match turn % 3 {
                    0 => arena.alloc_at((1 << 30) - 2 - turn * 2, 1).unwrap(),
                    1 => arena
                        .alloc_at((1 << 29) + turn * 7919 % 100_003 * 2, 1)
                        .unwrap(),
                    _ => _ = arena.alloc(&Request::new(3).align(16)).unwrap(),
                }
            }
        });
    }
}

fn busy(arena: &SharedRangeAlloc) -> BTreeMap<u64, (u64, bool)> {
    let blocks = arena.snapshot().into_iter();
    let blocks = blocks.filter(|segment| segment.state != State::Free);
    let lazy = |state| state == State::Lazy;
    let block = |segment: Segment| {
        (
            segment.range.start,
            (segment.range.end, lazy(segment.state)),
        )
    };
    blocks.map(block).collect()
}

/// Spans that are taken and given back, requests that take all locks, frees of what other slots have.
fn shared(left: &mut u64, depth: usize) {
    let config = SharedConfig::new(0..1 << 14).slots(3).span(256);
    let config = config.magazines(16, depth);
    let made = failing(left, || config.build());
    let arena = match made {
        Err(ArenaError::OutOfMemory) => config.build().unwrap(),
        made => made.unwrap(),
    };
    let mut live: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut again =
        |live: &BTreeMap<_, _>, run: &dyn Fn() -> Result<u64, AllocError>| match failing(left, run)
        {
            Err(AllocError::OutOfMemory) => {
                assert_eq!(busy(&arena), *live, "nothing has changed");
                run()
            }
            answer => answer,
        };
    for turn in 0..1500u64 {
        let slot = random.below(3) as usize;
        let size = 1 + random.below(32);
        let mut request = Request::new(size).align(1 << random.below(5));
        if random.below(40) == 0 {
            request = request.policy(Policy::NextFit);
        }
        if let Ok(start) = again(&live, &|| arena.alloc_in(slot, &request)) {
            live.insert(start, (start + size, false));
        }
        if random.below(60) == 0 {
            let start = random.below(1 << 14);
            if again(&live, &|| arena.alloc_at(start, 1).map(|()| start)).is_ok() {
                live.insert(start, (start + 1, false));
            }
        }
        // Fills, empties, fills, ...
        let frees = if turn / 300 % 2 == 0 { 2 } else { 5 };
        for _ in 0..random.below(frees) {
            let after = live
                .range(random.below(1 << 14)..)
                .find(|(_, (_, lazy))| !lazy);
            let Some((start, (end, _))) = after.map(|(start, block)| (*start, *block)) else {
                continue;
            };
            if random.below(6) == 0 {
                assert_eq!(frugal(|| arena.free_lazy(start)), Ok(end - start));
                live.insert(start, (end, true));
            } else {
                assert_eq!(frugal(|| arena.free(start)), Ok(end - start));
                live.remove(&start);
            }
        }
        if turn % 100 == 0 {
            frugal(|| arena.purge(|_| ()));
            live.retain(|_, (_, lazy)| !*lazy);
        }
        if turn % 350 == 0 {
            let shrunk = again(&live, &|| Ok(arena.shrink_to_fit().map(|()| 0)?));
            assert_eq!(shrunk, Ok(0));
        }
    }
    assert_eq!(busy(&arena), live);
}

#[test]
fn in_the_shared_form() {
    each_failure(|left| shared(left, 0));
}

#[test]
fn in_the_shared_form_with_magazines() {
    each_failure(|left| shared(left, 3));
}

/// Fails with each allocation of memory that it needs, and then does not.
fn lacks<T, E: PartialEq + std::fmt::Debug>(lack: &E, tell: impl Fn() -> Result<T, E>) -> T {
    for k in 0.. {
        match failing(&mut { k }, &tell) {
            Err(error) => assert_eq!(error, *lack),
            Ok(told) => {
                assert!(k > 0, "it takes memory");
                return told;
            }
        }
    }
    unreachable!("it needs no end of memory")
}

/// A copy for who only looks ended the process, the caller's of the C ABI among them.
#[test]
fn what_is_told_of_the_shared_form() {
    let config = SharedConfig::new(0..1 << 14).slots(3).span(256);
    let arena = config.build().unwrap();
    for turn in 0..300 {
        let start = arena.alloc_in(turn % 3, &Request::new(20)).unwrap();
        match turn % 7 {
            0 => _ = arena.free(start).unwrap(),
            1 => _ = arena.free_lazy(start).unwrap(),
            _ => {}
        }
    }
    let segments = lacks(&OutOfMemory, || arena.try_snapshot());
    let plain = lacks(&AllocError::OutOfMemory, || arena.to_plain());
    assert!(plain.iter().eq(segments));
    let largest = lacks(&OutOfMemory, || arena.largest_free());
    assert_eq!(largest, plain.stats().largest_free);
    frugal(|| arena.stats());
}

#[test]
fn more_than_can_be_is_not_reserved() {
    let mut arena = RangeAlloc::new(0..1 << 30).unwrap();
    for policy in [Policy::LowestAddress, Policy::BestFit] {
        arena.alloc(&Request::new(5).policy(policy)).unwrap();
        for blocks in [usize::MAX, usize::MAX / 2, usize::MAX - 3] {
            assert_eq!(arena.reserve(blocks), Err(OutOfMemory));
        }
    }
    assert_eq!(arena.alloc(&Request::new(5)), Ok(10));
}
