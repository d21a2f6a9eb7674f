//! The shared form with magazines beside the same without: both do the same turns, slice by slice in turn.

use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use amdahl_figures::{Figure, Target, Unit, median};
use amdahl_range_alloc::{Request, SharedConfig, SharedRangeAlloc};
use amdahl_topology as topology;

use super::clock::thread_cpu;
use super::random::Random;
use crate::Effort;
use crate::lock::stay_on;

const ARENA: Range<u64> = 0..1 << 32;
/// Of the magazines.
pub const LARGEST: u64 = 16;
pub const DEPTH: usize = 8;

/// What a thread does.
struct Load {
    name: &'static str,
    /// Live blocks of a thread.
    live: usize,
    /// Sizes are 1 to this, alignments 2^0 to 2^`align`, one of `zoned` requests in the lower quarter (0: none).
    size: u64,
    align: u64,
    zoned: u64,
    /// What has been allocated is freed at once; else one of all that are live.
    is_pair: bool,
}

const LOADS: [Load; 6] = [
    Load {
        name: "pairs of 1 to 16 units, nothing else live",
        live: 0,
        size: 16,
        align: 0,
        zoned: 0,
        is_pair: true,
    },
    Load {
        name: "pairs of 1 to 16 units, 10,000 live",
        live: 10_000,
        size: 16,
        align: 0,
        zoned: 0,
        is_pair: true,
    },
    Load {
        name: "1 to 16 units, 10,000 live",
        live: 10_000,
        size: 16,
        align: 0,
        zoned: 0,
        is_pair: false,
    },
    Load {
        name: "1 to 16 units, 200,000 live",
        live: 200_000,
        size: 16,
        align: 0,
        zoned: 0,
        is_pair: false,
    },
    Load {
        name: "1 to 16 units, alignments to 256, a fifth in a zone, 10,000 live",
        live: 10_000,
        size: 16,
        align: 8,
        zoned: 5,
        is_pair: false,
    },
    Load {
        name: "1 to 64 units, alignments to 256, a fifth in a zone, 10,000 live",
        live: 10_000,
        size: 64,
        align: 8,
        zoned: 5,
        is_pair: false,
    },
];

impl Load {
    fn request(&self, random: &mut Random) -> Request {
        let request = Request::new(1 + random.below(self.size));
        let request = request.align(1 << random.below(self.align + 1));
        if self.zoned != 0 && random.below(self.zoned) == 0 {
            request.zone(ARENA.start..ARENA.end / 4)
        } else {
            request
        }
    }
}

/// A thread's own, in lines of its own.
#[repr(align(128))]
struct Worker {
    random: Random,
    live: Vec<u64>,
}

impl Worker {
    fn fill(arena: &SharedRangeAlloc, load: &Load, slot: usize) -> Worker {
        let mut random = Random::new(11 + slot as u64);
        let one = |random: &mut Random| {
            let request = load.request(random);
            arena.alloc_in(slot, &request).expect("there is space")
        };
        let mut live: Vec<u64> = (0..load.live).map(|_| one(&mut random)).collect();
        // Holes come about.
        for _ in 0..2 * load.live {
            let at = random.below(load.live as u64) as usize;
            arena.free(live[at]).expect("it is allocated");
            live[at] = one(&mut random);
        }
        Worker { random, live }
    }

    fn turn(&mut self, arena: &SharedRangeAlloc, load: &Load) {
        if load.is_pair {
            let start = arena.alloc(&load.request(&mut self.random));
            let freed = arena.free(start.expect("there is space"));
            freed.expect("it is allocated");
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        arena.free(self.live[at]).expect("it is allocated");
        let start = arena.alloc(&load.request(&mut self.random));
        self.live[at] = start.expect("there is space");
    }
}

/// An arena with those who use it.
struct Side {
    arena: SharedRangeAlloc,
    workers: Vec<Worker>,
}

impl Side {
    fn new(config: SharedConfig, load: &Load) -> Side {
        let arena = config.build().expect("an arena");
        let workers = (0..2).map(|slot| Worker::fill(&arena, load, slot));
        let workers = workers.collect();
        Side { arena, workers }
    }

    /// Turns in a second of CPU time of the first `threads` workers together, each on a CPU of its own.
    fn slice(&mut self, load: &Load, threads: usize, time: Duration) -> f64 {
        let (arena, barrier) = (&self.arena, Barrier::new(threads));
        let workers = self.workers.iter_mut().enumerate().take(threads);
        let run = |worker: &mut Worker, number: usize| {
            stay_on(number);
            (0..200).for_each(|_| worker.turn(arena, load));
            barrier.wait();
            let (begun, mut turns) = (thread_cpu(), 0u64);
            loop {
                (0..64).for_each(|_| worker.turn(arena, load));
                turns += 64;
                let used = thread_cpu() - begun;
                if used >= time {
                    return turns as f64 / used.as_secs_f64();
                }
            }
        };
        let run = &run;
        std::thread::scope(|scope| {
            let all: Vec<_> = workers
                .map(|(number, worker)| scope.spawn(move || run(worker, number)))
                .collect();
            let rates = all.into_iter().map(|one| one.join().expect("no panic"));
            rates.sum()
        })
    }
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    eprintln!("alloc: magazines");
    let cpus = topology::allowed().map_or(0, |set| set.len());
    let rounds = if effort.quick { 5 } else { 21 };
    let time = Duration::from_millis(if effort.quick { 20 } else { 40 });
    let mut rows = Vec::new();
    for load in &LOADS {
        let config = SharedConfig::new(ARENA).slots(2);
        let configs = [config.clone(), config.magazines(LARGEST, DEPTH)];
        let mut sides = configs.map(|config| Side::new(config, load));
        for threads in 1..=2 {
            let name = format!("with magazines / without, {threads} threads: {}", load.name);
            let value = if cpus < threads {
                Err("too few CPUs".to_owned())
            } else {
                let mut rates = [Vec::new(), Vec::new()];
                let mut ratios = Vec::new();
                for round in 0..rounds {
                    let mut pair = [0.0; 2];
                    for side in [round % 2, 1 - round % 2] {
                        pair[side] = sides[side].slice(load, threads, time);
                        rates[side].push(pair[side]);
                    }
                    ratios.push(pair[1] / pair[0]);
                }
                let [a, b] = rates.map(median);
                ratios.sort_by(f64::total_cmp);
                let spread = (ratios[rounds / 4], ratios[rounds * 3 / 4]);
                Ok((median(ratios), a, b, spread))
            };
            let versus = match &value {
                Ok((_, without, with, (low, high))) => format!(
                    "{:.1} ns a turn of {:.1}; quartiles {low:.2} to {high:.2}",
                    1e9 / with * threads as f64,
                    1e9 / without * threads as f64
                ),
                Err(_) => String::new(),
            };
            rows.push(Figure {
                name,
                value: value.map(|(ratio, ..)| ratio),
                unit: Unit::Ratio,
                target: Target::Stated,
                versus,
            });
        }
    }
    rows
}
