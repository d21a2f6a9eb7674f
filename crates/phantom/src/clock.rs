//! The clocks of a sampler.

/// That of readings and pages.
pub fn monotonic_ns() -> u64 {
    now(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    now(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn now(clock: libc::clockid_t) -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is writable and of the right type; both clocks exist on every kernel.
    unsafe { libc::clock_gettime(clock, &mut at) };
    (at.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(at.tv_nsec as u64)
}
