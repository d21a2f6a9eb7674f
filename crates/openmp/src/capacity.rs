//! How many CPUs can be had: at once, by affinity masks, and all the time, by the quota of control groups too. Either may change while the program
//! runs, so both are looked at again, where a region begins and by threads that wait, and so seldom that it costs next to
//! nothing.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use amdahl_phantom_page::coarse_now_ns;
use amdahl_topology::CpuSet;

use crate::{icv, sys};

/// Looks are no closer together than this ...
const LOOK_NS: u64 = 1_000_000_000;
/// ... and take no more than this part of a CPU.
const LOOK_SHARE: u64 = 1_000;

struct Capacity {
    /// 0 before the first use.
    cpus: AtomicU32,
    /// When it is looked at again.
    due_ns: AtomicU64,
}

static CAPACITY: Capacity = Capacity {
    cpus: AtomicU32::new(0),
    due_ns: AtomicU64::new(u64::MAX),
};

/// CPUs in the masks of this process's threads, and in its quota, as they were when those told last.
static MASKS: AtomicU32 = AtomicU32::new(0);
static QUOTA: AtomicU32 = AtomicU32::new(u32::MAX);

/// Finds out how many CPUs this process may use.
pub(crate) fn init() {
    // Of the process when it began: the first thread that comes here may be confined.
    let allowed = icv::globals().available_cpus();
    MASKS.store(allowed, Ordering::Relaxed);
    CAPACITY
        .cpus
        .store(allowed.min(look_at_quota()), Ordering::Relaxed);
    let due_ns = coarse_now_ns().saturating_add(LOOK_NS);
    CAPACITY.due_ns.store(due_ns, Ordering::Relaxed);
}

/// CPUs that this process may use all the time, by affinity mask and quota; at least 1.
pub fn usable_cpus() -> u32 {
    CAPACITY.cpus.load(Ordering::Relaxed).max(1)
}

/// CPUs that this process may use at once, by affinity mask; at least 1. A quota takes CPU time and no CPU: until it is used up as
/// many threads run as there are CPUs.
pub(crate) fn cpus_at_once() -> u32 {
    MASKS.load(Ordering::Relaxed).max(1)
}

/// Looks again if it is time to. A cheap clock and a load where it is not.
#[inline]
pub(crate) fn follow() {
    let now = coarse_now_ns();
    if CAPACITY.is_due(now) {
        CAPACITY.follow(now, look, sys::thread_cpu_ns);
    }
}

fn look() -> u32 {
    look_at_masks().min(look_at_quota())
}

fn look_at_masks() -> u32 {
    let had = MASKS.load(Ordering::Relaxed);
    // Threads that are bound to places have masks of our own making.
    if icv::globals().places.is_some() {
        return had;
    }
    let Ok(own) = amdahl_topology::allowed() else {
        return had;
    };
    let own_number = sys::thread_number();
    let others = sys::threads().filter(|&number| number != own_number);
    let masks = others.filter_map(|number| amdahl_topology::allowed_of(number).ok());
    let cpus = of_masks(had, &own, masks);
    MASKS.store(cpus, Ordering::Relaxed);
    cpus
}

fn look_at_quota() -> u32 {
    let cpus = of_quota(QUOTA.load(Ordering::Relaxed), Path::new("/"));
    QUOTA.store(cpus, Ordering::Relaxed);
    cpus
}

impl Capacity {
    #[inline]
    fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns.load(Ordering::Relaxed)
    }

    /// Looks at `now_ns`, unless another thread does. `cpu_ns` tells what that takes.
    #[cold]
    fn follow(&self, now_ns: u64, look: impl FnOnce() -> u32, cpu_ns: impl Fn() -> u64) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        let next_ns = now_ns.saturating_add(LOOK_NS);
        // Relaxed, as all here: numbers, and nothing else is known by them.
        let is_ours = due_ns <= now_ns
            && self
                .due_ns
                .compare_exchange(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !is_ours {
            return;
        }
        let _whole = sys::not_cancelled();
        let begun_ns = cpu_ns();
        self.cpus.store(look().max(1), Ordering::Relaxed);
        let cost_ns = cpu_ns().saturating_sub(begun_ns);
        let bearable_ns = now_ns.saturating_add(cost_ns.saturating_mul(LOOK_SHARE));
        self.due_ns.fetch_max(bearable_ns, Ordering::Relaxed);
    }
}

/// CPUs that the quota lets run at once, which were `had` until now; `root` stands for `/`.
fn of_quota(had: u32, root: &Path) -> u32 {
    match amdahl_topology::quota_from(root) {
        // One of one and a half lets two threads run nearly all the time.
        Ok(Some(quota)) => quota.cpus.ceil() as u32,
        Ok(None) if root.join("proc/self/cgroup").exists() => u32::MAX,
        // A program that has no files left, or has gone into a folder without /proc, is told nothing.
        Ok(None) | Err(_) => had,
    }
}

/// What the masks of a process's threads say of its CPUs, which were `had` until now: `own` is that of the thread that asks.
///
/// A program may confine each of its threads by itself, and any of them may begin a region. So CPUs are gone only where all
/// threads, and more than one, have the same mask; and there are at least those that who asks may run on.
fn of_masks(had: u32, own: &CpuSet, others: impl Iterator<Item = CpuSet>) -> u32 {
    let cpus = u32::try_from(own.len()).unwrap_or(u32::MAX).max(1);
    let mut others = others.peekable();
    let are_several = others.peek().is_some();
    if are_several && others.all(|mask| mask == *own) {
        cpus
    } else {
        cpus.max(had)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    /// The quota was read at the first use: after it had changed, threads took themselves for too many, or for few enough, to the end.
    #[test]
    fn a_quota_that_changes_is_followed_once_a_second() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/job\n");
        let mounts = "30 22 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
        write("proc/self/mountinfo", mounts);
        let limit = |text| write("sys/fs/cgroup/job/cpu.max", text);
        let capacity = Capacity {
            cpus: AtomicU32::new(16),
            due_ns: AtomicU64::new(0),
        };
        let (had, clock_ns) = (Cell::new(u32::MAX), Cell::new(0));
        let follow = |now_ns, cost_ns| {
            let look = || {
                clock_ns.set(clock_ns.get() + cost_ns);
                of_quota(had.get(), root.path()).min(16)
            };
            capacity.follow(now_ns, look, || clock_ns.get());
            had.set(capacity.cpus.load(Ordering::Relaxed));
            had.get()
        };
        limit("max 100000\n");
        assert_eq!(follow(0, 100_000), 16);
        limit("150000 100000\n");
        assert!(!capacity.is_due(LOOK_NS - 1));
        assert_eq!(follow(LOOK_NS - 1, 0), 16);
        assert!(capacity.is_due(LOOK_NS));
        assert_eq!(follow(LOOK_NS, 3_000_000), 2);
        // That was a dear look: the next one is later.
        limit("max 100000\n");
        assert_eq!(follow(4 * LOOK_NS - 1, 0), 2);
        assert_eq!(follow(4 * LOOK_NS, 0), 16);
        limit("400000 100000\n");
        assert_eq!(follow(5 * LOOK_NS, 0), 4);
        // No quota is another thing than none that can be read.
        fs::remove_file(root.path().join("proc/self/cgroup")).unwrap();
        assert_eq!(follow(6 * LOOK_NS, 0), 4);
    }

    #[test]
    fn masks_that_all_threads_share_are_the_process_s() {
        let set = |(first, end): (u32, u32)| (first..end).collect::<CpuSet>();
        let of = |had, own, others: &[(u32, u32)]| {
            of_masks(had, &set(own), others.iter().copied().map(set))
        };
        // Confined from outside, and set free again.
        assert_eq!(of(16, (0, 4), &[(0, 4), (0, 4)]), 4);
        assert_eq!(of(4, (0, 16), &[(0, 16), (0, 16)]), 16);
        // Each by itself, or before it has others.
        assert_eq!(of(16, (0, 1), &[(1, 2), (2, 3)]), 16);
        assert_eq!(of(16, (0, 1), &[(0, 16)]), 16);
        assert_eq!(of(16, (0, 1), &[]), 16);
        // One that may run on more than was known.
        assert_eq!(of(1, (0, 16), &[(0, 1)]), 16);
        assert_eq!(of(1, (0, 16), &[]), 16);
        assert_eq!(of(4, (0, 1), &[(0, 16)]), 4);
    }
}
