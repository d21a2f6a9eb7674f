//! Counters: what threads do to them, in the order that the input says, beside a sum that one thread has; and now and then all of
//! them at once.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};

use amdahl_spread::{Clock, Counter, LlcMap, Monotonic, Placement, PublishedCounter};
use amdahl_topology::{self as topology, Topology};

use crate::input::Input;

/// Threads beside the one that reads the input.
const THREADS: usize = 3;
/// Bytes of an input that are looked at: handing the turn to another thread takes some microseconds.
const BYTES_MAX: usize = 160;

impl Input<'_> {
    /// Small, of either sign; anything at all if it is `wild`.
    fn delta(&mut self, wild: bool) -> Option<i64> {
        if !wild {
            return Some(i64::from(self.next()? as i8) * 3);
        }
        let (&bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_le_bytes(bytes))
    }
}

/// What both kinds of counters can do.
trait Sum: Sync {
    fn add(&self, delta: i64);
    fn sub(&self, delta: i64);
    fn exact(&self) -> i64;
    /// What is read of a published sum.
    fn published(&self) -> i64;
}

impl Sum for Counter {
    fn add(&self, delta: i64) {
        Counter::add(self, delta);
    }
    fn sub(&self, delta: i64) {
        Counter::sub(self, delta);
    }
    fn exact(&self) -> i64 {
        self.read()
    }
    fn published(&self) -> i64 {
        self.read()
    }
}

impl Sum for PublishedCounter<Simulated> {
    fn add(&self, delta: i64) {
        PublishedCounter::add(self, delta);
    }
    fn sub(&self, delta: i64) {
        PublishedCounter::sub(self, delta);
    }
    fn exact(&self) -> i64 {
        self.read_exact()
    }
    fn published(&self) -> i64 {
        self.read()
    }
}

/// Time that goes by when the input says so.
#[derive(Clone, Default)]
struct Simulated(Arc<AtomicU64>);

impl Simulated {
    fn wait(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for Simulated {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a thread is told to do.
enum Job {
    Add(i64),
    Sub(i64),
    Exact,
    Published,
    /// On one of the CPUs that are allowed, from now on.
    MoveTo(usize),
    /// So many additions, while others do the same.
    Many(u8, i64),
}

impl Job {
    fn run(self, counter: &dyn Sum) -> i64 {
        match self {
            Job::Add(delta) => counter.add(delta),
            Job::Sub(delta) => counter.sub(delta),
            Job::Exact => return counter.exact(),
            Job::Published => return counter.published(),
            Job::MoveTo(cpu) => {
                // Looked at before a thread has moved: one that has may be on its CPU alone.
                static CPUS: LazyLock<Vec<u32>> = LazyLock::new(|| {
                    topology::allowed().map_or(vec![], |set| set.iter().collect())
                });
                if let Some(&cpu) = CPUS.get(cpu % CPUS.len().max(1)) {
                    // Where it may not, the thread stays where it is.
                    let _ = topology::set_allowed(0, &[cpu].into_iter().collect());
                }
            }
            Job::Many(times, delta) => (0..times).for_each(|_| counter.add(delta)),
        }
        0
    }
}

struct Worker<'s> {
    jobs: mpsc::Sender<Job>,
    thread: ScopedJoinHandle<'s, ()>,
}

/// Threads of which one works at a time, unless all do.
struct Crew<'s, 'e> {
    scope: &'s Scope<'s, 'e>,
    counter: &'s dyn Sum,
    answer: mpsc::Sender<i64>,
    answers: mpsc::Receiver<i64>,
    workers: Vec<Worker<'s>>,
}

impl<'s, 'e> Crew<'s, 'e> {
    fn new(scope: &'s Scope<'s, 'e>, counter: &'s dyn Sum) -> Self {
        let (answer, answers) = mpsc::channel();
        let mut crew = Crew {
            scope,
            counter,
            answer,
            answers,
            workers: Vec::new(),
        };
        crew.workers = (0..THREADS).map(|_| crew.worker()).collect();
        crew
    }

    fn worker(&self) -> Worker<'s> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (counter, answer) = (self.counter, self.answer.clone());
        let thread = self.scope.spawn(move || {
            for job in todo {
                // Nobody listens any more after a panic of the thread that reads the input.
                let _ = answer.send(job.run(counter));
            }
        });
        Worker { jobs, thread }
    }

    /// A thread ends, and another takes its place.
    fn replace(&mut self, at: usize) {
        let new = self.worker();
        let Worker { jobs, thread } = std::mem::replace(&mut self.workers[at], new);
        drop(jobs);
        thread.join().expect("no panic");
    }

    /// Has a job done: by this thread, or by another one while this waits.
    fn run(&self, thread: usize, job: Job) -> i64 {
        match self.workers.get(thread) {
            None => job.run(self.counter),
            Some(worker) => {
                worker.jobs.send(job).expect("it listens");
                self.answers.recv().expect("it answers")
            }
        }
    }

    /// Has all threads add at once; looks on meanwhile.
    fn all(&self, times: u8, delta: i64, look: impl Fn()) {
        for worker in &self.workers {
            let job = Job::Many(times, delta);
            worker.jobs.send(job).expect("it listens");
        }
        look();
        for _ in &self.workers {
            self.answers.recv().expect("it answers");
        }
    }
}

/// How the sum is spread, by one byte: over CPUs or LLCs, of this machine or of others.
fn spread(byte: u8) -> (Placement, Arc<LlcMap>) {
    static OTHERS: LazyLock<[Arc<LlcMap>; 2]> = LazyLock::new(|| {
        ["1 core", "2 node x 4 llc x 4 core"].map(|text| {
            let topology = Topology::synthetic(text).expect("valid");
            // Whoever is on a CPU beyond it counts elsewhere.
            Arc::new(LlcMap::new(&topology, 1))
        })
    });
    let placement = match byte & 1 {
        0 => Placement::PerCpu,
        _ => Placement::PerLlc,
    };
    let map = match byte >> 1 & 3 {
        0 | 1 => LlcMap::of_this_machine(),
        other => Arc::clone(&OTHERS[usize::from(other) - 2]),
    };
    (placement, map)
}

/// The first byte says how the sum is spread, the others who does what. A read is the sum of what was added before it.
pub(crate) fn counter(bytes: &[u8]) {
    let mut input = Input(&bytes[..bytes.len().min(BYTES_MAX)]);
    let Some(head) = input.next() else { return };
    let (placement, map) = spread(head);
    let wild = head & 8 != 0;
    let counter = Counter::on(placement, Arc::clone(&map));
    // Others in the same rows, whose cells come and go.
    let mut beside: Vec<(Counter, i64)> = Vec::new();
    thread::scope(|scope| {
        let mut crew = Crew::new(scope, &counter);
        let mut sum = 0_i64;
        while let Some(what) = input.next() {
            let thread = usize::from(what >> 6);
            match what & 15 {
                0..4 => {
                    let Some(delta) = input.delta(wild) else {
                        break;
                    };
                    crew.run(thread, Job::Add(delta));
                    sum = sum.wrapping_add(delta);
                }
                4..7 => {
                    let Some(delta) = input.delta(wild) else {
                        break;
                    };
                    crew.run(thread, Job::Sub(delta));
                    sum = sum.wrapping_sub(delta);
                }
                7 | 8 => assert_eq!(crew.run(thread, Job::Exact), sum),
                // This thread stays where it is: it is the caller's.
                9 if thread < THREADS => {
                    crew.run(thread, Job::MoveTo(usize::from(what >> 4 & 3)));
                }
                10 if thread < THREADS => crew.replace(thread),
                11 => {
                    let (times, delta) = (what >> 4, i64::from(what >> 4 & 3));
                    let all = i64::from(times) * delta * THREADS as i64;
                    let before = sum;
                    crew.all(times, delta, || {
                        let read = counter.read().wrapping_sub(before);
                        assert!((0..=all).contains(&read), "{read} of {all}");
                    });
                    sum = sum.wrapping_add(all);
                }
                12 => {
                    let new = Counter::on(placement, Arc::clone(&map));
                    assert_eq!(new.read(), 0, "what others left in its cell");
                    beside.push((new, 0));
                }
                13 if !beside.is_empty() => {
                    let at = usize::from(what >> 4) % beside.len();
                    let (gone, sum) = beside.swap_remove(at);
                    assert_eq!(gone.read(), sum);
                }
                _ => {
                    for (number, (other, sum)) in (1..).zip(&mut beside) {
                        other.add(number);
                        *sum += number;
                    }
                }
            }
            assert_eq!(counter.read(), sum);
        }
        for (other, sum) in &beside {
            assert_eq!(other.read(), *sum, "another one's additions");
        }
    });
}

const INTERVAL_NS: u64 = PublishedCounter::<Monotonic>::INTERVAL_NS;

/// What may be read of a published sum.
struct Bound {
    threshold: u64,
    /// When something was added, and how much of either sign.
    history: Vec<(u64, u64)>,
    /// Of additions so far.
    signs: [bool; 2],
    exact: i64,
    /// What was read last, and how often that was something new.
    last: (i64, u64),
}

impl Bound {
    fn add(&mut self, now_ns: u64, delta: i64) {
        self.exact = self.exact.wrapping_add(delta);
        self.history.push((now_ns, delta.unsigned_abs()));
        self.signs[usize::from(delta < 0)] |= delta != 0;
    }

    fn check(&mut self, read: i64, now_ns: u64, parts: usize) {
        let each = match self.signs {
            [true, true] => 3 * self.threshold,
            _ => self.threshold,
        };
        let lately = self.history.iter().rev();
        let lately = lately.take_while(|(at_ns, _)| now_ns - at_ns <= INTERVAL_NS);
        let lately: u64 = lately.map(|(_, amount)| amount).sum();
        let slack = parts as u64 * each + lately;
        let off = read.abs_diff(self.exact);
        assert!(off <= slack, "{read} for {}, within {slack}", self.exact);
        if read != self.last.0 {
            self.last = (read, self.last.1 + 1);
            assert!(self.last.1 <= now_ns / INTERVAL_NS, "too often");
        }
    }
}

/// The first byte says how the sum is spread, the second the threshold, the others who does what and when. What is published is
/// within the bound that is promised and does not change more often.
pub(crate) fn published(bytes: &[u8]) {
    let mut input = Input(&bytes[..bytes.len().min(BYTES_MAX)]);
    let (Some(head), Some(threshold)) = (input.next(), input.next()) else {
        return;
    };
    let (placement, map) = spread(head);
    // Sums that wrap have no distance; then what is exact is looked at alone.
    let wild = head & 8 != 0;
    let clock = Simulated::default();
    let threshold = NonZeroU64::MIN.saturating_add(u64::from(threshold) * 2);
    let counter = PublishedCounter::with(threshold, placement, map, clock.clone());
    let mut bound = Bound {
        threshold: threshold.get(),
        history: Vec::new(),
        signs: [false; 2],
        exact: 0,
        last: (0, 0),
    };
    thread::scope(|scope| {
        let mut crew = Crew::new(scope, &counter);
        while let Some(what) = input.next() {
            let thread = usize::from(what >> 6);
            match what & 15 {
                0..4 => {
                    let Some(delta) = input.delta(wild) else {
                        break;
                    };
                    crew.run(thread, Job::Add(delta));
                    bound.add(clock.now_ns(), delta);
                }
                4 => {
                    let Some(delta) = input.delta(wild) else {
                        break;
                    };
                    crew.run(thread, Job::Sub(delta));
                    bound.add(clock.now_ns(), delta.wrapping_neg());
                }
                5..8 => clock.wait(u64::from(what >> 4) * INTERVAL_NS / 8),
                8 | 9 => {
                    let read = crew.run(thread, Job::Published);
                    if !wild {
                        bound.check(read, clock.now_ns(), counter.parts());
                    }
                }
                10 if thread < THREADS => {
                    crew.run(thread, Job::MoveTo(usize::from(what >> 4 & 3)));
                }
                11 if thread < THREADS => crew.replace(thread),
                12 => {
                    let (times, delta) = (what >> 4, i64::from(what >> 4 & 7));
                    crew.all(times, delta, || {
                        counter.read();
                    });
                    bound.add(clock.now_ns(), i64::from(times) * delta * THREADS as i64);
                }
                _ => assert_eq!(crew.run(thread, Job::Exact), bound.exact),
            }
        }
    });
    assert_eq!(counter.read_exact(), bound.exact);
    if !wild {
        // Without further additions the last interval passes, too.
        clock.wait(2 * INTERVAL_NS);
        bound.history.clear();
        bound.check(counter.read(), clock.now_ns(), counter.parts());
    }
}
