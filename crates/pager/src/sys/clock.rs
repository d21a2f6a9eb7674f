//! Time, as it may be asked for inside of a signal handler.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of CPU time that all threads of this process have used, user and system.
pub(crate) fn cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}
