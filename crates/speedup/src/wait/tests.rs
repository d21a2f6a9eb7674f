use super::*;
use crate::event::Frame;

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

/// What GCC's compilers call ends in jumps, so that its names were not on the stack: a barrier of our runtime was a partner, and a
/// sleep where it looks again after a while.
#[test]
fn our_openmp_runtime_tells_a_barrier_from_a_worker_without_a_region() {
    let libc = "/lib/libc.so.6";
    let gomp = "/opt/amdahl/lib/amdahl/libgomp.so.1";
    let gate = ("amdahl_openmp::gate::Gate::wait_longer", gomp);
    let barrier = ("amdahl_openmp::gate::at_barrier", gomp);
    let run = ("amdahl_openmp::worker::run", gomp);
    let (syscall, start) = (("syscall", libc), ("start_thread", libc));
    for (names, expected) in [
        (
            vec![syscall, barrier, gate, ("relax_the_grid", "/a"), run, start],
            Wait::For(Cause::Barrier),
        ),
        (
            vec![
                syscall,
                barrier,
                gate,
                ("GOMP_parallel", gomp),
                ("main", "/a"),
            ],
            Wait::For(Cause::Barrier),
        ),
        (vec![syscall, gate, run, start], Wait::IdleWorker),
        // `GOMP_critical_start` ends in a jump as well.
        (
            vec![
                syscall,
                ("amdahl_openmp::lock::Lock::acquire_late", gomp),
                ("relax_the_grid", "/a"),
                run,
                start,
            ],
            Wait::For(Cause::LockWait),
        ),
        // For somebody else, in the middle of a region.
        (
            vec![syscall, gate, ("relax_the_grid", "/a"), run, start],
            Wait::Futex,
        ),
    ] {
        let found = classify(&futex(), Some(&stack(&names)));
        assert_eq!(found, expected, "{names:?}");
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
        // A thread that Ctrl-C would wake.
        (
            vec![
                ("__new_sem_wait_slow64", libc),
                (
                    "ctrlc::platform::unix::implementation::sem_wait_forever",
                    "app",
                ),
                ("ctrlc::platform::unix::block_ctrl_c", "app"),
                ("start_thread", libc),
            ],
            Wait::Service,
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

/// `Mutex::lock` that was compiled into its caller is `lock` where there are line tables alone. It once was taken for the
/// program's own.
#[test]
fn source_files_tell_libraries_where_names_have_no_paths() {
    let is_runtime = |file: &str| {
        super::is_runtime(&Frame {
            symbol: "lock<u32>".to_owned(),
            file: Some(file.to_owned()),
            module: "/a".to_owned(),
            ..Frame::default()
        })
    };
    let registry = "/home/me/.cargo/registry/src/mirror.example-1949cf8c6b5b557f";
    for file in [
        "/rustc/59807616/library/std/src/sync/poison/mutex.rs",
        "/usr/lib/rustlib/src/rust/library/core/src/ops/function.rs",
        &format!("{registry}/parking_lot_core-0.9.12/src/thread_parker/linux.rs"),
        &format!("{registry}/lock_api-0.4.14/src/mutex.rs"),
        "vendor/rayon-core/src/registry.rs",
    ] {
        assert!(is_runtime(file), "{file}");
    }
    for file in [
        "src/main.rs",
        "/home/me/tokio-1.0-notes/src/lock.rs",
        "/home/me/library/src/lock.rs",
        &format!("{registry}/dashmap-6.1.0/src/lock.rs"),
    ] {
        assert!(!is_runtime(file), "{file}");
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
fn a_go_thread_that_naps_between_two_looks_for_a_goroutine_is_idle() {
    let nap = Blocked {
        syscall: u32::try_from(libc::SYS_nanosleep).ok(),
        ..Blocked::default()
    };
    let steals = stack(&[
        ("runtime.usleep.abi0", "/a"),
        ("runtime.runqgrab", "/a"),
        ("runtime.stealWork", "/a"),
        ("runtime.findRunnable", "/a"),
    ]);
    let wait = classify(&nap, Some(&steals));
    assert_eq!(wait, Wait::Nap);
    assert!(wait.is_worker());
    assert_eq!(wait.resolve(Some(Waker::Timer), None), Resolved::AsOthers);
    let monitor = stack(&[("runtime.usleep.abi0", "/a"), ("runtime.sysmon", "/a")]);
    assert_eq!(classify(&nap, Some(&monitor)), Wait::Service);
    let own = stack(&[("runtime.usleep.abi0", "/a"), ("main.rest", "/a")]);
    assert_eq!(classify(&nap, Some(&own)), Wait::For(Cause::Sleep));
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

/// Waits in our own pool were futexes without a name, and its idle workers partners.
#[test]
fn the_states_of_our_pool_have_names() {
    let (libc, program) = ("/lib/libc.so.6", "/a");
    let sleeps = [
        ("syscall", libc),
        ("amdahl_pool::sys::futex_wait", program),
        ("amdahl_pool::parker::Parker::sleep", program),
        ("amdahl_pool::parker::Parker::park", program),
    ];
    for (state, from, expected) in [
        (
            "amdahl_pool::states::idle_worker",
            &[
                "amdahl_pool::worker::Worker::idle",
                "amdahl_pool::worker::Worker::main",
            ][..],
            Wait::IdleWorker,
        ),
        (
            "amdahl_pool::states::worker_without_a_cpu",
            &["amdahl_pool::worker::Worker::main"],
            Wait::IdleWorker,
        ),
        (
            "amdahl_pool::states::join",
            &[
                "amdahl_pool::worker::Worker::idle",
                "amdahl_pool::worker::Worker::wait",
                "f",
            ],
            Wait::For(Cause::Serial),
        ),
        (
            "amdahl_pool::states::join",
            &["amdahl_pool::spawn::Handle<T>::join", "f"],
            Wait::For(Cause::Serial),
        ),
        (
            "amdahl_pool::states::channel",
            &["amdahl_pool::channel::waiters::Waiters::sleep", "f"],
            Wait::Peer,
        ),
        (
            "amdahl_pool::states::helpers_of_a_range",
            &[
                "amdahl_pool::range::share::Region<E>::wait_for_helpers",
                "f",
            ],
            Wait::For(Cause::Barrier),
        ),
        (
            "amdahl_pool::states::watch",
            &["amdahl_pool::watch::<impl amdahl_pool::registry::Registry>::watch"],
            Wait::Service,
        ),
    ] {
        let behind = from.iter().map(|&name| (name, program));
        let names: Vec<_> = sleeps
            .into_iter()
            .chain([(state, program)])
            .chain(behind)
            .collect();
        assert_eq!(
            classify(&futex(), Some(&stack(&names))),
            expected,
            "{state}"
        );
    }
    let flush = [
        ("syscall", libc),
        (
            "std::sys::sync::condvar::futex::Condvar::wait_optional_timeout",
            program,
        ),
        ("amdahl_pool::states::flush", program),
        ("f", program),
    ];
    let flushes = classify(&futex(), Some(&stack(&flush)));
    assert_eq!(flushes, Wait::For(Cause::Serial));
}
