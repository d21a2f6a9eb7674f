//! The programs, run by the pool.

use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amdahl_des::program::Level;
use amdahl_des::{Dist, Rng, median};
use amdahl_pool::{Pool, SimulatedCpus};
use amdahl_topology::Topology;

use crate::case::{Case, Program};
use crate::work::compute;

/// Something that can be run again and again; nanoseconds of a run.
pub type Run = Box<dyn Fn() -> f64>;

/// A pool as the case wants it, and the program in it.
pub fn program(case: &Case, params: &BTreeMap<String, i64>) -> Result<Run, String> {
    // How many workers run is not the policy's to say, and the simulator does not know of the estimate.
    let builder = Pool::builder()
        .policy(case.policy)
        .name("live")
        .follows_load(false);
    let builder = match case.level {
        Level::Jobs => builder,
        Level::Threads => {
            // More workers than CPUs, which the pool would not make by itself.
            let workers = params.get("workers").or(params.get("takers")).copied();
            let text = format!("{} core", workers.unwrap_or(1));
            let crowd = Topology::synthetic(&text).map_err(|error| error.to_string())?;
            builder.cpus(SimulatedCpus::new(crowd))
        }
    };
    let pool = Arc::new(builder.build().map_err(|error| error.to_string())?);
    let numbers = params.clone();
    let number = move |name: &str| numbers[name] as u64;
    Ok(match case.program {
        Program::ForkJoin => {
            let leaf = number("leaf");
            Box::new(move || {
                let run = pool.spawn(move || timed(|| tree(11, leaf)));
                run.join().expect("no panic")
            })
        }
        Program::Skew => {
            let (jobs, every) = (number("jobs"), number("every"));
            let (short, long) = (number("short"), number("long"));
            let time = move |n: u64| short + u64::from(n % every == every - 1) * long;
            Box::new(move || timed(|| give(&pool, jobs, move |n| compute(time(n)))))
        }
        Program::Bursts => {
            let (bursts, gap) = (number("bursts"), number("gap"));
            let (jobs, work) = (number("jobs"), number("work"));
            Box::new(move || {
                let each = (0..bursts).map(|_| {
                    exact_sleep(gap);
                    timed(|| give(&pool, jobs, move |_| compute(work)))
                });
                median(each)
            })
        }
        Program::Pipeline => {
            let times = ["first", "second", "third"].map(&number);
            let (items, room) = (number("items"), number("room") as usize);
            Box::new(move || timed(|| pipeline(&pool, items, room, times)))
        }
        Program::LockSpins | Program::LockSleeps => {
            let (takers, rounds) = (number("takers"), number("rounds"));
            let (inside, outside) = (number("inside"), number("outside"));
            let spins = case.program == Program::LockSpins;
            Box::new(move || {
                let ticket = Arc::new(Ticket::default());
                let mutex = Arc::new(Mutex::new(()));
                timed(|| {
                    let taker = || {
                        let (ticket, mutex) = (ticket.clone(), mutex.clone());
                        pool.spawn(move || {
                            for _ in 0..rounds {
                                if spins {
                                    ticket.hold(|| compute(inside));
                                } else {
                                    let guard = mutex.lock();
                                    compute(inside);
                                    drop(guard);
                                }
                                compute(outside);
                            }
                        })
                    };
                    let all: Vec<_> = (0..takers).map(|_| taker()).collect();
                    all.into_iter()
                        .for_each(|taker| taker.join().expect("no panic"));
                })
            })
        }
        Program::Crowd => {
            let (jobs, pause, work) = (number("jobs"), number("pause"), number("work"));
            let runs = AtomicU64::new(0);
            Box::new(move || {
                // Each run draws other times, as each seed of the simulator does.
                let mut random = Rng::new(runs.fetch_add(1, Ordering::Relaxed), 0);
                let times: Vec<u64> = (0..jobs)
                    .map(|_| Dist::Exp(work).draw(&mut random))
                    .collect();
                timed(|| {
                    give(&pool, jobs, move |n| {
                        if pause > 0 {
                            exact_sleep(pause);
                        }
                        compute(times[n as usize]);
                    });
                })
            })
        }
        Program::Pairs => {
            let (pairs, rounds, work) = (number("pairs"), number("rounds"), number("work"));
            Box::new(move || {
                std::thread::scope(|scope| {
                    let begin = Instant::now();
                    let running: Vec<_> = (0..pairs)
                        .map(|_| {
                            let (to, at) = amdahl_pool::channel(1);
                            let (back, answers) = amdahl_pool::channel(1);
                            scope.spawn(move || {
                                while at.recv().is_ok() {
                                    compute(work);
                                    back.send(()).expect("it is received");
                                }
                            });
                            scope.spawn(move || {
                                for _ in 0..rounds {
                                    compute(work);
                                    to.send(()).expect("it is received");
                                    answers.recv().expect("it answers");
                                }
                            })
                        })
                        .collect();
                    running
                        .into_iter()
                        .for_each(|ping| ping.join().expect("no panic"));
                    begin.elapsed().as_nanos() as f64
                })
            })
        }
    })
}

fn timed(run: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_nanos() as f64
}

/// Ordinary sleeps last up to 50 us longer, so that timers may expire together; the simulator's do not.
fn exact_sleep(ns: u64) {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    std::thread::sleep(Duration::from_nanos(ns));
}

fn tree(depth: u32, leaf: u64) {
    if depth == 0 {
        return compute(leaf);
    }
    amdahl_pool::join(|| tree(depth - 1, leaf), || tree(depth - 1, leaf));
}

/// Gives jobs away from outside and sleeps until the last one has ended.
fn give(pool: &Pool, jobs: u64, job: impl Fn(u64) + Send + Sync + 'static) {
    let shared = Arc::new((AtomicU64::new(jobs), job));
    let giver = std::thread::current();
    for n in 0..jobs {
        let (shared, giver) = (shared.clone(), giver.clone());
        drop(pool.spawn(move || {
            shared.1(n);
            if shared.0.fetch_sub(1, Ordering::AcqRel) == 1 {
                giver.unpark();
            }
        }));
    }
    while shared.0.load(Ordering::Acquire) > 0 {
        std::thread::park();
    }
}

fn pipeline(pool: &Pool, items: u64, room: usize, [first, second, third]: [u64; 3]) {
    let (to, at) = amdahl_pool::channel(room);
    let (on, end) = amdahl_pool::channel(room);
    let last = pool.spawn_future(async move {
        while end.recv_async().await.is_ok() {
            compute(third);
        }
    });
    pool.spawn_future(async move {
        while at.recv_async().await.is_ok() {
            compute(second);
            on.send_async(()).await.expect("it is received");
        }
    });
    pool.spawn_future(async move {
        for _ in 0..items {
            compute(first);
            to.send_async(()).await.expect("it is received");
        }
    });
    last.join().expect("no panic");
}

#[derive(Default)]
struct Ticket {
    next: AtomicU32,
    serving: AtomicU32,
}

impl Ticket {
    fn hold(&self, inside: impl FnOnce()) {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != mine {
            spin_loop();
        }
        inside();
        self.serving.store(mine.wrapping_add(1), Ordering::Release);
    }
}
