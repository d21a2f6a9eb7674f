//! A workload in the style of ArrBench (Kogan, Dice and Issa, EuroSys 2020): threads lock ranges of an array, and read
//! or write what lies there.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_figures::Random;

use super::rivals::Lock;

/// Slots of the array, a cache line each.
pub const SLOTS: u64 = 256;
/// Slots of a segment.
pub const GRANULE: u64 = 16;

/// Which ranges threads lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ranges {
    /// The whole array.
    Full,
    /// Each thread the same range of its own.
    Disjoint,
    /// Each thread eight slots somewhere in its part. Up to 16 threads.
    DisjointShort,
    /// Eight slots within any 16, which each thread may lock.
    Short,
    /// From one random slot to another.
    Random,
}

/// What threads do.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub ranges: Ranges,
    /// Of 100 sections.
    pub writes: u64,
    /// Pauses between two sections at most.
    pub pauses: u64,
}

#[repr(align(64))]
#[derive(Default)]
struct Slot(AtomicU64);

/// The array. Its slots are atomics that are used as plain numbers: an exclusion that fails is seen by `check`.
pub struct Array(Vec<Slot>);

impl Array {
    pub fn new() -> Self {
        Array((0..SLOTS).map(|_| Slot::default()).collect())
    }

    fn read(&self, range: Range<u64>) -> u64 {
        let slots = &self.0[range.start as usize..range.end as usize];
        let sum = slots.iter().map(|slot| slot.0.load(Ordering::Relaxed));
        sum.fold(0, u64::wrapping_add)
    }

    fn write(&self, range: Range<u64>) {
        for slot in &self.0[range.start as usize..range.end as usize] {
            let value = slot.0.load(Ordering::Relaxed);
            slot.0.store(value + 1, Ordering::Relaxed);
        }
    }
}

/// Runs so many threads for a time, each on the lock that `lock_of` gives it. Returns sections per second.
pub fn run<'a>(
    mix: Mix,
    threads: u64,
    time: Duration,
    lock_of: impl Fn(u64) -> (&'a dyn Lock, &'a Array) + Sync,
) -> f64 {
    run_on(0..threads as usize, mix, time, lock_of)
}

/// One thread alone, on one of the CPUs.
pub fn run_one(mix: Mix, time: Duration, cpu: usize, lock: &dyn Lock, array: &Array) -> f64 {
    run_on(cpu..cpu + 1, mix, time, |_| (lock, array))
}

fn run_on<'a>(
    cpus: Range<usize>,
    mix: Mix,
    time: Duration,
    lock_of: impl Fn(u64) -> (&'a dyn Lock, &'a Array) + Sync,
) -> f64 {
    // One thread alone uses half of it, as each of two does.
    let parts = cpus.len().max(2) as u64;
    undisturbed(|| {
        together(cpus.clone(), time, &|number, stop| {
            let (lock, array) = lock_of(number as u64);
            work(mix, number as u64..parts, lock, array, stop)
        })
    })
}

/// Repeats a run in which something else took more than a twentieth of the CPUs, a few times.
pub fn undisturbed(run: impl Fn() -> (f64, f64)) -> f64 {
    const TIMES: usize = 4;
    let runs = (0..TIMES).map(|_| run());
    let mut best = (0.0, f64::INFINITY);
    for (rate, disturbed) in runs {
        if disturbed < best.1 {
            best = (rate, disturbed);
        }
        if disturbed < 0.05 {
            break;
        }
    }
    best.0
}

/// Runs `work` on as many threads, each on one of these of the allowed CPUs while there are enough. Returns how much they did per second, and
/// which part of the time they waited for a CPU.
pub fn together(
    cpus: Range<usize>,
    time: Duration,
    work: &(dyn Fn(usize, &AtomicBool) -> u64 + Sync),
) -> (f64, f64) {
    let threads = cpus.len();
    let (stop, start) = (AtomicBool::new(false), Barrier::new(threads + 1));
    thread::scope(|scope| {
        let (stop, start, cpus) = (&stop, &start, &cpus);
        let worker = |number| {
            move || {
                stay_on(cpus.start + number);
                start.wait();
                let delay = delay_ns();
                (work(number, stop), delay_ns() - delay)
            }
        };
        let workers: Vec<_> = (0..threads).map(|n| scope.spawn(worker(n))).collect();
        start.wait();
        let begin = Instant::now();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let done = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"));
        let (done, delayed) = done.fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let seconds = begin.elapsed().as_secs_f64();
        (
            done as f64 / seconds,
            delayed / 1e9 / seconds / threads as f64,
        )
    })
}

/// How long this thread has been runnable without a CPU.
fn delay_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let delay = text.split(' ').nth(1).and_then(|ns| ns.parse().ok());
    delay.unwrap_or(0.0)
}

/// Keeps this thread on one of the CPUs that are allowed, which it has for itself if there are as many.
pub fn stay_on(number: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return;
    };
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    if let Some(cpu) = cpus.nth(number) {
        let mut one = rustix::thread::CpuSet::new();
        one.set(cpu);
        // Without it the figures are noisier, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &one);
    }
}

/// `part` is the thread's number, and how many parts there are.
fn work(mix: Mix, part: Range<u64>, lock: &dyn Lock, array: &Array, stop: &AtomicBool) -> u64 {
    let mut random = Random(part.start + 1);
    let (mut sections, mut seen) = (0, 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let range = pick(mix.ranges, &part, &mut random);
        if random.below(100) < mix.writes {
            lock.write(range.clone(), &mut || array.write(range.clone()));
        } else {
            lock.read(range.clone(), &mut || {
                seen = seen.wrapping_add(array.read(range.clone()))
            });
        }
        sections += 1;
        if mix.pauses > 0 {
            (0..random.below(mix.pauses)).for_each(|_| std::hint::spin_loop());
        }
    }
    std::hint::black_box(seen);
    sections
}

fn pick(ranges: Ranges, part: &Range<u64>, random: &mut Random) -> Range<u64> {
    let share = SLOTS / part.end;
    let first = part.start * share;
    match ranges {
        Ranges::Full => 0..SLOTS,
        Ranges::Disjoint => first..first + share,
        Ranges::DisjointShort => {
            let start = first + random.below(share - 8);
            start..start + 8
        }
        Ranges::Short => {
            let start = random.below(SLOTS / GRANULE) * GRANULE + random.below(GRANULE - 7);
            start..start + 8
        }
        Ranges::Random => {
            let (one, other) = (random.below(SLOTS), random.below(SLOTS));
            one.min(other)..one.max(other) + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is measured are locks: nobody else adds while one does.
    #[test]
    fn every_lock_excludes() {
        for (name, make) in super::super::LOCKS {
            let (lock, array) = (make(), Array::new());
            let work = |thread: u64| {
                let mut random = Random(thread + 1);
                let ranges = (0..2000).map(|turn| match turn % 3 {
                    0 => pick(Ranges::Random, &(thread..3), &mut random),
                    1 => pick(Ranges::Short, &(thread..3), &mut random),
                    _ => pick(Ranges::DisjointShort, &(turn % 3..3), &mut random),
                });
                let mut added = 0;
                for range in ranges {
                    lock.write(range.clone(), &mut || array.write(range.clone()));
                    added += range.end - range.start;
                }
                added
            };
            let added: u64 = thread::scope(|scope| {
                let work = &work;
                let threads: Vec<_> = (0..3).map(|n| scope.spawn(move || work(n))).collect();
                threads
                    .into_iter()
                    .map(|one| one.join().expect("no panic"))
                    .sum()
            });
            assert_eq!(array.read(0..SLOTS), added, "{name}");
        }
    }
}
