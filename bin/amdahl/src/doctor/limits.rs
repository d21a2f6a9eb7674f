//! Limits of this process that bound what is seen without BPF.

use amdahl_probe::{perf, unprivileged};

use super::{Check, check};

/// Threads whose files can be kept open: as many as a program with some for each CPU has.
fn threads_wanted(cpus: usize) -> usize {
    (8 * cpus).clamp(128, unprivileged::threads_kept_open(None))
}

/// `limit`: open files that this process may allow itself; `None` without a limit.
pub fn open_files(limit: Option<u64>, cpus: usize) -> Check {
    let threads = unprivileged::threads_kept_open(limit);
    let wanted = threads_wanted(cpus);
    let shown = limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let enough = unprivileged::open_files_for(wanted);
    check(
        "open files",
        threads >= wanted,
        format!("{shown} (ulimit -Hn): the files of {threads} threads stay open"),
        "without BPF, more threads than that are looked at more seldom, because their files are opened for each look",
        &format!(
            "as root: ulimit -n {enough}; LimitNOFILE of a service, nofile in /etc/security/limits.conf for a user"
        ),
    )
}

/// `limit`: bytes that this process may lock; `None` without a limit. `per_cpu_kib`: what perf events may lock of each CPU
/// besides. The buffers of samples are locked.
pub fn locked_memory(limit: Option<u64>, per_cpu_kib: u64, cpus: usize, is_exempt: bool) -> Check {
    let cpus = cpus as u64;
    let needed = perf::RING_BYTES * cpus;
    let allowed = limit.map(|limit| limit.saturating_add(per_cpu_kib * 1024 * cpus));
    let shown = match allowed {
        None => "unlimited".to_owned(),
        Some(_) if is_exempt => "unlimited for this process".to_owned(),
        Some(bytes) => format!(
            "{} KiB for perf events (ulimit -l and kernel.perf_event_mlock_kb)",
            bytes >> 10
        ),
    };
    check(
        "locked memory",
        is_exempt || allowed.is_none_or(|allowed| allowed >= needed),
        format!("{shown}; buffers of samples take {} KiB", needed >> 10),
        "buffers of samples are smaller, so that samples are lost where many come at once, or there are none",
        &format!(
            "ulimit -l {}, or as root: sysctl kernel.perf_event_mlock_kb={}; or CAP_IPC_LOCK",
            needed >> 10,
            (perf::RING_BYTES >> 10) * 2
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_bounds_the_threads() {
        assert!(open_files(None, 512).ok);
        assert!(
            open_files(Some(1024), 2).ok,
            "the usual limit, a small machine"
        );
        let many = open_files(Some(1024), 64);
        assert!(!many.ok && many.remedy.contains("ulimit -n "), "{many:?}");
        assert!(!open_files(Some(0), 1).ok);
        // What the remedy says is enough.
        for cpus in [1, 16, 64, 256] {
            let needed = unprivileged::open_files_for(threads_wanted(cpus)) as u64;
            assert!(
                open_files(Some(needed), cpus).ok,
                "{cpus} CPUs, {needed} files"
            );
            assert!(!open_files(Some(needed / 2), cpus).ok, "{cpus} CPUs");
        }
    }

    #[test]
    fn buffers_count_against_both_limits_of_locked_memory() {
        let ring = perf::RING_BYTES;
        assert!(
            locked_memory(Some(0), 516, 2, false).ok,
            "the usual limit of perf events"
        );
        assert!(!locked_memory(Some(0), 0, 2, false).ok);
        assert!(!locked_memory(Some(2 * ring - 1), 0, 2, false).ok);
        assert!(locked_memory(Some(2 * ring), 0, 2, false).ok);
        assert!(locked_memory(Some(u64::MAX), 516, 2, false).ok);
        assert!(locked_memory(None, 0, 512, false).ok);
        assert!(locked_memory(Some(0), 0, 512, true).ok);
    }
}
