//! One thread and two.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
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

/// What is done with blocks that a thread has allocated.
#[derive(Clone, Copy, PartialEq)]
enum FreedBy {
    /// The same thread frees them.
    Itself,
    /// They are handed on, to the other thread if there is one, which frees them.
    Next,
}

/// Blocks that are handed on at once.
const BATCH: usize = 64;
/// Batches that wait to be fetched at most. Who finds so many keeps its own.
const WAITING: usize = 16;

type Block = (u64, u64);

/// A thread's live blocks, and where they come from and go to.
struct Blocks {
    live: Vec<Block>,
    new: Vec<Block>,
    to: mpsc::SyncSender<Vec<Block>>,
    from: mpsc::Receiver<Vec<Block>>,
}

impl Blocks {
    fn push(&mut self, block: Block) {
        self.new.push(block);
        if self.new.len() == BATCH {
            let batch = std::mem::replace(&mut self.new, Vec::with_capacity(BATCH));
            if let Err(back) = self.to.try_send(batch) {
                let (mpsc::TrySendError::Full(batch) | mpsc::TrySendError::Disconnected(batch)) =
                    back;
                self.live.extend(batch);
            }
            while let Ok(batch) = self.from.try_recv() {
                self.live.extend(batch);
            }
        }
    }
}

/// Turns that threads on these of the allowed CPUs together make in a second.
fn throughput(
    allocator: &dyn Threaded,
    on: std::ops::Range<usize>,
    time: Duration,
    freed_by: FreedBy,
) -> f64 {
    let threads = on.len();
    let (turns, ready, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let cpus: Vec<u32> = topology::allowed()
        .map(|set| set.iter().collect())
        .unwrap_or_default();
    let (mut to, from): (Vec<_>, Vec<_>) = (0..threads)
        .map(|_| mpsc::sync_channel::<Vec<Block>>(WAITING))
        .unzip();
    // Each has the way to the next one.
    to.rotate_left(1);
    let begun = std::thread::scope(|scope| {
        for (thread, (to, from)) in to.into_iter().zip(from).enumerate() {
            let (turns, ready, stop) = (&turns, &ready, &stop);
            let cpu = cpus.get(on.start + thread).copied();
            scope.spawn(move || {
                if let Some(cpu) = cpu {
                    // Without it the kernel may move threads, which only makes figures less steady.
                    let _ = topology::set_allowed(0, &[cpu].into_iter().collect());
                }
                let mut random = Random::new(11 + thread as u64);
                let mut blocks = Blocks {
                    live: Vec::with_capacity(2 * LIVE),
                    new: Vec::with_capacity(BATCH),
                    to,
                    from,
                };
                let mut turn = |blocks: &mut Blocks| {
                    let Blocks { live, .. } = blocks;
                    if live.len() >= LIVE {
                        let at = random.below(live.len() as u64) as usize;
                        let (start, size) = live.swap_remove(at);
                        allocator.free(thread, start, size);
                    }
                    let ask = ask(&mut random);
                    let block = allocator.alloc(thread, &ask).map(|start| (start, ask.size));
                    match freed_by {
                        FreedBy::Itself => blocks.live.extend(block),
                        FreedBy::Next => block.into_iter().for_each(|block| blocks.push(block)),
                    }
                };
                (0..3 * LIVE).for_each(|_| turn(&mut blocks));
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < threads as u64 {
                    std::thread::yield_now();
                }
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    (0..64).for_each(|_| turn(&mut blocks));
                    done += 64;
                }
                turns.fetch_add(done, Ordering::Relaxed);
                let Blocks {
                    live,
                    new,
                    to,
                    from,
                } = blocks;
                // What the other one hands on until it ends.
                drop(to);
                for (start, size) in live
                    .into_iter()
                    .chain(new)
                    .chain(from.into_iter().flatten())
                {
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
    let shared = || -> Box<dyn Threaded> {
        let config = SharedConfig::new(ARENA).slots(2);
        Box::new(config.build().expect("an arena"))
    };
    let apart = || -> Box<dyn Threaded> {
        let arena = |_| Mutex::new(RangeAlloc::new(ARENA).expect("an arena"));
        Box::new(Apart((0..2).map(arena).collect()))
    };
    let locked = || -> Box<dyn Threaded> { Box::new(Locked(Mutex::new(Trees::new(ARENA)))) };
    let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
    let (mut single, mut of_apart) = ([Vec::new(), Vec::new()], Vec::new());
    let one_and_two = |new: &dyn Fn() -> Box<dyn Threaded>, freed_by: FreedBy| {
        // On each of the CPUs, of which one may be slower.
        let one = [0, 1].map(|cpu| throughput(&*new(), cpu..cpu + 1, time, freed_by));
        let two = throughput(&*new(), 0..2, time, freed_by);
        ((one[0] + one[1]) / 2.0, two)
    };
    let (mut handed_on, mut of_locked) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..rounds {
        let mut of = |which: usize, new: &dyn Fn() -> Box<dyn Threaded>| {
            let (one, two) = one_and_two(new, FreedBy::Itself);
            ratios[which].push(two / one);
            (one, two)
        };
        let (ours, nothing) = (of(0, &shared), of(1, &apart));
        of(2, &locked);
        single[0].push(ours.0);
        single[1].push(nothing.0);
        of_apart.push((ours.1 / ours.0) / (nothing.1 / nothing.0));

        let ours = one_and_two(&shared, FreedBy::Next);
        let mutex = one_and_two(&locked, FreedBy::Next);
        handed_on[0].push(ours.1 / ours.0);
        handed_on[1].push(mutex.1 / mutex.0);
        of_locked.push(ours.1 / mutex.1);
    }
    let [shared, apart, locked] = ratios.map(median);
    let [alone, plain] = single.map(median);
    let [freed_by_other, locked_by_other] = handed_on.map(median);
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
            "two threads / one: shared form, of two that share nothing",
            median(of_apart),
            Target::AtLeast(0.9),
            "two threads, each with an allocator of its own".to_owned(),
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
            "two threads / one, each block freed by the other thread: shared form",
            freed_by_other,
            Target::Stated,
            format!("batches of {BATCH} change hands; one thread hands them to itself"),
        ),
        row(
            "two threads / one, each block freed by the other thread: a mutex around the red-black tree",
            locked_by_other,
            Target::Stated,
            "kernel's rule".to_owned(),
        ),
        row(
            "shared form / a mutex around the red-black tree: two threads, each block freed by the other",
            median(of_locked),
            Target::Stated,
            "throughput".to_owned(),
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
