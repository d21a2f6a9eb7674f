//! Memory for bookkeeping that comes back, and alignments that are forgotten.

#![cfg(not(loom))]

use amdahl_range_alloc::{AllocError, Policy, RangeAlloc, Request, SharedConfig};

fn request(turn: u64) -> Request {
    Request::new(1 + turn % 7).align(1 << (turn % 9))
}

/// Fills an arena and frees all but every hundredth block.
fn thinned(blocks: u64) -> RangeAlloc {
    let mut arena = RangeAlloc::new(0..1 << 31).unwrap();
    let starts: Vec<u64> = (0..blocks)
        .map(|turn| arena.alloc(&request(turn)).unwrap())
        .collect();
    for (turn, start) in starts.into_iter().enumerate() {
        if turn % 100 != 0 {
            arena.free(start).unwrap();
        }
    }
    arena
}

#[test]
fn memory_that_is_not_needed_comes_back() {
    let blocks = if cfg!(miri) { 1000 } else { 50_000 };
    let mut arena = thinned(blocks);
    let before: Vec<_> = arena.iter().collect();
    let bytes = arena.stats().footprint_bytes;
    arena.shrink_to_fit().unwrap();
    assert!(arena.iter().eq(before.iter().cloned()));
    let left = arena.stats().footprint_bytes;
    assert!(left * 10 < bytes, "{left} of {bytes}");
    // Once more there is nothing to give back.
    arena.shrink_to_fit().unwrap();
    assert!(arena.stats().footprint_bytes <= left);
    // It goes on where an arena would that has never been larger.
    let mut other = RangeAlloc::new(0..1 << 31).unwrap();
    for block in arena.allocations() {
        other
            .alloc_at(block.start, block.end - block.start)
            .unwrap();
    }
    for turn in 0..blocks / 10 {
        let request = request(turn);
        assert_eq!(arena.alloc(&request), other.alloc(&request));
    }
    assert!(arena.iter().eq(other.iter()));
}

#[test]
fn what_was_reserved_comes_back_and_the_index_of_the_best_fit() {
    let mut arena = RangeAlloc::new(0..1 << 31).unwrap();
    let best = Request::new(3).policy(Policy::BestFit);
    let first = arena.alloc(&best).unwrap();
    arena.reserve(100_000).unwrap();
    let bytes = arena.stats().footprint_bytes;
    arena.shrink_to_fit().unwrap();
    assert!(arena.stats().footprint_bytes * 100 < bytes);
    assert_eq!(arena.alloc(&best), Ok(first + 3));
    arena.free(first).unwrap();
    assert_eq!(arena.alloc(&best), Ok(first));
}

/// An alignment was kept for ever: each change computed what fits for it.
#[test]
fn alignments_that_nobody_asks_for_are_forgotten() {
    let mut arena = thinned(4000);
    for phase in 0..40 {
        let odd = Request::new(1).align(64).phase(phase);
        arena.alloc(&odd).unwrap();
    }
    arena.prepare(1 << 20, 3).unwrap();
    let all = arena.stats().alignments;
    assert!(all >= 40, "{all}");
    // All of them have been asked for.
    arena.shrink_to_fit().unwrap();
    assert_eq!(arena.stats().alignments, all);
    // Gaps that do not lie at the top, so that they are searched for.
    let hole = arena.gaps().next().unwrap();
    let pages = Request::new(1).align(4);
    assert_eq!(arena.alloc(&pages), Ok(hole.start.next_multiple_of(4)));
    let bytes = arena.stats().footprint_bytes;
    arena.shrink_to_fit().unwrap();
    let now = arena.stats();
    assert_eq!(
        now.alignments, 3,
        "that of all starts, 4, and what was prepared"
    );
    assert!(now.footprint_bytes < bytes);
    arena.shrink_to_fit().unwrap();
    assert_eq!(arena.stats().alignments, 2, "nothing was asked for");
    // What was forgotten is as exact as before.
    let mut other = RangeAlloc::new(0..1 << 31).unwrap();
    for block in arena.allocations() {
        other
            .alloc_at(block.start, block.end - block.start)
            .unwrap();
    }
    for phase in 0..64 {
        let odd = Request::new(2).align(64).phase(phase);
        assert_eq!(arena.alloc(&odd), other.alloc(&odd));
    }
    assert!(arena.iter().eq(other.iter()));
}

/// After that a CPU can still give its spans back, which takes nodes.
#[test]
fn the_shared_form_shrinks() {
    let config = SharedConfig::new(0..1 << 20).slots(2).span(1 << 10);
    for depth in [0, 4] {
        let arena = config.clone().magazines(16, depth).build().unwrap();
        let blocks = if cfg!(miri) { 400 } else { 20_000 };
        let starts: Vec<u64> = (0..blocks)
            .map(|turn| arena.alloc_in(turn % 2, &Request::new(8)).unwrap())
            .collect();
        let bytes = arena.stats().footprint_bytes;
        for start in &starts[10..] {
            arena.free(*start).unwrap();
        }
        assert!(arena.stats().footprint_bytes >= bytes);
        arena.shrink_to_fit().unwrap();
        let stats = arena.stats();
        assert!(stats.footprint_bytes < bytes, "{stats:?}");
        assert_eq!(stats.busy_units, 80);
        for start in &starts[..10] {
            assert_eq!(arena.free(*start), Ok(8));
        }
        assert!(arena.stats().spans <= 2, "each keeps one to spare");
        assert_eq!(arena.alloc(&Request::new(1 << 20)), Ok(0));
    }
}

/// The first start of an alignment lay beyond 2^64, and was computed with an overflow.
#[test]
fn alignments_without_a_start_below_the_end_of_the_numbers_stay() {
    let range = u64::MAX - 5000..u64::MAX;
    let mut arena = RangeAlloc::new(range.clone()).unwrap();
    arena.prepare(1 << 13, 0).unwrap();
    arena.prepare(1 << 13, 0x1e00).unwrap();
    arena.shrink_to_fit().unwrap();
    assert_eq!(arena.stats().alignments, 3);
    let nowhere = Request::new(1).align(1 << 13);
    assert_eq!(arena.alloc(&nowhere), Err(AllocError::NoSpace { lazy: 0 }));
    assert_eq!(arena.alloc(&nowhere.phase(0x1e00)), Ok(u64::MAX - 0x1ff));
}

/// With the best fit's index in use, giving memory back took more: there was room for one gap too many in the copy.
#[test]
fn what_is_given_back_is_never_less_than_nothing() {
    let mut arena = RangeAlloc::new(0..1000).unwrap();
    arena
        .alloc(&Request::new(1).policy(Policy::BestFit))
        .unwrap();
    for _ in 0..40 {
        arena.alloc(&Request::new(1)).unwrap();
        let before = arena.stats().footprint_bytes;
        arena.shrink_to_fit().unwrap();
        assert!(arena.stats().footprint_bytes <= before);
    }
}
