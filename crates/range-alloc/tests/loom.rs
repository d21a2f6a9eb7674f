//! All interleavings of two threads in an arena of a few units:
//! `RUSTFLAGS="--cfg loom" cargo test -p amdahl-range-alloc --release --test loom`
//!
//! Without `--cfg loom` the same runs once with threads as they come.

use amdahl_range_alloc::{AllocError, FreeError, Request, SharedConfig, SharedRangeAlloc};

#[cfg(loom)]
use loom::{sync::Arc, thread};
#[cfg(not(loom))]
use std::{sync::Arc, thread};

fn model(run: impl Fn() + Sync + Send + 'static) {
    #[cfg(loom)]
    {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }
    #[cfg(not(loom))]
    run();
}

/// Two slots, spans of 16 units, and so many blocks of each size up to 2 at hand in each slot.
fn arena(spans: u64, depth: usize) -> Arc<SharedRangeAlloc> {
    let config = SharedConfig::new(0..spans * 16).slots(2).span(16);
    Arc::new(config.magazines(2, depth).build().unwrap())
}

/// With two spans, without magazines and with them.
fn with_and_without_magazines(run: fn(Arc<SharedRangeAlloc>)) {
    for depth in [0, 1] {
        model(move || run(arena(2, depth)));
    }
}

/// Everything can be had at once, and no slot keeps more than a spare span.
fn is_free(arena: &SharedRangeAlloc) {
    let stats = arena.stats();
    assert_eq!((stats.busy_units, stats.lazy_units), (0, 0));
    assert!(stats.spans <= 2, "{stats:?}");
    assert_eq!(arena.snapshot().len(), 1);
    let all = Request::new(stats.units);
    assert_eq!(arena.alloc(&all), Ok(0));
    assert_eq!(arena.stats().spans, 0);
}

#[test]
fn one_frees_what_another_has_while_its_span_goes_back() {
    with_and_without_magazines(|arena| {
        let (a, b) = (
            arena.alloc_in(0, &Request::new(2)).unwrap(),
            arena.alloc_in(1, &Request::new(2)).unwrap(),
        );
        let other = {
            let arena = arena.clone();
            thread::spawn(move || arena.free(b).unwrap())
        };
        assert_eq!(arena.free(a), Ok(2));
        assert_eq!(other.join().unwrap(), 2);
        is_free(&arena);
    });
}

#[test]
fn one_gathers_all_while_another_allocates() {
    with_and_without_magazines(|arena| {
        let a = arena.alloc_in(0, &Request::new(2)).unwrap();
        let other = {
            let arena = arena.clone();
            thread::spawn(move || {
                let b = arena.alloc_in(1, &Request::new(2)).unwrap();
                assert_eq!(arena.lookup(b).unwrap().range, b..b + 2);
                arena.free(b)
            })
        };
        let large = arena.alloc_in(0, &Request::new(10)).unwrap();
        assert_eq!(other.join().unwrap(), Ok(2));
        arena.free(large).unwrap();
        arena.free(a).unwrap();
        is_free(&arena);
    });
}

#[test]
fn a_purge_and_a_gathering_meet() {
    with_and_without_magazines(|arena| {
        let a = arena.alloc_in(0, &Request::new(2)).unwrap();
        arena.free_lazy(a).unwrap();
        let other = {
            let arena = arena.clone();
            thread::spawn(move || arena.alloc_at(30, 2).unwrap())
        };
        assert_eq!(arena.purge(|_| ()), 2);
        other.join().unwrap();
        arena.free(30).unwrap();
        is_free(&arena);
    });
}

#[test]
fn one_takes_what_lies_across_both_slots_while_another_frees_and_allocates_there() {
    with_and_without_magazines(|arena| {
        let two = Request::new(2);
        let a = arena.alloc_in(0, &two).unwrap();
        let (b, c) = (
            arena.alloc_in(1, &two).unwrap(),
            arena.alloc_in(1, &two).unwrap(),
        );
        arena.free(b).unwrap();
        let other = {
            let arena = arena.clone();
            thread::spawn(move || {
                assert_eq!(arena.free(c), Ok(2));
                let d = arena.alloc_in(1, &Request::new(2)).unwrap();
                assert_eq!(arena.lookup(d).unwrap().range, d..d + 2);
                assert_eq!(arena.free(d), Ok(2));
            })
        };
        let across = b - 2..b + 2;
        match arena.alloc_at(across.start, 4) {
            Ok(()) => assert_eq!(arena.free(across.start), Ok(4)),
            Err(error) => assert_eq!(error, AllocError::Occupied { by: b..b + 2 }),
        }
        other.join().unwrap();
        arena.free(a).unwrap();
        is_free(&arena);
    });
}

/// A block that is freed into a full magazine goes into the gaps, while another slot that found nothing empties the magazine.
#[test]
fn one_frees_into_a_magazine_that_another_empties() {
    model(|| {
        let arena = arena(2, 1);
        let (one, two) = (Request::new(1), Request::new(2));
        let a = arena.alloc_in(0, &one).unwrap();
        arena.alloc_at(a + 1, 15).unwrap();
        let b = arena.alloc_in(1, &one).unwrap();
        let c = arena.alloc_in(1, &one).unwrap();
        arena.alloc_at(c + 1, 14).unwrap();
        arena.free(b).unwrap();
        assert_eq!(arena.stats().cached_units, 1);
        let other = {
            let arena = arena.clone();
            thread::spawn(move || {
                assert_eq!(arena.free(c), Ok(1));
                arena.alloc_in(1, &Request::new(1))
            })
        };
        let found = arena.alloc_in(0, &two);
        // The other one finds what is left: both, one of them, or nothing.
        match (found, other.join().unwrap()) {
            (Ok(start), Err(AllocError::NoSpace { lazy: 0 })) => {
                assert_eq!(start, b);
                assert_eq!(arena.lookup(c).unwrap().range, b..c + 1);
                assert_eq!(arena.free(start), Ok(2));
            }
            (Err(AllocError::NoSpace { lazy: 0 }), Ok(start)) => {
                assert_eq!(arena.lookup(start).unwrap().range, start..start + 1);
                assert_eq!(arena.free(start), Ok(1));
                assert_eq!(arena.alloc_in(0, &two), Ok(b));
                assert_eq!(arena.free(b), Ok(2));
            }
            (large, small) => panic!("{large:?} and {small:?} of two units"),
        }
        for (start, size) in [(a, 1), (a + 1, 15), (c + 1, 14)] {
            assert_eq!(arena.free(start), Ok(size));
        }
        is_free(&arena);
    });
}

/// A slot's spans become empty but for what is in its magazines, while another slot needs addresses.
#[test]
fn spans_go_back_while_another_empties_their_magazines() {
    model(|| {
        let arena = arena(3, 1);
        let (one, two) = (Request::new(1), Request::new(2));
        let a = arena.alloc_in(0, &one).unwrap();
        arena.alloc_at(a + 1, 15).unwrap();
        let b = arena.alloc_in(1, &two).unwrap();
        arena.alloc_at(b + 2, 14).unwrap();
        let c = arena.alloc_in(1, &one).unwrap();
        arena.free(b + 2).unwrap();
        assert_eq!(arena.stats().spans, 3);
        let other = {
            let arena = arena.clone();
            thread::spawn(move || {
                assert_eq!(arena.free(b), Ok(2));
                assert_eq!(arena.free(c), Ok(1));
            })
        };
        let d = arena.alloc_in(0, &two).unwrap();
        assert!(d >= 16 && d != b + 1, "{d}");
        assert_eq!(arena.lookup(d + 1).unwrap().range, d..d + 2);
        other.join().unwrap();
        assert_eq!(arena.stats().busy_units, 18);
        for (start, size) in [(d, 2), (a, 1), (a + 1, 15)] {
            assert_eq!(arena.free(start), Ok(size));
        }
        is_free(&arena);
    });
}

/// What is told to a purge is told once, and what is freed meanwhile is left to the next one or is in this one.
#[test]
fn a_purge_meets_frees() {
    with_and_without_magazines(|arena| {
        let two = Request::new(2);
        let a = arena.alloc_in(0, &two).unwrap();
        let b = arena.alloc_in(0, &two).unwrap();
        let c = arena.alloc_in(1, &two).unwrap();
        arena.free_lazy(a).unwrap();
        let other = {
            let arena = arena.clone();
            thread::spawn(move || {
                assert_eq!(arena.free_lazy(b), Ok(2));
                assert_eq!(arena.free(c), Ok(2));
                let again = arena.free(b);
                let is_purged = again == Err(FreeError::NotAllocated { start: b });
                assert!(is_purged || again == Err(FreeError::FreedLazily { start: b }));
            })
        };
        let mut told = Vec::new();
        let units = arena.purge(|range| told.push(range));
        assert_eq!(units, 2 * told.len() as u64);
        other.join().unwrap();
        arena.purge(|range| told.push(range));
        assert_eq!(told, [a..a + 2, b..b + 2]);
        is_free(&arena);
    });
}
