//! What a step costs when the CPU beside it has just done one on the same data: the cache lines that move. The
//! model in `experiments/2026-11-22-shared-memory-scaling` is fed with these rows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use amdahl_figures::{Figure, Target, Unit};
use amdahl_range_alloc::{Request, SharedConfig, SharedRangeAlloc};
use amdahl_range_lock::RangeLock;
use crossbeam_utils::CachePadded;

use crate::Effort;
use crate::alloc::Clock;
use crate::lock::stay_on;

/// Two steps that take turns, told the number of the turn.
struct Turns<'a> {
    first: &'a (dyn Fn(u64) + Sync),
    second: &'a (dyn Fn(u64) + Sync),
}

fn median(mut times: Vec<f32>) -> f64 {
    times.sort_unstable_by(f32::total_cmp);
    f64::from(times[times.len() / 2])
}

impl Turns<'_> {
    /// Median nanoseconds of both, on one CPU.
    fn together(&self, rounds: u64) -> [f64; 2] {
        stay_on(0);
        let clock = Clock::new();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            first.push(timed(&clock, || (self.first)(round)));
            second.push(timed(&clock, || (self.second)(round)));
        }
        [median(first), median(second)]
    }

    /// The same on two CPUs, one waiting for the other.
    fn apart(&self, rounds: u64) -> [f64; 2] {
        let turn = CachePadded::new(AtomicU32::new(0));
        let run = |number: u32, step: &(dyn Fn(u64) + Sync)| {
            stay_on(number as usize);
            let clock = Clock::new();
            let mut times = Vec::new();
            for round in 0..rounds {
                while turn.load(Ordering::Acquire) != number {
                    std::hint::spin_loop();
                }
                times.push(timed(&clock, || step(round)));
                turn.store(1 - number, Ordering::Release);
            }
            median(times)
        };
        thread::scope(|scope| {
            let second = scope.spawn(|| run(1, self.second));
            let first = run(0, self.first);
            [first, second.join().expect("no panic")]
        })
    }
}

fn timed(clock: &Clock, step: impl FnOnce()) -> f32 {
    let from = clock.now();
    step();
    clock.ns(from, clock.now())
}

/// Rows of one kind of turn: what both steps take together, and how much more on two CPUs.
fn rows(effort: &Effort, name: &str, turns: &Turns) -> [Figure; 2] {
    eprintln!("lines: {name}");
    let rounds = if effort.quick { 20_000 } else { 200_000 };
    // Of a thread of its own, which ends where it stays.
    let together = thread::scope(|scope| {
        let alone = scope.spawn(|| turns.together(rounds));
        alone.join().expect("no panic")
    });
    let apart = thread::scope(|scope| {
        let both = scope.spawn(|| turns.apart(rounds));
        both.join().expect("no panic")
    });
    let row = |name: String, value: f64, versus: String| Figure {
        name,
        value: Ok(value),
        unit: Unit::Ns,
        target: Target::Stated,
        versus,
    };
    let sum = |both: [f64; 2]| both[0] + both[1];
    [
        row(
            format!("{name}: on one CPU"),
            sum(together),
            format!("{:.1} + {:.1}", together[0], together[1]),
        ),
        row(
            format!("{name}: more on two CPUs in turn"),
            sum(apart) - sum(together),
            format!("{:.1} + {:.1}", apart[0], apart[1]),
        ),
    ]
}

/// An allocator with some thousand blocks, of which every second is freed again.
fn filled(slots: usize) -> SharedRangeAlloc {
    let config = SharedConfig::new(0..1 << 32).slots(slots);
    let shared = config.build().expect("an arena");
    for slot in 0..slots {
        let blocks: Vec<u64> = (0..4000)
            .map(|size| {
                let request = Request::new(1 + size % 64);
                shared.alloc_in(slot, &request).expect("there is space")
            })
            .collect();
        for block in blocks.iter().step_by(2) {
            shared.free(*block).expect("it is allocated");
        }
    }
    shared
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    let mut all = Vec::new();

    let block = CachePadded::new(AtomicU64::new(0));
    let shared = filled(2);
    let small = Request::new(40);
    all.extend(rows(
        effort,
        "shared form, allocation and free in one slot",
        &Turns {
            first: &|_| {
                let start = shared.alloc_in(0, &small).expect("there is space");
                block.store(start, Ordering::Relaxed);
            },
            second: &|_| {
                let start = block.load(Ordering::Relaxed);
                shared.free(start).expect("it is allocated");
            },
        },
    ));

    // As a slot does that takes a span: larger requests go there as well.
    let large = Request::new(1 << 16).align(1 << 16);
    let pair = |_| {
        let start = shared.alloc_in(0, &large).expect("there is space");
        shared.free(start).expect("it is allocated");
    };
    all.extend(rows(
        effort,
        "shared form, two pairs of the global allocator",
        &Turns {
            first: &pair,
            second: &pair,
        },
    ));

    for (name, lock) in [
        ("ordered", RangeLock::new()),
        ("segmented", RangeLock::segmented(16, 16).expect("valid")),
    ] {
        let section = |round: u64| {
            let start = round % 16;
            drop(lock.write(start..start + 8));
        };
        all.extend(rows(
            effort,
            &format!("{name} lock, two sections of the same addresses"),
            &Turns {
                first: &section,
                second: &section,
            },
        ));
    }

    all
}
