//! Threads that are where a test wants them.

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
