//! Threads that are where a test wants them, and as long as it wants.
#![allow(dead_code)] // Each test binary uses a part.

use std::time::{Duration, Instant};

/// Moves this thread to `cpu`. Under Miri threads are where they are.
pub fn move_to(cpu: u32) {
    if cfg!(miri) {
        return;
    }
    amdahl_topology::set_allowed(0, &[cpu].into_iter().collect()).expect("an allowed CPU");
}

/// The CPUs that this process may use.
pub fn allowed() -> Vec<u32> {
    if cfg!(miri) {
        return vec![0];
    }
    let set = amdahl_topology::allowed().expect("the affinity of this thread");
    set.iter().collect()
}

/// The long tier: runs `once` again and again for two minutes, or `AMDAHL_STRESS_S` seconds.
pub fn for_minutes(mut once: impl FnMut()) {
    let seconds = std::env::var("AMDAHL_STRESS_S").map_or(120, |text| text.parse().unwrap());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        once();
    }
}
