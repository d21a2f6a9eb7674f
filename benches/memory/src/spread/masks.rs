//! Masks: many CPUs set and clear their own bit, one looks for any that is set.

use std::hint::black_box;

use amdahl_figures::Figure;
use amdahl_spread::{CpuMask, Mask, SparseMask, Word};

use super::measure::{Contender, race, stated, time};
use crate::Effort;

const CPUS: u32 = 512;

/// Sets and clears its own bit, as a run queue that becomes overloaded and is not any more.
#[inline(never)]
fn flip<W: Word>(mask: &Mask<W>, cpu: u32, n: u64) {
    for _ in 0..n {
        black_box(mask.set(cpu).is_ok());
        black_box(mask.clear(cpu).is_ok());
    }
}

/// Looks from one CPU after another.
#[inline(never)]
fn find<W: Word>(mask: &Mask<W>, n: u64) {
    for start in 0..n {
        black_box(mask.first_from(start as u32 % CPUS));
    }
}

pub fn figures(effort: &Effort, threads: usize) -> Vec<Figure> {
    let valid = "512 CPUs";
    let sparse = SparseMask::new(CPUS).expect(valid);
    let one = SparseMask::with_bits_per_line(CPUS, 1).expect(valid);
    let dense = CpuMask::new(CPUS).expect(valid);
    // CPUs whose bits share a word of a dense mask and none of a sparse one.
    let own = |thread: usize| thread as u32 * 8;
    let flips = [
        Contender::new("CpuMask set and clear", |thread, n| {
            flip(&dense, own(thread), n)
        }),
        Contender::new("SparseMask set and clear", |thread, n| {
            flip(&sparse, own(thread), n)
        }),
        Contender::new("SparseMask with a bit a line set and clear", |thread, n| {
            flip(&one, own(thread), n)
        }),
    ];
    let mut figures = stated("masks", effort, threads, &flips);
    let set = [3, 200, 401];
    for cpu in set {
        sparse.set(cpu).expect(valid);
        one.set(cpu).expect(valid);
        dense.set(cpu).expect(valid);
    }
    let finds = [
        Contender::new("CpuMask first_from", |_, n| find(&dense, n)),
        Contender::new("SparseMask first_from", |_, n| find(&sparse, n)),
        Contender::new("SparseMask with a bit a line first_from", |_, n| {
            find(&one, n)
        }),
    ];
    let times = race(effort, 1, &finds);
    let label = "3 of 512 CPUs set, in the cache";
    figures.extend(finds.iter().map(|c| time(&times, c.name, label)));
    figures
}
