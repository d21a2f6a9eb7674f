//! Spawning, waking and channels, beside tokio and crossbeam.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_figures::{Figure, Target, Unit, median};
use amdahl_pool::Pool;

use crate::rounds::{Cost, cost, ratio, rounds};

const TIMES: usize = 9;

pub fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .build()
        .expect("threads can be started")
}

/// Two tasks that send a number to and fro.
pub fn tasks_pool(pool: &Pool, times: u32) {
    let (to, at) = amdahl_pool::channel(1);
    let (back, answers) = amdahl_pool::channel(1);
    let echo = pool.spawn_future(async move {
        while let Ok(n) = at.recv_async().await {
            let _ = back.send_async(n).await;
        }
    });
    let asks = pool.spawn_future(async move {
        for n in 0..times {
            to.send_async(n).await.expect("it echoes");
            assert_eq!(answers.recv_async().await, Ok(n));
        }
    });
    asks.join().expect("no panic");
    echo.join().expect("no panic");
}

pub fn tasks_tokio(runtime: &tokio::runtime::Runtime, times: u32) {
    use tokio::sync::mpsc::channel;
    let (to, mut at) = channel(1);
    let (back, mut answers) = channel(1);
    let echo = runtime.spawn(async move {
        while let Some(n) = at.recv().await {
            let _ = back.send(n).await;
        }
    });
    let asks = runtime.spawn(async move {
        for n in 0..times {
            to.send(n).await.expect("it echoes");
            assert_eq!(answers.recv().await, Some(n));
        }
    });
    runtime.block_on(async { (asks.await.expect("no panic"), echo.await.expect("no panic")) });
}

/// One task gives `times` numbers to another, through 128 places.
pub fn stream_pool(pool: &Pool, times: u32) {
    let (to, at) = amdahl_pool::channel(128);
    let takes = pool.spawn_future(async move {
        let mut sum = 0u64;
        while let Ok(n) = at.recv_async().await {
            sum += u64::from(n);
        }
        sum
    });
    pool.spawn_future(async move {
        for n in 0..times {
            to.send_async(n).await.expect("it takes");
        }
    });
    assert!(takes.join().expect("no panic") > 0);
}

pub fn stream_tokio(runtime: &tokio::runtime::Runtime, times: u32) {
    let (to, mut at) = tokio::sync::mpsc::channel(128);
    let takes = runtime.spawn(async move {
        let mut sum = 0u64;
        while let Some(n) = at.recv().await {
            sum += u64::from(n);
        }
        sum
    });
    runtime.spawn(async move {
        for n in 0..times {
            to.send(n).await.expect("it takes");
        }
    });
    assert!(runtime.block_on(takes).expect("no panic") > 0);
}

/// Many small tasks, all waited for.
pub fn spawns_pool(pool: &Pool, times: u32) {
    let all = pool.spawn_future(async move {
        let handles: Vec<_> = (0..times)
            .map(|n| Pool::global().spawn_future(async move { n }))
            .collect();
        let mut sum = 0u64;
        for handle in handles {
            sum += u64::from(handle.await.expect("no panic"));
        }
        sum
    });
    assert!(all.join().expect("no panic") > 0);
}

pub fn spawns_tokio(runtime: &tokio::runtime::Runtime, times: u32) {
    let all = runtime.spawn(async move {
        let handles: Vec<_> = (0..times).map(|n| tokio::spawn(async move { n })).collect();
        let mut sum = 0u64;
        for handle in handles {
            sum += u64::from(handle.await.expect("no panic"));
        }
        sum
    });
    assert!(runtime.block_on(all).expect("no panic") > 0);
}

/// Two threads that block, to and fro.
pub fn threads_pool(times: u32) {
    let (to, at) = amdahl_pool::channel(1);
    let (back, answers) = amdahl_pool::channel(1);
    thread::scope(|s| {
        s.spawn(move || {
            while let Ok(n) = at.recv() {
                let _ = back.send(n);
            }
        });
        for n in 0..times {
            to.send(n).expect("it echoes");
            assert_eq!(answers.recv(), Ok(n));
        }
        drop(to);
    });
}

pub fn threads_crossbeam(times: u32) {
    let (to, at) = crossbeam_channel::bounded(1);
    let (back, answers) = crossbeam_channel::bounded(1);
    thread::scope(|s| {
        s.spawn(move || {
            while let Ok(n) = at.recv() {
                let _ = back.send(n);
            }
        });
        for n in 0..times {
            to.send(n).expect("it echoes");
            assert_eq!(answers.recv(), Ok(n));
        }
        drop(to);
    });
}

pub fn threads_tokio(times: u32) {
    let (to, mut at) = tokio::sync::mpsc::channel(1);
    let (back, mut answers) = tokio::sync::mpsc::channel(1);
    thread::scope(|s| {
        s.spawn(move || {
            while let Some(n) = at.blocking_recv() {
                let _ = back.blocking_send(n);
            }
        });
        for n in 0..times {
            to.blocking_send(n).expect("it echoes");
            assert_eq!(answers.blocking_recv(), Some(n));
        }
        drop(to);
    });
}

fn side<'a>(who: &'static str, run: Box<dyn Fn() + 'a>) -> Side<'a> {
    (who, Box::new(move || cost(&run)))
}

type Side<'a> = (&'static str, Box<dyn FnMut() -> Cost + 'a>);

pub fn figures(wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    let (pool, runtime) = (Pool::global(), tokio());
    let runtime = &runtime;
    let cases: Vec<(&str, Vec<Side<'_>>)> = vec![
        (
            "ping-pong of two tasks",
            vec![
                side("pool", Box::new(move || tasks_pool(pool, 50_000))),
                side("tokio", Box::new(move || tasks_tokio(runtime, 50_000))),
            ],
        ),
        (
            "spawning 50,000 tasks",
            vec![
                side("pool", Box::new(move || spawns_pool(pool, 50_000))),
                side("tokio", Box::new(move || spawns_tokio(runtime, 50_000))),
            ],
        ),
        (
            "channel between two tasks",
            vec![
                side("pool", Box::new(move || stream_pool(pool, 200_000))),
                side("tokio", Box::new(move || stream_tokio(runtime, 200_000))),
            ],
        ),
        (
            "ping-pong of two threads",
            vec![
                side("pool", Box::new(|| threads_pool(5_000))),
                side("tokio, blocking", Box::new(|| threads_tokio(5_000))),
                side("crossbeam-channel", Box::new(|| threads_crossbeam(5_000))),
            ],
        ),
    ];
    let mut figures = match wanted(SPAWN_TO_RUN) {
        true => latency_figures(pool, runtime),
        false => Vec::new(),
    };
    for (name, mut sides) in cases.into_iter().filter(|(name, _)| wanted(name)) {
        let names: Vec<&str> = sides.iter().map(|(name, _)| *name).collect();
        let mut runs: Vec<&mut dyn FnMut() -> Cost> =
            sides.iter_mut().map(|(_, run)| &mut **run as _).collect();
        let costs = rounds(TIMES, &mut runs);
        for (rival, theirs) in names.iter().zip(&costs).skip(1) {
            figures.push(Figure {
                name: format!("{name}, {rival}"),
                value: Ok(ratio(&costs[0], theirs, |c| c.wall_s)),
                unit: Unit::Ratio,
                target: Target::AtMost(1.0),
                versus: format!(
                    "time of the pool / time of {rival}, median of {TIMES} interleaved rounds"
                ),
            });
        }
    }
    figures
}

const SPAWN_TO_RUN: &str = "spawn to run";

/// From spawning to running, of tasks that a thread outside spawns one by one.
#[derive(Clone, Copy)]
struct Latency {
    p50_s: f64,
    p99_s: f64,
}

/// What the task is told: when it was spawned, and whom to tell how long ago that is.
type Told = (Instant, mpsc::Sender<Duration>);

fn runs((spawned, tells): Told) {
    tells.send(spawned.elapsed()).expect("somebody waits");
}

fn latency(times: usize, spawn: &dyn Fn(Told)) -> Latency {
    let (tells, told) = mpsc::channel();
    let mut all: Vec<f64> = (0..times)
        .map(|_| {
            spawn((Instant::now(), tells.clone()));
            told.recv().expect("it runs").as_secs_f64()
        })
        .collect();
    all.sort_by(f64::total_cmp);
    Latency {
        p50_s: all[times / 2],
        p99_s: all[times * 99 / 100],
    }
}

fn latency_figures(pool: &Pool, runtime: &tokio::runtime::Runtime) -> Vec<Figure> {
    const TASKS: usize = 5_000;
    let mut of_pool = || latency(TASKS, &|told| drop(pool.spawn(move || runs(told))));
    let mut of_tokio = || {
        latency(TASKS, &|told| {
            drop(runtime.spawn(async move { runs(told) }))
        })
    };
    let mut of_rayon = || latency(TASKS, &|told| rayon::spawn(move || runs(told)));
    let measured = rounds(TIMES, &mut [&mut of_pool, &mut of_tokio, &mut of_rayon]);
    let mut figures = Vec::new();
    for (what, of, target_of_tokio) in [
        (
            "p50",
            (|latency| latency.p50_s) as fn(&Latency) -> f64,
            Target::AtMost(1.0),
        ),
        ("p99", |latency| latency.p99_s, Target::Stated),
    ] {
        for (rival, theirs, target) in [
            ("tokio", &measured[1], target_of_tokio),
            ("rayon", &measured[2], Target::Stated),
        ] {
            let us = |side: &[Latency]| median(side.iter().map(of).collect()) * 1e6;
            figures.push(Figure {
                name: format!("{SPAWN_TO_RUN}, {what}, {rival}"),
                value: Ok(ratio(&measured[0], theirs, of)),
                unit: Unit::Ratio,
                target,
                versus: format!(
                    "{what} of {TASKS} tasks spawned one by one from a thread outside: of the pool ({:.1} us) / of {rival} ({:.1} us), \
                     median of {TIMES} interleaved rounds",
                    us(&measured[0]),
                    us(theirs)
                ),
            });
        }
    }
    figures
}
