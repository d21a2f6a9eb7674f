//! What a list with a lock of its own would give for what is freed lazily, beside marks in the tree under the lock of the slot.
//!
//! The list is a prototype that favours such a lock: it takes an address without asking whether something is allocated there, so
//! that a second `free_lazy` is told by the purge at best, and `lookup` does not know of it.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amdahl_figures::{Figure, Target, Unit};
use amdahl_range_alloc::{Request, SharedConfig, SharedRangeAlloc};
use amdahl_topology as topology;
use crossbeam_utils::CachePadded;

use super::clock::thread_cpu;
use super::random::Random;
use crate::Effort;
use crate::lock::stay_on;

const ARENA: Range<u64> = 0..1 << 32;
/// Live blocks.
const LIVE: usize = 10_000;
/// So many blocks freed lazily are purged together.
const BATCH: u64 = 256;

trait Lazily: Sync {
    fn arena(&self) -> &SharedRangeAlloc;
    fn free_lazy(&self, slot: usize, start: u64);
    fn purge(&self);
}

/// As it is.
struct Marks(SharedRangeAlloc);

impl Lazily for Marks {
    fn arena(&self) -> &SharedRangeAlloc {
        &self.0
    }
    fn free_lazy(&self, _: usize, start: u64) {
        self.0.free_lazy(start).expect("it is allocated");
    }
    fn purge(&self) {
        self.0.purge(|_| ());
    }
}

/// A list for each slot.
struct Listed(SharedRangeAlloc, Vec<CachePadded<Mutex<Vec<u64>>>>);

impl Lazily for Listed {
    fn arena(&self) -> &SharedRangeAlloc {
        &self.0
    }
    fn free_lazy(&self, slot: usize, start: u64) {
        self.1[slot].lock().expect("no panic").push(start);
    }
    fn purge(&self) {
        for list in &self.1 {
            let room = Vec::with_capacity(BATCH as usize);
            let all = std::mem::replace(&mut *list.lock().expect("no panic"), room);
            for start in all {
                self.0.free(start).expect("it is allocated");
            }
        }
    }
}

fn cpu_ns() -> f64 {
    thread_cpu().as_nanos() as f64
}

/// An allocator with what is live in it.
struct Side {
    of: Box<dyn Lazily>,
    live: Vec<u64>,
    random: Random,
}

/// Nanoseconds of CPU time.
#[derive(Clone, Copy)]
struct Cost {
    /// Of an allocation and a lazy free, and of purging one block, whoever does it.
    turn: f64,
    purge: f64,
}

/// One of the costs, or their sum.
type Of = fn(&Cost) -> f64;

impl Side {
    fn new(of: Box<dyn Lazily>) -> Side {
        let mut random = Random::new(3);
        let mut one = || {
            let request = Request::new(1 + random.below(16));
            let start = of.arena().alloc_in(0, &request);
            start.expect("there is space")
        };
        let live = (0..LIVE).map(|_| one()).collect();
        Side { of, live, random }
    }

    /// So many batches; another thread purges if it may.
    fn run(&mut self, batches: u64, other_purges: bool) -> Cost {
        let (pending, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let Side { of, live, random } = self;
        let of: &dyn Lazily = &**of;
        let mut turn = || {
            let at = random.below(LIVE as u64) as usize;
            of.free_lazy(0, live[at]);
            let request = Request::new(1 + random.below(16));
            let start = of.arena().alloc_in(0, &request);
            live[at] = start.expect("there is space");
        };
        std::thread::scope(|scope| {
            let (pending, stop) = (&pending, &stop);
            let other = other_purges.then(|| {
                scope.spawn(move || {
                    stay_on(1);
                    let mut spent = 0.0;
                    while !stop.load(Ordering::Acquire) {
                        if pending.load(Ordering::Relaxed) < BATCH {
                            std::thread::yield_now();
                            continue;
                        }
                        pending.store(0, Ordering::Relaxed);
                        let from = cpu_ns();
                        of.purge();
                        spent += cpu_ns() - from;
                    }
                    spent
                })
            });
            let own = scope.spawn(move || {
                stay_on(0);
                let (mut turns, mut purges) = (0.0, 0.0);
                for _ in 0..batches {
                    let from = cpu_ns();
                    for _ in 0..BATCH {
                        turn();
                        pending.fetch_add(1, Ordering::Relaxed);
                    }
                    let between = cpu_ns();
                    turns += between - from;
                    if !other_purges {
                        of.purge();
                        purges += cpu_ns() - between;
                    }
                }
                (turns, purges)
            });
            let (turns, mut purges) = own.join().expect("no panic");
            stop.store(true, Ordering::Release);
            if let Some(other) = other {
                purges = other.join().expect("no panic");
            }
            let blocks = (batches * BATCH) as f64;
            Cost {
                turn: turns / blocks,
                purge: purges / blocks,
            }
        })
    }
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    eprintln!("alloc: lazily freed");
    let cpus = topology::allowed().map_or(0, |set| set.len());
    let (rounds, batches) = if effort.quick { (5, 60) } else { (21, 200) };
    let arena = || SharedConfig::new(ARENA).slots(2).build().expect("an arena");
    let lists = (0..2).map(|_| CachePadded::default()).collect();
    let mut sides = [
        Side::new(Box::new(Marks(arena()))),
        Side::new(Box::new(Listed(arena(), lists))),
    ];
    let mut rows = Vec::new();
    for (other_purges, who) in [(false, "purges itself"), (true, "another purges")] {
        let mut costs = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            for at in [round % 2, 1 - round % 2] {
                costs[at].push(sides[at].run(batches, other_purges));
            }
        }
        let kinds: [(&str, Of); 3] = [
            ("alloc and free_lazy", |cost| cost.turn),
            ("purge", |cost| cost.purge),
            ("both", |cost| cost.turn + cost.purge),
        ];
        for (what, of) in kinds {
            // A round in which the other thread did not get to run has no cost of a purge.
            let sum = |all: &Vec<Cost>| all.iter().map(of).sum::<f64>();
            let [marks, listed] = costs.each_ref().map(sum);
            let ratio = marks / listed;
            let [marks, listed] = [marks, listed].map(|sum| sum / rounds as f64);
            rows.push(Figure {
                name: format!("marks / a list with its own lock, {who}: {what}"),
                value: if other_purges && cpus < 2 {
                    Err("one CPU".to_owned())
                } else {
                    Ok(ratio)
                },
                unit: Unit::Ratio,
                target: Target::Stated,
                versus: format!("{marks:.0} and {listed:.0} ns of CPU time a block"),
            });
        }
    }
    rows
}
