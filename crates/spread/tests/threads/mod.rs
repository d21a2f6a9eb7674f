//! Threads that are where a test wants them.

/// Moves this thread to `cpu`.
pub fn move_to(cpu: u32) {
    amdahl_topology::set_allowed(0, &[cpu].into_iter().collect()).expect("an allowed CPU");
}

/// The CPUs that this process may use.
pub fn allowed() -> Vec<u32> {
    let set = amdahl_topology::allowed().expect("the affinity of this thread");
    set.iter().collect()
}
