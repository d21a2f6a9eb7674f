//! Which lock, barrier or condition a thread waits on: the finer question behind [`crate::wait`].
//!
//! `wait` decides what a wait is for, and its verdict stands; names only refine it here.

mod kernel;
mod names;

use crate::cause::Cause;
use crate::event::{Blocked, CallStack, Frame};
use crate::snapshot::WaitKind;
use crate::wait::{INTERPRETER, PartOfLibc, Wait, classify, is_libc, is_runtime, part_of_libc};

pub use kernel::{KernelPrimitive, kernel_frame, seen_frames};

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
    /// The pool of this project.
    Pool,
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
            Library::Pool => "amdahl-pool ",
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
        // An idle worker may have a goroutine on its stack, or is one of our pool.
        .filter(|lock| {
            let is_told = matches!(lock.library, Library::Go | Library::Pool);
            is_possible(lock.primitive) && (!is_idle || is_told)
        })
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
    fn the_states_of_our_pool_have_names() {
        for (state, expected) in [
            ("idle_worker", "amdahl-pool idle worker"),
            ("worker_without_a_cpu", "amdahl-pool idle worker"),
            ("join", "amdahl-pool join"),
            ("flush", "amdahl-pool join"),
            ("channel", "amdahl-pool message"),
            ("helpers_of_a_range", "amdahl-pool barrier"),
            ("watch", "service"),
        ] {
            let state = format!("amdahl_pool::states::{state}");
            let names = [
                ("syscall", "/lib/libc.so.6"),
                ("amdahl_pool::parker::Parker::park", "/a"),
                (&state, "/a"),
                ("amdahl_pool::worker::Worker::idle", "/a"),
                ("f", "/a"),
            ];
            let stack = stack(&names);
            assert_eq!(user_lock(&stack).to_string(), expected);
            let own = own_frame(&stack).map(|frame| &*frame.symbol);
            assert_eq!(own, Some("f"), "{state}");
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
}
