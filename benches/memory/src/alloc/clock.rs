//! A clock that costs less than what is measured.

use std::hint::black_box;
use std::time::{Duration, Instant};

pub struct Clock {
    ns_per_tick: f64,
    /// Ticks between two readings with nothing between.
    own: u64,
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: both instructions are in every x86-64 that has AVX; the fence has no precondition.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        let ticks = core::arch::x86_64::_rdtsc();
        core::arch::x86_64::_mm_lfence();
        ticks
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::OnceLock;
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Clock {
    pub fn new() -> Self {
        let (begun, from) = (Instant::now(), ticks());
        while begun.elapsed() < Duration::from_millis(50) {
            black_box(());
        }
        let ns_per_tick = begun.elapsed().as_nanos() as f64 / (ticks() - from) as f64;
        let mut own: Vec<u64> = (0..1001)
            .map(|_| {
                let from = ticks();
                ticks() - from
            })
            .collect();
        own.sort_unstable();
        Clock {
            ns_per_tick,
            own: own[own.len() / 2],
        }
    }

    #[inline]
    pub fn now(&self) -> u64 {
        ticks()
    }

    /// Time between two readings, without that of the clock itself.
    #[inline]
    pub fn ns(&self, from: u64, to: u64) -> f32 {
        let ticks = (to - from).saturating_sub(self.own);
        (ticks as f64 * self.ns_per_tick) as f32
    }
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

/// Sorted, by rank.
pub fn percentile(sorted: &[f32], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share) as usize;
    f64::from(sorted[rank.min(sorted.len() - 1)])
}
