//! How far the addresses of the shared form go beyond those of the exact one, with threads and with magazines.

use std::ops::Range;
use std::sync::Barrier;

use amdahl_figures::{Figure, Target, Unit};
use amdahl_range_alloc::{RangeAlloc, Request, SharedConfig, SharedRangeAlloc};

use super::magazines::{DEPTH, LARGEST};
use super::random::Random;
use crate::Effort;

const ARENA: Range<u64> = 0..1 << 32;
/// Live blocks of all threads.
const LIVE: usize = 100_000;
/// Allocations of all threads, those that fill included.
const TURNS: usize = 400_000;

/// What a thread asks for, and frees.
struct Asks {
    random: Random,
    live: Vec<u64>,
    /// Live blocks at most.
    most: usize,
}

impl Asks {
    fn new(thread: usize, threads: usize) -> Asks {
        Asks {
            random: Random::new(5 + thread as u64),
            live: Vec::new(),
            most: LIVE / threads,
        }
    }

    /// Frees one as soon as there are enough, and allocates one; answers with where it ends.
    fn turn(&mut self, alloc: impl FnOnce(&Request) -> u64, free: impl FnOnce(u64)) -> u64 {
        if self.live.len() == self.most {
            let at = self.random.below(self.most as u64) as usize;
            free(self.live.swap_remove(at));
        }
        let size = 1 + self.random.below(64);
        let request = Request::new(size).align(1 << self.random.below(9));
        let start = alloc(&request);
        self.live.push(start);
        start + size
    }
}

/// The highest address ever allocated by threads that run as they come.
fn of_threads(arena: &SharedRangeAlloc, threads: usize) -> u64 {
    let full = Barrier::new(threads);
    let run = |thread: usize| {
        let mut asks = Asks::new(thread, threads);
        let mut highest = 0;
        for turn in 0..TURNS / threads {
            if turn == LIVE / threads {
                // Whoever was first would else free while others have nothing yet.
                full.wait();
            }
            let alloc = |request: &Request| arena.alloc(request).expect("there is space");
            let end = asks.turn(alloc, |start| {
                arena.free(start).expect("it is allocated");
            });
            highest = highest.max(end);
        }
        highest
    };
    let run = &run;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let highest = all.into_iter().map(|one| one.join().expect("no panic"));
        highest.max().unwrap_or(0)
    })
}

/// The same of one thread that does in turn what they do.
fn in_turn(
    threads: usize,
    mut alloc: impl FnMut(usize, &Request) -> u64,
    mut free: impl FnMut(u64),
) -> u64 {
    let mut all: Vec<Asks> = (0..threads)
        .map(|thread| Asks::new(thread, threads))
        .collect();
    let mut highest = 0;
    for _ in 0..TURNS / threads {
        for (thread, asks) in all.iter_mut().enumerate() {
            let end = asks.turn(|request| alloc(thread, request), &mut free);
            highest = highest.max(end);
        }
    }
    highest
}

fn exact(threads: usize) -> u64 {
    let arena = std::cell::RefCell::new(RangeAlloc::new(ARENA).expect("an arena"));
    let alloc = |_, request: &Request| {
        let start = arena.borrow_mut().alloc(request);
        start.expect("there is space")
    };
    in_turn(threads, alloc, |start| {
        let freed = arena.borrow_mut().free(start);
        freed.expect("it is allocated");
    })
}

fn row(name: String, value: f64, versus: String) -> Figure {
    Figure {
        name,
        value: Ok(value),
        unit: Unit::Ratio,
        target: Target::Stated,
        versus,
    }
}

pub fn figures(_: &Effort) -> Vec<Figure> {
    eprintln!("alloc: drift");
    let config = SharedConfig::new(ARENA);
    let cached = config.clone().magazines(LARGEST, DEPTH);
    let kinds = [("", &config), (" with magazines", &cached)];
    let mut rows = Vec::new();
    for threads in [2, 8] {
        let exact = exact(threads) as f64;
        for (kind, config) in kinds {
            let arena = config.build().expect("an arena");
            let highest = of_threads(&arena, threads) as f64;
            rows.push(row(
                format!("highest address ever, shared form{kind}, {threads} threads / exact"),
                highest / exact,
                format!(
                    "{LIVE} live; exact: the same requests in turn; {:?}",
                    arena.stats()
                ),
            ));
        }
    }
    // The same each time.
    let exact = exact(8) as f64;
    for (kind, config) in kinds {
        let arena = config.clone().slots(8).build().expect("an arena");
        let alloc = |slot, request: &Request| {
            let start = arena.alloc_in(slot, request);
            start.expect("there is space")
        };
        let highest = in_turn(8, alloc, |start| {
            arena.free(start).expect("it is allocated");
        });
        rows.push(row(
            format!("highest address ever, shared form{kind}, 8 slots in turn / exact"),
            highest as f64 / exact,
            format!("{LIVE} live; {:?}", arena.stats()),
        ));
    }
    rows
}
