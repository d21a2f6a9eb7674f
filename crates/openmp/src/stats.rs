//! What the runtime did, told at the end of the process if AMDAHL_OMP_STATS asks for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::{capacity, icv, sys, team};

static IS_ON: AtomicBool = AtomicBool::new(false);
static REGIONS: AtomicU64 = AtomicU64::new(0);
static THREADS_MAX: AtomicU32 = AtomicU32::new(0);
/// Regions that were to have more threads than CPUs could be had, and those of them whose clause said so.
static TOO_LARGE: AtomicU64 = AtomicU64::new(0);
static TOO_LARGE_BY_CLAUSE: AtomicU64 = AtomicU64::new(0);
/// The most threads that such a region was to have, and the fewest CPUs that there were for one.
static TOO_MANY: AtomicU32 = AtomicU32::new(0);
static CPUS_LEAST: AtomicU32 = AtomicU32::new(u32::MAX);
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

/// A region gets the `threads` that it asks for, `by_clause` or otherwise. A load if nobody counts.
#[inline]
pub(crate) fn asked(threads: u32, by_clause: bool) {
    if IS_ON.load(Ordering::Relaxed) {
        let cpus = capacity::usable_cpus();
        if threads > cpus {
            TOO_LARGE.fetch_add(1, Ordering::Relaxed);
            TOO_LARGE_BY_CLAUSE.fetch_add(by_clause.into(), Ordering::Relaxed);
            TOO_MANY.fetch_max(threads, Ordering::Relaxed);
            CPUS_LEAST.fetch_min(cpus, Ordering::Relaxed);
        }
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
    ) + &TooLarge {
        regions: TOO_LARGE.load(Ordering::Relaxed),
        by_clause: TOO_LARGE_BY_CLAUSE.load(Ordering::Relaxed),
        threads: TOO_MANY.load(Ordering::Relaxed),
        cpus: CPUS_LEAST.load(Ordering::Relaxed),
        may_shrink: icv::globals().own.dynamic,
    }
    .text()
}

/// Regions that were to have more threads than could run.
#[derive(Clone, Copy)]
struct TooLarge {
    regions: u64,
    by_clause: u64,
    threads: u32,
    cpus: u32,
    /// `AMDAHL_OMP_DYNAMIC`.
    may_shrink: Option<bool>,
}

impl TooLarge {
    /// A line, with what can be done about it; nothing where there was none.
    fn text(self) -> String {
        let TooLarge {
            regions,
            by_clause,
            threads,
            cpus,
            may_shrink,
        } = self;
        if regions == 0 {
            return String::new();
        }
        let advice = match may_shrink {
            // Who has forbidden it knows why.
            Some(_) => String::new(),
            None if by_clause == 0 => format!(
                ": OMP_NUM_THREADS={cpus}; if the program sets the number itself and works with any, AMDAHL_OMP_DYNAMIC=true"
            ),
            None => ": if the program works with any number of threads, AMDAHL_OMP_DYNAMIC=true has each take no more than can run"
                .to_owned(),
        };
        format!(
            "amdahl: openmp: {regions} regions asked for up to {threads} threads where {cpus} CPUs can be had, {by_clause} of them by \
             num_threads{advice}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_too_large_is_told_with_what_to_set() {
        let told = TooLarge {
            regions: 12,
            by_clause: 10,
            threads: 48,
            cpus: 2,
            may_shrink: None,
        };
        let text = told.text();
        assert!(
            text.contains("12 regions asked for up to 48 threads where 2 CPUs can be had, 10 of them by num_threads: "),
            "{text}"
        );
        assert!(text.contains("AMDAHL_OMP_DYNAMIC=true"), "{text}");
        assert!(
            !text.contains("OMP_NUM_THREADS="),
            "no number of the environment counts there: {text}"
        );
        assert_eq!(text.matches('\n').count(), 1);
        let by_number = TooLarge {
            by_clause: 0,
            ..told
        };
        assert!(by_number.text().contains(": OMP_NUM_THREADS=2;"));
        let forbidden = TooLarge {
            may_shrink: Some(false),
            ..told
        };
        assert!(forbidden.text().ends_with("by num_threads\n"));
        assert_eq!(TooLarge { regions: 0, ..told }.text(), "");
    }
}
