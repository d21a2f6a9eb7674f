//! The clock of the page.

/// `CLOCK_MONOTONIC` in nanoseconds, up to one tick of the kernel (1 to 10 ms) old: enough to see whether a page is stale,
/// and several times cheaper than the exact clock.
pub fn coarse_now_ns() -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is writable and of the right type. The clock exists on every kernel that Rust supports.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut at) };
    (at.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(at.tv_nsec as u64)
}
