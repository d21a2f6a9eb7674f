//! Which lock, barrier or condition a thread waits on: the finer question behind [`crate::wait`].
//!
//! `wait` decides what a wait is for, and its verdict stands; names only refine it here. The
//! kinds of kernel locks come from the flags of the `contention_begin` tracepoint.

mod names;

use crate::cause::Cause;
use crate::event::{Blocked, CallStack, Frame};
use crate::snapshot::WaitKind;
use crate::wait::{INTERPRETER, PartOfLibc, Wait, classify, is_libc, is_runtime, part_of_libc};

/// What kind of thing is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Primitive {
    /// Mutual exclusion.
    Mutex,
    /// Reader-writer lock, wanted for reading.
    RwLockRead,
    /// Reader-writer lock, wanted for writing.
    RwLockWrite,
    /// Counting semaphore.
    Semaphore,
    /// A lock that belongs to an object, with a condition in it (Java's `synchronized`).
    Monitor,
    /// Initialisation that happens once.
    Once,
    /// A lock whose waiters burn CPU time.
    Spin,
    /// Barrier, latch.
    Barrier,
    /// Condition variable.
    Condvar,
    /// A channel, a queue, a parked thread: somebody else's message.
    Message,
    /// The end of another thread or task.
    Join,
    /// A worker of a pool waits for its next task.
    Worker,
    /// A runtime's own housekeeping thread.
    Service,
    /// A futex that no name explains.
    Futex,
}

/// How the waits of a primitive are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Somebody holds what is wanted: such a wait is a loss.
    Lock,
    /// Everybody waits for the slowest.
    Barrier,
    /// For a message, a condition or a task: a loss only if there was something else to do.
    Partner,
}

impl Primitive {
    /// How its waits are to be read. A nameless futex is told by its use instead
    /// ([`crate::wait::FutexUse`]); without that it counts as a lock.
    pub fn class(self) -> Class {
        use Primitive as P;
        match self {
            P::Mutex
            | P::RwLockRead
            | P::RwLockWrite
            | P::Semaphore
            | P::Monitor
            | P::Once
            | P::Spin
            | P::Futex => Class::Lock,
            P::Barrier => Class::Barrier,
            P::Condvar | P::Message | P::Join | P::Worker | P::Service => Class::Partner,
        }
    }

    /// Who is woken may find that somebody else was faster and sleeps again in the same call.
    pub fn may_barge(self) -> bool {
        use Primitive as P;
        matches!(
            self,
            P::Mutex | P::RwLockRead | P::RwLockWrite | P::Semaphore | P::Monitor | P::Once
        )
    }

    fn noun(self) -> &'static str {
        use Primitive as P;
        match self {
            P::Mutex => "mutex",
            P::RwLockRead => "rwlock (read)",
            P::RwLockWrite => "rwlock (write)",
            P::Semaphore => "semaphore",
            P::Monitor => "monitor",
            P::Once => "once",
            P::Spin => "spinlock",
            P::Barrier => "barrier",
            P::Condvar => "condvar",
            P::Message => "message",
            P::Join => "join",
            P::Worker => "idle worker",
            P::Service => "service",
            P::Futex => "futex",
        }
    }
}

/// Whose primitive it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Library {
    /// POSIX threads, and what is built on them without a name of its own (`std::mutex`).
    Pthread,
    /// The C++ library's own (`std::barrier`, `std::counting_semaphore`).
    Cpp,
    /// Rust's standard library.
    Rust,
    /// Rust's `parking_lot`.
    ParkingLot,
    /// Go's runtime and `sync`.
    Go,
    /// Java.
    Java,
    /// OpenMP.
    OpenMp,
    /// CPython's global lock and its own locks.
    Python,
    /// The allocator of the C library.
    Malloc,
    /// Streams of the C library (`FILE`).
    Stdio,
    /// Another lock within the C library.
    Libc,
    /// Not told by names.
    Unknown,
}

impl Library {
    /// What names of its primitives begin with.
    pub fn adjective(self) -> &'static str {
        match self {
            Library::Pthread => "pthread ",
            Library::Cpp => "C++ ",
            Library::Rust => "Rust ",
            Library::ParkingLot => "parking_lot ",
            Library::Go => "Go ",
            Library::Java => "Java ",
            Library::OpenMp => "OpenMP ",
            Library::Python => "Python ",
            Library::Malloc => "malloc ",
            Library::Stdio => "stdio ",
            Library::Libc => "libc ",
            Library::Unknown => "",
        }
    }
}

/// What a thread in user space waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserLock {
    /// Its kind.
    pub primitive: Primitive,
    /// Whose it is.
    pub library: Library,
}

impl From<WaitKind> for UserLock {
    /// What the preload library calls the primitives of libc.
    fn from(kind: WaitKind) -> UserLock {
        UserLock {
            primitive: match kind {
                WaitKind::Mutex => Primitive::Mutex,
                WaitKind::RwlockRead => Primitive::RwLockRead,
                WaitKind::RwlockWrite => Primitive::RwLockWrite,
                WaitKind::Condition => Primitive::Condvar,
                WaitKind::Semaphore => Primitive::Semaphore,
                WaitKind::Barrier => Primitive::Barrier,
                WaitKind::Join => Primitive::Join,
                WaitKind::Spin => Primitive::Spin,
            },
            library: Library::Pthread,
        }
    }
}

impl std::fmt::Display for UserLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.library.adjective())?;
        f.write_str(self.primitive.noun())
    }
}

/// Frames looked at, from the innermost.
const DEPTH: usize = 32;

/// Functions of Go's runtime in which a goroutine is parked for a semaphore, and for a condition.
pub const GO_WAITS: [&str; 2] = ["runtime.semacquire1", GO_CONDITION];
const GO_CONDITION: &str = "sync.runtime_notifyListWait";

/// What a thread that sleeps in a futex waits on, or a goroutine that is parked in one of [`GO_WAITS`].
pub fn user_lock(stack: &CallStack) -> UserLock {
    let futex = Blocked {
        syscall: u32::try_from(libc::SYS_futex).ok(),
        ..Blocked::default()
    };
    let verdict = classify(&futex, Some(stack));
    let parked = parked_in(stack);
    let is_possible = |primitive: Primitive| match verdict {
        // A mutex that `Cond.Wait` takes again is none.
        _ if parked.is_some() => {
            (primitive == Primitive::Condvar) == (parked == Some(GO_CONDITION))
        }
        Wait::For(Cause::LockWait) => primitive.class() == Class::Lock,
        Wait::For(Cause::Barrier) => primitive == Primitive::Barrier,
        Wait::For(Cause::Serial) => primitive == Primitive::Join,
        // A thread of Go without work: the goroutine that it parked is on the stack, too.
        Wait::IdleWorker => true,
        Wait::Peer => matches!(primitive, Primitive::Condvar | Primitive::Message),
        _ => false,
    };
    let is_idle = verdict == Wait::IdleWorker;
    let named = stack
        .user
        .iter()
        .take_while(|frame| is_runtime(frame))
        .take(DEPTH)
        .filter_map(named)
        // What is built on other primitives lies farther out.
        .filter(|lock| is_possible(lock.primitive) && (!is_idle || lock.library == Library::Go))
        .last();
    named.unwrap_or_else(|| UserLock {
        primitive: match verdict {
            Wait::For(Cause::LockWait) => Primitive::Mutex,
            Wait::For(Cause::Barrier) => Primitive::Barrier,
            Wait::For(Cause::Serial) => Primitive::Join,
            Wait::Peer => Primitive::Message,
            Wait::IdleWorker => Primitive::Worker,
            Wait::Service => Primitive::Service,
            _ => Primitive::Futex,
        },
        library: library_of(stack),
    })
}

/// Which of [`GO_WAITS`] a goroutine's stack ends in, apart from what parks it, if that was inlined there.
fn parked_in(stack: &CallStack) -> Option<&'static str> {
    let parks = |frame: &&Frame| frame.symbol.starts_with("runtime.gopark");
    let innermost = stack.user.iter().find(|frame| !parks(frame))?;
    GO_WAITS.into_iter().find(|name| innermost.symbol == *name)
}

fn named(frame: &Frame) -> Option<UserLock> {
    if let Some(part) = part_of_libc(frame) {
        return Some(UserLock {
            primitive: Primitive::Mutex,
            library: match part {
                PartOfLibc::Malloc => Library::Malloc,
                PartOfLibc::Stdio => Library::Stdio,
            },
        });
    }
    // Rust writes `<T>::f` for methods.
    let plain = frame.symbol.replace(['<', '>'], "");
    let (_, library, primitive) = names::NAMES
        .iter()
        .find(|(name, ..)| plain.contains(name))?;
    Some(UserLock {
        primitive: *primitive,
        library: *library,
    })
}

/// Whose runtime the innermost named frames are of.
fn library_of(stack: &CallStack) -> Library {
    let runtime = stack.user.iter().take_while(|frame| is_runtime(frame));
    let mut found = Library::Unknown;
    for frame in runtime.take(DEPTH) {
        let symbol = frame.symbol.trim_start_matches(['<', '&']);
        if symbol.starts_with("runtime.") || symbol.starts_with("sync.") {
            return Library::Go;
        } else if frame.module.contains("libjvm") || symbol.starts_with("java.") {
            return Library::Java;
        } else if frame.module.contains("libgomp") || symbol.starts_with("__kmp") {
            return Library::OpenMp;
        } else if symbol.starts_with("pthread_") || symbol.starts_with("__pthread") {
            found = Library::Pthread;
        }
    }
    found
}

/// The frame of the program's own code that waits: where a reader should look.
pub fn own_frame(stack: &CallStack) -> Option<&Frame> {
    let named = |frame: &&Frame| !frame.symbol.is_empty() && frame.symbol != "[unknown]";
    let user = || stack.user.iter();
    user()
        .filter(named)
        .find(|frame| !is_runtime(frame))
        .or_else(|| user().find(|frame| frame.symbol == INTERPRETER))
        .or_else(|| user().filter(named).find(|frame| !is_libc(frame)))
        // What the C library does by itself, as when a thread ends: the outermost function says most.
        .or_else(|| user().filter(named).rfind(|frame| !begins_thread(frame)))
        .or_else(|| user().find(named))
}

/// One of the C library that calls what a thread does.
fn begins_thread(frame: &Frame) -> bool {
    const NAMES: &[&str] = &["clone", "start_thread", "libc_start_"];
    let plain = frame.symbol.trim_start_matches('_');
    frame.symbol == "_start" || NAMES.iter().any(|name| plain.starts_with(name))
}

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

    fn stack(names: &[(&str, &str)]) -> CallStack {
        let frame = |&(symbol, module): &(&str, &str)| Frame {
            symbol: symbol.to_owned(),
            module: module.to_owned(),
            ..Frame::default()
        };
        CallStack {
            user: names.iter().map(frame).collect(),
            ..CallStack::default()
        }
    }

    #[test]
    fn each_library_calls_its_locks_by_their_names() {
        let libc = "/lib/libc.so.6";
        let jvm = "/usr/lib/jvm/lib/server/libjvm.so";
        for (names, expected) in [
            (
                vec![("__lll_lock_wait", libc), ("pthread_mutex_lock", libc)],
                "pthread mutex",
            ),
            (
                vec![
                    ("__futex_abstimed_wait64", libc),
                    ("__pthread_rwlock_rdlock_full64", libc),
                    ("___pthread_rwlock_rdlock", libc),
                ],
                "pthread rwlock (read)",
            ),
            (
                vec![("___pthread_rwlock_wrlock", libc)],
                "pthread rwlock (write)",
            ),
            (vec![("pthread_barrier_wait", libc)], "pthread barrier"),
            (vec![("__new_sem_wait_slow64", libc)], "pthread semaphore"),
            (
                vec![("pthread_cond_wait@@GLIBC_2.3.2", libc)],
                "pthread condvar",
            ),
            (
                vec![("__lll_lock_wait_private", libc), ("_int_free", libc)],
                "malloc mutex",
            ),
            (
                vec![("__lll_lock_wait_private", libc), ("realloc", libc)],
                "malloc mutex",
            ),
            // Without symbols of the library's own functions.
            (
                vec![("[unknown]", libc), ("__libc_calloc", libc)],
                "malloc mutex",
            ),
            // Somebody else's function of that name tells nothing of libc's locks.
            (
                vec![("pthread_mutex_lock", libc), ("malloc", "/a")],
                "pthread mutex",
            ),
            (
                vec![
                    ("__lll_lock_wait_private", libc),
                    ("_IO_fwrite", libc),
                    ("main", "/a"),
                ],
                "stdio mutex",
            ),
            (vec![("[unknown]", libc), ("puts", libc)], "stdio mutex"),
            (
                vec![
                    ("__lll_lock_wait_private", libc),
                    ("__run_prefork_handlers", libc),
                    ("fork", libc),
                ],
                "libc mutex",
            ),
            (
                vec![
                    ("syscall", libc),
                    ("std::sys::sync::mutex::futex::Mutex::lock_contended", "/a"),
                ],
                "Rust mutex",
            ),
            (
                vec![(
                    "<std::sys::sync::rwlock::futex::RwLock>::read_contended",
                    "/a",
                )],
                "Rust rwlock (read)",
            ),
            (
                vec![(
                    "<parking_lot::raw_rwlock::RawRwLock>::lock_exclusive_slow",
                    "/a",
                )],
                "parking_lot rwlock (write)",
            ),
            (
                vec![
                    ("runtime.futex", "/a"),
                    ("runtime.stopm", "/a"),
                    ("runtime.findRunnable", "/a"),
                    ("runtime.schedule", "/a"),
                    ("runtime.mcall", "/a"),
                    ("runtime.gopark", "/a"),
                    ("runtime.semacquire1", "/a"),
                    ("sync.runtime_SemacquireMutex", "/a"),
                    ("sync.(*Mutex).lockSlow", "/a"),
                ],
                "Go mutex",
            ),
            (
                vec![
                    ("runtime.futex", "/a"),
                    ("runtime.stopm", "/a"),
                    ("runtime.findRunnable", "/a"),
                ],
                "Go idle worker",
            ),
            // Goroutines that are parked, whatever their threads do.
            (
                vec![
                    ("runtime.goparkunlock", "/a"),
                    ("runtime.semacquire1", "/a"),
                    ("sync.runtime_SemacquireWaitGroup", "/a"),
                    ("sync.(*WaitGroup).Wait", "/a"),
                ],
                "Go join",
            ),
            (
                vec![
                    ("runtime.semacquire1", "/a"),
                    ("sync.(*Mutex).lockSlow", "/a"),
                    ("sync.(*RWMutex).Lock", "/a"),
                ],
                "Go rwlock (write)",
            ),
            (
                vec![
                    ("sync.runtime_notifyListWait", "/a"),
                    ("sync.(*Cond).Wait", "/a"),
                ],
                "Go condvar",
            ),
            (
                vec![
                    ("runtime.semacquire1", "/a"),
                    ("sync.(*Mutex).lockSlow", "/a"),
                    ("sync.(*Cond).Wait", "/a"),
                ],
                "Go mutex",
            ),
            (
                vec![
                    ("pthread_cond_wait", libc),
                    ("os::PlatformEvent::park()", jvm),
                    ("ObjectMonitor::EnterI(JavaThread*)", jvm),
                ],
                "Java monitor",
            ),
            // Whose `readLock` was compiled into its caller.
            (
                vec![
                    ("pthread_cond_wait", libc),
                    ("Unsafe_Park", jvm),
                    ("jdk.internal.misc.Unsafe.park", "[jit]"),
                    (
                        "java.util.concurrent.locks.StampedLock.acquireRead",
                        "[jit]",
                    ),
                ],
                "Java rwlock (read)",
            ),
            (vec![("take_gil", "/usr/bin/python3")], "Python mutex"),
            (vec![("syscall", libc)], "futex"),
        ] {
            let names: Vec<_> = [&names[..], &[("app", "/a"), ("main", "/a")]].concat();
            assert_eq!(user_lock(&stack(&names)).to_string(), expected, "{names:?}");
        }
    }

    #[test]
    fn the_verdict_of_the_wait_stands() {
        let libc = "/lib/libc.so.6";
        // A barrier that is built on a mutex and a condition.
        let lock = user_lock(&stack(&[
            ("pthread_cond_wait", libc),
            ("std::sync::barrier::Barrier::wait", "/a"),
            ("app", "/a"),
        ]));
        assert_eq!(lock.to_string(), "Rust barrier");
        // What the program calls its own functions says nothing.
        let lock = user_lock(&stack(&[("syscall", libc), ("my::RwLock::read", "/a")]));
        assert_eq!(lock.primitive, Primitive::Futex);
    }

    /// A thread that ends gives memory back: its wait was one of `futex_wait`.
    #[test]
    fn what_the_c_library_does_by_itself_waits_in_its_outermost_function() {
        let libc = "/lib/libc.so.6";
        let ending = stack(&[
            ("futex_wait", libc),
            ("__lll_lock_wait_private", libc),
            ("_int_free", libc),
            ("free", libc),
            ("__malloc_arena_thread_freeres", libc),
            ("start_thread", libc),
            ("clone3", libc),
        ]);
        let own = own_frame(&ending).map(|frame| &*frame.symbol);
        assert_eq!(own, Some("__malloc_arena_thread_freeres"));
        assert_eq!(user_lock(&ending).to_string(), "malloc mutex");
        let nothing = stack(&[("start_thread", libc), ("clone3", libc)]);
        let own = own_frame(&nothing).map(|frame| &*frame.symbol);
        assert_eq!(own, Some("start_thread"));
    }

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
