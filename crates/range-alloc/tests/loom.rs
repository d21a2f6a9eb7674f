//! All interleavings of two threads in an arena of a few units:
//! `RUSTFLAGS="--cfg loom" cargo test -p amdahl-range-alloc --release --test loom`
//!
//! Without `--cfg loom` the same runs once with threads as they come.

use amdahl_range_alloc::{AllocError, Request, SharedConfig, SharedRangeAlloc};

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

/// Two slots, two spans.
fn arena() -> Arc<SharedRangeAlloc> {
    Arc::new(SharedConfig::new(0..32).slots(2).span(16).build().unwrap())
}

fn is_free(arena: &SharedRangeAlloc) {
    let stats = arena.stats();
    assert_eq!((stats.busy_units, stats.lazy_units), (0, 0));
    assert_eq!(arena.snapshot().len(), 1);
}

#[test]
fn one_frees_what_another_has_while_its_span_goes_back() {
    model(|| {
        let arena = arena();
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
    model(|| {
        let arena = arena();
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
    model(|| {
        let arena = arena();
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
    model(|| {
        let arena = arena();
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
