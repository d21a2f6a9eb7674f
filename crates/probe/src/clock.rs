//! The two clocks of a measurement.

use amdahl_speedup::event::Ns;
use rustix::time::{ClockId, clock_gettime};

/// The clock that all records share.
pub fn monotonic() -> Ns {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Ns {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> Ns {
    let at = clock_gettime(clock);
    (at.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(at.tv_nsec as u64)
}
