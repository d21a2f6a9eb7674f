//! What the runtime did, told at the end of the process if AMDAHL_OMP_STATS asks for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::{capacity, icv, sys, team};

static IS_ON: AtomicBool = AtomicBool::new(false);
static REGIONS: AtomicU64 = AtomicU64::new(0);
static THREADS_MAX: AtomicU32 = AtomicU32::new(0);
static SLEEPS: AtomicU64 = AtomicU64::new(0);
static SLEPT_NS: AtomicU64 = AtomicU64::new(0);

/// Begins to count, if that is wanted.
pub(crate) fn init() {
    extern "C" fn tell() {
        sys::write_error(text().as_bytes());
    }
    if icv::globals().own.stats {
        IS_ON.store(true, Ordering::Relaxed);
        // SAFETY: the function stays where it is, since the library is never unloaded.
        unsafe { libc::atexit(tell) };
    }
}

/// A region begins. A load if nobody counts.
#[inline]
pub(crate) fn region(threads: u32) {
    if IS_ON.load(Ordering::Relaxed) {
        REGIONS.fetch_add(1, Ordering::Relaxed);
        THREADS_MAX.fetch_max(threads, Ordering::Relaxed);
    }
}

/// A thread has slept at a gate.
pub(crate) fn slept(ns: u64) {
    if IS_ON.load(Ordering::Relaxed) {
        SLEEPS.fetch_add(1, Ordering::Relaxed);
        SLEPT_NS.fetch_add(ns, Ordering::Relaxed);
    }
}

fn text() -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    format!(
        "amdahl: openmp: {} regions of at most {} threads on {} CPUs; threads slept {} times at barriers and between regions, \
         {:.3} s in all, and passed their turns {} times; CPUs were taken from them for {:.3} s, as far as they noticed\n",
        REGIONS.load(Ordering::Relaxed),
        THREADS_MAX.load(Ordering::Relaxed),
        capacity::usable_cpus(),
        SLEEPS.load(Ordering::Relaxed),
        seconds(SLEPT_NS.load(Ordering::Relaxed)),
        team::CONTENTION.passes(),
        seconds(team::CONTENTION.lost_ns()),
    )
}
