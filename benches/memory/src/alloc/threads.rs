//! One thread and two.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amdahl_figures::{Figure, Target, Unit};
use amdahl_range_alloc::{RangeAlloc, Request, SharedConfig, SharedRangeAlloc};
use amdahl_topology as topology;

use super::random::Random;
use super::rivals::{Allocator, Ask, KernelRule, Trees};
use crate::Effort;
use amdahl_figures::median;

const ARENA: std::ops::Range<u64> = 0..1 << 32;
/// Live blocks of a thread.
const LIVE: usize = 10_000;

/// What a thread may do to an allocator.
trait Threaded: Sync {
    fn alloc(&self, thread: usize, ask: &Ask) -> Option<u64>;
    fn free(&self, thread: usize, start: u64, size: u64);
}

impl Threaded for SharedRangeAlloc {
    fn alloc(&self, _: usize, ask: &Ask) -> Option<u64> {
        SharedRangeAlloc::alloc(self, &request(ask)).ok()
    }
    fn free(&self, _: usize, start: u64, _: u64) {
        SharedRangeAlloc::free(self, start).expect("it is allocated");
    }
}

/// One mutex around the red-black trees, as the kernel had it.
struct Locked(Mutex<Trees<KernelRule>>);

impl Threaded for Locked {
    fn alloc(&self, _: usize, ask: &Ask) -> Option<u64> {
        self.0.lock().expect("no panic").alloc(ask)
    }
    fn free(&self, _: usize, start: u64, size: u64) {
        self.0.lock().expect("no panic").free(start, size);
    }
}

/// Each thread has an allocator of its own: what this machine can give at all.
struct Apart(Vec<Mutex<RangeAlloc>>);

impl Threaded for Apart {
    fn alloc(&self, thread: usize, ask: &Ask) -> Option<u64> {
        self.0[thread]
            .lock()
            .expect("no panic")
            .alloc(&request(ask))
            .ok()
    }
    fn free(&self, thread: usize, start: u64, _: u64) {
        let mut arena = self.0[thread].lock().expect("no panic");
        arena.free(start).expect("it is allocated");
    }
}

fn request(ask: &Ask) -> Request {
    let request = Request::new(ask.size).align(ask.align);
    match &ask.zone {
        Some(zone) => request.zone(zone.clone()),
        None => request,
    }
}

/// Sizes 1 to 64, alignments 1 to 256, a fifth in the lower quarter.
fn ask(random: &mut Random) -> Ask {
    Ask {
        size: 1 + random.below(64),
        align: 1 << random.below(9),
        zone: (random.below(5) == 0).then_some(ARENA.start..ARENA.end / 4),
    }
}

/// Turns that all threads together make in a second.
fn throughput(allocator: &dyn Threaded, threads: usize, time: Duration) -> f64 {
    let (turns, ready, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let cpus: Vec<u32> = topology::allowed()
        .map(|set| set.iter().collect())
        .unwrap_or_default();
    let begun = std::thread::scope(|scope| {
        for thread in 0..threads {
            let (turns, ready, stop, cpus) = (&turns, &ready, &stop, &cpus);
            scope.spawn(move || {
                if let Some(cpu) = cpus.get(thread) {
                    // Without it the kernel may move threads, which only makes figures less steady.
                    let _ = topology::set_allowed(0, &[*cpu].into_iter().collect());
                }
                let mut random = Random::new(11 + thread as u64);
                let mut live = Vec::with_capacity(LIVE);
                let mut turn = |live: &mut Vec<(u64, u64)>| {
                    if live.len() == LIVE {
                        let (start, size) = live.swap_remove(random.below(LIVE as u64) as usize);
                        allocator.free(thread, start, size);
                    }
                    let ask = ask(&mut random);
                    live.extend(allocator.alloc(thread, &ask).map(|start| (start, ask.size)));
                };
                (0..3 * LIVE).for_each(|_| turn(&mut live));
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < threads as u64 {
                    std::thread::yield_now();
                }
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    (0..64).for_each(|_| turn(&mut live));
                    done += 64;
                }
                turns.fetch_add(done, Ordering::Relaxed);
                for (start, size) in live {
                    allocator.free(thread, start, size);
                }
            });
        }
        while ready.load(Ordering::Acquire) < threads as u64 {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        begun.elapsed()
    });
    turns.into_inner() as f64 / begun.as_secs_f64()
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    eprintln!("alloc: one thread and two");
    let rounds = if effort.quick { 3 } else { 7 };
    let time = Duration::from_millis(if effort.quick { 100 } else { 200 });
    let shared = || SharedConfig::new(ARENA).slots(2).build().expect("an arena");
    let apart = || {
        Apart(
            (0..2)
                .map(|_| Mutex::new(RangeAlloc::new(ARENA).expect("an arena")))
                .collect(),
        )
    };
    let locked = || Locked(Mutex::new(Trees::new(ARENA)));
    let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
    let mut single = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let mut of = |which: usize, one: &dyn Threaded, two: &dyn Threaded| {
            let (one, two) = (throughput(one, 1, time), throughput(two, 2, time));
            ratios[which].push(two / one);
            one
        };
        single[0].push(of(0, &shared(), &shared()));
        single[1].push(of(1, &apart(), &apart()));
        of(2, &locked(), &locked());
    }
    let [shared, apart, locked] = ratios.map(median);
    let [alone, plain] = single.map(median);
    let row = |name: &str, value: f64, target: Target, versus: String| Figure {
        name: name.to_owned(),
        value: Ok(value),
        unit: Unit::Ratio,
        target,
        versus,
    };
    let cpus = topology::allowed().map_or(0, |set| set.iter().count());
    let mut rows = vec![
        row(
            "two threads / one: shared form",
            shared,
            Target::AtLeast(1.8),
            format!("{alone:.0} turns a second with one; allocators of their own reach {apart:.2}"),
        ),
        row(
            "two threads / one: an allocator each, nothing shared",
            apart,
            Target::Stated,
            "what the machine gives in the same run".to_owned(),
        ),
        row(
            "two threads / one: a mutex around the red-black tree",
            locked,
            Target::Stated,
            "kernel's rule".to_owned(),
        ),
        row(
            "shared form / plain, one thread: throughput",
            alone / plain,
            Target::Stated,
            "what the locks cost".to_owned(),
        ),
    ];
    if cpus < 2 {
        for row in &mut rows {
            row.value = Err("one CPU".to_owned());
        }
    }
    rows.push(drift());
    rows
}

/// How far the addresses of the shared form go beyond those of the exact one.
fn drift() -> Figure {
    let (mut random, mut live) = (Random::new(5), Vec::new());
    let shared = SharedConfig::new(ARENA).slots(8).build().expect("an arena");
    let mut exact = RangeAlloc::new(ARENA).expect("an arena");
    let mut highest = (0, 0);
    for turn in 0..400_000usize {
        let request = Request::new(1 + random.below(64)).align(1 << random.below(9));
        let cpu = random.below(8) as usize;
        let pair = (
            shared.alloc_in(cpu, &request).expect("there is space"),
            exact.alloc(&request).expect("there is space"),
        );
        live.push(pair);
        if turn >= 100_000 {
            let (a, b) = live.swap_remove(random.below(live.len() as u64) as usize);
            shared.free(a).expect("it is allocated");
            exact.free(b).expect("it is allocated");
            highest = (highest.0.max(pair.0), highest.1.max(pair.1));
        }
    }
    Figure {
        name: "highest address, shared form with 8 slots / exact".to_owned(),
        value: Ok(highest.0 as f64 / highest.1 as f64),
        unit: Unit::Ratio,
        target: Target::Stated,
        versus: format!("100,000 live; {:?}", shared.stats()),
    }
}
