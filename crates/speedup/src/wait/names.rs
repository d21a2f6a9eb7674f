//! What the names of a waiting thread's frames tell: its own, and those of the libraries and runtimes that
//! the wait went through.

use super::Wait;
use crate::cause::Cause;
use crate::event::Frame;

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
    "amdahl_openmp::gate::at_barrier",
    "std::__detail::__barrier",
    "CyclicBarrier.dowait",
    "CyclicBarrier.await",
    "amdahl_pool::states::helpers_of_a_range",
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
    "amdahl_pool::states::join",
    "amdahl_pool::states::flush",
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
    "amdahl_openmp::worker::run",
    "__kmp_fork_barrier",
    "__kmp_launch_worker",
    "tbb::detail::r1::",
    "ForkJoinPool.awaitWork",
    "ForkJoinPool.runWorker",
    "ThreadPoolExecutor.getTask",
    "async_executor",
    "smol::",
    "GOMP_taskwait",
    "amdahl_pool::states::idle_worker",
    "amdahl_pool::states::worker_without_a_cpu",
];
const SERVICE: &[&str] = &[
    "runtime.sysmon",
    "runtime.templateThread",
    "runtime.forcegchelper",
    "amdahl_pool::states::watch",
];
/// Threads that wait for signals on a semaphore, compiled into the program.
const SIGNALS: &[&str] = &["ctrlc::platform::", "ctrlc::set_handler"];
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
    "amdahl_openmp::lock::",
    "__kmp_acquire",
    "AbstractQueuedSynchronizer.acquire",
    "ReentrantLock",
    "ReentrantReadWriteLock",
    "StampedLock",
    "concurrent.Semaphore",
    "mtx_lock",
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
    "amdahl_pool::states::channel",
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

/// A part of the C library that has locks of its own: what waits inside it waits for one of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartOfLibc {
    /// The allocator: a lock for each arena.
    Malloc,
    /// Streams: a lock for each `FILE`.
    Stdio,
}

/// Where symbols of the library's own functions are not installed, those that it exports tell it as well.
pub(crate) fn part_of_libc(frame: &Frame) -> Option<PartOfLibc> {
    const MALLOC: &[&str] = &[
        "aligned_alloc",
        "arena_get2",
        "arena_get_retry",
        "calloc",
        "free",
        "int_free",
        "int_free_chunk",
        "int_free_merge_chunk",
        "int_malloc",
        "int_memalign",
        "int_realloc",
        "mallinfo",
        "mallinfo2",
        "malloc",
        "malloc_arena_thread_freeres",
        "malloc_consolidate",
        "malloc_info",
        "malloc_stats",
        "malloc_trim",
        "memalign",
        "posix_memalign",
        "pvalloc",
        "realloc",
        "reallocarray",
        "tcache_init",
        "tcache_thread_shutdown",
        "valloc",
    ];
    const STDIO: &[&str] = &[
        "clearerr",
        "dprintf",
        "fclose",
        "feof",
        "ferror",
        "fflush",
        "fgetc",
        "fgetpos",
        "fgets",
        "fgetwc",
        "fgetws",
        "flockfile",
        "fprintf",
        "fputc",
        "fputs",
        "fputwc",
        "fputws",
        "fread",
        "freopen",
        "fscanf",
        "fseek",
        "fseeko",
        "fseeko64",
        "fsetpos",
        "ftell",
        "ftello",
        "ftello64",
        "fwide",
        "fwprintf",
        "fwrite",
        "getc",
        "getchar",
        "getdelim",
        "getline",
        "getwc",
        "perror",
        "printf",
        "putc",
        "putchar",
        "puts",
        "putw",
        "rewind",
        "scanf",
        "setbuf",
        "setbuffer",
        "setlinebuf",
        "setvbuf",
        "ungetc",
        "vfprintf",
        "vfscanf",
        "vfwprintf",
        "vprintf",
        "wprintf",
    ];
    if !is_libc(frame) {
        return None;
    }
    let symbol = frame.symbol.split('@').next().unwrap_or_default();
    let is_stream = symbol.starts_with("_IO_");
    let mut plain = symbol.trim_start_matches('_');
    for prefix in ["GI_", "libc_"] {
        plain = plain
            .strip_prefix(prefix)
            .unwrap_or(plain)
            .trim_start_matches('_');
    }
    // `_int_free.constprop.0`.
    plain = plain.split('.').next().unwrap_or_default();
    if MALLOC.contains(&plain) {
        Some(PartOfLibc::Malloc)
    } else if is_stream || STDIO.contains(&plain) {
        Some(PartOfLibc::Stdio)
    } else {
        None
    }
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

/// Crates that programs wait in.
const CRATES: &[&str] = &[
    "amdahl-pool",
    "crossbeam",
    "crossbeam-channel",
    "crossbeam-deque",
    "crossbeam-utils",
    "lock_api",
    "mio",
    "parking_lot",
    "parking_lot_core",
    "rayon-core",
    "tokio",
];

/// A source file of Rust's standard library or of one of [`CRATES`]: with line tables alone, inlined functions
/// have names without paths.
fn is_library_source(file: &str) -> bool {
    let is_standard = file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/library/");
    let mut folders = file
        .split("/src/")
        .filter_map(|part| part.rsplit('/').next());
    is_standard || folders.any(|folder| CRATES.contains(&unversioned(folder)))
}

/// `tokio` of `tokio-1.47.1`.
fn unversioned(folder: &str) -> &str {
    match folder.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => folder,
    }
}

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
    if frame.file.as_deref().is_some_and(is_library_source) {
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
        "amdahl_pool::",
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
pub(crate) fn callee_name(symbol: &str) -> &str {
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
pub(super) fn runtime_thread(user: &[Frame]) -> Option<Wait> {
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

pub(super) fn by_name(user: &[Frame]) -> Option<Wait> {
    if user.iter().take(24).any(|frame| has(frame, SIGNALS)) {
        return Some(Wait::Service);
    }
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
        } else if has(frame, LOCK) || part_of_libc(frame).is_some() {
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
pub(super) fn released_by(user: &[Frame]) -> Option<Cause> {
    const BEGIN: &[&str] = &[
        "runtime.newproc",
        "GOMP_parallel",
        "__kmpc_fork_call",
        "rayon_core::registry",
        "amdahl_pool::registry",
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
