//! Functions of libraries that loops call while they wait.

use std::borrow::Cow;

/// What a function of a library does for a loop that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Known {
    /// Reads a clock, and writes to nothing but what the caller gives it for that.
    Clock,
    /// Takes a lock if it is free, and tells whether it was.
    TryLock,
    /// Lets others run that are ready to.
    Yield,
}

const CLOCK: &[&str] = &[
    "clock_gettime",
    "gettimeofday",
    "vdso_clock_gettime",
    "vdso_gettimeofday",
    "vdso_time",
    "kernel_clock_gettime",
    "omp_get_wtime",
    "runtime.nanotime",
    "runtime.nanotime1",
    "runtime.walltime",
    "std::chrono::_V2::steady_clock::now",
    "std::chrono::_V2::system_clock::now",
    "std::chrono::__1::steady_clock::now",
    "std::time::Instant::elapsed",
    "std::sys::pal::unix::time::Timespec::now",
    "std::time::Instant::now",
    "time.Now",
    "time.Since",
    "time.now",
    "time.runtimeNano",
];
const TRY_LOCK: &[&str] = &[
    "mtx_trylock",
    "omp_test_lock",
    "pthread_mutex_trylock",
    "pthread_rwlock_tryrdlock",
    "pthread_rwlock_trywrlock",
    "pthread_spin_trylock",
    "sem_trywait",
    "sync.(*Mutex).TryLock",
];
const YIELD: &[&str] = &[
    "pthread_yield",
    "runtime.Gosched",
    "sched_yield",
    "std::thread::yield_now",
    "thrd_yield",
];

impl Known {
    /// What the function of this name does, demangled or not; leading underscores, `GI_`, the types of C++ arguments, versions, brackets
    /// around Rust types and the calling convention of Go's assembly code do not matter.
    ///
    /// ```
    /// use amdahl_speedup::spin::Known;
    /// assert_eq!(Known::of("__GI___sched_yield"), Some(Known::Yield));
    /// assert_eq!(Known::of("std::chrono::_V2::steady_clock::now()"), Some(Known::Clock));
    /// assert_eq!(Known::of("clock_settime"), None);
    /// ```
    pub fn of(name: &str) -> Option<Known> {
        let plain = name.trim_start_matches('_');
        let plain = plain.strip_prefix("GI_").unwrap_or(plain);
        let plain = plain.trim_start_matches('_');
        let plain = plain.split(['@', '(']).next().unwrap_or(plain);
        let plain = plain.strip_suffix(".abi0").unwrap_or(plain);
        let plain = &*match plain.strip_prefix('<') {
            Some(of_type) => Cow::Owned(of_type.replacen('>', "", 1)),
            None => Cow::Borrowed(plain),
        };
        // Methods of Go have brackets of their own.
        let is_in = |names: &[&str]| names.contains(&plain) || names.contains(&name);
        if is_in(CLOCK) {
            Some(Known::Clock)
        } else if is_in(TRY_LOCK) {
            Some(Known::TryLock)
        } else if is_in(YIELD) {
            Some(Known::Yield)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_however_they_are_written() {
        for (name, known) in [
            ("__vdso_clock_gettime", Some(Known::Clock)),
            ("clock_gettime@@GLIBC_2.17", Some(Known::Clock)),
            ("std::time::Instant::now", Some(Known::Clock)),
            ("time.Since", Some(Known::Clock)),
            ("runtime.nanotime1.abi0", Some(Known::Clock)),
            (
                "<std::sys::pal::unix::time::Timespec>::now",
                Some(Known::Clock),
            ),
            ("__pthread_mutex_trylock", Some(Known::TryLock)),
            ("sync.(*Mutex).TryLock", Some(Known::TryLock)),
            ("sync.(*Mutex).Lock", None),
            ("pthread_mutex_lock", None),
            ("__sched_yield", Some(Known::Yield)),
            ("std::time::Instant::now_in_my_crate", None),
            ("", None),
        ] {
            assert_eq!(Known::of(name), known, "{name}");
        }
    }
}
