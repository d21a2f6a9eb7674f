#![cfg(not(loom))]
//! A pool beside threads of others that want all CPUs. One test: it wants the machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amdahl_pool::{CpuSource, Lowering, Pool, PoolState};
use amdahl_topology::{CpuSet, Topology};

/// This machine's CPUs, but nothing of quotas and hypervisors: only threads can crowd it.
struct NoQuota(amdahl_pool::ThisMachine);

impl CpuSource for NoQuota {
    fn topology(&mut self) -> Topology {
        self.0.topology()
    }
    fn allowed(&mut self) -> CpuSet {
        self.0.allowed()
    }
    fn is_real(&self) -> bool {
        true
    }
}

/// Far above what it takes: some looks of 10 ms each.
const LIMIT: Duration = Duration::from_secs(60);

/// What all threads of this process whose names begin with `prefix` ran and waited for a CPU until now, ns.
fn ran_and_waited(prefix: &str) -> (u64, u64) {
    let (mut ran, mut waited) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if !read("comm").starts_with(prefix) {
            continue;
        }
        let stat = read("schedstat");
        let mut words = stat.split_whitespace().filter_map(|word| word.parse().ok());
        ran += words.next().unwrap_or(0);
        waited += words.next().unwrap_or(0);
    }
    (ran, waited)
}

/// Work of all workers, and looks at the pool between, until `is_so` or the limit. The last state; of what the workers wanted
/// of the CPUs in the last second, the part that they waited.
fn work_until(
    pool: &Pool,
    is_so: impl Fn(&PoolState) -> bool,
) -> Result<PoolState, (PoolState, f64)> {
    let begun = Instant::now();
    let mut since = (begun, ran_and_waited("loaded"));
    let mut share = 1.0;
    loop {
        // Longer than a helper waits for a CPU, or it would find nothing left, and never be lowered.
        pool.par_range(0..64, 1, |part| {
            for n in 0..400_000 * part.len() {
                std::hint::black_box(n);
            }
        });
        let state = pool.state();
        if is_so(&state) {
            return Ok(state);
        }
        if since.0.elapsed() > Duration::from_secs(1) {
            let (ran, waited) = ran_and_waited("loaded");
            let (ran, waited) = (ran - since.1.0, waited - since.1.1);
            share = waited as f64 / (ran + waited).max(1) as f64;
            since = (Instant::now(), ran_and_waited("loaded"));
        }
        if begun.elapsed() > LIMIT {
            return Err((state, share));
        }
    }
}

fn bind_to(cpu: u32) {
    // SAFETY: an all-zero set is one; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

#[test]
fn the_pool_shrinks_beside_busy_threads_and_grows_again() {
    let pool = Pool::builder()
        .cpus(NoQuota(amdahl_pool::ThisMachine::new()))
        .name("loaded")
        .build()
        .unwrap();
    let cpus = pool.cpus();
    let most = cpus.len() as u32;
    if most < 2 {
        println!("SKIPPED the_pool_shrinks_beside_busy_threads: one CPU is allowed");
        return;
    }
    let is_over = AtomicBool::new(false);
    let spun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for cpu in cpus.iter() {
            let (is_over, spun) = (&is_over, &spun);
            scope.spawn(move || {
                bind_to(cpu);
                while !is_over.load(Ordering::Relaxed) {
                    spun.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Helpers that have the priority of the others get their share, and stay.
        let crowded = work_until(&pool, |now| {
            now.is_crowded && (now.limit < most || now.lowering == Lowering::Not)
        });
        is_over.store(true, Ordering::Relaxed);
        if let Err((state, share)) = crowded {
            panic!(
                "{most} CPUs, a busy thread on each: still {state:?} after {LIMIT:?}, in which the workers waited for {share:.2} of \
                 the time that they wanted to run; the threads went round {} times",
                spun.load(Ordering::Relaxed)
            );
        }
    });
    match work_until(&pool, |now| !now.is_crowded && now.limit == most) {
        Ok(_) => {}
        // Then it is right.
        Err((state, share)) if share > 0.03 => println!(
            "SKIPPED the_pool_grows_again: others want the CPUs, workers waited for {share:.2} of their time: {state:?}"
        ),
        Err((state, share)) => panic!(
            "nobody else wants the {most} CPUs ({share:.2} of the time was waiting): still {state:?} after {LIMIT:?}"
        ),
    }
    // A pool that idles believes nothing of it, whoever else there is.
    let begun = Instant::now();
    loop {
        let state = pool.state();
        if !state.is_crowded && state.limit == most {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "it idles: still {state:?}");
        std::thread::yield_now();
    }
}
