//! Threads that are where a test wants them.

use std::io;
use std::mem;

/// Moves this thread to `cpu`.
pub fn move_to(cpu: usize) {
    // SAFETY: the set is plain bits, and `cpu` is checked by `CPU_SET`'s own bound.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// The CPUs that this process may use.
pub fn allowed() -> Vec<usize> {
    let set = amdahl_topology::allowed().expect("the affinity of this thread");
    set.iter().map(|cpu| cpu as usize).collect()
}
