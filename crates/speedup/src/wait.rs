//! What a blocked thread waits for, from its system call, its stack and its waker.
//!
//! Two steps, because some of it is only known at the end: [`classify`] when the
//! thread goes to sleep, [`Wait::resolve`] when it is woken.

use crate::cause::Cause;
use crate::event::{Blocked, CallStack, Frame, Waker};

/// What is known when a thread goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// The cause is certain already.
    For(Cause),
    /// For somebody: a partner in the workload, an outside peer or a timer. The waker tells.
    Peer,
    /// A futex of unknown meaning: a lock, a barrier or a condition. How it is used tells.
    Futex,
    /// A futex of unknown meaning inside a library's own thread: in the middle of a task of the
    /// program it is a [`Wait::Futex`], between tasks an [`Wait::IdleWorker`]. How it is used tells.
    PoolFutex,
    /// A worker of a runtime without a task. What the waker was doing tells.
    IdleWorker,
    /// A thread that only looks after others from time to time, by the nature of its runtime.
    Service,
    /// Nothing is known.
    Unknown,
}

/// System calls that block, grouped by what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Futex,
    Timer,
    Child,
    Peer,
    Storage,
    FileLock,
    Semaphore,
    Other,
}

fn call(number: u32) -> Call {
    let is = |list: &[libc::c_long]| list.contains(&libc::c_long::from(number));
    use libc as l;
    #[cfg(target_arch = "x86_64")]
    if is(&[
        l::SYS_poll,
        l::SYS_select,
        l::SYS_epoll_wait,
        l::SYS_pause,
        l::SYS_accept,
    ]) {
        return Call::Peer;
    }
    #[cfg(target_arch = "x86_64")]
    if is(&[l::SYS_vfork, l::SYS_fork]) {
        return Call::Child;
    }
    #[cfg(target_arch = "x86_64")]
    if is(&[
        l::SYS_open,
        l::SYS_unlink,
        l::SYS_rename,
        l::SYS_mkdir,
        l::SYS_rmdir,
        l::SYS_stat,
    ]) {
        return Call::Storage;
    }
    if is(&[
        l::SYS_futex,
        l::SYS_futex_waitv,
        455, /* futex_wait, 6.7 */
    ]) {
        Call::Futex
    } else if is(&[l::SYS_nanosleep, l::SYS_clock_nanosleep]) {
        Call::Timer
    } else if is(&[l::SYS_wait4, l::SYS_waitid, l::SYS_clone, l::SYS_clone3]) {
        Call::Child
    } else if is(&[
        l::SYS_read,
        l::SYS_readv,
        l::SYS_write,
        l::SYS_writev,
        l::SYS_ppoll,
        l::SYS_pselect6,
        l::SYS_epoll_pwait,
        l::SYS_epoll_pwait2,
        l::SYS_recvfrom,
        l::SYS_recvmsg,
        l::SYS_recvmmsg,
        l::SYS_sendto,
        l::SYS_sendmsg,
        l::SYS_sendmmsg,
        l::SYS_accept4,
        l::SYS_connect,
        l::SYS_splice,
        l::SYS_tee,
        l::SYS_vmsplice,
        l::SYS_sendfile,
        l::SYS_io_uring_enter,
        l::SYS_io_getevents,
        l::SYS_rt_sigtimedwait,
        l::SYS_rt_sigsuspend,
        l::SYS_msgrcv,
        l::SYS_msgsnd,
        l::SYS_mq_timedreceive,
        l::SYS_mq_timedsend,
        l::SYS_close,
        l::SYS_ioctl,
    ]) {
        Call::Peer
    } else if is(&[
        l::SYS_fsync,
        l::SYS_fdatasync,
        l::SYS_sync,
        l::SYS_syncfs,
        l::SYS_sync_file_range,
        l::SYS_msync,
        l::SYS_pread64,
        l::SYS_pwrite64,
        l::SYS_preadv,
        l::SYS_pwritev,
        l::SYS_preadv2,
        l::SYS_pwritev2,
        l::SYS_openat,
        l::SYS_unlinkat,
        l::SYS_renameat2,
        l::SYS_mkdirat,
        l::SYS_getdents64,
        l::SYS_newfstatat,
        l::SYS_statx,
        l::SYS_ftruncate,
        l::SYS_fallocate,
        l::SYS_copy_file_range,
        l::SYS_execve,
        l::SYS_execveat,
        l::SYS_readahead,
        l::SYS_fadvise64,
        l::SYS_mount,
        l::SYS_umount2,
        l::SYS_linkat,
        l::SYS_symlinkat,
    ]) {
        Call::Storage
    } else if is(&[l::SYS_flock, l::SYS_fcntl]) {
        Call::FileLock
    } else if is(&[l::SYS_semop, l::SYS_semtimedop]) {
        Call::Semaphore
    } else {
        Call::Other
    }
}

/// What is known when a thread goes to sleep. The rules in their order: see `DESIGN.md`.
pub fn classify(blocked: &Blocked, stack: Option<&CallStack>) -> Wait {
    if let Some(lock) = blocked.kernel_lock {
        return Wait::For(if lock.is_mmap_lock {
            Cause::MmapLock
        } else {
            Cause::KernelLock
        });
    }
    if blocked.in_iowait {
        return Wait::For(Cause::Io);
    }
    let by_name = stack.and_then(|stack| {
        let of_runtime = runtime_thread(&stack.user);
        match by_name(&stack.user) {
            Some(Wait::For(Cause::LockWait) | Wait::Peer) | None if of_runtime.is_some() => {
                of_runtime
            }
            named => named,
        }
    });
    let Some(number) = blocked.syscall else {
        // A page fault that sleeps without a contended lock reads its page.
        return if blocked.uninterruptible {
            Wait::For(Cause::Io)
        } else {
            Wait::Unknown
        };
    };
    match call(number) {
        Call::Futex => by_name.unwrap_or(Wait::Futex),
        Call::Timer if by_name == Some(Wait::Service) => Wait::Service,
        Call::Timer => Wait::For(Cause::Sleep),
        Call::Child => Wait::For(Cause::Serial),
        Call::Peer if blocked.uninterruptible => Wait::For(Cause::Io),
        Call::Peer => match by_name {
            Some(wait @ (Wait::IdleWorker | Wait::Service)) => wait,
            _ => Wait::Peer,
        },
        Call::Storage => Wait::For(Cause::Io),
        Call::FileLock | Call::Semaphore => Wait::For(Cause::LockWait),
        // The other calls block on each other inside the kernel only.
        Call::Other if blocked.uninterruptible => Wait::For(Cause::KernelLock),
        Call::Other => Wait::Unknown,
    }
}

impl Wait {
    /// The cause, now that the waker is known. `from` is what the waker was doing.
    pub fn resolve(self, waker: Option<Waker>, from: Option<&CallStack>) -> Resolved {
        match (self, waker) {
            (Wait::For(cause), _) => Resolved::Cause(cause),
            (Wait::Unknown, _) => Resolved::Cause(Cause::Unexplained),
            (Wait::Futex | Wait::PoolFutex, Some(Waker::Timer)) => Resolved::Cause(Cause::Sleep),
            (Wait::Futex | Wait::PoolFutex, _) => Resolved::Futex,
            (Wait::IdleWorker, Some(Waker::Timer)) => Resolved::Cause(Cause::Sleep),
            (Wait::IdleWorker, Some(Waker::Workload(_))) => {
                match from.and_then(|stack| released_by(&stack.user)) {
                    Some(cause) => Resolved::Cause(cause),
                    None => Resolved::AsOthers,
                }
            }
            (Wait::IdleWorker, Some(Waker::Interrupt | Waker::Other(_))) => {
                Resolved::Cause(Cause::Io)
            }
            (Wait::IdleWorker, None) => Resolved::AsOthers,
            (Wait::Service, _) => Resolved::Cause(Cause::Sleep),
            (Wait::Peer, Some(Waker::Workload(_))) => Resolved::Cause(Cause::Partner),
            (Wait::Peer, Some(Waker::Timer)) => Resolved::Cause(Cause::Sleep),
            (Wait::Peer, Some(Waker::Interrupt | Waker::Other(_))) => Resolved::Cause(Cause::Io),
            // Never woken: it waited for what never came.
            (Wait::Peer, None) => Resolved::Cause(Cause::Serial),
        }
    }

    /// The thread has no work of its own: it waits for the work of others to end.
    pub fn is_serial(self) -> bool {
        self == Wait::For(Cause::Serial)
    }
}

/// The outcome of [`Wait::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolved {
    /// This cause.
    Cause(Cause),
    /// Decided at the end of the run by how the futex was used ([`FutexUse`]).
    Futex,
    /// A worker got a task from the scheduler of its runtime, which does not tell where the task
    /// came from: divided like the other waits of idle workers of its process; serial without any.
    AsOthers,
}

/// How one futex address was used over a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FutexUse {
    /// Value that the first waiter expected.
    pub first_value: u32,
    /// Later waiters expected other values: a generation or sequence number.
    pub values_differ: bool,
    /// Waits.
    pub waits: u64,
    /// Waits that ended together with another one on the same address.
    pub woken_together: u64,
    /// Wakes by a thread that itself waits on the same address at other times.
    pub woken_by_waiters: u64,
}

impl FutexUse {
    /// Locks expect one constant value, mostly a small one, and are released by those who also
    /// wait; barriers count generations, or wake all at once, and everybody takes a turn at waking;
    /// what is left is a condition. A word that is 0 while somebody waits is a count or a flag: a
    /// lock would be free then.
    pub fn cause(&self) -> Cause {
        let by_waiters = self.woken_by_waiters * 2 >= self.waits;
        let value = (self.first_value as i32).unsigned_abs();
        if self.woken_together * 2 > self.waits && by_waiters {
            Cause::Barrier
        } else if !self.values_differ {
            if by_waiters || (1..=3).contains(&value) && self.waits > 2 {
                Cause::LockWait
            } else {
                Cause::Partner
            }
        } else if by_waiters {
            Cause::Barrier
        } else {
            Cause::Partner
        }
    }

    /// A library's thread that waits here waits for its next task, as far as is known.
    pub fn is_for_a_task(&self) -> bool {
        self.waits < 3 || self.cause() == Cause::Partner
    }
}

const BARRIER: &[&str] = &[
    "pthread_barrier_wait",
    "Barrier::wait",
    "GOMP_barrier",
    "gomp_team_barrier",
    "__kmpc_barrier",
    "__kmp_barrier",
    "__kmp_join_barrier",
    "std::barrier",
    "__tree_barrier",
    "std::latch",
    "MPI_Barrier",
    "arrive_and_wait",
    "GOMP_loop_end",
    "GOMP_sections_end",
    "GOMP_parallel",
    "std::__detail::__barrier",
    "CyclicBarrier.dowait",
    "CyclicBarrier.await",
    "concurrent.Phaser",
];
const JOIN: &[&str] = &[
    "pthread_join",
    "pthread_clockjoin",
    "pthread_timedjoin",
    "pthread_tryjoin",
    "std::thread::join",
    "std::thread::scoped",
    "crossbeam_utils::thread::scope",
    "JoinHandle",
    "thrd_join",
    "java.lang.Thread.join",
    "CountDownLatch.await",
    "FutureTask.get",
    "ForkJoinTask.get",
    "ForkJoinTask.join",
    "ForkJoinTask.invoke",
    "CompletableFuture.get",
    "CompletableFuture.join",
    "ThreadPoolExecutor.awaitTermination",
];
const IDLE_WORKER: &[&str] = &[
    "runtime.findRunnable",
    "runtime.stopm",
    "runtime.mPark",
    "runtime.schedule",
    "runtime.gcstopm",
    "runtime.startlockedm",
    "runtime.stoplockedm",
    "rayon_core::sleep",
    "rayon_core::registry::WorkerThread::wait_until",
    "rayon_core::latch",
    "tokio::runtime::scheduler::multi_thread::park",
    "tokio::runtime::blocking::pool",
    "tokio::runtime::park",
    "gomp_thread_start",
    "__kmp_fork_barrier",
    "__kmp_launch_worker",
    "tbb::detail::r1::",
    "ForkJoinPool.awaitWork",
    "ForkJoinPool.runWorker",
    "ThreadPoolExecutor.getTask",
    "async_executor",
    "smol::",
    "GOMP_taskwait",
];
const SERVICE: &[&str] = &[
    "runtime.sysmon",
    "runtime.templateThread",
    "runtime.forcegchelper",
];
/// Locks that are built on conditions: they lie farther out.
const MONITOR: &[&str] = &[
    "ObjectMonitor::enter",
    "ObjectMonitor::EnterI",
    "ObjectMonitor::ReenterI",
];
const LOCK: &[&str] = &[
    "pthread_mutex_",
    "__lll_lock_wait",
    "lll_mutex_lock",
    "pthread_rwlock_",
    "sem_wait",
    "sem_timedwait",
    "sem_clockwait",
    "new_sem_wait",
    "mutex::futex::Mutex",
    "rwlock::futex::RwLock",
    "RawMutex::lock_slow",
    "RawRwLock::lock",
    "raw_rwlock",
    "futex::Mutex::lock_contended",
    "lock_contended",
    "read_contended",
    "write_contended",
    "sync.(*Mutex)",
    "sync.(*RWMutex)",
    "runtime.lock2",
    "runtime_SemacquireMutex",
    "std::mutex::lock",
    "std::shared_mutex",
    "std::__atomic_semaphore",
    "std::counting_semaphore",
    "__semaphore_impl",
    "absl::Mutex",
    "absl::lts",
    "GOMP_critical",
    "gomp_mutex_lock",
    "omp_set_lock",
    "__kmp_acquire",
    "AbstractQueuedSynchronizer.acquire",
    "ReentrantLock",
    "ReentrantReadWriteLock",
    "StampedLock",
    "concurrent.Semaphore",
    "mtx_lock",
    "_int_malloc",
    "std::sys::sync::once",
    "take_gil",
    "_PyMutex",
    "pthread_once",
    "__cxa_guard_acquire",
];
const PARTNER: &[&str] = &[
    "pthread_cond_",
    "__pthread_cond_wait",
    "condvar::futex::Condvar",
    "Condvar::wait",
    "std::thread::park",
    "Parker::park",
    "thread_parking",
    "std::sync::mpmc",
    "std::sync::mpsc",
    "crossbeam_channel",
    "std::condition_variable",
    "__atomic_wait",
    "std::atomic",
    "cnd_wait",
    "WaitOnAddress",
    "PlatformEvent::park",
    "ObjectMonitor::wait",
    "__cond_wait",
    "AbstractQueuedSynchronizer$ConditionObject",
    "BlockingQueue",
    "BlockingDeque",
    "SynchronousQueue",
    "TransferQueue",
    "concurrent.Exchanger",
];

const LIBC: &[&str] = &["libc.so", "libc-", "libpthread", "ld-linux", "ld-musl"];
const LIBRARIES: &[&str] = &[
    "libstdc++",
    "libc++",
    "libgomp",
    "libomp",
    "libiomp",
    "libtbb",
    "libamdahl_preload",
    "libjvm",
    "libjli",
    "librt",
    "[vdso]",
    "libgcc",
];

fn in_module(frame: &Frame, modules: &[&str]) -> bool {
    let file = frame.module.rsplit('/').next().unwrap_or("");
    modules.iter().any(|module| file.starts_with(module))
}

/// The C library and its loader: what nearly every wait goes through.
pub fn is_libc(frame: &Frame) -> bool {
    in_module(frame, LIBC)
}

/// CPython builds its joins, conditions and queues on this lock: it tells nothing.
const GENERIC_LOCK: &[&str] = &["PyThread_acquire_lock"];

/// Generated code that is part of Java's virtual machine: `StubRoutines (1)`,
/// `monitorenter_nofpu Runtime1 stub`, `_complete_monitor_locking_Java`.
fn is_stub(frame: &Frame) -> bool {
    const STUBS: &[&str] = &["Stub", "stub", "C2I adapters", "_Java"];
    !frame.symbol.contains('.') && STUBS.iter().any(|stub| frame.symbol.contains(stub))
}

/// The only name of all interpreted Java methods.
pub const INTERPRETER: &str = "Interpreter";

/// Frames that belong to a runtime or library rather than to the program: scanning for names
/// stops at the first other frame, since farther out lies the reason for the call, not for the wait.
pub fn is_runtime(frame: &Frame) -> bool {
    if in_module(frame, LIBC) || in_module(frame, LIBRARIES) {
        return true;
    }
    // Java interprets what does not run often; whose method it is does not show.
    let is_generated = frame.module == "[jit]";
    if is_generated && (frame.symbol == INTERPRETER || is_stub(frame)) {
        return true;
    }
    let symbol = callee_name(&frame.symbol).trim_start_matches('<');
    const PREFIXES: &[&str] = &[
        "runtime.",
        "sync.",
        "internal/",
        "std::",
        "core::",
        "alloc::",
        "parking_lot",
        "lock_api::",
        "rayon_core::",
        "tokio::",
        "crossbeam",
        "syscall",
        "__pthread",
        "pthread_",
        "__lll",
        "sem_",
        "__futex",
        "futex",
        "__new_sem",
        "__GI_",
        "__cxa",
        "GOMP_",
        "gomp_",
        "__kmp",
        "lll_",
        "mio::",
        "__syscall",
        "libc::",
        "___pthread",
        "__gthread",
        "__internal_",
        "time.Sleep",
        // CPython's global lock, where threads that compute wait.
        "take_gil",
        "PyCOND_",
        "PyThread_",
        "_PyMutex",
        "_PyParkingLot",
        "_PySemaphore",
        "__atomic_",
        "__",
        "&core",
        "&std",
        "java.",
        "jdk.internal.",
        "sun.",
    ];
    PREFIXES.iter().any(|prefix| symbol.starts_with(prefix))
}

/// Demangled C++ templates begin with the type that they return: `bool std::f<int>(int)`. The rest
/// is the name.
fn callee_name(symbol: &str) -> &str {
    let mut depth = 0_usize;
    let mut start = 0;
    for (at, character) in symbol.char_indices() {
        match character {
            '(' if depth == 0 && at > start => break,
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    match &symbol[start..] {
        // `<T as Trait>::f` has its blanks inside; `f [clone .part]` has them behind.
        name if name.is_empty() || name.starts_with('[') => symbol,
        name => name,
    }
}

/// What a thread waits for that a library runs on its own account: no frame is the program's, from
/// where the thread began to where it sleeps.
fn runtime_thread(user: &[Frame]) -> Option<Wait> {
    let all_library = user.last().is_some_and(is_libc)
        && user
            .iter()
            .all(|frame| is_libc(frame) || in_module(frame, LIBRARIES));
    let of = |modules: &[&str]| user.iter().any(|frame| in_module(frame, modules));
    if !all_library {
        None
    } else if of(&["libjvm"]) {
        // Collectors, compilers and the like; threads that run Java have its frames.
        Some(Wait::Service)
    } else if of(&["libgomp", "libomp", "libiomp", "libtbb"]) {
        Some(Wait::PoolFutex)
    } else {
        None
    }
}

/// Rust writes `<T>::f` for methods: without the brackets one name fits all spellings.
fn has(frame: &Frame, names: &[&str]) -> bool {
    let plain = frame.symbol.replace(['<', '>'], "");
    names.iter().any(|name| plain.contains(name))
}

fn by_name(user: &[Frame]) -> Option<Wait> {
    let mut found = None;
    let mut inside = None;
    for frame in user.iter().take_while(|frame| is_runtime(frame)).take(24) {
        if is_machine(frame) && found == Some(Wait::Peer) {
            // A virtual machine builds all its waits on conditions.
            inside = found.take();
        }
        // A barrier, a join or a pool is built on condition variables and locks: it lies farther out.
        if has(frame, BARRIER) {
            return Some(Wait::For(Cause::Barrier));
        } else if has(frame, JOIN) {
            return Some(Wait::For(Cause::Serial));
        } else if has(frame, SERVICE) {
            return Some(Wait::Service);
        } else if has(frame, IDLE_WORKER) {
            return Some(Wait::IdleWorker);
        } else if has(frame, MONITOR) {
            return Some(Wait::For(Cause::LockWait));
        } else if has(frame, GENERIC_LOCK) {
            found = Some(Wait::Peer);
        } else if has(frame, LOCK) {
            // Also one that is built on a condition variable.
            found = Some(Wait::For(Cause::LockWait));
        } else if found.is_none() && has(frame, PARTNER) {
            found = Some(Wait::Peer);
        }
    }
    found.or(inside)
}

/// A frame of a virtual machine's own code, not of what it generates.
fn is_machine(frame: &Frame) -> bool {
    let file = frame.module.rsplit('/').next().unwrap_or("");
    file.starts_with("libjvm")
}

/// What a waker did that gave an idle worker something to do again.
fn released_by(user: &[Frame]) -> Option<Cause> {
    const BEGIN: &[&str] = &[
        "runtime.newproc",
        "GOMP_parallel",
        "__kmpc_fork_call",
        "rayon_core::registry",
        "ForkJoinPool.",
        "ForkJoinTask.",
        "ThreadPoolExecutor.execute",
        "runtime.gcStart",
        "runtime.gcBgMark",
        "runtime.gcController",
    ];
    const TIMER: &[&str] = &[
        "runtime.goroutineReady",
        "time.goFunc",
        "time.sendTime",
        "runtime.(*timer",
        "runtime.runtimer",
        "runtime.checkTimers",
    ];
    const UNLOCK: &[&str] = &[
        "sync.(*Mutex)",
        "sync.(*RWMutex)",
        "runtime.semrelease",
        "pthread_mutex_unlock",
        "sem_post",
        "Mutex::unlock",
        "unlock_slow",
        "internal/sync.(*Mutex)",
    ];
    const HAND_OVER: &[&str] = &[
        "runtime.chansend",
        "runtime.chanrecv",
        "runtime.closechan",
        "runtime.selectgo",
        "sync.(*Cond)",
        "runtime.send",
        "runtime.recv",
    ];
    const IO: &[&str] = &[
        "runtime.exitsyscall",
        "runtime.entersyscall",
        "runtime.handoffp",
        "runtime.netpoll",
        "runtime.injectglist",
    ];
    let frames = &user[..user.len().min(24)];
    let any = |names: &[&str]| frames.iter().any(|frame| has(frame, names));
    // A wait group releases a semaphore, as mutexes do.
    if any(&["sync.(*WaitGroup)"]) {
        return Some(Cause::Serial);
    }
    for (names, cause) in [
        (TIMER, Cause::Sleep),
        (UNLOCK, Cause::LockWait),
        (HAND_OVER, Cause::Partner),
        (BEGIN, Cause::Serial),
        (IO, Cause::Io),
    ] {
        if any(names) {
            return Some(cause);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[(&str, &str)]) -> CallStack {
        let frame = |(symbol, module): &(&str, &str)| Frame {
            symbol: (*symbol).to_owned(),
            module: (*module).to_owned(),
            ..Frame::default()
        };
        CallStack {
            user: names.iter().map(frame).collect(),
            ..CallStack::default()
        }
    }

    fn futex() -> Blocked {
        Blocked {
            syscall: Some(libc::SYS_futex as u32),
            ..Blocked::default()
        }
    }

    #[test]
    fn names_decide_futexes() {
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        for (names, expected) in [
            (
                vec![
                    ("__lll_lock_wait", libc),
                    ("pthread_mutex_lock", libc),
                    ("f", "/a"),
                ],
                Wait::For(Cause::LockWait),
            ),
            (
                vec![
                    ("__futex_abstimed_wait_common", libc),
                    ("pthread_cond_wait", libc),
                    ("f", "/a"),
                ],
                Wait::Peer,
            ),
            (
                vec![
                    ("futex_wait", libc),
                    ("pthread_barrier_wait", libc),
                    ("f", "/a"),
                ],
                Wait::For(Cause::Barrier),
            ),
            (
                vec![("__pthread_clockjoin_ex", libc), ("main", "/a")],
                Wait::For(Cause::Serial),
            ),
            (
                vec![
                    ("syscall", libc),
                    ("std::sys::sync::condvar::futex::Condvar::wait", "/a"),
                    ("std::sync::barrier::Barrier::wait", "/a"),
                    ("f", "/a"),
                ],
                Wait::For(Cause::Barrier),
            ),
            (
                vec![
                    ("syscall", libc),
                    ("my_lock", "/a"),
                    ("pthread_barrier_wait", libc),
                ],
                Wait::Futex,
            ),
        ] {
            assert_eq!(
                classify(&futex(), Some(&stack(&names))),
                expected,
                "{names:?}"
            );
        }
    }

    #[test]
    fn threads_of_a_library_wait_on_their_own_account() {
        let libc = "/lib/libc.so.6";
        let gomp = "/lib/libgomp.so.1";
        let jvm = "/lib/libjvm.so";
        for (names, expected) in [
            // Stripped, as distributions ship it.
            (
                vec![
                    ("libgomp.so.1+0x1f5e0", gomp),
                    ("libgomp.so.1+0x1cc40", gomp),
                    ("start_thread", libc),
                ],
                Wait::PoolFutex,
            ),
            (
                vec![("libgomp.so.1+0x1ef10", gomp), ("f", "/a")],
                Wait::Futex,
            ),
            // A collector of garbage that has nothing to do.
            (
                vec![
                    ("__new_sem_wait_slow64", libc),
                    ("PosixSemaphore::wait()", jvm),
                    ("GangWorker::loop()", jvm),
                    ("start_thread", libc),
                ],
                Wait::Service,
            ),
            (
                vec![
                    ("pthread_cond_wait", libc),
                    ("os::PlatformEvent::park()", jvm),
                    ("ObjectMonitor::enter(JavaThread*)", jvm),
                    ("[jit]", "[jit]"),
                    ("start_thread", libc),
                ],
                Wait::For(Cause::LockWait),
            ),
        ] {
            let found = classify(&futex(), Some(&stack(&names)));
            assert_eq!(found, expected, "{names:?}");
        }
    }

    #[test]
    fn locks_may_be_built_on_conditions_and_anything_on_locks() {
        let libc = "/lib/libc.so.6";
        let python = "/usr/bin/python3";
        for (names, expected) in [
            // Its time-outs are no sleep.
            (
                vec![
                    ("pthread_cond_timedwait", libc),
                    ("take_gil", python),
                    ("_PyEval_EvalFrameDefault", python),
                ],
                Wait::For(Cause::LockWait),
            ),
            // `Thread.join`, for one.
            (
                vec![
                    ("__new_sem_wait_slow64", libc),
                    ("PyThread_acquire_lock_timed", python),
                    ("_PyEval_EvalFrameDefault", python),
                ],
                Wait::Peer,
            ),
            (
                vec![
                    ("syscall", libc),
                    ("std::thread::park", "/a"),
                    ("std::thread::scoped::scope", "/a"),
                    ("main", "/a"),
                ],
                Wait::For(Cause::Serial),
            ),
        ] {
            let found = classify(&futex(), Some(&stack(&names)));
            assert_eq!(found, expected, "{names:?}");
        }
    }

    #[test]
    fn a_return_type_hides_no_runtime() {
        let is_runtime = |symbol: &str| {
            super::is_runtime(&Frame {
                symbol: symbol.to_owned(),
                module: "/a".to_owned(),
                ..Frame::default()
            })
        };
        assert!(is_runtime(
            "bool std::__timed_mutex_impl<std::timed_mutex>::_M_try_lock_for<long, std::ratio<1l, 1l> >(long)"
        ));
        assert!(is_runtime("<std::sync::Mutex<T> as Debug>::fmt"));
        assert!(!is_runtime("std::vector<int> load(std::string const&)"));
        assert!(!is_runtime("work() [clone ._omp_fn.0]"));
        assert!(!is_runtime("main::{lambda(int)#1}::operator()(int) const"));
        assert!(!is_runtime("<app::Pool as std::ops::Drop>::drop"));
    }

    #[test]
    fn java_builds_all_waits_on_conditions() {
        let (libc, jvm) = ("/lib/libc.so.6", "/usr/lib/jvm/lib/server/libjvm.so");
        let start = [("start_thread", libc), ("clone3", libc)];
        let condition = [("__futex_abstimed_wait", libc), ("pthread_cond_wait", libc)];
        let park = [
            ("Parker::park(bool, long)", jvm),
            ("Unsafe_Park", jvm),
            ("java.util.concurrent.locks.LockSupport.park", "[jit]"),
            ("Interpreter", "[jit]"),
        ];
        let take = "java.util.concurrent.LinkedBlockingQueue.take";
        let get_task = "java.util.concurrent.ThreadPoolExecutor.getTask";
        let acquire = "java.util.concurrent.locks.AbstractQueuedSynchronizer.acquire";
        let calls = [("JavaThread::run()", jvm)];
        let monitor = [
            ("os::PlatformEvent::park()", jvm),
            ("ObjectMonitor::EnterI(JavaThread*)", jvm),
            ("ObjectMonitor::enter(JavaThread*)", jvm),
            ("[jit]", "[jit]"),
        ];
        let of_the_machine = [("Monitor::wait(long)", jvm), ("CompileQueue::get()", jvm)];
        for (frames, expected) in [
            ([&monitor[..], &calls].concat(), Wait::For(Cause::LockWait)),
            (
                [&park[..], &[(acquire, "[jit]"), ("P.f", "[jit]")], &calls].concat(),
                Wait::For(Cause::LockWait),
            ),
            (
                [&park[..], &[(take, "[jit]"), ("P.f", "[jit]")], &calls].concat(),
                Wait::Peer,
            ),
            (
                [&park[..], &[(take, "[jit]"), (get_task, "[jit]")], &calls].concat(),
                Wait::IdleWorker,
            ),
            ([&park[..2], &[("[jit]", "[jit]")]].concat(), Wait::Peer),
            (of_the_machine.to_vec(), Wait::Service),
        ] {
            let names = [&condition[..], &frames, &start].concat();
            assert_eq!(
                classify(&futex(), Some(&stack(&names))),
                expected,
                "{names:?}"
            );
        }
        // Where the copy of the stack ended inside of the machine nothing is known of the rest.
        let cut = [&condition[..], &of_the_machine].concat();
        assert_eq!(classify(&futex(), Some(&stack(&cut))), Wait::Peer);
    }

    #[test]
    fn the_waker_decides_peers() {
        assert_eq!(
            Wait::Peer.resolve(Some(Waker::Workload(1)), None),
            Resolved::Cause(Cause::Partner)
        );
        assert_eq!(
            Wait::Peer.resolve(Some(Waker::Timer), None),
            Resolved::Cause(Cause::Sleep)
        );
        assert_eq!(
            Wait::Peer.resolve(Some(Waker::Interrupt), None),
            Resolved::Cause(Cause::Io)
        );
    }

    #[test]
    fn an_idle_go_thread_waits_for_what_its_waker_released() {
        let unlock = stack(&[
            ("runtime.futexwakeup", "/a"),
            ("runtime.ready", "/a"),
            ("runtime.readyWithTime", "/a"),
            ("runtime.semrelease1", "/a"),
            ("sync.(*Mutex).unlockSlow", "/a"),
        ]);
        let send = stack(&[
            ("runtime.futexwakeup", "/a"),
            ("runtime.ready", "/a"),
            ("runtime.chansend", "/a"),
        ]);
        let waker = Some(Waker::Workload(7));
        assert_eq!(
            Wait::IdleWorker.resolve(waker, Some(&unlock)),
            Resolved::Cause(Cause::LockWait)
        );
        assert_eq!(
            Wait::IdleWorker.resolve(waker, Some(&send)),
            Resolved::Cause(Cause::Partner)
        );
        assert_eq!(Wait::IdleWorker.resolve(waker, None), Resolved::AsOthers);
    }

    #[test]
    fn unnamed_futexes_are_told_by_their_use() {
        let lock = FutexUse {
            first_value: 2,
            waits: 100,
            woken_by_waiters: 90,
            ..FutexUse::default()
        };
        assert_eq!(lock.cause(), Cause::LockWait);
        let barrier = FutexUse {
            first_value: 0,
            values_differ: true,
            waits: 100,
            woken_by_waiters: 80,
            ..lock
        };
        assert_eq!(barrier.cause(), Cause::Barrier);
        let condition = FutexUse {
            values_differ: true,
            waits: 100,
            woken_by_waiters: 0,
            ..lock
        };
        assert_eq!(condition.cause(), Cause::Partner);
        // libgomp's critical sections.
        let negative = FutexUse {
            first_value: u32::MAX,
            ..lock
        };
        assert_eq!(negative.cause(), Cause::LockWait);
        // A flag that one thread sets and another waits for.
        let flag = FutexUse {
            first_value: 0,
            woken_by_waiters: 0,
            ..lock
        };
        assert_eq!(flag.cause(), Cause::Partner);
    }
}
