//! A process that is confined to fewer CPUs, and set free again, while it runs. Alone in its file: masks are those of all threads.

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_openmp::{capacity, degree, team, thread};
use amdahl_topology::CpuSet;

/// All threads of the process may run there.
fn confine(cpus: &CpuSet) {
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let name = task.unwrap().file_name();
        let number: u32 = name.to_str().unwrap().parse().unwrap();
        // One that has just ended is confined by nobody.
        let _ = amdahl_topology::set_allowed(number, cpus);
    }
}

/// Looks are a second apart: this is for who never looks.
const NEVER: Duration = Duration::from_secs(60);

/// Nobody but a region that begins looked: in a long region with many barriers CPUs that were gone stayed unnoticed to its end.
#[test]
fn regions_that_begin_look_and_so_do_those_that_are_long() {
    team::init();
    let all = amdahl_topology::allowed().unwrap();
    let usable = capacity::usable_cpus();
    if usable < 2 {
        println!("SKIPPED: fewer CPUs: this process may use one");
        return;
    }
    let one: CpuSet = all.iter().take(1).collect();
    let begun = Instant::now();
    let (is_over, cpus) = (AtomicBool::new(false), capacity::usable_cpus);
    common::parallel(2, |thread, id| {
        if id == 0 {
            confine(&one);
        }
        while !is_over.load(Ordering::Relaxed) {
            common::barrier(thread);
            if id == 0 && (cpus() == 1 || begun.elapsed() > NEVER) {
                is_over.store(true, Ordering::Relaxed);
            }
            common::barrier(thread);
        }
    });
    assert_eq!(cpus(), 1);
    confine(&all);
    while cpus() != usable && begun.elapsed() < 2 * NEVER {
        // SAFETY: the calling thread's.
        unsafe { degree::resolve(thread::current(), 0, 0) };
    }
    assert_eq!(cpus(), usable);
}
