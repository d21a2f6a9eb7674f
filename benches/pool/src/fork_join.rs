//! Fork-join and loops, beside rayon, OpenMP and oneTBB.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use amdahl_figures::{Figure, Target, Unit};

use crate::rivals::Rival;
use crate::rounds::{Cost, cost, ratio, rounds};

/// Work that depends on the index: most are short, one in 64 is 200 times as long, and they get longer.
fn skewed(range: std::ops::Range<usize>, len: usize, sum: &AtomicU64) {
    let mut own = 0;
    for i in range {
        let steps = (if i % 64 == 0 { 2000 } else { 10 }) * (1 + i / (len / 4).max(1));
        for step in 0..steps as u64 {
            own = black_box(own ^ step.wrapping_mul(i as u64));
        }
    }
    sum.fetch_add(own, Ordering::Relaxed);
}

/// The same, whose result nobody wants.
fn skewed_sum(range: std::ops::Range<usize>, len: usize) {
    skewed(range, len, &AtomicU64::new(0));
}

/// One skewed loop.
pub fn loop_of(rival: Rival, len: usize, grain: usize) {
    rival.each(len, grain, &|part| skewed_sum(part, len));
}

/// Five equal parts of about 4 us.
pub fn loop_of_blocks(rival: Rival) {
    rival.each(5, 1, &|part| {
        skewed_sum(part.start * 64..part.end * 64, usize::MAX)
    });
}

/// The same numbers each time.
pub fn random(len: usize) -> Vec<u64> {
    let mut state = 88_172_645_463_325_252u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(next).take(len).collect()
}

type Case<'a> = (&'static str, usize, Box<dyn Fn(Rival) + 'a>);

/// The case in which each sorts by its own best sort.
const BEST_SORT: &str = "best sort of 2 million numbers";

pub fn figures(wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    let data = random(2_000_000);
    let cases: [Case<'_>; 6] = [
        (
            "fib(30), forked down to 1",
            9,
            Box::new(|rival| assert_eq!(rival.fib(30), 832_040)),
        ),
        (
            "sort of 2 million numbers",
            7,
            Box::new(|rival| {
                let mut data = data.clone();
                rival.sort(&mut data);
                debug_assert!(data.is_sorted());
                black_box(data);
            }),
        ),
        (
            BEST_SORT,
            7,
            Box::new(|rival| {
                let mut data = data.clone();
                rival.best_sort(&mut data);
                debug_assert!(data.is_sorted());
                black_box(data);
            }),
        ),
        (
            "skewed loop of 200,000",
            9,
            Box::new(|rival| {
                loop_of(rival, 200_000, 16);
            }),
        ),
        (
            "1000 loops of 20 us",
            9,
            Box::new(|rival| {
                for _ in 0..1000 {
                    loop_of_blocks(rival);
                }
            }),
        ),
        (
            "300 loops of 200 us",
            9,
            Box::new(|rival| {
                for _ in 0..300 {
                    loop_of(rival, 2000, 8);
                }
            }),
        ),
    ];
    let mut figures = Vec::new();
    for (name, times, work) in &cases {
        if !wanted(name) {
            continue;
        }
        let is_best_sort = *name == BEST_SORT;
        let (others, called): (_, fn(Rival) -> &'static str) = match is_best_sort {
            true => (Rival::with_best_sort(), Rival::name_of_best_sort),
            false => (Rival::OTHERS, Rival::name),
        };
        let installed: Vec<Rival> = others
            .iter()
            .filter(|(_, why)| why.is_none())
            .map(|(rival, _)| *rival)
            .collect();
        let all: Vec<Rival> = std::iter::once(Rival::Pool)
            .chain(installed.iter().copied())
            .collect();
        let mut sides: Vec<_> = all
            .iter()
            .map(|&rival| move || cost(|| work(rival)))
            .collect();
        let mut sides: Vec<&mut dyn FnMut() -> Cost> = sides.iter_mut().map(|s| s as _).collect();
        let costs = rounds(*times, &mut sides);
        for (rival, why) in others {
            let at = all.iter().position(|&r| r == rival);
            figures.push(Figure {
                name: format!("{name}, {}", called(rival)),
                value: at
                    .map(|at| ratio(&costs[0], &costs[at], |c| c.wall_s))
                    .ok_or(why.unwrap_or_default().to_owned()),
                unit: Unit::Ratio,
                target: Target::AtMost(1.0),
                versus: format!(
                    "time of {} / time of {}, median of {times} interleaved rounds",
                    if is_best_sort {
                        called(Rival::Pool)
                    } else {
                        "the pool"
                    },
                    called(rival)
                ),
            });
        }
    }
    figures
}
