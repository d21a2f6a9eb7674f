//! Locks of the kernel: their kinds come from the flags of the `contention_begin` tracepoint, or from the function that sleeps.

use crate::event::{CallStack, Frame};

/// Kernel functions through which a lock is taken, and those of the probe itself. Prefixes.
const KERNEL_LOCKING: &[&str] = &[
    "bpf_",
    "__bpf_",
    "__traceiter_",
    "trace_contention",
    "__cond_resched",
    "_raw_",
    "__raw_",
    "do_raw_",
    "native_queued_",
    "__pv_queued_",
    "pv_queued_",
    "queued_",
    "resilient_queued_",
    "osq_",
    "mutex_lock",
    "mutex_spin",
    "mutex_optimistic",
    "__mutex_",
    "ww_mutex_lock",
    "__ww_mutex",
    "rwsem_",
    "down",
    "__down",
    "rt_mutex",
    "__rt_mutex",
    "rt_spin",
    "rtlock",
    "rwbase",
    "percpu_down",
    "__percpu_",
    "percpu_rwsem",
    "synchronize_rcu",
    "synchronize_srcu",
    "__synchronize_srcu",
    "__wait_rcu_gp",
    "rcu_barrier",
    "rcu_sync_enter",
    "wait_for_completion",
    "__wait_for_common",
    "schedule",
    "__schedule",
    "preempt_schedule",
    "io_schedule",
    "raw_spin_rq_lock",
    "__task_rq_lock",
    "task_rq_lock",
    "folio_lruvec_lock",
    "lock_sock_nested",
    "__lock_sock",
    "mmap_read_lock",
    "mmap_write_lock",
    "__mmap_lock",
    "[unknown]",
];

/// Kernel frames of a stack without those of the program that took it, and of the tracepoint where it
/// did. All of them if there are no others.
pub fn seen_frames(stack: &CallStack) -> &[Frame] {
    let is_looking = |frame: &Frame| {
        let names = ["bpf_", "__bpf_", "__traceiter_", "__mmap_lock_do_trace"];
        names.iter().any(|name| frame.symbol.starts_with(name))
    };
    let begin = stack.kernel.iter().position(|frame| !is_looking(frame));
    &stack.kernel[begin.unwrap_or(0)..]
}

/// The kernel function that wants the lock, not one of those that take it.
pub fn kernel_frame(stack: &CallStack) -> Option<&Frame> {
    let is_locking = |frame: &Frame| {
        let named = |name: &&str| frame.symbol.starts_with(*name);
        KERNEL_LOCKING.iter().any(named)
    };
    let wants = stack.kernel.iter().find(|frame| !is_locking(frame));
    wants.or(stack.kernel.first())
}

/// Kind of a kernel lock, as the flags of `contention_begin` tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KernelPrimitive {
    /// Spin lock.
    Spin,
    /// Reader-writer spin lock, wanted for reading.
    RwSpinRead,
    /// Reader-writer spin lock, wanted for writing.
    RwSpinWrite,
    /// Sleeping mutex, whether it was waited for asleep or by spinning on its owner.
    Mutex,
    /// Reader-writer semaphore, wanted for reading.
    RwsemRead,
    /// Reader-writer semaphore, wanted for writing.
    RwsemWrite,
    /// Mutex with priority inheritance.
    Rtmutex,
    /// Per-CPU reader-writer semaphore, wanted for reading.
    PercpuRwsemRead,
    /// Per-CPU reader-writer semaphore, wanted for writing.
    PercpuRwsemWrite,
    /// Address-space lock, wanted for reading.
    MmapRead,
    /// Address-space lock, wanted for writing.
    MmapWrite,
    /// A grace period of read-copy-update.
    Rcu,
    /// A semaphore of System V (`semop`).
    SysvSemaphore,
    /// A lock on a file or a range of it (`flock`, `fcntl`).
    FileLock,
    /// A semaphore or a kind unknown to us.
    Other,
}

impl KernelPrimitive {
    /// From the kernel function that a thread sleeps in (`/proc/PID/wchan`), if that is one that
    /// waits for a lock.
    pub fn from_wchan(wchan: &str) -> Option<KernelPrimitive> {
        use KernelPrimitive as K;
        const NAMES: &[(&str, KernelPrimitive)] = &[
            ("rwsem_down_read", K::RwsemRead),
            ("rwsem_down_write", K::RwsemWrite),
            ("down_read", K::RwsemRead),
            ("down_write", K::RwsemWrite),
            ("mmap_read_lock", K::MmapRead),
            ("mmap_write_lock", K::MmapWrite),
            ("lock_mm_and_find_vma", K::MmapRead),
            ("vm_mmap_pgoff", K::MmapWrite),
            ("__vm_munmap", K::MmapWrite),
            ("mutex_lock", K::Mutex),
            ("__mutex_lock", K::Mutex),
            ("rt_mutex_", K::Rtmutex),
            ("__rt_mutex_", K::Rtmutex),
            ("percpu_rwsem_wait", K::PercpuRwsemRead),
            ("__percpu_down_read", K::PercpuRwsemRead),
            ("percpu_down_write", K::PercpuRwsemWrite),
            ("synchronize_rcu", K::Rcu),
            ("synchronize_srcu", K::Rcu),
            ("__synchronize_srcu", K::Rcu),
            ("synchronize_rcu_expedited", K::Rcu),
            ("__wait_rcu_gp", K::Rcu),
            ("wait_rcu_", K::Rcu),
            ("rcu_barrier", K::Rcu),
            ("rcu_sync_enter", K::Rcu),
            ("do_semtimedop", K::SysvSemaphore),
            ("__do_semtimedop", K::SysvSemaphore),
            ("locks_lock_inode_wait", K::FileLock),
            ("flock_lock_inode_wait", K::FileLock),
            ("posix_lock_inode_wait", K::FileLock),
            ("fcntl_setlk", K::FileLock),
            ("do_lock_file_wait", K::FileLock),
            ("__down", K::Other),
        ];
        let of = |(name, _): &&(&str, _)| wchan.starts_with(name);
        NAMES.iter().find(of).map(|&(_, primitive)| primitive)
    }

    /// What a thread waits for that sleeps in the kernel and must not be woken by signals, if its
    /// stack tells that it is something to which `contention_begin` does not come: RCU, and who wants a per-CPU rwsem to write and
    /// waits for readers (newer kernels tell of such a one only where there is another writer).
    pub fn from_sleep(stack: &CallStack) -> Option<KernelPrimitive> {
        use KernelPrimitive as K;
        let told = |frame: &Frame| K::from_wchan(&frame.symbol);
        let mut frames = stack.kernel.iter().filter_map(told);
        frames.find(|primitive| matches!(primitive, K::Rcu | K::PercpuRwsemWrite))
    }

    /// From `LCB_F_*` of the kernel's `include/trace/events/lock.h` (5.19 and later).
    pub fn from_flags(flags: u32, is_mmap_lock: bool) -> KernelPrimitive {
        use KernelPrimitive as K;
        const SPIN: u32 = 1;
        const READ: u32 = 2;
        const WRITE: u32 = 4;
        const RT: u32 = 8;
        const PERCPU: u32 = 16;
        const MUTEX: u32 = 32;
        let has = |flag: u32| flags & flag != 0;
        match () {
            () if is_mmap_lock && has(READ) => K::MmapRead,
            () if is_mmap_lock => K::MmapWrite,
            // Spinning on the owner of a mutex has both flags.
            () if has(MUTEX) => K::Mutex,
            () if has(PERCPU) && has(READ) => K::PercpuRwsemRead,
            () if has(PERCPU) => K::PercpuRwsemWrite,
            () if has(RT) && !has(READ | WRITE) => K::Rtmutex,
            () if has(SPIN) && has(READ) => K::RwSpinRead,
            () if has(SPIN) && has(WRITE) => K::RwSpinWrite,
            () if has(SPIN) => K::Spin,
            () if has(READ) => K::RwsemRead,
            () if has(WRITE) => K::RwsemWrite,
            () => K::Other,
        }
    }

    /// A waiter burns CPU time.
    pub fn spins(self) -> bool {
        use KernelPrimitive as K;
        matches!(self, K::Spin | K::RwSpinRead | K::RwSpinWrite)
    }

    /// The field's word for it.
    pub fn name(self) -> &'static str {
        use KernelPrimitive as K;
        match self {
            K::Spin => "spinlock",
            K::RwSpinRead => "rwlock (read)",
            K::RwSpinWrite => "rwlock (write)",
            K::Mutex => "mutex",
            K::RwsemRead => "rwsem (read)",
            K::RwsemWrite => "rwsem (write)",
            K::Rtmutex => "rtmutex",
            K::PercpuRwsemRead => "percpu-rwsem (read)",
            K::PercpuRwsemWrite => "percpu-rwsem (write)",
            K::MmapRead => "mmap_lock (read)",
            K::MmapWrite => "mmap_lock (write)",
            K::Rcu => "RCU",
            K::SysvSemaphore => "SysV semaphore",
            K::FileLock => "file lock",
            K::Other => "semaphore",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_kernel_locks() {
        for (flags, is_mmap, name) in [
            (1, false, "spinlock"),
            (1 | 2, false, "rwlock (read)"),
            (2, false, "rwsem (read)"),
            (4, false, "rwsem (write)"),
            (4, true, "mmap_lock (write)"),
            (8, false, "rtmutex"),
            (2 | 16, false, "percpu-rwsem (read)"),
            (4 | 16, false, "percpu-rwsem (write)"),
            (32, false, "mutex"),
            (1 | 32, false, "mutex"),
            (0, false, "semaphore"),
        ] {
            assert_eq!(KernelPrimitive::from_flags(flags, is_mmap).name(), name);
        }
    }

    /// A writer of a per-CPU rwsem that finds another one waiting for readers to see it waits on, without a call of
    /// RCU's own; one that waits for readers themselves was not told.
    #[test]
    fn sleeps_for_grace_periods_and_readers_are_told_by_their_calls() {
        let of = |names: &[&str]| {
            let frame = |symbol: &&str| Frame {
                symbol: (*symbol).to_owned(),
                ..Frame::default()
            };
            KernelPrimitive::from_sleep(&CallStack {
                kernel: names.iter().map(frame).collect(),
                ..CallStack::default()
            })
        };
        let writer = ["schedule", "rcu_sync_enter", "percpu_down_write"];
        for names in [&writer[..], &["__wait_rcu_gp", "synchronize_rcu_normal"]] {
            assert_eq!(of(names), Some(KernelPrimitive::Rcu), "{names:?}");
        }
        let writes = Some(KernelPrimitive::PercpuRwsemWrite);
        assert_eq!(of(&["schedule", "percpu_down_write"]), writes);
        assert_eq!(of(&["schedule", "io_schedule", "folio_wait_bit"]), None);
    }

    #[test]
    fn who_wants_a_kernel_lock_is_beyond_the_functions_that_take_it() {
        let frame = |symbol: &&str| Frame {
            symbol: (*symbol).to_owned(),
            ..Frame::default()
        };
        let kernel = [
            "bpf_prog_1234_on_end",
            "__traceiter_contention_end",
            "__mutex_lock.constprop.0",
            "pipe_write",
            "vfs_write",
        ];
        let stack = CallStack {
            kernel: kernel.iter().map(frame).collect(),
            ..CallStack::default()
        };
        assert_eq!(kernel_frame(&stack).unwrap().symbol, "pipe_write");
        assert_eq!(seen_frames(&stack)[0].symbol, "__mutex_lock.constprop.0");
        let none = CallStack::default();
        assert!(seen_frames(&none).is_empty());
    }
}
