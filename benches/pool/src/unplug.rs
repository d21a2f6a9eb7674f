//! CPUs that come and go beneath work: nothing is lost, nothing runs twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use amdahl_figures::{Figure, Random, Target, Unit};
use amdahl_pool::{Pool, SimulatedCpus, join};
use amdahl_topology::{CpuSet, Topology};

const CPUS: u32 = 16;
const EVENTS: usize = 10_000;
const WORKS: usize = 1 << 20;

/// An event: a CPU goes offline or comes back, or the program's cpuset becomes another one.
struct Machine {
    online: Vec<bool>,
    cpuset: Vec<bool>,
    random: Random,
}

impl Machine {
    fn next(&mut self) -> CpuSet {
        // Seven of eight are hot-plug.
        if self.random.below(8) == 0 {
            let bits = self.random.below(1 << CPUS);
            for (cpu, is_in) in self.cpuset.iter_mut().enumerate() {
                *is_in = bits >> cpu & 1 == 1;
            }
        } else {
            let cpu = self.random.below(u64::from(CPUS)) as usize;
            self.online[cpu] = !self.online[cpu];
        }
        let is_there = |&cpu: &u32| self.online[cpu as usize] && self.cpuset[cpu as usize];
        (0..CPUS).filter(is_there).collect()
    }
}

/// Works that were lost or ran twice, and all of them.
fn lost() -> (usize, usize) {
    let topology = Topology::synthetic("2 node x 2 llc x 4 core").expect("a machine");
    let cpus = SimulatedCpus::new(topology);
    let pool = Pool::builder().cpus(cpus.clone()).follows_load(false);
    let pool = pool.build().expect("threads can be started");
    let ran: Arc<Vec<AtomicU32>> = Arc::new((0..WORKS).map(|_| AtomicU32::new(0)).collect());
    let (queued, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        for seed in 1..3 {
            let (pool, ran, queued, is_over) = (&pool, &ran, &queued, &is_over);
            s.spawn(move || {
                let mut random = Random(seed);
                while !is_over.load(Ordering::Acquire) {
                    let n = queued.fetch_add(1, Ordering::Relaxed);
                    if n >= WORKS {
                        return;
                    }
                    let bits = random.below(1 << CPUS);
                    let on = (0..CPUS).filter(|cpu| bits >> cpu & 1 == 1).collect();
                    let of_work = ran.clone();
                    let handle = pool.queue_on(&on, move || {
                        if n.is_multiple_of(16) {
                            join(|| std::hint::black_box(n), || std::hint::black_box(n));
                        }
                        of_work[n].fetch_add(1, Ordering::Relaxed);
                    });
                    // Not all in the queues: somebody waits for some of it.
                    if n.is_multiple_of(8) {
                        drop(handle.join());
                    }
                }
            });
        }
        let mut machine = Machine {
            online: vec![true; CPUS as usize],
            cpuset: vec![true; CPUS as usize],
            random: Random(7),
        };
        for event in 0..EVENTS {
            cpus.set_allowed(machine.next());
            pool.refresh();
            while queued.load(Ordering::Relaxed) < event.min(WORKS) {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Release);
    });
    cpus.set_allowed((0..CPUS).collect());
    pool.refresh();
    pool.flush();
    let queued = queued.into_inner().min(WORKS);
    let once = |n: &&AtomicU32| n.load(Ordering::Relaxed) == 1;
    (queued - ran[..queued].iter().filter(once).count(), queued)
}

pub fn figures(wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    let name = "simulated hot-unplug: work lost or run twice";
    if !wanted(name) {
        return Vec::new();
    }
    let (lost, all) = lost();
    vec![Figure {
        name: name.to_owned(),
        value: Ok(lost as f64),
        unit: Unit::Count,
        target: Target::AtMost(0.0),
        versus: format!(
            "of {all} works on sets of {CPUS} simulated CPUs, during {EVENTS} random events: a CPU goes or comes, or the cpuset changes"
        ),
    }]
}
