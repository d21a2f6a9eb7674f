//! Threads that do whatever a lock can be asked for, at random.

mod common;

use std::cell::UnsafeCell;
use std::sync::{Barrier, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_range_lock::{ByTask, RangeLock, ReadGuard, WriteGuard};
use common::{block_on, locks, poll, waker};

/// Plain data: a lock that fails to exclude somebody shows as a wrong sum.
struct Cells(Vec<UnsafeCell<u64>>);

// SAFETY: a cell is only touched by who has locked its number.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(count: usize) -> Self {
        Cells((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    /// The caller has write access to `at`.
    fn add(&self, at: u64) {
        // SAFETY: nobody else reads or writes this cell now.
        unsafe { *self.0[at as usize].get() += 1 }
    }

    /// The caller has access to `at`.
    fn get(&self, at: u64) -> u64 {
        // SAFETY: nobody writes this cell now.
        unsafe { *self.0[at as usize].get() }
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

const CELLS: u64 = 64;

/// A part of a guard that another thread gives back. It waits for nobody, or all could wait for it.
enum Part<'a> {
    Read(ReadGuard<'a, ByTask>),
    Write(WriteGuard<'a, ByTask>),
}

impl Part<'_> {
    /// At once, or after it was downgraded, split or both.
    fn give_back(self, cells: &Cells, random: &mut Random, added: &mut [u64]) {
        let middle = random.below(CELLS);
        let read = match self {
            Part::Read(read) => read,
            Part::Write(write) => {
                for at in write.range().into_iter().flatten() {
                    cells.add(at);
                    added[at as usize] += 1;
                }
                match random.below(4) {
                    0 => return drop(write),
                    1 => return drop(write.split_at(middle)),
                    2 => {
                        let (left, right) = write.split_at(middle);
                        drop(left);
                        right.downgrade()
                    }
                    _ => write.downgrade(),
                }
            }
        };
        look(cells, read.range().into_iter().flatten());
        match random.below(2) {
            0 => drop(read),
            _ => drop(read.split_at(middle)),
        }
    }
}

/// The caller has access to all of these.
fn look(cells: &Cells, range: impl Iterator<Item = u64> + Clone) {
    let before: Vec<u64> = range.clone().map(|at| cells.get(at)).collect();
    let after: Vec<u64> = range.map(|at| cells.get(at)).collect();
    assert_eq!(before, after, "somebody wrote beside a reader");
}

/// One of everything that a lock can be asked for; only reads while it is `calm`. `giver` has parts given back by another thread.
fn one_step<'a>(
    lock: &'a RangeLock,
    cells: &Cells,
    random: &mut Random,
    added: &mut [u64],
    calm: bool,
    giver: &mpsc::Sender<Part<'a>>,
) {
    let start = random.below(CELLS);
    let length = match random.below(8) {
        0 => CELLS,
        1 | 2 => random.below(CELLS),
        _ => random.below(4) + 1,
    };
    let range = start..(start + length).min(CELLS);
    let mut add = |range: std::ops::Range<u64>| {
        for at in range {
            cells.add(at);
            added[at as usize] += 1;
        }
    };
    let look = |range| look(cells, range);
    let middle = start + length / 2;
    let give = |part| giver.send(part).expect("givers outlive the others");
    match if calm { 9 } else { 0 } + random.below(if calm { 6 } else { 15 }) {
        0 => {
            let guard = lock.write(range.clone());
            add(range.clone());
            let guard = guard.downgrade();
            range.for_each(|at| assert!(cells.get(at) > 0));
            drop(guard);
        }
        1 => {
            let (left, right) = lock.write(range.clone()).split_at(middle);
            add(start..middle.min(range.end));
            drop(left);
            add(middle..range.end);
            drop(right);
        }
        2 => {
            if let Ok(_guard) = lock.try_write(range.clone()) {
                add(range);
            }
        }
        3 => {
            let time = Duration::from_micros(random.below(200));
            if let Ok(_guard) = lock.try_write_for(range.clone(), time) {
                add(range);
            }
        }
        4 => {
            block_on(async {
                let _guard = lock.write_async(range.clone()).await;
                add(range);
            });
        }
        5 => {
            let (_, waker) = waker();
            if let Poll::Ready(_guard) = poll(&mut lock.write_async(range.clone()), &waker) {
                add(range);
            }
        }
        6 => {
            let _guard = lock.write(range.clone());
            add(range);
        }
        7 => {
            let (left, right) = lock.write(range.clone()).split_at(middle);
            give(Part::Write(right.into_task()));
            add(start..middle.min(range.end));
            drop(left);
        }
        8 => {
            let all = block_on(lock.write_async(range.clone()));
            let (left, right) = all.split_at(middle);
            give(Part::Write(left));
            let right = right.downgrade();
            look(middle.min(range.end)..range.end);
            drop(right);
        }
        9 => {
            let (left, right) = lock.read(range.clone()).split_at(middle);
            look(range);
            drop(left);
            drop(right);
        }
        10 => {
            let (left, right) = lock.read(range.clone()).split_at(middle);
            give(Part::Read(left.into_task()));
            look(middle.min(range.end)..range.end);
            drop(right);
        }
        11 => block_on(async {
            let _guard = lock.read_async(range.clone()).await;
            look(range);
        }),
        _ => {
            let _guard = lock.read(range.clone());
            look(range);
        }
    }
}

/// What a thread does that gives back parts of the others' guards.
fn give_back_all(parts: mpsc::Receiver<Part<'_>>, cells: &Cells) -> [u64; CELLS as usize] {
    let (mut random, mut added) = (Random(7), [0; CELLS as usize]);
    for part in parts {
        part.give_back(cells, &mut random, &mut added);
    }
    added
}

/// Threads that do that.
const GIVERS: usize = 2;

/// So many threads take so many steps each, and more until the time is over; for each form of lock.
fn stress(threads: usize, steps: u32, time: Duration) {
    for lock in locks() {
        let (cells, start) = (Cells::new(CELLS as usize), Barrier::new(threads));
        let work = |thread: usize, giver: mpsc::Sender<_>| {
            let (mut random, mut added) = (Random(thread as u64), [0; CELLS as usize]);
            start.wait();
            let begin = Instant::now();
            let mut step = 0;
            while step < steps || begin.elapsed() < time {
                let calm = begin.elapsed().as_millis() / 10 % 2 == 1;
                one_step(&lock, &cells, &mut random, &mut added, calm, &giver);
                step += 1;
            }
            added
        };
        let mut sums = [0; CELLS as usize];
        thread::scope(|scope| {
            let (work, cells) = (&work, &cells);
            let (givers, parts): (Vec<_>, Vec<_>) = (0..GIVERS).map(|_| mpsc::channel()).unzip();
            let mut all: Vec<_> = (0..threads)
                .map(|n| {
                    let giver = givers[n % GIVERS].clone();
                    scope.spawn(move || work(n, giver))
                })
                .collect();
            drop(givers);
            all.extend(
                parts
                    .into_iter()
                    .map(|parts| scope.spawn(move || give_back_all(parts, cells))),
            );
            for thread in all {
                let added = thread.join().expect("no panic");
                sums.iter_mut().zip(added).for_each(|(sum, n)| *sum += n);
            }
        });
        let _all = lock.try_write(..).expect("nothing is left behind");
        (0..CELLS).for_each(|at| assert_eq!(cells.get(at), sums[at as usize], "cell {at}"));
    }
}

#[test]
fn nobody_meets_with_four_threads() {
    stress(4, if cfg!(miri) { 20 } else { 3000 }, Duration::ZERO);
}

#[test]
fn nobody_meets_with_64_threads() {
    let (threads, sections) = if cfg!(miri) { (8, 5) } else { (64, 150) };
    stress(threads, sections, Duration::ZERO);
}

#[test]
#[ignore = "takes four minutes"]
fn nobody_meets_for_minutes() {
    let seconds = std::env::var("AMDAHL_STRESS_S").map_or(120, |text| text.parse().unwrap());
    stress(64, 0, Duration::from_secs(seconds));
}
