//! Histograms and published sums.

use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use amdahl_figures::Figure;
use amdahl_spread::{Buckets, Counter, Histogram, LlcMap, Placement, PublishedCounter};
use crossbeam_utils::CachePadded;
use hdrhistogram::Histogram as Hdr;

use super::measure::{Contender, stated};
use crate::Effort;

const MAX: u64 = 10_000_000_000;

/// Latencies: around a microsecond, some much longer.
#[inline(always)]
fn value(n: u64) -> u64 {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1000 + ((mixed >> 40) >> (mixed & 15))
}

pub fn figures(effort: &Effort, threads: usize) -> Vec<Figure> {
    let mut figures = recording(effort, threads);
    figures.extend(published(effort, threads));
    figures
}

fn recording(effort: &Effort, threads: usize) -> Vec<Figure> {
    let buckets = Buckets::new(5, MAX).expect("valid");
    let map = LlcMap::of_this_machine();
    let per_cpu = Histogram::on(buckets, Placement::PerCpu, map.clone());
    let per_llc = Histogram::on(buckets, Placement::PerLlc, map);
    let atomics: Vec<AtomicU64> = (0..buckets.count()).map(|_| AtomicU64::new(0)).collect();
    let hdr = || Hdr::<u64>::new_with_max(MAX, 2).expect("valid");
    let locked = Mutex::new(hdr());
    let of_threads: Vec<CachePadded<Mutex<Hdr<u64>>>> = (0..threads)
        .map(|_| CachePadded::new(Mutex::new(hdr())))
        .collect();
    let contenders = [
        Contender::new("Histogram per CPU record", |_, n| {
            (0..n).for_each(|n| per_cpu.record(value(n)));
        }),
        Contender::new("Histogram per LLC record", |_, n| {
            (0..n).for_each(|n| per_llc.record(value(n)));
        }),
        Contender::new("shared atomic buckets record", |_, n| {
            for n in 0..n {
                let bucket = buckets.index(value(n)).expect("below the largest");
                atomics[bucket].fetch_add(1, Ordering::Relaxed);
            }
        }),
        Contender::new("array of the thread record", |_, n| {
            let (mut counts, mut total) = (vec![0_u64; buckets.count()], 0);
            for n in 0..n {
                let value = value(n);
                counts[buckets.index(value).expect("below the largest")] += 1;
                total = black_box(total + value);
            }
            black_box(counts);
        }),
        Contender::new("hdrhistogram in a Mutex record", |_, n| {
            for n in 0..n {
                locked.lock().expect("no panic").saturating_record(value(n));
            }
        }),
        Contender::new(
            "hdrhistogram in a Mutex of the thread record",
            |thread, n| {
                let mine = &of_threads[thread];
                for n in 0..n {
                    mine.lock().expect("no panic").saturating_record(value(n));
                }
            },
        ),
    ];
    stated("histograms", effort, threads, &contenders)
}

/// All threads read a sum as often as they add to it.
fn published(effort: &Effort, threads: usize) -> Vec<Figure> {
    let threshold = NonZeroU64::new(1024).expect("not 0");
    let published = PublishedCounter::new(threshold);
    let counter = Counter::per_llc();
    let shared = CachePadded::new(AtomicU64::new(0));
    let contenders = [
        Contender::new("PublishedCounter add and read", |_, n| {
            for _ in 0..n {
                published.add(1);
                black_box(published.read());
            }
        }),
        Contender::new("Counter per LLC add and read", |_, n| {
            for _ in 0..n {
                counter.add(1);
                black_box(counter.read());
            }
        }),
        Contender::new("shared AtomicU64 add and read", |_, n| {
            for _ in 0..n {
                shared.fetch_add(1, Ordering::Relaxed);
                black_box(shared.load(Ordering::Relaxed));
            }
        }),
    ];
    stated("published sums", effort, threads, &contenders)
}
