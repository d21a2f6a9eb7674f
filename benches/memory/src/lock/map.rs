//! `SeqRangeMap` beside the crate rangemap.

use std::hint::black_box;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_figures::{Figure, Random, Target, Unit};
use amdahl_range_lock::SeqRangeMap;
use rangemap::RangeMap;

use super::array::{stay_on, together, undisturbed};
use amdahl_figures::median;

use super::rounds;
use crate::Effort;

/// Ranges of 15 addresses, 20 apart, each with its own value.
const STEP: u64 = 20;
const LENGTH: u64 = 15;
/// Addresses to look up, made beforehand.
const LOOKS: usize = 1 << 14;
/// Look-ups after which a reader is refreshed.
const REFRESH: usize = 1024;

struct Maps {
    ours: SeqRangeMap<u64>,
    rangemap: RangeMap<u64, u64>,
    addresses: Vec<u64>,
}

impl Maps {
    fn new(ranges: u64) -> Self {
        let all = || (0..ranges).map(|at| (at * STEP..at * STEP + LENGTH, at));
        let mut random = Random(1);
        Maps {
            ours: all().collect(),
            rangemap: all().collect(),
            addresses: (0..LOOKS).map(|_| random.below(ranges * STEP)).collect(),
        }
    }

    fn with_reader(&self) -> u64 {
        let mut reader = self.ours.reader();
        let mut sum = 0_u64;
        for addresses in self.addresses.chunks(REFRESH) {
            for &address in addresses {
                sum += reader.get(address).copied().unwrap_or(1);
            }
            reader.refresh();
        }
        sum
    }

    fn pin_each(&self) -> u64 {
        let look = |&address: &u64| self.ours.get(address).unwrap_or(1);
        self.addresses.iter().map(look).sum()
    }

    fn rangemap(&self) -> u64 {
        let look = |&address: &u64| self.rangemap.get(&address).copied().unwrap_or(1);
        self.addresses.iter().map(look).sum()
    }
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    let mut figures = Vec::new();
    let sizes = if effort.quick {
        vec![1_000, 100_000]
    } else {
        vec![1_000, 10_000, 100_000, 1_000_000]
    };
    for ranges in sizes {
        eprintln!("lock: look-ups among {ranges} ranges");
        figures.extend(look_ups(effort, &Maps::new(ranges), ranges));
    }
    eprintln!("lock: pins");
    figures.extend(pins(effort));
    eprintln!("lock: two readers, and a writer");
    figures.extend(with_others(effort, &Maps::new(10_000)));
    figures
}

/// Nanoseconds of each, for one of `count`.
fn interleaved(effort: &Effort, count: usize, works: &[&dyn Fn() -> u64]) -> Vec<f64> {
    let mut ns = vec![Vec::new(); works.len()];
    for round in 0..rounds(effort) + 1 {
        for (work, ns) in works.iter().zip(&mut ns) {
            black_box(work()); // Brings into the caches what the one before put out of them.
            let begin = Instant::now();
            black_box(work());
            if round > 0 {
                ns.push(begin.elapsed().as_nanos() as f64 / count as f64);
            }
        }
    }
    ns.into_iter().map(median).collect()
}

fn look_ups(effort: &Effort, maps: &Maps, ranges: u64) -> Vec<Figure> {
    assert_eq!(maps.with_reader(), maps.rangemap());
    let works: [&dyn Fn() -> u64; 3] = [&|| maps.with_reader(), &|| maps.pin_each(), &|| {
        maps.rangemap()
    }];
    let ns = interleaved(effort, LOOKS, &works);
    let versus = format!(
        "rangemap alone {:.1} ns; ours {:.1} ns, each with a pin of its own {:.1} ns",
        ns[2], ns[0], ns[1]
    );
    let figure = |name: &str, ns_of: f64| Figure {
        name: format!("SeqRangeMap: look-up among {ranges} ranges, {name}"),
        value: Ok(ns_of / ns[2]),
        unit: Unit::Ratio,
        target: Target::AtMost(1.0),
        versus: versus.clone(),
    };
    vec![figure("one reader", ns[0]), figure("a pin each", ns[1])]
}

/// What it costs to keep memory from being freed, by the libraries that could do it.
fn pins(effort: &Effort) -> Vec<Figure> {
    const COUNT: usize = 20_000;
    let collector = seize::Collector::new();
    let epochs = crossbeam_epoch::Collector::new();
    let local = epochs.register();
    let word = AtomicU64::new(1);
    let look = || word.load(Ordering::Acquire);
    let works: [&dyn Fn() -> u64; 4] = [
        &|| {
            (0..COUNT)
                .map(|_| {
                    let _pin = collector.enter();
                    look()
                })
                .sum()
        },
        &|| {
            (0..COUNT)
                .map(|_| {
                    let _pin = crossbeam_epoch::pin();
                    look()
                })
                .sum()
        },
        &|| {
            (0..COUNT)
                .map(|_| {
                    let _pin = local.pin();
                    look()
                })
                .sum()
        },
        &|| (0..COUNT).map(|_| look()).sum(),
    ];
    let ns = interleaved(effort, COUNT, &works);
    let names = [
        "seize",
        "crossbeam-epoch",
        "crossbeam-epoch, by a handle",
        "none",
    ];
    let figure = |(name, ns): (&str, f64)| Figure {
        name: format!("SeqRangeMap: a pin, {name}"),
        value: Ok(ns),
        unit: Unit::Ns,
        target: Target::Stated,
        versus: "a load with nothing around it is in it".to_owned(),
    };
    names.into_iter().zip(ns).map(figure).collect()
}

fn with_others(effort: &Effort, maps: &Maps) -> Vec<Figure> {
    let time = Duration::from_millis(if effort.quick { 10 } else { 40 });
    let locked = RwLock::new(maps.rangemap.clone());
    let in_lock = || {
        let look = |&address: &u64| {
            locked
                .read()
                .expect("no panic")
                .get(&address)
                .copied()
                .unwrap_or(1)
        };
        maps.addresses.iter().map(look).sum::<u64>()
    };
    let ours = || maps.with_reader();
    let (mut two, mut beside, mut lock_two, mut rate) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds(effort) {
        let alone = readers(1, time, &ours);
        two.push(readers(2, time, &ours) / alone);
        lock_two.push(readers(2, time, &in_lock) / alone);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&maps.ours, 10_000.0, &over));
            beside.push(readers(1, time, &ours) / alone);
            over.store(true, Ordering::Relaxed);
            rate.push(writer.join().expect("no panic"));
        });
    }
    let figure = |name: &str, value, target, versus: String| Figure {
        name: format!("SeqRangeMap: {name}"),
        value: Ok(value),
        unit: Unit::Ratio,
        target,
        versus,
    };
    vec![
        figure(
            "look-ups of 2 readers",
            median(two),
            Target::AtLeast(1.8),
            "1 reader".to_owned(),
        ),
        figure(
            "look-ups beside a writer at 10,000 changes/s",
            median(beside),
            Target::AtLeast(0.9),
            format!("without it; it made {:.0} changes/s", median(rate)),
        ),
        figure(
            "look-ups of 2 readers, RwLock of a RangeMap",
            median(lock_two),
            Target::Stated,
            "1 reader of ours".to_owned(),
        ),
    ]
}

/// Look-ups per second of so many threads.
fn readers(threads: usize, time: Duration, work: &(dyn Fn() -> u64 + Sync)) -> f64 {
    undisturbed(|| {
        together(0..threads, time, &|_, stop| {
            let mut looks = 0;
            while !stop.load(Ordering::Relaxed) {
                black_box(work());
                looks += LOOKS as u64;
            }
            looks
        })
    })
}

/// Changes the map at a rate: takes a piece out of the middle of a range, which makes three of it, and puts back the whole, so that
/// nodes are divided and joined. Returns the rate that was reached.
fn write(map: &SeqRangeMap<u64>, per_second: f64, over: &AtomicBool) -> f64 {
    stay_on(1);
    let begin = Instant::now();
    let mut random = Random(9);
    let (mut changes, mut at) = (0_u64, 0);
    while !over.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * per_second) as u64;
        while changes < due {
            if changes.is_multiple_of(2) {
                at = random.below(10_000) * STEP;
                map.insert(at + 5..at + 7, random.number());
            } else {
                map.insert(at..at + LENGTH, random.number());
            }
            changes += 1;
        }
        thread::sleep(Duration::from_micros(50));
    }
    changes as f64 / begin.elapsed().as_secs_f64()
}
