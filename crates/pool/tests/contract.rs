//! What users rely on: nothing is lost, run twice or left behind, whatever fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use amdahl_pool::{
    CancelToken, JoinError, Pool, Priority, SimulatedCpus, Spawn, WhenOffline, join, scope,
};
use amdahl_topology::{CpuSet, Topology};

/// A pool of `cpus` CPUs that need not exist.
fn pool(cpus: u32) -> Pool {
    let cpus = Topology::synthetic(&format!("{cpus} core")).unwrap();
    Pool::builder()
        .cpus(SimulatedCpus::new(cpus))
        .build()
        .unwrap()
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
    a + b
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload.downcast_ref::<&str>().copied().unwrap_or("?")
}

#[test]
fn join_computes_on_any_number_of_threads() {
    for cpus in [1, 2, 3, 8] {
        assert_eq!(pool(cpus).run(|| fib(22)), 17711, "{cpus} CPUs");
    }
}

#[test]
fn every_policy_computes() {
    for named in amdahl_placement::POLICIES.iter().filter(|p| p.is_policy()) {
        let cpus = SimulatedCpus::new(Topology::synthetic("2 llc x 3 core").unwrap());
        let pool = Pool::builder()
            .policy(named.name)
            .cpus(cpus)
            .build()
            .unwrap();
        assert_eq!(pool.run(|| fib(18)), 2584, "{}", named.name);
        let handles: Vec<_> = (0..100).map(|n| pool.spawn(move || n)).collect();
        let sum: usize = handles.into_iter().map(|h| h.join().unwrap()).sum();
        assert_eq!(sum, 4950, "{}", named.name);
    }
    assert!(Pool::builder().policy("best").build().is_err());
}

/// Work that workers start and tasks that they wake are put where the policy says: nothing stays there, also where fewer
/// may run than there are CPUs.
#[test]
fn every_policy_runs_what_workers_start_and_wake() {
    fn grow<'s>(scope: &amdahl_pool::Scope<'s>, depth: usize, count: &'s AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
        for _ in 0..if depth == 0 { 0 } else { 3 } {
            scope.spawn(move |scope| grow(scope, depth - 1, count));
        }
    }
    for named in amdahl_placement::POLICIES.iter().filter(|p| p.is_policy()) {
        for quota in [None, Some(1.0), Some(2.0)] {
            let cpus = SimulatedCpus::new(Topology::synthetic("2 llc x 3 core").unwrap());
            cpus.set_quota(quota);
            let builder = Pool::builder().policy(named.name).follows_load(false);
            let pool = builder.cpus(cpus).build().unwrap();
            let count = AtomicUsize::new(0);
            pool.scope(|scope| grow(scope, 6, &count));
            assert_eq!(count.into_inner(), 1093, "{} {quota:?}", named.name);
            // A chain of tasks, each of which wakes the next one.
            let (first, mut last) = amdahl_pool::channel(1);
            for _ in 0..10 {
                let (to, next) = amdahl_pool::channel(1);
                pool.spawn_future(async move {
                    while let Ok(n) = last.recv_async().await {
                        to.send_async(n + 1).await.expect("the next one receives");
                    }
                });
                last = next;
            }
            let fed = pool.spawn_future(async move {
                for n in 0..50 {
                    first.send_async(n).await.expect("somebody receives");
                }
            });
            let got: Vec<i32> = std::iter::from_fn(|| last.recv().ok()).collect();
            assert!(got.into_iter().eq(10..60), "{} {quota:?}", named.name);
            fed.join().unwrap();
        }
    }
}

/// Deeper than a deque has room for: what does not fit is run in place.
#[test]
fn joins_may_be_nested_deeper_than_a_deque() {
    fn count(depth: usize) -> usize {
        if depth == 0 {
            return 0;
        }
        let (a, b) = join(|| count(depth - 1), || 1);
        a + b
    }
    assert_eq!(pool(2).run(|| count(3000)), 3000);
}

#[test]
fn panics_reach_the_caller_of_join() {
    let pool = pool(3);
    for _ in 0..100 {
        let ended = AtomicBool::new(false);
        let a = catch_unwind(AssertUnwindSafe(|| {
            pool.join(|| panic!("a"), || ended.store(true, Ordering::Relaxed));
        }));
        assert_eq!(message(&*a.unwrap_err()), "a");
        let b = catch_unwind(AssertUnwindSafe(|| {
            pool.join(|| fib(5), || -> u64 { panic!("b") })
        }));
        assert_eq!(message(&*b.unwrap_err()), "b");
        let both = catch_unwind(AssertUnwindSafe(|| {
            pool.join(|| -> () { panic!("a") }, || -> () { panic!("b") })
        }));
        assert_eq!(message(&*both.unwrap_err()), "a");
    }
    assert_eq!(pool.run(|| fib(15)), 610, "it still works");
}

#[test]
fn a_scope_waits_for_nested_work_that_borrows() {
    let pool = pool(4);
    let count = AtomicUsize::new(0);
    let told = pool.scope(|s| {
        for _ in 0..10 {
            s.spawn(|s| {
                for _ in 0..10 {
                    s.spawn(|_| {
                        scope(|inner| {
                            inner.spawn(|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    });
                }
            });
        }
        "over"
    });
    assert_eq!((told, count.into_inner()), ("over", 100));
}

#[test]
fn a_panic_cancels_a_scope_and_goes_on_when_all_has_ended() {
    let pool = pool(2);
    let running = AtomicUsize::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        pool.scope(|s| {
            for n in 0..50 {
                let running = &running;
                s.spawn(move |_| {
                    running.fetch_add(1, Ordering::SeqCst);
                    let _left = Left(running);
                    assert!(n != 7, "the seventh");
                });
            }
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(running.into_inner(), 0, "nobody is inside");
    // Every one panics: each of the two workers and this thread can begin one before it knows of a panic.
    let begun = AtomicUsize::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        pool.scope(|s| {
            for _ in 0..50 {
                s.spawn(|_| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    panic!("each");
                });
            }
        });
    }));
    assert!(outcome.is_err());
    assert!(
        (1..=3).contains(&begun.into_inner()),
        "the others are cancelled"
    );

    struct Left<'a>(&'a AtomicUsize);
    impl Drop for Left<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_cancelled_scope_begins_nothing_more() {
    let pool = pool(1);
    let ran = AtomicUsize::new(0);
    pool.scope(|s| {
        s.cancel();
        s.spawn(|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert!(s.is_cancelled());
    });
    assert_eq!(ran.into_inner(), 0);
}

#[test]
fn handles_tell_results_panics_and_cancelling() {
    let pool = pool(2);
    assert_eq!(pool.spawn(|| 7).join().unwrap(), 7);
    match pool.spawn(|| -> u8 { panic!("no") }).join() {
        Err(JoinError::Panicked(payload)) => assert_eq!(message(&*payload), "no"),
        other => panic!("{other:?}"),
    }
    let error = pool.spawn(|| panic!("told")).join().unwrap_err();
    assert_eq!(error.to_string(), "the work panicked: told");
    // A worker waits for work of its own pool, and does it.
    let inner = Arc::new(pool);
    let outer = inner.clone();
    let sum = outer.spawn(move || inner.spawn(|| 3).join().unwrap() + 1);
    assert_eq!(sum.join().unwrap(), 4);
}

/// One worker, held at a gate: what waits behind it can be looked at.
fn held(pool: &Pool) -> (mpsc::Sender<()>, amdahl_pool::Handle<()>) {
    let (open, gate) = mpsc::channel::<()>();
    let at_gate = Arc::new(Barrier::new(2));
    let here = at_gate.clone();
    let held = pool.spawn(move || {
        here.wait();
        let _ = gate.recv();
    });
    at_gate.wait();
    (open, held)
}

#[test]
fn priorities_order_what_waits() {
    let pool = pool(1);
    let (open, held) = held(&pool);
    let order = Arc::new(Mutex::new(Vec::new()));
    let work = |priority| {
        let order = order.clone();
        pool.spawn_with(&Spawn::new().priority(priority), move || {
            order.lock().unwrap().push(priority)
        })
    };
    use Priority::{High, Low, Normal};
    let all = [Low, Normal, High, Low, Normal, High].map(work);
    open.send(()).unwrap();
    held.join().unwrap();
    all.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(
        *order.lock().unwrap(),
        [High, High, Normal, Normal, Low, Low]
    );
}

#[test]
fn what_is_cancelled_before_it_begins_never_runs() {
    let pool = pool(1);
    let (open, held) = held(&pool);
    let ran = Arc::new(AtomicUsize::new(0));
    let work = |how: &Spawn| {
        let ran = ran.clone();
        pool.spawn_with(how, move || ran.fetch_add(1, Ordering::SeqCst))
    };
    let token = CancelToken::new();
    let by_token = work(&Spawn::new().token(&token));
    let by_handle = work(&Spawn::new());
    let kept = work(&Spawn::new());
    token.cancel();
    assert!(by_handle.cancel() && !by_handle.cancel());
    assert!(!held.cancel(), "it runs");
    open.send(()).unwrap();
    assert!(matches!(by_token.join(), Err(JoinError::Cancelled)));
    assert!(matches!(by_handle.join(), Err(JoinError::Cancelled)));
    assert_eq!(kept.join().unwrap(), 0);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn dropping_a_pool_runs_what_is_queued() {
    let ran = Arc::new(AtomicUsize::new(0));
    let pool = pool(2);
    let (open, _held) = held(&pool);
    for n in 0..300 {
        let ran = ran.clone();
        let priority = [Priority::Low, Priority::Normal, Priority::High][n % 3];
        pool.spawn_with(&Spawn::new().priority(priority), move || {
            amdahl_pool::spawn(move || ran.fetch_add(1, Ordering::SeqCst));
        });
    }
    open.send(()).unwrap();
    drop(pool);
    assert_eq!(ran.load(Ordering::SeqCst), 300);
}

#[test]
fn a_pool_may_be_dropped_by_its_own_worker() {
    let pool = Arc::new(pool(2));
    let (told, answer) = mpsc::channel();
    let own = pool.clone();
    let (go, gate) = mpsc::channel::<()>();
    pool.spawn(move || {
        gate.recv().unwrap();
        drop(own);
        told.send(()).unwrap();
    });
    drop(pool);
    go.send(()).unwrap();
    answer.recv().unwrap();
}

/// A payload whose destructor panics would kill a worker that did not expect it.
#[test]
fn a_worker_survives_whatever_escapes() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("from a destructor");
            }
        }
    }
    let pool = pool(2);
    for _ in 0..20 {
        // The handle is gone before the work ends: the worker drops the payload.
        let (gone, is_gone) = mpsc::channel::<()>();
        drop(pool.spawn(move || {
            let _ = is_gone.recv();
            std::panic::panic_any(Bomb)
        }));
        drop(gone);
        drop(pool.spawn(|| drop(Bomb)));
    }
    let handles: Vec<_> = (0..50).map(|n| pool.spawn(move || n)).collect();
    let sum: i32 = handles.into_iter().map(|h| h.join().unwrap()).sum();
    assert_eq!(sum, 1225);
    assert_eq!(pool.run(|| fib(12)), 144);
}

/// A task that never yields keeps its worker, and nothing else: what it has pushed before it began is taken by others,
/// also from the private part of its deque.
#[test]
fn a_task_that_never_yields_keeps_only_its_worker() {
    let pool = pool(2);
    let done = AtomicUsize::new(0);
    let done = &done;
    pool.run(|| {
        let mark = || {
            done.fetch_add(1, Ordering::SeqCst);
        };
        join(
            || {
                join(
                    || {
                        join(
                            || {
                                while done.load(Ordering::SeqCst) < 3 {
                                    std::hint::spin_loop()
                                }
                            },
                            mark,
                        )
                    },
                    mark,
                )
            },
            mark,
        )
    });
    assert_eq!(done.load(Ordering::SeqCst), 3);
}

#[test]
fn many_threads_of_the_program_share_a_pool() {
    let pool = pool(3);
    std::thread::scope(|s| {
        // More than there are places for guests.
        for n in 0..50u64 {
            let pool = &pool;
            s.spawn(move || {
                assert_eq!(pool.run(|| fib(12)), 144);
                assert_eq!(pool.spawn(move || n).join().unwrap(), n);
                let sum = AtomicUsize::new(0);
                pool.par_range(0..100, 3, |part| {
                    sum.fetch_add(part.sum(), Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), 4950);
            });
        }
    });
}

#[test]
fn pools_nest() {
    let (outer, inner) = (pool(2), pool(2));
    let both = outer.run(|| inner.run(|| fib(15)) + fib(14));
    assert_eq!(both, 610 + 377);
}

#[test]
fn futures_run_in_the_pool() {
    let pool = pool(2);
    let one = pool.spawn(|| 1);
    let two = pool.spawn_future(async move { one.await.unwrap() + 1 });
    assert_eq!(two.join().unwrap(), 2);
    let panics = pool.spawn_future(async { panic!("polled") });
    assert!(matches!(panics.join(), Err(JoinError::Panicked(_))));
    // One that is woken while it runs is polled again.
    let mut polls = 0;
    let busy = pool.spawn_future(std::future::poll_fn(move |context| {
        polls += 1;
        context.waker().wake_by_ref();
        if polls < 100 {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(polls)
        }
    }));
    assert_eq!(busy.join().unwrap(), 100);
    let never = pool.spawn_future(std::future::pending::<()>());
    drop(pool);
    drop(never);
}

/// A guest that waited for its half of a join was woken by something else (a helper of an earlier range that left
/// late), took that for the end, and read a result that was not there: `fib` was wrong, on crowded CPUs only.
#[test]
fn a_stray_wake_up_does_not_end_a_wait() {
    let pool = pool(2);
    for n in 0..300u64 {
        let helped = AtomicBool::new(false);
        let caller = std::thread::current().id();
        let sum = pool.run(|| {
            // A helper comes, and wakes the caller when it leaves.
            pool.par_range(0..2, 1, |_| {
                if std::thread::current().id() == caller {
                    for _ in 0..2000 {
                        if helped.load(Ordering::Acquire) {
                            break;
                        }
                        std::thread::yield_now();
                    }
                } else {
                    helped.store(true, Ordering::Release);
                }
            });
            let taken = AtomicBool::new(false);
            let (a, b) = pool.join(
                || {
                    while !taken.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    1
                },
                || {
                    taken.store(true, Ordering::Release);
                    for _ in 0..200 {
                        std::thread::yield_now();
                    }
                    n
                },
            );
            a + b
        });
        assert_eq!(sum, n + 1);
    }
}

/// A task that was woken by another comes next on its thread; should that one never end, another worker takes it.
#[test]
fn a_woken_task_does_not_wait_for_its_waker() {
    let pool = pool(2);
    let (to, at) = amdahl_pool::channel(1);
    let got = Arc::new(AtomicBool::new(false));
    let told = got.clone();
    let receiver = pool.spawn_future(async move {
        assert_eq!(at.recv_async().await, Ok(1));
        told.store(true, Ordering::Release);
    });
    let waker = pool.spawn_future(async move {
        to.send_async(1).await.unwrap();
        // Does not yield until the other one has run.
        while !got.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
    });
    receiver.join().unwrap();
    waker.join().unwrap();
}

/// With a full deque both sides of a join run in place; if the first one panicked there, what the second one had
/// captured was never dropped.
#[test]
fn a_panic_at_the_bottom_of_deep_joins_drops_the_other_sides() {
    fn deeper(pool: &Pool, depth: usize, value: &Arc<()>) {
        let kept = value.clone();
        if depth == 0 {
            panic!("at the bottom");
        }
        pool.join(|| deeper(pool, depth - 1, value), move || drop(kept));
    }
    let pool = pool(1);
    let value = Arc::new(());
    // More than a deque has places.
    let depth = if cfg!(miri) { 40 } else { 1100 };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        pool.run(|| deeper(&pool, depth, &value));
    }));
    assert!(outcome.is_err());
    drop(pool);
    assert_eq!(Arc::strong_count(&value), 1);
}

/// Nobody waited for the threads of such a pool, and so nobody cancelled what waited for a CPU.
#[test]
fn a_pool_dropped_by_its_own_worker_is_cleaned_up() {
    let cpus = SimulatedCpus::new(Topology::synthetic("2 core").unwrap());
    cpus.set_allowed(CpuSet::from_iter([0]));
    let pool = Pool::builder()
        .cpus(cpus)
        .when_offline(WhenOffline::Wait)
        .build()
        .unwrap();
    let waits = pool.queue_on(&CpuSet::from_iter([1]), || ());
    let (give, take) = amdahl_pool::channel::<Pool>(1);
    let drops = pool.spawn(move || drop(take.recv()));
    assert!(give.send(pool).is_ok());
    drops.join().unwrap();
    assert!(matches!(waits.join(), Err(JoinError::Cancelled)));
}

/// As many jobs as workers, none of which gets on before all have begun: whoever is woken first wakes the next one
/// while there is more, from wherever the jobs come.
#[test]
fn everybody_is_woken_while_jobs_are_left() {
    type Job = Box<dyn FnOnce() + Send>;
    type Give = fn(&Arc<Pool>, Vec<Job>);
    let from_outside: Give = |pool, jobs| jobs.into_iter().for_each(|job| drop(pool.spawn(job)));
    let from_a_worker: Give = |pool, mut jobs| {
        // The worker that gives them takes one itself.
        let own = jobs.pop().unwrap();
        drop(pool.spawn(move || {
            jobs.into_iter()
                .for_each(|job| drop(amdahl_pool::spawn(job)));
            own();
        }));
    };
    let as_futures: Give = |pool, jobs| {
        jobs.into_iter()
            .for_each(|job| drop(pool.spawn_future(async move { job() })));
    };
    let of_all_priorities: Give = |pool, jobs| {
        let priorities = [Priority::Low, Priority::High, Priority::Normal];
        for (job, priority) in jobs.into_iter().zip(priorities.into_iter().cycle()) {
            drop(pool.spawn_with(&Spawn::new().priority(priority), job));
        }
    };
    let as_a_tree: Give = |pool, jobs| {
        fn tree(mut jobs: Vec<Job>) {
            if jobs.len() == 1 {
                return jobs.pop().unwrap()();
            }
            let right = jobs.split_off(jobs.len() / 2);
            join(|| tree(jobs), || tree(right));
        }
        drop(pool.spawn(move || tree(jobs)));
    };
    let gives = [
        from_outside,
        from_a_worker,
        as_futures,
        of_all_priorities,
        as_a_tree,
    ];
    for cpus in [2, 4, 8] {
        let source = SimulatedCpus::new(Topology::synthetic(&format!("{cpus} core")).unwrap());
        let pool = Pool::builder().cpus(source).follows_load(false);
        let pool = Arc::new(pool.build().unwrap());
        for give in gives.iter().cycle().take(5 * gives.len()) {
            while pool.state().sleeping < cpus {
                std::thread::yield_now();
            }
            let all = Arc::new(Barrier::new(cpus as usize + 1));
            let job = |_| {
                let all = all.clone();
                Box::new(move || {
                    all.wait();
                }) as Job
            };
            give(&pool, (0..cpus).map(job).collect());
            all.wait();
        }
    }
}
