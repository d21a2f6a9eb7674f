//! `range-lock` and `SeqRangeMap` beside other locks and maps.

mod array;
mod map;
mod rivals;

use std::sync::RwLock;
use std::time::Duration;

use amdahl_figures::{Figure, Target, Unit, median};
use amdahl_range_lock::RangeLock;

use crate::Effort;
pub use array::stay_on;
use array::{Array, GRANULE, Mix, Ranges, SLOTS};
pub use map::figures as map;
use rivals::{Lock, Slices, TreeInMutex};

fn rounds(effort: &Effort) -> usize {
    if effort.quick { 3 } else { 13 }
}

fn time_of_run(effort: &Effort) -> Duration {
    Duration::from_millis(if effort.quick { 5 } else { 8 })
}

type Maker = fn() -> Box<dyn Lock>;

/// Ours first.
const LOCKS: [(&str, Maker); 7] = [
    ("ordered", || Box::new(RangeLock::new())),
    ("segmented", || {
        let segments = (SLOTS / GRANULE) as usize;
        Box::new(RangeLock::segmented(GRANULE, segments).expect("valid"))
    }),
    ("RwLock", || Box::new(RwLock::new(()))),
    ("tree in a mutex", || Box::<TreeInMutex>::default()),
    ("range-lock", || {
        Box::new(range_lock::VecRangeLock::new(vec![0_u8; SLOTS as usize]))
    }),
    ("range-lock, slices", || {
        Box::new(Slices::new(SLOTS as usize))
    }),
    ("range-mutex", || {
        Box::new(range_mutex::RangeMutex::new(vec![0_u8; SLOTS as usize]))
    }),
];

/// The most sections per second in any round.
#[derive(Default)]
struct Fastest {
    /// By one thread alone, on each of two CPUs.
    one: [f64; 2],
    /// By two threads on one lock.
    two: f64,
    /// By two threads on a lock each.
    apart: f64,
}

/// Two threads against one on ranges that do not overlap; beside it, two threads that share nothing at all.
pub fn disjoint_scaling(effort: &Effort) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, make) in &LOCKS[..2] {
        for writes in [0, 60, 100] {
            eprintln!("lock: {name}, disjoint ranges, {writes} % writes, two threads against one");
            let mix = Mix {
                ranges: Ranges::DisjointShort,
                writes,
                pauses: 0,
            };
            let time = time_of_run(effort);
            let (mut shared, mut apart, mut ns) = (Vec::new(), Vec::new(), Vec::new());
            // Where they lie in memory makes a difference.
            let places: Vec<_> = (0..4)
                .map(|_| [(make(), Array::new()), (make(), Array::new())])
                .collect();
            for [(lock, array), (other, other_array)] in &places {
                let alone = |number| match number {
                    0 => (&**lock, array),
                    _ => (&**other, other_array),
                };
                // The ordered lock finds the border between two threads' ranges first.
                array::run(mix, 2, time, |_| alone(0));
                // Virtual CPUs are hardware threads, beside which others of the host run at times: a run is then a third slower, whether
                // it is of one thread or of two. Of each kind that one counts which had the cores to itself.
                let mut fastest = Fastest::default();
                for _ in 0..rounds(effort) {
                    for (cpu, rate) in fastest.one.iter_mut().enumerate() {
                        *rate = array::run_one(mix, time, cpu, &**lock, array).max(*rate);
                    }
                    let two = array::run(mix, 2, time, |_| alone(0));
                    fastest.two = fastest.two.max(two);
                    let apart = array::run(mix, 2, time, alone);
                    fastest.apart = fastest.apart.max(apart);
                }
                let one = (fastest.one[0] + fastest.one[1]) / 2.0;
                shared.push(fastest.two / one);
                apart.push(fastest.apart / one);
                ns.push(1e9 / one);
            }
            let of_apart = shared
                .iter()
                .zip(&apart)
                .map(|(shared, apart)| shared / apart);
            figures.push(Figure {
                name: format!(
                    "{name}: disjoint ranges, {writes} % writes, 2 threads, of 2 that share nothing"
                ),
                value: Ok(median(of_apart.collect())),
                unit: Unit::Ratio,
                target: Target::AtLeast(0.9),
                versus: "2 threads, each with a lock and an array of its own".to_owned(),
            });
            let apart = median(apart);
            figures.push(Figure {
                name: format!("{name}: disjoint ranges, {writes} % writes, 2 threads"),
                value: Ok(median(shared)),
                unit: Unit::Ratio,
                target: Target::AtLeast(1.8),
                versus: format!(
                    "1 thread ({:.1} ns a section of 8 slots), of each the fastest round; 2 threads that share nothing reach {apart:.3}",
                    median(ns)
                ),
            });
        }
    }
    figures
}

/// Sections per second of two threads against the standard library's lock, and the best of the other range locks; and of our two forms beside each other.
pub fn array_mixes(effort: &Effort) -> Vec<Figure> {
    let mut figures = Vec::new();
    for ranges in [
        Ranges::Full,
        Ranges::Disjoint,
        Ranges::DisjointShort,
        Ranges::Random,
    ] {
        for writes in [0, 20, 60] {
            eprintln!("lock: {ranges:?}, {writes} % writes, beside others");
            let mix = Mix {
                ranges,
                writes,
                pauses: 0,
            };
            let rates = rates(effort, mix, 2, &LOCKS);
            let all = LOCKS.iter().zip(&rates);
            let all: Vec<_> = all
                .map(|((name, _), rate)| format!("{name} {:.0}", rate / 1e3))
                .collect();
            let all = all.join(", ");
            let is_disjoint = matches!(ranges, Ranges::Disjoint | Ranges::DisjointShort);
            let best = (3..LOCKS.len()).max_by(|&a, &b| rates[a].total_cmp(&rates[b]));
            for rival in [2, best.unwrap_or(3)] {
                figures.push(Figure {
                    name: format!(
                        "ordered: {ranges:?}, {writes} % writes, against {}",
                        LOCKS[rival].0
                    ),
                    value: Ok(rates[0] / rates[rival]),
                    unit: Unit::Ratio,
                    target: Target::AtLeast(if is_disjoint { 2.0 } else { 1.0 }),
                    versus: format!("sections/ms of 2 threads: {all}"),
                });
            }
            figures.push(forms(mix, 2, &rates));
        }
    }
    figures
}

/// The segmented form beside the ordered one on short ranges: each thread in a part of its own, or all of them within any granule.
pub fn short_ranges(effort: &Effort) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (ranges, threads) in [
        (Ranges::DisjointShort, 1),
        (Ranges::Short, 1),
        (Ranges::Short, 2),
    ] {
        for writes in [0, 20, 60] {
            eprintln!("lock: {ranges:?}, {writes} % writes, {threads} threads, both forms");
            let mix = Mix {
                ranges,
                writes,
                pauses: 0,
            };
            let rates = rates(effort, mix, threads, &LOCKS[..2]);
            figures.push(forms(mix, threads, &rates));
        }
    }
    figures
}

/// The segmented form against the ordered one. Stated: it is for programs to choose, and neither has to be faster.
fn forms(mix: Mix, threads: u64, rates: &[f64]) -> Figure {
    let Mix { ranges, writes, .. } = mix;
    Figure {
        name: format!("segmented / ordered: {ranges:?}, {writes} % writes, {threads} threads"),
        value: Ok(rates[1] / rates[0]),
        unit: Unit::Ratio,
        target: Target::Stated,
        versus: format!(
            "sections/ms: segmented {:.0}, ordered {:.0}",
            rates[1] / 1e3,
            rates[0] / 1e3
        ),
    }
}

/// The same against the standard library's lock where there is less to gain: by one thread, with pauses between the sections, and by more
/// threads than there are CPUs. Stated: who has nobody to get out of the way of may be faster with a lock for everything.
pub fn other_threads(effort: &Effort) -> Vec<Figure> {
    let locks = [LOCKS[0], LOCKS[2]];
    let mut figures = Vec::new();
    for (threads, pauses) in [(1, 0), (2, 50), (2, 200), (8, 0)] {
        for ranges in [Ranges::Full, Ranges::DisjointShort, Ranges::Random] {
            for writes in [20, 60] {
                eprintln!(
                    "lock: {ranges:?}, {writes} % writes, {threads} threads, {pauses} pauses"
                );
                let mix = Mix {
                    ranges,
                    writes,
                    pauses,
                };
                let rates = rates(effort, mix, threads, &locks);
                figures.push(Figure {
                    name: format!(
                        "ordered: {ranges:?}, {writes} % writes, {threads} threads, up to {pauses} pauses, against RwLock"
                    ),
                    value: Ok(rates[0] / rates[1]),
                    unit: Unit::Ratio,
                    target: Target::Stated,
                    versus: format!(
                        "sections/ms: ordered {:.0}, RwLock {:.0}",
                        rates[0] / 1e3,
                        rates[1] / 1e3
                    ),
                });
            }
        }
    }
    figures
}

/// Sections per second on each lock.
fn rates(effort: &Effort, mix: Mix, threads: u64, locks: &[(&str, Maker)]) -> Vec<f64> {
    let mut rates = vec![Vec::new(); locks.len()];
    for _ in 0..rounds(effort) {
        for ((_, make), rates) in locks.iter().zip(&mut rates) {
            let (lock, array) = (make(), Array::new());
            rates.push(array::run(mix, threads, time_of_run(effort), |_| {
                (&*lock, &array)
            }));
        }
    }
    rates.into_iter().map(median).collect()
}
