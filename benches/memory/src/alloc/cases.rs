//! Workloads in the style of the kernel's test_vmalloc: whole programs, timed as such.

use std::time::Instant;

use amdahl_figures::{Figure, Target, Unit, median};

use super::random::Random;
use super::rivals::{Allocator, Ask, KernelRule, Ours, Trees};
use crate::Effort;

const ARENA: std::ops::Range<u64> = 0..1 << 30;

type Case = fn(&mut dyn Allocator, u64);

const CASES: [(&str, Case); 7] = [
    ("fix_size", fix_size),
    ("full_fit", full_fit),
    ("long_busy_list", long_busy_list),
    ("random_size", random_size),
    ("fix_align", fix_align),
    ("random_size_align", random_size_align),
    ("pcpu_alloc", pcpu_alloc),
];

fn plain(size: u64, align: u64) -> Ask {
    Ask {
        size,
        align,
        zone: None,
    }
}

fn pair(allocator: &mut dyn Allocator, size: u64, align: u64) {
    let start = allocator
        .alloc(&plain(size, align))
        .expect("there is space");
    allocator.free(start, size);
}

/// One size, again and again.
fn fix_size(allocator: &mut dyn Allocator, loops: u64) {
    for _ in 0..loops {
        pair(allocator, 3, 1);
    }
}

/// Holes of one unit between busy ones: what is asked for fits into none, then into all.
fn full_fit(allocator: &mut dyn Allocator, loops: u64) {
    let many = 40_000;
    let starts: Vec<u64> = (0..many)
        .filter_map(|_| allocator.alloc(&plain(1, 1)))
        .collect();
    for start in starts.iter().step_by(2) {
        allocator.free(*start, 1);
    }
    for _ in 0..loops {
        pair(allocator, 1, 1);
        pair(allocator, 2, 1);
    }
    for start in starts.iter().skip(1).step_by(2) {
        allocator.free(*start, 1);
    }
}

/// 15,000 busy ranges of two sizes, and pairs of a hundred and one unit behind them.
fn long_busy_list(allocator: &mut dyn Allocator, loops: u64) {
    let sizes = |at: u64| if at.is_multiple_of(2) { 100 } else { 1 };
    let busy: Vec<(u64, u64)> = (0..15_000)
        .filter_map(|at| Some((allocator.alloc(&plain(sizes(at), 1))?, sizes(at))))
        .collect();
    for _ in 0..loops {
        let a = allocator.alloc(&plain(100, 1)).expect("there is space");
        let b = allocator.alloc(&plain(1, 1)).expect("there is space");
        allocator.free(a, 100);
        allocator.free(b, 1);
    }
    for (start, size) in busy {
        allocator.free(start, size);
    }
}

fn random_size(allocator: &mut dyn Allocator, loops: u64) {
    let mut random = Random::new(3);
    for _ in 0..loops {
        pair(allocator, 1 + random.below(100), 1);
    }
}

fn fix_align(allocator: &mut dyn Allocator, loops: u64) {
    for _ in 0..loops {
        pair(allocator, 5, 32);
    }
}

fn random_size_align(allocator: &mut dyn Allocator, loops: u64) {
    let mut random = Random::new(5);
    for _ in 0..loops {
        pair(allocator, 1 + random.below(10), 1 << random.below(9));
    }
}

/// Objects of each CPU: 35,000 of up to a kilobyte, at alignments of 2 to 2,048 bytes, then all freed.
fn pcpu_alloc(allocator: &mut dyn Allocator, loops: u64) {
    let mut random = Random::new(9);
    for _ in 0..loops.div_ceil(35_000) {
        let blocks: Vec<(u64, u64)> = (0..35_000)
            .map(|_| {
                let (size, align) = (1 + random.below(1024), 2 << random.below(11));
                let start = allocator.alloc(&plain(size, align));
                (start.expect("there is space"), size)
            })
            .collect();
        for (start, size) in blocks {
            allocator.free(start, size);
        }
    }
}

fn seconds(run: Case, allocator: &mut dyn Allocator, loops: u64) -> f64 {
    let begun = Instant::now();
    run(allocator, loops);
    begun.elapsed().as_secs_f64()
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    let (loops, rounds) = if effort.quick {
        (20_000, 3)
    } else {
        (100_000, 7)
    };
    let rows = CASES.map(|(name, run)| {
        eprintln!("alloc: {name}");
        let (mut kernel_s, mut ours_s) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            kernel_s.push(seconds(run, &mut Trees::<KernelRule>::new(ARENA), loops));
            ours_s.push(seconds(run, &mut Ours::new(ARENA), loops));
        }
        let ns = median(ours_s.clone()) * 1e9 / loops as f64;
        Figure {
            name: format!("red-black tree, kernel's rule / ours: {name}"),
            value: Ok(median(kernel_s) / median(ours_s)),
            unit: Unit::Ratio,
            target: Target::AtLeast(1.0),
            versus: format!("{ns:.0} ns a loop, {loops} loops, {rounds} rounds"),
        }
    });
    rows.into()
}
