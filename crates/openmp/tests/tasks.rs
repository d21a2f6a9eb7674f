//! Tasks, by the functions that the compiler's calls are made of.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use amdahl_openmp::task::{self, Creation};
use amdahl_openmp::{team, thread};
use proptest::prelude::*;

/// Runs `body` on `nthreads` threads.
fn parallel<F: Fn(u32) + Sync>(nthreads: u32, body: F) {
    unsafe extern "C-unwind" fn call<F: Fn(u32) + Sync>(data: *mut c_void) {
        // SAFETY: `data` is the closure below, which outlives the region.
        unsafe { (*data.cast_const().cast::<F>())((*thread::current()).at.id) }
    }
    let data = (&raw const body).cast_mut().cast();
    let thread = thread::current();
    // SAFETY: the calling thread's; the closure may be called by all at once.
    unsafe {
        team::begin(thread, call::<F>, data, nthreads, |_| {});
        call::<F>(data);
        team::end(thread);
    }
}

/// What a task is made with.
#[derive(Default)]
struct Clauses {
    flags: u32,
    depend: Vec<usize>,
    runs_at_once: bool,
}

impl Clauses {
    /// Dependences: `out`, then `in`.
    fn depend(outs: &[usize], ins: &[usize]) -> Clauses {
        let mut depend = vec![outs.len() + ins.len(), outs.len()];
        depend.extend(outs.iter().chain(ins));
        Clauses {
            flags: task::FLAG_DEPEND,
            depend,
            runs_at_once: false,
        }
    }
}

/// A task that runs `body`. What it borrows must be there until the next barrier.
fn spawn_with<F: FnOnce(usize) + Send>(clauses: &Clauses, body: F) -> usize {
    #[repr(C)]
    struct Data<F> {
        event: usize,
        body: *mut F,
    }
    unsafe extern "C-unwind" fn call<F: FnOnce(usize)>(data: *mut c_void) {
        // SAFETY: `data` is a copy of what is made below, and the task runs once.
        unsafe {
            let data = data.cast::<Data<F>>();
            Box::from_raw((*data).body)((*data).event);
        }
    }
    let mut data = Data {
        event: 0,
        body: Box::into_raw(Box::new(body)),
    };
    let mut handle: *mut c_void = std::ptr::null_mut();
    let creation = Creation {
        body: call::<F>,
        data: (&raw mut data).cast(),
        copy: None,
        bytes: size_of::<Data<F>>(),
        align: align_of::<Data<F>>(),
        may_defer: !clauses.runs_at_once,
        flags: clauses.flags,
        depend: clauses.depend.as_ptr().cast(),
        priority: 0,
        detach: &raw mut handle,
    };
    let thread = thread::current();
    // SAFETY: the closure is there until the task has run, and what it borrows by the caller's promise.
    unsafe {
        let Creation { body, data, .. } = creation;
        if !task::run_plain(thread, body, data, creation.may_defer, creation.flags) {
            task::spawn(thread, &creation);
        }
    }
    handle as usize
}

fn spawn<F: FnOnce() + Send>(body: F) {
    spawn_with(&Clauses::default(), |_| body());
}

fn wait() {
    // SAFETY: the calling thread's.
    unsafe { task::wait(thread::current()) };
}

fn barrier() {
    // SAFETY: the calling thread's.
    unsafe { team::barrier(thread::current()) };
}

fn group(body: impl FnOnce()) {
    // SAFETY: the calling thread's.
    unsafe {
        task::group::start(thread::current());
        body();
        task::group::end(thread::current());
    }
}

/// What stands for a task that ran where it was made is used again for the next one, but not before its children have ended.
#[test]
fn children_outlive_a_task_that_ran_at_once() {
    const ROUNDS: usize = 2_000;
    let at_once = Clauses {
        runs_at_once: true,
        ..Clauses::default()
    };
    let (own, late) = (AtomicU32::new(0), AtomicU32::new(0));
    let all = 2 * ROUNDS as u32;
    parallel(2, |_| {
        for _ in 0..ROUNDS {
            spawn_with(&at_once, |_| {
                spawn(|| {
                    late.fetch_add(1, Ordering::Relaxed);
                });
            });
            spawn_with(&at_once, |_| {
                let ended = AtomicU32::new(0);
                for _ in 0..3 {
                    spawn(|| {
                        ended.fetch_add(1, Ordering::Relaxed);
                    });
                }
                wait();
                own.fetch_add(ended.load(Ordering::Relaxed), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(late.load(Ordering::Relaxed), all);
    assert_eq!(own.load(Ordering::Relaxed), 3 * all);
}

fn counters(count: usize) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

#[test]
fn each_task_runs_once_before_the_barrier_or_the_end() {
    const TASKS: usize = 300;
    for nthreads in [1, 2, 3, 4, 8, 16] {
        let n = nthreads as usize;
        let (first, second) = (counters(n * TASKS), counters(n * TASKS));
        parallel(nthreads, |id| {
            let mine = id as usize * TASKS..(id as usize + 1) * TASKS;
            for i in mine.clone() {
                let first = &first[i];
                spawn(move || {
                    first.fetch_add(1, Ordering::Relaxed);
                });
            }
            barrier();
            assert!(first.iter().all(|f| f.load(Ordering::Relaxed) == 1));
            for i in mine {
                let second = &second[i];
                spawn(move || {
                    second.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert!(second.iter().all(|s| s.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn one_thread_makes_tasks_and_all_run_them() {
    for nthreads in [1, 2, 4, 9] {
        let sum = AtomicUsize::new(0);
        parallel(nthreads, |id| {
            if id == 0 {
                for i in 0..5_000 {
                    let sum = &sum;
                    spawn(move || {
                        sum.fetch_add(i, Ordering::Relaxed);
                    });
                }
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 5_000 * 4_999 / 2);
    }
}

fn fibonacci(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (mut a, mut b) = (0, 0);
    let (to_a, to_b) = (&mut a, &mut b);
    spawn(move || *to_a = fibonacci(n - 1));
    spawn(move || *to_b = fibonacci(n - 2));
    wait();
    a + b
}

#[test]
fn taskwait_waits_for_children_at_any_depth() {
    for nthreads in [1, 2, 3, 5, 16] {
        let results = Mutex::new(Vec::new());
        parallel(nthreads, |id| {
            if id % 2 == 0 {
                let result = fibonacci(15);
                results.lock().unwrap().push(result);
            }
        });
        let results = results.into_inner().unwrap();
        assert_eq!(results, vec![610; nthreads.div_ceil(2) as usize]);
    }
}

/// The tree of tasks below one of this depth, none of which waits for its children.
fn tree(depth: u32, leaves: &AtomicU32) {
    if depth == 0 {
        leaves.fetch_add(1, Ordering::Relaxed);
        return;
    }
    for _ in 0..3 {
        spawn(move || tree(depth - 1, leaves));
    }
}

#[test]
fn a_taskgroup_waits_for_descendants() {
    for nthreads in [1, 2, 4, 16] {
        parallel(nthreads, |_| {
            let leaves = AtomicU32::new(0);
            group(|| {
                tree(3, &leaves);
                group(|| tree(4, &leaves));
                assert!(leaves.load(Ordering::Relaxed) >= 81);
            });
            assert_eq!(leaves.load(Ordering::Relaxed), 81 + 27);
        });
    }
}

#[test]
fn a_chain_whose_tasks_do_not_wait_runs_to_its_end() {
    fn link(left: u32, ran: &AtomicU32) {
        ran.fetch_add(1, Ordering::Relaxed);
        if left > 0 {
            spawn(move || link(left - 1, ran));
        }
    }
    for nthreads in [1, 4] {
        let ran = AtomicU32::new(0);
        parallel(nthreads, |id| {
            if id == 0 {
                link(50_000, &ran);
            }
        });
        assert_eq!(ran.load(Ordering::Relaxed), 50_001);
    }
}

#[test]
fn tasks_below_a_final_one_run_at_once_on_its_thread() {
    parallel(4, |_| {
        let clauses = Clauses {
            flags: task::FLAG_FINAL,
            ..Clauses::default()
        };
        spawn_with(&clauses, |_| {
            let here = std::thread::current().id();
            for _ in 0..10 {
                let ran = AtomicBool::new(false);
                spawn(|| {
                    // SAFETY: the calling thread's.
                    assert!(unsafe { task::is_final(thread::current()) });
                    assert_eq!(std::thread::current().id(), here);
                    ran.store(true, Ordering::Relaxed);
                });
                assert!(ran.load(Ordering::Relaxed));
            }
        });
    });
}

#[test]
fn outside_of_all_regions_tasks_run_at_once() {
    let mut ran = 0;
    group(|| {
        let clauses = Clauses::depend(&[8], &[16]);
        spawn_with(&clauses, |_| ran += 1);
        spawn(|| spawn(|| ran += 1));
        wait();
    });
    assert_eq!(ran, 2);
}

#[test]
fn a_task_that_runs_at_once_waits_for_those_it_depends_on() {
    for nthreads in [1, 2, 5] {
        for _ in 0..50 {
            parallel(nthreads, |_| {
                let order = Mutex::new(Vec::new());
                let order = &order;
                for i in 0..5 {
                    spawn_with(&Clauses::depend(&[8], &[]), move |_| {
                        order.lock().unwrap().push(i);
                    });
                }
                let mut at_once = Clauses::depend(&[], &[8]);
                at_once.runs_at_once = true;
                spawn_with(&at_once, |_| {
                    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
                });
                spawn_with(&Clauses::depend(&[24], &[8]), move |_| {
                    order.lock().unwrap().push(5);
                });
                let after = Clauses::depend(&[24], &[]).depend;
                // SAFETY: the array is of the compiler's form.
                unsafe { task::wait_depend(thread::current(), after.as_ptr().cast()) };
                assert_eq!(order.lock().unwrap().len(), 6);
            });
        }
    }
}

/// Dependences of a task of the test: which of a few addresses it writes and reads.
fn uses() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let addresses = || proptest::collection::vec(1usize..8, 0..3);
    (addresses(), addresses()).prop_filter("none at all", |(o, i)| !o.is_empty() || !i.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// Against the naive rule: of two tasks that use the same address, and not both only read it, the second begins
    /// when the first has ended.
    #[test]
    fn tasks_that_depend_on_each_other_run_in_their_order(
        tasks in proptest::collection::vec(uses(), 1..60),
        nthreads in 1u32..7,
    ) {
        let clock = AtomicU32::new(1);
        let (begun, ended) = (counters(tasks.len()), counters(tasks.len()));
        parallel(nthreads, |id| {
            if id != 0 {
                return;
            }
            for (i, (outs, ins)) in tasks.iter().enumerate() {
                let (clock, begun, ended) = (&clock, &begun, &ended);
                spawn_with(&Clauses::depend(outs, ins), move |_| {
                    let again = begun[i].swap(clock.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    assert_eq!(again, 0, "ran twice");
                    ended[i].store(clock.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                });
            }
        });
        let writes = |i: usize, a: &usize| tasks[i].0.contains(a);
        let touches = |i: usize, a: &usize| writes(i, a) || tasks[i].1.contains(a);
        for later in 0..tasks.len() {
            prop_assert!(ended[later].load(Ordering::SeqCst) != 0);
            for (earlier, end) in ended.iter().enumerate().take(later) {
                let conflict = (1..8).any(|a| {
                    touches(earlier, &a) && touches(later, &a) && (writes(earlier, &a) || writes(later, &a))
                });
                if conflict {
                    prop_assert!(
                        end.load(Ordering::SeqCst) < begun[later].load(Ordering::SeqCst)
                    );
                }
            }
        }
    }
}

/// Tasks that wait for others are not ready: they were without number before.
#[test]
fn tasks_that_wait_for_others_are_not_made_without_end() {
    let (made, ran, most) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let is_over = AtomicBool::new(false);
    parallel(2, |number| {
        if number == 1 {
            // It takes none, and the other one may not run them at once as the only thread could.
            while !is_over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            return;
        }
        for _ in 0..30_000 {
            made.fetch_add(1, Ordering::Relaxed);
            spawn_with(&Clauses::depend(&[8], &[]), |_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            let left = made.load(Ordering::Relaxed) - ran.load(Ordering::Relaxed);
            most.fetch_max(left, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(ran.load(Ordering::Relaxed), 30_000);
    let most = most.load(Ordering::Relaxed);
    assert!((1_000..5_000).contains(&most), "{most}");
}

#[test]
fn events_are_fulfilled_by_threads_of_no_team() {
    let clauses = || {
        let mut clauses = Clauses::depend(&[8], &[]);
        clauses.flags |= task::FLAG_DETACH;
        clauses
    };
    for nthreads in [1, 2, 4] {
        for _ in 0..50 {
            let (to_other, events) = mpsc::channel();
            let fulfilled = AtomicU32::new(0);
            std::thread::scope(|scope| {
                let fulfilled = &fulfilled;
                scope.spawn(move || {
                    for event in events {
                        fulfilled.fetch_add(1, Ordering::SeqCst);
                        // SAFETY: each is sent once.
                        unsafe { task::fulfill(event) };
                    }
                });
                parallel(nthreads, |id| {
                    if id != 0 {
                        return;
                    }
                    for i in 1..=10 {
                        let to_other = to_other.clone();
                        spawn_with(&clauses(), move |event| to_other.send(event).unwrap());
                        // It ends when its event is fulfilled, and not with its body.
                        spawn_with(&Clauses::depend(&[], &[8]), move |_| {
                            assert!(fulfilled.load(Ordering::SeqCst) >= i);
                        });
                        if i == 5 {
                            wait();
                            assert_eq!(fulfilled.load(Ordering::SeqCst), 5);
                        }
                    }
                });
                assert_eq!(fulfilled.load(Ordering::SeqCst), 10);
                drop(to_other);
            });
        }
    }
}

#[test]
fn an_event_may_be_fulfilled_before_the_body_ends_and_by_who_made_the_task() {
    for nthreads in [1, 3] {
        parallel(nthreads, |_| {
            let clauses = Clauses {
                flags: task::FLAG_DETACH,
                ..Clauses::default()
            };
            spawn_with(&clauses, |event| {
                // SAFETY: once.
                unsafe { task::fulfill(event) };
            });
            let ran = AtomicBool::new(false);
            let event = spawn_with(&clauses, |_| ran.store(true, Ordering::SeqCst));
            // SAFETY: once.
            unsafe { task::fulfill(event) };
            wait();
            assert!(ran.load(Ordering::SeqCst));
        });
    }
}

#[test]
fn a_task_that_runs_at_once_waits_for_its_event() {
    let clauses = Clauses {
        flags: task::FLAG_DETACH,
        runs_at_once: true,
        ..Clauses::default()
    };
    let is_fulfilled = AtomicBool::new(false);
    let run = || {
        std::thread::scope(|scope| {
            let (to_other, events) = mpsc::channel();
            let is_fulfilled = &is_fulfilled;
            is_fulfilled.store(false, Ordering::SeqCst);
            scope.spawn(move || {
                let event = events.recv().unwrap();
                is_fulfilled.store(true, Ordering::SeqCst);
                // SAFETY: once.
                unsafe { task::fulfill(event) };
            });
            spawn_with(&clauses, move |event| to_other.send(event).unwrap());
            assert!(is_fulfilled.load(Ordering::SeqCst));
        });
    };
    run();
    parallel(1, |_| run());
    parallel(2, |id| {
        if id == 0 {
            run();
        }
    });
}

/// A random tree of tasks that wait in all ways, by a generator whose state is the only thing passed down.
fn bush(seed: u64, depth: u32, ran: &AtomicU32) -> u32 {
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    ran.fetch_add(1, Ordering::Relaxed);
    if depth == 0 {
        return 1;
    }
    let mut total = 1;
    for _ in 0..next(4) {
        let children = next(5) as usize;
        let sizes = counters(children);
        let seeds: Vec<u64> = (0..children).map(|_| next(1 << 31)).collect();
        let make = |clauses: &dyn Fn(usize) -> Clauses| {
            for (i, &seed) in seeds.iter().enumerate() {
                let size = &sizes[i];
                spawn_with(&clauses(i), move |_| {
                    size.store(bush(seed, depth - 1, ran), Ordering::Relaxed);
                });
            }
        };
        match next(4) {
            0 => {
                make(&|_| Clauses::default());
                wait();
            }
            1 => group(|| make(&|_| Clauses::default())),
            2 => {
                make(&|i| Clauses::depend(&[8 + i % 2], &[16]));
                wait();
            }
            _ => group(|| {
                make(&|i| Clauses {
                    runs_at_once: i % 2 == 0,
                    ..Clauses::depend(&[8], &[8 + i])
                });
            }),
        }
        total += sizes.iter().map(|s| s.load(Ordering::Relaxed)).sum::<u32>();
    }
    total
}

#[test]
fn random_trees_of_all_kinds_of_tasks_end() {
    for round in 0..40 {
        for nthreads in [1, 2, 3, 7, 16] {
            let ran = AtomicU32::new(0);
            let total = AtomicU32::new(0);
            parallel(nthreads, |id| {
                let size = bush(u64::from(round * 100 + id), 5, &ran);
                total.fetch_add(size, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
        }
    }
}

#[test]
fn regions_in_tasks_and_tasks_in_them() {
    let ran = AtomicU32::new(0);
    parallel(3, |_| {
        for _ in 0..10 {
            spawn(|| {
                parallel(2, |_| {
                    for _ in 0..10 {
                        spawn(|| {
                            ran.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            });
        }
    });
    assert_eq!(ran.load(Ordering::Relaxed), 3 * 10 * 2 * 10);
}
