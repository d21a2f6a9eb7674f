//! Nothing starves while two tasks wake each other for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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

/// Each of two queues that nobody else may take from has one worker beyond the limit, and not four.
#[test]
fn a_limit_holds_where_workers_share_a_queue_of_their_own() {
    let pool = builder(8, 1).policy("groups-apart=4").build().unwrap();
    let running = Arc::new(AtomicU32::new(0));
    for _ in 0..5 {
        let one = |_| {
            let running = running.clone();
            pool.spawn(move || {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                (0..200).for_each(|_| std::thread::yield_now());
                running.fetch_sub(1, Ordering::SeqCst);
                now
            })
        };
        let jobs: Vec<_> = (0..100).map(one).collect();
        let most = jobs.into_iter().map(|job| job.join().unwrap()).max();
        assert!(most <= Some(2), "{most:?} ran at a time");
    }
}

/// Each job that was given from outside woke a worker that had no place, and slept again at once.
#[test]
fn jobs_wake_nobody_who_has_no_place() {
    for policy in [
        "steal=machine",
        "single",
        "groups-apart=1",
        "groups-apart=2",
    ] {
        let pool = builder(2, 1).policy(policy).build().unwrap();
        let (has_begun, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let long = {
            let (told, ends) = (has_begun.clone(), is_over.clone());
            pool.spawn(move || {
                told.store(true, Ordering::Release);
                wait_for(&ends);
            })
        };
        wait_for(&has_begun);
        let sleeps_over = || {
            while pool.state().sleeping == 0 {
                std::thread::yield_now();
            }
            let waits = pool.waits();
            let idle = waits.iter().find(|waits| waits.what == "idle worker");
            idle.map_or(0, |idle| idle.count.times)
        };
        let before = sleeps_over();
        let jobs: Vec<_> = (0..100).map(|_| pool.spawn(|| ())).collect();
        let after = sleeps_over();
        is_over.store(true, Ordering::Release);
        assert_eq!(after, before, "{policy}");
        long.join().unwrap();
        jobs.into_iter().for_each(|job| job.join().unwrap());
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
