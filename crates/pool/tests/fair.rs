//! Nothing starves while two tasks wake each other for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_pool::{Builder, CpuSource, Handle, Pool, SimulatedCpus};
use amdahl_topology::{CpuSet, Topology};

/// A machine of which a quota leaves so many CPUs.
struct Quota(SimulatedCpus, f64);

impl CpuSource for Quota {
    fn topology(&mut self) -> Topology {
        self.0.topology()
    }
    fn allowed(&mut self) -> CpuSet {
        self.0.allowed()
    }
    fn quota(&mut self) -> Option<f64> {
        Some(self.1)
    }
}

fn builder(cpus: u32, limit: u32) -> Builder {
    let cpus = Topology::synthetic(&format!("{cpus} core")).unwrap();
    let cpus = Quota(SimulatedCpus::new(cpus), f64::from(limit));
    Pool::builder().cpus(cpus).follows_load(false)
}

/// Two tasks that wake each other until `is_over`; `is_playing` once they do.
fn ping_pong(
    pool: &Pool,
    is_playing: &Arc<AtomicBool>,
    is_over: &Arc<AtomicBool>,
) -> [Handle<()>; 2] {
    let (to, at) = amdahl_pool::channel(1);
    let (back, answers) = amdahl_pool::channel(1);
    let echo = pool.spawn_future(async move {
        while at.recv_async().await.is_ok() {
            if back.send_async(()).await.is_err() {
                return;
            }
        }
    });
    let (is_playing, is_over) = (is_playing.clone(), is_over.clone());
    let player = pool.spawn_future(async move {
        let mut rounds = 0;
        while !is_over.load(Ordering::Acquire) {
            to.send_async(()).await.unwrap();
            answers.recv_async().await.unwrap();
            rounds += 1;
            is_playing.store(rounds > 10, Ordering::Release);
        }
    });
    [echo, player]
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

fn play(pool: &Pool, meanwhile: impl FnOnce(Arc<AtomicBool>)) {
    let flag = Arc::<AtomicBool>::default;
    let (is_playing, is_over) = (flag(), flag());
    let players = ping_pong(pool, &is_playing, &is_over);
    wait_for(&is_playing);
    meanwhile(is_over.clone());
    players
        .into_iter()
        .for_each(|player| player.join().unwrap());
    assert!(is_over.load(Ordering::Acquire));
}

/// One of the workers may run, and always had the other one of two tasks to run next: what was in another CPU's queue waited
/// for ever.
#[test]
fn jobs_in_the_queues_of_cpus_that_may_not_run() {
    for (cpus, policy) in [
        (2, "steal=machine+spin"),
        (40, "steal=machine"),
        (2, "groups-apart=1"),
        (4, "dispatcher"),
        (3, "single"),
    ] {
        let pool = builder(cpus, 1).policy(policy).build().unwrap();
        for _ in 0..5 {
            play(&pool, |is_over| {
                let last = pool.spawn(move || is_over.store(true, Ordering::Release));
                last.join().unwrap();
            });
        }
    }
}

/// The worker that may run waits for what lies in the queue: nobody else was woken, for there was no place.
#[test]
fn a_job_that_waits_for_one_behind_it_where_one_may_run() {
    for policy in [
        "steal=machine+spin",
        "groups-apart=2",
        "dispatcher",
        "single",
    ] {
        let pool = builder(4, 1).policy(policy).build().unwrap();
        let (has_begun, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (told, ends) = (has_begun.clone(), is_over.clone());
        let never_yields = pool.spawn(move || {
            told.store(true, Ordering::Release);
            wait_for(&ends);
        });
        wait_for(&has_begun);
        let told = is_over.clone();
        let behind = pool.spawn(move || told.store(true, Ordering::Release));
        let begun = Instant::now();
        while !behind.is_done() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let has_run = behind.is_done();
        // Or it would wait for ever.
        is_over.store(true, Ordering::Release);
        never_yields.join().unwrap();
        assert!(has_run, "{policy}");
    }
}

/// Both workers run: one of them something that never yields, behind which the job waits that would end it all.
#[test]
fn jobs_behind_one_that_never_yields() {
    let pool = Arc::new(builder(2, 2).build().unwrap());
    for _ in 0..20 {
        play(&pool, |is_over| {
            let never_yields = pool.spawn(move || {
                let told = is_over.clone();
                let behind = amdahl_pool::spawn(move || told.store(true, Ordering::Release));
                wait_for(&is_over);
                behind
            });
            never_yields.join().unwrap().join().unwrap();
        });
    }
}

/// The same behind a thread of the program that works in the pool.
#[test]
fn jobs_behind_a_guest_that_never_yields() {
    let pool = builder(2, 1).build().unwrap();
    for _ in 0..20 {
        play(&pool, |is_over| {
            pool.run(|| {
                let told = is_over.clone();
                drop(amdahl_pool::spawn(move || {
                    told.store(true, Ordering::Release)
                }));
                wait_for(&is_over);
            });
        });
    }
}

/// And for work that is bound to two CPUs, of which one never yields.
#[test]
fn bound_work_behind_a_job_that_never_yields() {
    let pool = Arc::new(builder(2, 2).build().unwrap());
    for _ in 0..20 {
        play(&pool, |is_over| {
            let has_begun = Arc::new(AtomicBool::new(false));
            let (told, ends) = (has_begun.clone(), is_over.clone());
            let never_yields = pool.spawn(move || {
                told.store(true, Ordering::Release);
                wait_for(&ends);
            });
            wait_for(&has_begun);
            let both = CpuSet::from_iter([0, 1]);
            let last = pool.queue_on(&both, move || is_over.store(true, Ordering::Release));
            last.join().unwrap();
            never_yields.join().unwrap();
        });
    }
}
