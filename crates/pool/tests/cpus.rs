//! Work on CPU sets while CPUs come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use amdahl_pool::{CpuSource, JoinError, Pool, SimulatedCpus, WhenOffline, join};
use amdahl_topology::{CpuSet, Topology};

fn machine(description: &str) -> SimulatedCpus {
    SimulatedCpus::new(Topology::synthetic(description).unwrap())
}

fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().collect()
}

/// xorshift: the same events each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn set(&mut self, cpus: u32) -> CpuSet {
        let bits = self.next();
        set((0..cpus).filter(|cpu| bits >> cpu & 1 == 1))
    }
}

/// 10,000 changes of the CPUs while four threads queue work on random sets, fork and cancel: each piece of work runs
/// once or was cancelled, and nothing is left.
#[test]
fn ten_thousand_changes_lose_nothing() {
    const CPUS: u32 = 16;
    for (seed, when) in [(1, WhenOffline::Elsewhere), (2, WhenOffline::Wait)] {
        let cpus = machine("2 node x 2 llc x 4 core");
        let pool = Pool::builder()
            .cpus(cpus.clone())
            .when_offline(when)
            .build()
            .unwrap();
        let is_over = AtomicBool::new(false);
        let ran: Arc<Vec<AtomicU32>> = Arc::new((0..400_000).map(|_| AtomicU32::new(0)).collect());
        let (queued, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for thread in 0..3 {
                let (pool, ran, is_over, queued, cancelled) =
                    (&pool, &ran, &is_over, &queued, &cancelled);
                s.spawn(move || {
                    let mut random = Random(1000 * seed + thread + 1);
                    while !is_over.load(Ordering::Acquire) {
                        let n = queued.fetch_add(1, Ordering::Relaxed);
                        if n >= ran.len() {
                            return;
                        }
                        let ran = ran.clone();
                        let handle = pool.queue_on(&random.set(CPUS), move || {
                            ran[n].fetch_add(1, Ordering::Relaxed);
                            if n.is_multiple_of(16) {
                                join(|| std::hint::black_box(n), || std::hint::black_box(n));
                            }
                        });
                        if random.next().is_multiple_of(8) && handle.cancel() {
                            cancelled.fetch_add(1, Ordering::Relaxed);
                        } else if random.next().is_multiple_of(64) && when == WhenOffline::Elsewhere
                        {
                            handle.join().unwrap();
                        }
                    }
                });
            }
            let mut random = Random(seed);
            for change in 0..5_000 {
                // Now and then none at all: the pool keeps what it has.
                cpus.set_allowed(random.set(CPUS));
                pool.refresh();
                // Not all of them before those who queue have got a CPU.
                while queued.load(Ordering::Relaxed) < change / 20 {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Release);
        });
        cpus.set_allowed(set(0..CPUS));
        pool.refresh();
        pool.flush();
        let queued = queued.load(Ordering::Relaxed).min(ran.len());
        let times: Vec<u32> = ran[..queued]
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .collect();
        assert!(times.iter().all(|&n| n <= 1), "nothing runs twice");
        let once = times.iter().filter(|&&n| n == 1).count();
        assert_eq!(
            once + cancelled.load(Ordering::Relaxed),
            queued,
            "nothing is lost"
        );
        assert!(queued > 100, "there was load: {queued}");
    }
}

#[test]
fn work_that_waits_is_taken_over_when_its_cpu_goes() {
    let cpus = machine("4 core");
    let pool = Pool::builder().cpus(cpus.clone()).build().unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    let here = Arc::new(AtomicUsize::new(0));
    let block = || {
        let (gate, here) = (gate.clone(), here.clone());
        move || {
            here.fetch_add(1, Ordering::SeqCst);
            while !gate.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    };
    let _held = pool.queue_on(&set([2]), block());
    while here.load(Ordering::SeqCst) < 1 {
        std::thread::yield_now();
    }
    let waiting: Vec<_> = (0..10)
        .map(|n| pool.queue_on(&set([2]), move || n))
        .collect();
    assert!(
        waiting.iter().all(|handle| !handle.is_done()),
        "its CPU is busy, and no other may"
    );
    cpus.set_allowed(set([0, 1, 3]));
    pool.refresh();
    let sum: i32 = waiting
        .into_iter()
        .map(|handle| handle.join().unwrap())
        .sum();
    assert_eq!(sum, 45);
    assert_eq!(pool.state().taken_over, 10);
    gate.store(true, Ordering::Release);
}

/// A busy CPU's work goes to an idle one of the same set.
#[test]
fn a_task_that_never_yields_holds_up_nobody_else() {
    let pool = Pool::builder().cpus(machine("3 core")).build().unwrap();
    let gate = Arc::new(AtomicUsize::new(0));
    let long = {
        let gate = gate.clone();
        pool.queue_on(&set([0]), move || {
            while gate.load(Ordering::Acquire) < 20 {
                std::thread::yield_now()
            }
        })
    };
    for _ in 0..20 {
        let gate = gate.clone();
        pool.queue_on(&set([0, 1]), move || gate.fetch_add(1, Ordering::Release));
    }
    long.join().unwrap();
    pool.flush();
}

#[test]
fn a_mask_without_a_cpu_does_as_chosen() {
    let cpus = machine("4 core");
    cpus.set_allowed(set([0, 1]));
    let elsewhere = Pool::builder().cpus(cpus.clone()).build().unwrap();
    assert_eq!(
        elsewhere.queue_on(&set([3]), || "ran").join().unwrap(),
        "ran"
    );
    assert_eq!(
        elsewhere.queue_on(&set([99]), || "ran").join().unwrap(),
        "ran"
    );
    assert_eq!(
        elsewhere
            .queue_on(&CpuSet::default(), || "ran")
            .join()
            .unwrap(),
        "ran"
    );
    let waits = Pool::builder()
        .cpus(cpus.clone())
        .when_offline(WhenOffline::Wait)
        .build()
        .unwrap();
    let work = waits.queue_on(&set([3]), || "ran");
    let never = waits.queue_on(&set([99]), || "ran");
    assert!(!work.is_done());
    cpus.set_allowed(set([0, 3]));
    waits.refresh();
    assert_eq!(work.join().unwrap(), "ran");
    assert!(never.cancel() && !never.cancel());
    let too_late = waits.queue_on(&set([2]), || "ran");
    drop(waits);
    assert!(matches!(too_late.join(), Err(JoinError::Cancelled)));
}

#[test]
fn groups_get_work_each_and_flush_waits() {
    let pool = Pool::builder()
        .cpus(machine("2 llc x 4 core"))
        .build()
        .unwrap();
    let groups: Vec<CpuSet> = (0..4).map(|g| set([2 * g, 2 * g + 1])).collect();
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let handles = pool.queue_on_each(&groups, move |group| {
        count.fetch_add(1, Ordering::SeqCst);
        group * 10
    });
    pool.flush();
    assert_eq!(done.load(Ordering::SeqCst), 4);
    let results: Vec<usize> = handles.into_iter().map(|h| h.join().unwrap()).collect();
    assert_eq!(results, [0, 10, 20, 30]);
    assert!(pool.queue_on_each(&[], |_| ()).is_empty());
}

#[test]
fn a_panic_on_a_cpu_reaches_the_handle_and_nobody_else() {
    let pool = Pool::builder().cpus(machine("2 core")).build().unwrap();
    let outcome = pool.queue_on(&set([1]), || panic!("there"));
    assert!(matches!(outcome.join(), Err(JoinError::Panicked(_))));
    pool.flush();
    let nested = pool.queue_on(&set([1]), || join(|| 1, || 2));
    assert_eq!(nested.join().unwrap(), (1, 2));
}

/// Jobs in a queue from which nobody else takes, and in the deque of a worker of it, waited for ever when its CPUs went and
/// what ran there went on.
#[test]
fn jobs_in_the_queue_of_cpus_that_go_are_run_by_others() {
    for (description, policy, gone) in [
        ("3 core", "groups-apart=1", 1),
        ("3 llc x 1 core", "steal", 1),
        ("3 llc x 2 core", "steal", 2),
        ("3 llc x 2 core", "groups-apart=2", 2),
    ] {
        let cpus = machine(description);
        let builder = Pool::builder().cpus(cpus.clone()).follows_load(false);
        let pool = builder.policy(policy).build().unwrap();
        let all = pool.cpus();
        let gate = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let long: Vec<_> = (0..gone)
            .map(|cpu| {
                let (gate, tell) = (gate.clone(), tell.clone());
                pool.queue_on(&set([cpu]), move || {
                    tell.send(amdahl_pool::spawn(|| 1)).unwrap();
                    while !gate.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let children: Vec<_> = (0..gone).map(|_| told.recv().unwrap()).collect();
        let waiting: Vec<_> = (0..10).map(|_| pool.spawn(|| 1)).collect();
        assert!(
            waiting.iter().all(|job| !job.is_done()),
            "{policy} on {description}: no other CPU takes them"
        );
        cpus.set_allowed(all.difference(&set(0..gone)));
        pool.refresh();
        let ran = waiting.into_iter().chain(children);
        assert_eq!(ran.map(|job| job.join().unwrap()).sum::<u32>(), 10 + gone);
        gate.store(true, Ordering::Release);
        long.into_iter().for_each(|job| job.join().unwrap());
    }
}

/// The same with the only worker of a queue that waits in a channel for what lies in the queue.
#[test]
fn jobs_in_the_queue_of_a_worker_that_waits_are_run_by_others() {
    for policy in ["groups-apart=1", "steal"] {
        let builder = Pool::builder().cpus(machine("2 llc x 1 core"));
        let pool = builder.policy(policy).follows_load(false).build().unwrap();
        for _ in 0..100 {
            let (to, from) = amdahl_pool::channel(1);
            let waits = pool.spawn(move || from.recv());
            let sends = pool.spawn(move || to.send(7));
            sends.join().unwrap().unwrap();
            assert_eq!(waits.join().unwrap(), Ok(7));
        }
    }
}

/// On the real machine: work is where it was told to be.
#[test]
fn work_runs_on_its_cpu() {
    let pool = Pool::new().unwrap();
    for cpu in pool.cpus().iter() {
        for _ in 0..20 {
            let at = pool.queue_on(&set([cpu]), || {
                let allowed = amdahl_topology::allowed().unwrap();
                (allowed.len(), allowed.first())
            });
            assert_eq!(at.join().unwrap(), (1, Some(cpu)));
        }
    }
    let free = pool
        .spawn(|| amdahl_topology::allowed().unwrap())
        .join()
        .unwrap();
    assert_eq!(free, pool.cpus(), "and free again afterwards");
}

/// On the real machine: work that waits inside for other work of its CPU is still there afterwards.
#[test]
fn work_that_ran_other_work_meanwhile_stays_on_its_cpu() {
    let pool = std::sync::Arc::new(Pool::builder().threads_max(1).build().unwrap());
    let cpu = pool.cpus().first().unwrap();
    let inner = pool.clone();
    let outer = pool.queue_on(&set([cpu]), move || {
        let allowed = || amdahl_topology::allowed().unwrap();
        let within = inner.queue_on(&set([cpu]), allowed).join().unwrap();
        (within, allowed())
    });
    assert_eq!(outer.join().unwrap(), (set([cpu]), set([cpu])));
}

/// The limit follows the quota.
#[test]
fn a_quota_limits_the_threads() {
    let cpus = machine("8 core");
    let pool = Pool::builder()
        .cpus(cpus.clone())
        .follows_load(false)
        .build()
        .unwrap();
    assert_eq!(pool.threads(), 8);
    cpus.set_quota(Some(2.5));
    pool.refresh();
    assert_eq!(pool.threads(), 3);
    cpus.set_quota(Some(0.1));
    pool.refresh();
    assert_eq!(pool.threads(), 1);
    assert_eq!(pool.run(|| join(|| 1, || 2)), (1, 2));
    cpus.set_quota(None);
    pool.refresh();
    assert_eq!(pool.threads(), 8);
}

/// Where load is followed a burst has twice the threads, until the quota is nearly used up.
#[test]
fn a_burst_has_twice_the_threads_of_the_quota() {
    let cpus = machine("8 core");
    cpus.set_quota(Some(2.5));
    let pool = Pool::builder().cpus(cpus.clone()).build().unwrap();
    assert_eq!(pool.threads(), 5);
    cpus.set_quota(Some(100.0));
    pool.refresh();
    assert_eq!(pool.threads(), 8);
}

/// Where more workers are awake than may run, each still runs what is bound to its CPU.
#[test]
fn work_is_not_forgotten_by_a_worker_that_has_no_place() {
    for _ in 0..200 {
        let cpus = machine("2 llc x 4 core");
        let pool = Pool::builder().cpus(cpus.clone()).build().unwrap();
        // Eight are awake, and two may be.
        cpus.set_allowed(set([1, 6]));
        pool.refresh();
        let ran = pool.queue_on(&set([0, 6]), || ());
        ran.join().expect("it ran");
    }
    let cpus = machine("2 core");
    cpus.set_quota(Some(1.0));
    let builder = Pool::builder().cpus(cpus.clone()).follows_load(false);
    let pool = builder.build().unwrap();
    let (go, wait) = std::sync::mpsc::channel();
    let long = pool.queue_on(&set([0]), move || wait.recv());
    // The only place is taken, and CPU 0 cannot run this.
    let other = pool.queue_on(&set([1]), move || go.send(()));
    other.join().expect("it ran").expect("the other waits");
    long.join().expect("it ran").expect("it was told");
}

/// Who waits inside of a worker has the place of those who have ended, and so what wakes it is run.
#[test]
fn a_pool_ends_although_a_worker_waits_and_only_one_may_run() {
    let cpus = machine("2 core");
    cpus.set_quota(Some(1.0));
    let builder = Pool::builder().cpus(cpus).name("ends").follows_load(false);
    let pool = builder.build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let mut tell = Some(tell);
    let future = pool.spawn_future(std::future::poll_fn(move |context| match tell.take() {
        Some(tell) => {
            tell.send(context.waker().clone())
                .expect("it is waited for");
            std::task::Poll::Pending
        }
        None => std::task::Poll::Ready(7),
    }));
    let waits = pool.queue_on(&set([0]), move || future.join());
    let waker = told.recv().expect("polled");
    let ends = std::thread::spawn(move || drop(pool));
    let is_there = |name: &str| {
        let threads = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
        threads
            .flatten()
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
            .any(|comm| comm.trim() == name)
    };
    while is_there("ends-1") {
        std::thread::yield_now();
    }
    waker.wake();
    assert_eq!(waits.join().expect("it ran").expect("so did this"), 7);
    ends.join().expect("it ends");
}

/// The real machine, of which the source believes that it has one CPU more.
struct WithOneTooMany(CpuSet, u32);

impl WithOneTooMany {
    fn new() -> Self {
        let present = Topology::read_present().unwrap().cpu_set();
        WithOneTooMany(
            amdahl_topology::allowed().unwrap(),
            present.iter().max().unwrap() + 1,
        )
    }
}

impl CpuSource for WithOneTooMany {
    fn topology(&mut self) -> Topology {
        Topology::synthetic(&format!("{} core", self.1 + 1)).unwrap()
    }
    fn allowed(&mut self) -> CpuSet {
        self.0.iter().chain([self.1]).collect()
    }
    fn is_real(&self) -> bool {
        true
    }
}

/// A CPU that had gone before the pool knew: its work ran wherever the kernel liked, even where it was to wait.
#[test]
fn work_for_a_cpu_that_the_kernel_does_not_let_be_used() {
    let is_one = || amdahl_topology::allowed().unwrap().len() == 1;
    for when in [WhenOffline::Elsewhere, WhenOffline::Wait] {
        let cpus = WithOneTooMany::new();
        let (real, gone) = (cpus.0.iter().next().unwrap(), cpus.1);
        let pool = Pool::builder().cpus(cpus).follows_load(false);
        let pool = pool.when_offline(when).build().unwrap();
        // Its worker takes work of the mask as well as the other one.
        for _ in 0..20 {
            let both = pool.queue_on(&set([real, gone]), move || {
                amdahl_topology::allowed().unwrap()
            });
            assert_eq!(both.join().unwrap(), set([real]), "{when:?}");
        }
        let lost = pool.queue_on(&set([gone]), is_one);
        if when == WhenOffline::Elsewhere {
            assert!(lost.join().unwrap(), "bound to another one");
            continue;
        }
        let before = pool.state().taken_over;
        while pool.state().taken_over == before && !lost.is_done() {
            std::thread::yield_now();
        }
        drop(pool);
        assert!(matches!(lost.join(), Err(JoinError::Cancelled)));
    }
}
