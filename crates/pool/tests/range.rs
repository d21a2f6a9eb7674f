//! Parallel ranges: all of it once, exact reports, whatever stops them.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amdahl_pool::{CancelToken, Cause, Pool, SimulatedCpus, join};
use amdahl_topology::Topology;
use proptest::prelude::*;

fn pool(machine: &str) -> Pool {
    let cpus = SimulatedCpus::new(Topology::synthetic(machine).unwrap());
    Pool::builder().cpus(cpus).build().unwrap()
}

fn joined(mut parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    parts.sort_by_key(|part| part.start);
    let mut joined: Vec<Range<usize>> = vec![];
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}

/// So long that helpers come.
fn linger(rounds: usize) {
    for n in 0..rounds * 100 {
        std::hint::black_box(n);
    }
}

#[test]
fn every_element_is_visited_once() {
    let pool = pool("2 node x 2 core");
    for (len, chunk_min) in [
        (0, 1),
        (1, 1),
        (1, 100),
        (7, 3),
        (1000, 1),
        (1000, 999),
        (1000, usize::MAX),
        (5000, 0),
    ] {
        let visits: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
        pool.par_range(0..len, chunk_min, |part| {
            assert!(!part.is_empty(), "never an empty part");
            linger(part.len());
            for i in part {
                visits[i].fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(
            visits.iter().all(|v| v.load(Ordering::Relaxed) == 1),
            "{len} by {chunk_min}"
        );
    }
}

#[test]
fn ranges_at_the_end_of_numbers() {
    let pool = pool("2 core");
    let sum = AtomicUsize::new(0);
    pool.par_range(usize::MAX - 1000..usize::MAX, 7, |part| {
        sum.fetch_add(part.len(), Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 1000);
    #[allow(clippy::reversed_empty_ranges)]
    pool.par_range(5..3, 1, |_| panic!("nothing is there"));
}

#[test]
fn slices_are_filled() {
    let pool = pool("3 core");
    let mut data = vec![0; 10_000];
    pool.par_slice(&mut data, 16, |first, part| {
        for (i, x) in part.iter_mut().enumerate() {
            *x = first + i;
        }
    });
    assert!(data.into_iter().eq(0..10_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// What is reported as done is exactly what was done, and undone; the failed part is not among it.
    #[test]
    fn the_first_error_stops_the_rest_and_the_report_is_exact(
        len in 1usize..3000, chunk_min in 1usize..40, bad in prop::collection::vec(0usize..3000, 1..4), panics: bool,
    ) {
        let pool = pool("2 llc x 2 core");
        let (done, undone) = (Mutex::new(vec![]), Mutex::new(vec![]));
        let mut undo = |part: Range<usize>| undone.lock().unwrap().push(part);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.ranges(0..len).chunk_min(chunk_min).undo(&mut undo).run(|part| {
                linger(part.len());
                if let Some(&bad) = bad.iter().find(|&bad| part.contains(bad)) {
                    assert!(!panics, "as told");
                    return Err(bad);
                }
                done.lock().unwrap().push(part);
                Ok(())
            })
        }));
        let done = joined(done.into_inner().unwrap());
        let undone = undone.into_inner().unwrap();
        let falling = undone.windows(2).all(|w| w[0].start > w[1].start);
        prop_assert!(falling);
        match outcome {
            Ok(Ok(())) => {
                prop_assert!(bad.iter().all(|&bad| bad >= len));
                prop_assert_eq!(done, vec![0..len]);
                prop_assert!(undone.is_empty());
            }
            Ok(Err(stopped)) => {
                let Cause::Failed(at) = stopped.cause else { panic!("{stopped:?}") };
                prop_assert!(stopped.part.contains(&at) && stopped.is_undone);
                prop_assert_eq!(&stopped.done, &done);
                prop_assert!(done.iter().all(|part| part.end <= stopped.part.start || stopped.part.end <= part.start));
                prop_assert_eq!(joined(undone), done);
            }
            Err(_) => {
                prop_assert!(panics && bad.iter().any(|&bad| bad < len));
                prop_assert_eq!(joined(undone), done);
            }
        }
    }
}

/// Whatever a caller says of where memory is, on machines with several nodes, of which one has no CPU left.
#[test]
fn pieces_on_nodes_are_visited_once() {
    for machine in [
        "1 core",
        "2 node x 2 core",
        "4 node x 1 core",
        "8 node x 1 core",
    ] {
        let cpus = SimulatedCpus::new(Topology::synthetic(machine).unwrap());
        let pool = Pool::builder()
            .cpus(cpus.clone())
            .follows_load(false)
            .build()
            .unwrap();
        for all_are_there in [true, false] {
            if !all_are_there && pool.cpus().len() > 1 {
                let last = pool.cpus().iter().last().unwrap();
                cpus.set_allowed(pool.cpus().iter().filter(|&cpu| cpu != last).collect());
                pool.refresh();
            }
            let visits: Vec<AtomicUsize> = (0..10_000).map(|_| AtomicUsize::new(0)).collect();
            let pieces: Vec<_> = (0..12)
                .map(|n| (n * 800..n * 800 + 900, n as u32 * 5 % 9))
                .collect();
            let ranges = pool.ranges(0..10_000).chunk_min(7).nodes(&pieces);
            let outcome = ranges.run(|part| {
                linger(part.len());
                part.for_each(|at| _ = visits[at].fetch_add(1, Ordering::Relaxed));
                Ok::<(), ()>(())
            });
            assert_eq!(outcome, Ok(()));
            assert!(
                visits.into_iter().all(|visits| visits.into_inner() == 1),
                "{machine}"
            );
        }
    }
}

/// A range whose last part cancelled the token was told to be cancelled, and was undone, with all of it done.
#[test]
fn a_token_that_is_cancelled_by_the_last_part_stops_nothing() {
    for machine in ["1 core", "4 core"] {
        let pool = pool(machine);
        let token = CancelToken::new();
        let done = AtomicUsize::new(0);
        let mut undone = vec![];
        let mut undo = |part| undone.push(part);
        let ranges = pool.ranges(0..100).chunk_min(10).token(&token);
        let outcome = ranges.undo(&mut undo).run(|part| {
            if done.fetch_add(part.len(), Ordering::AcqRel) + part.len() == 100 {
                token.cancel();
            }
            Ok::<(), ()>(())
        });
        assert_eq!(outcome, Ok(()), "{machine}");
        assert!(undone.is_empty(), "{machine}");
    }
}

#[test]
fn a_token_stops_it() {
    let pool = pool("2 core");
    let token = CancelToken::new();
    let stopped = pool.ranges(0..1_000_000).token(&token).run(|part| {
        if part.contains(&500) {
            token.cancel();
        }
        Ok::<(), ()>(())
    });
    let stopped = stopped.unwrap_err();
    assert_eq!(stopped.cause, Cause::Cancelled);
    assert!(stopped.part.is_empty() && !stopped.is_undone);
    assert!(stopped.done.iter().any(|part| part.contains(&500)));
    assert!(
        stopped
            .done
            .iter()
            .map(ExactSizeIterator::len)
            .sum::<usize>()
            < 1_000_000
    );
}

#[test]
fn progress_rises_to_the_total() {
    let pool = pool("4 core");
    let told = Mutex::new(vec![]);
    let progress = |done, total| {
        assert_eq!(total, 10_000);
        told.lock().unwrap().push(done);
    };
    let ranges = pool
        .ranges(0..10_000)
        .chunk_min(10)
        .progress(Duration::ZERO, &progress);
    ranges
        .run(|part| {
            linger(part.len());
            Ok::<(), ()>(())
        })
        .unwrap();
    let told = told.into_inner().unwrap();
    assert!(told.windows(2).all(|w| w[0] < w[1]), "{told:?}");
    assert_eq!(told.last(), Some(&10_000));
}

/// The caps hold at every instant, and ranges nest.
#[test]
fn caps_hold() {
    let pool = pool("2 node x 4 core");
    for (threads, per_node, most) in [(3, 9, 3), (1, 9, 1), (8, 1, 3), (8, 0, 1)] {
        let (now, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ranges = pool
            .ranges(0..300)
            .threads_max(threads)
            .threads_per_node_max(per_node);
        ranges
            .run(|part| {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                linger(2000);
                let sum = AtomicUsize::new(0);
                pool.par_range(0..10, 1, |inner| {
                    sum.fetch_add(inner.len(), Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), 10);
                now.fetch_sub(1, Ordering::SeqCst);
                let _ = part;
                Ok::<(), ()>(())
            })
            .unwrap();
        assert!(
            peak.into_inner() <= most,
            "threads {threads}, per node {per_node}"
        );
    }
}

/// Places were left on one node alone, and only workers of the other one were woken, who could not take them and never slept
/// for long.
#[test]
fn caps_of_one_node_leave_the_places_of_others() {
    for (nodes, per_node) in [(2, 1), (3, 2), (5, 1)] {
        let machine = Topology::synthetic(&format!("{nodes} node x 4 core")).unwrap();
        let pool = Pool::builder()
            .cpus(SimulatedCpus::new(machine))
            .follows_load(false)
            .build()
            .unwrap();
        for _ in 0..10 {
            while pool.state().sleeping < 4 * nodes {
                std::thread::yield_now();
            }
            // The first chunk earns the helpers: a wake-up counts as 1 ms at most. Then nobody gets on before all are here
            // that may be.
            let is_first = AtomicBool::new(true);
            let here = Mutex::new(std::collections::HashSet::new());
            let ranges = pool.ranges(0..1000).threads_per_node_max(per_node);
            ranges
                .run(|_| {
                    let begun = Instant::now();
                    if is_first.swap(false, Ordering::Relaxed) {
                        while begun.elapsed() < Duration::from_millis(1) {
                            std::hint::spin_loop();
                        }
                        return Ok::<(), ()>(());
                    }
                    here.lock().unwrap().insert(std::thread::current().id());
                    while here.lock().unwrap().len() as u32 <= nodes * per_node {
                        std::thread::yield_now();
                    }
                    Ok(())
                })
                .unwrap();
        }
    }
}

/// Policy and nice of this thread.
fn standing() -> (u32, i32) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<String> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    // policy is field 41, nice field 19; the name and two before it are cut off.
    (
        fields[38].parse::<u32>().unwrap(),
        fields[16].parse::<i32>().unwrap(),
    )
}

/// Two workers whose helpers can be lowered, or why not.
fn lowering_pool() -> Option<Pool> {
    let builder = Pool::builder().threads_max(2).follows_load(false);
    let pool = builder.build().unwrap();
    if pool.state().lowering == amdahl_pool::Lowering::Not || pool.cpus().len() < 2 {
        println!("SKIPPED: this process cannot raise priorities again, or has one CPU");
        return None;
    }
    Some(pool)
}

/// Sets it when it is dropped.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Has a helper do `work` in a chunk that the caller waits for in one of its own; tries until one comes.
fn by_a_helper(pool: &Pool, work: impl Fn() + Sync) {
    let caller = std::thread::current().id();
    let (is_here, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let begun = Instant::now();
    while !is_done.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no helper comes");
        let ran = pool.ranges(0..20).run(|_| {
            if std::thread::current().id() != caller {
                if !is_here.swap(true, Ordering::SeqCst) {
                    // Also if it panics: the caller waits for it.
                    let _done = Sets(&is_done);
                    work();
                }
                return Ok::<(), ()>(());
            }
            // Long enough for a helper to be worth it; then as long as it is at it.
            let chunk = Instant::now();
            while chunk.elapsed() < Duration::from_millis(2)
                || is_here.load(Ordering::SeqCst) && !is_done.load(Ordering::SeqCst)
            {
                std::thread::yield_now();
            }
            Ok(())
        });
        ran.unwrap();
    }
}

#[test]
fn a_helper_is_lowered_in_its_first_chunk_if_that_is_long() {
    let Some(pool) = lowering_pool() else { return };
    let normal = standing();
    by_a_helper(&pool, || {
        let begun = Instant::now();
        while standing() == normal {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it is never lowered"
            );
            std::thread::yield_now();
        }
    });
    assert_eq!(pool.spawn(standing).join().unwrap(), normal);
}

#[test]
fn work_of_others_that_a_lowered_helper_does_while_it_waits_is_not_low() {
    let Some(pool) = lowering_pool() else { return };
    let normal = standing();
    by_a_helper(&pool, || {
        while standing() == normal {
            std::thread::yield_now();
        }
        // Somebody else may be quicker: until this thread has done some of it.
        let own = std::thread::current().id();
        let begun = Instant::now();
        let is_own_done = || {
            let look = || (standing(), std::thread::current().id());
            let spawned: Vec<_> = (0..16).map(|_| pool.spawn(look)).collect();
            let done = spawned.into_iter().map(|handle| handle.join().unwrap());
            // Joined one by one, so not the last ones alone.
            let mine: Vec<_> = done.filter(|(_, thread)| *thread == own).collect();
            assert!(mine.iter().all(|(theirs, _)| *theirs == normal), "{mine:?}");
            !mine.is_empty()
        };
        while !is_own_done() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "others do all of it"
            );
        }
        // Low again, since it goes on helping.
        let begun = Instant::now();
        while standing() == normal {
            assert!(begun.elapsed() < Duration::from_secs(60), "it stays raised");
            std::thread::yield_now();
        }
    });
}

/// A helper that has worked for a while is lowered. The caller is done and this helper is not: it gets the caller's
/// priority, and the range ends. Afterwards it has its own again.
#[test]
fn helpers_are_lowered_lent_to_and_restored() {
    let Some(pool) = lowering_pool() else { return };
    let normal = standing();
    let caller = std::thread::current().id();
    let mut lowered = 0;
    for _ in 0..20 {
        let is_here = AtomicBool::new(false);
        let is_low = AtomicBool::new(false);
        pool.ranges(0..2000)
            .run(|part| {
                let begun = Instant::now();
                if std::thread::current().id() != caller {
                    is_here.store(true, Ordering::SeqCst);
                    if standing() != normal {
                        is_low.store(true, Ordering::SeqCst);
                    }
                    // Until the caller lends: it has nothing else to do.
                    while standing() != normal {
                        std::thread::yield_now();
                    }
                }
                let pause_until = |until: Duration| {
                    if begun.elapsed() < until {
                        std::thread::yield_now();
                    }
                    begun.elapsed() < until
                };
                while pause_until(Duration::from_micros(20) * part.len() as u32) {}
                // The helper shall have the rest; one that came late finds too little of it to be lowered.
                while std::thread::current().id() == caller
                    && is_here.load(Ordering::SeqCst)
                    && !is_low.load(Ordering::SeqCst)
                    && pause_until(Duration::from_millis(100))
                {}
                Ok::<(), ()>(())
            })
            .unwrap();
        lowered += u32::from(is_low.into_inner());
        let after = pool.spawn(standing).join().unwrap();
        assert_eq!(after, normal, "restored");
    }
    assert!(lowered > 0, "helpers that stay are lowered");
}

/// Who waits inside of a job does not help, and must not be the one who is woken for it.
#[test]
fn a_range_beside_a_worker_that_waits_is_helped() {
    let cpus = SimulatedCpus::new(Topology::synthetic("4 core").unwrap());
    let builder = Pool::builder().cpus(cpus).follows_load(false);
    let pool = Arc::new(builder.build().unwrap());
    let help = |pool: &Pool| {
        let helpers = Mutex::new(std::collections::HashSet::new());
        pool.par_range(0..100, 1, |part| {
            let me = std::thread::current().id();
            helpers.lock().unwrap().insert(me);
            // Longer in all than what a helper must be worth.
            linger(400 * part.len());
            // Others come, or this never ends.
            while part.end > 50 && helpers.lock().unwrap().len() < 2 {
                std::thread::yield_now();
            }
        });
    };
    for _ in 0..20 {
        let of_pool = Arc::clone(&pool);
        let waits = pool.spawn(move || {
            let has_begun = AtomicBool::new(false);
            // Returns once the other side runs elsewhere, and waits for it.
            let first = || {
                while !has_begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            };
            let second = || {
                has_begun.store(true, Ordering::Release);
                help(&of_pool);
            };
            join(first, second);
        });
        waits.join().unwrap();
    }
}

/// A range had as many threads as might run when it began: who was allowed later stood by, or slept. One that began under a
/// quota of one CPU stayed alone.
#[test]
fn who_may_run_later_joins_a_range_that_runs() {
    type Change = fn(&SimulatedCpus);
    let cases: [(&str, Change, Change, usize); 4] = [
        (
            "a quota of one CPU is lifted",
            |cpus| cpus.set_quota(Some(1.0)),
            |cpus| cpus.set_quota(None),
            4,
        ),
        (
            "a quota is raised",
            |cpus| cpus.set_quota(Some(2.0)),
            |cpus| cpus.set_quota(Some(3.0)),
            3,
        ),
        (
            "the mask is widened",
            |cpus| cpus.set_allowed((0..1).collect()),
            |cpus| cpus.set_allowed((0..4).collect()),
            4,
        ),
        (
            "CPUs come",
            |cpus| cpus.set_allowed((0..2).collect()),
            |cpus| cpus.set_allowed((1..4).collect()),
            3,
        ),
    ];
    for (what, before, then, wanted) in cases {
        let cpus = SimulatedCpus::new(Topology::synthetic("4 core").unwrap());
        before(&cpus);
        let builder = Pool::builder().cpus(cpus.clone()).follows_load(false);
        let pool = builder.build().unwrap();
        let here = Mutex::new(std::collections::HashSet::new());
        let caller = std::thread::current().id();
        let is_first = AtomicBool::new(true);
        pool.par_range(0..5000, 1, |_| {
            let me = std::thread::current().id();
            here.lock().unwrap().insert(me);
            if is_first.swap(false, Ordering::Relaxed) {
                then(&cpus);
                pool.refresh();
            }
            let begun = Instant::now();
            // The caller goes on, for it is who invites; helpers stay until all are here.
            let limit = Duration::from_millis(if me == caller { 2 } else { 20_000 });
            while here.lock().unwrap().len() < wanted && begun.elapsed() < limit {
                std::thread::yield_now();
            }
        });
        assert_eq!(here.into_inner().unwrap().len(), wanted, "{what}");
    }
}

/// Helpers of a range that has ended go on with another one that still runs.
#[test]
fn who_helped_elsewhere_joins_a_range_that_runs() {
    let pool = pool("4 core");
    let (is_over, has_helpers) = (AtomicBool::new(false), AtomicBool::new(false));
    let gather = |is_enough: &(dyn Fn(usize) -> bool + Sync)| {
        let here = Mutex::new(std::collections::HashSet::new());
        let caller = std::thread::current().id();
        pool.par_range(0..5000, 1, |_| {
            let me = std::thread::current().id();
            here.lock().unwrap().insert(me);
            let begun = Instant::now();
            let limit = Duration::from_millis(if me == caller { 2 } else { 20_000 });
            while !is_enough(here.lock().unwrap().len()) && begun.elapsed() < limit {
                std::thread::yield_now();
            }
        });
        here.into_inner().unwrap().len()
    };
    std::thread::scope(|scope| {
        // With another guest there are two workers, and both are here until the other range has begun.
        scope.spawn(|| {
            gather(&|here| {
                has_helpers.fetch_or(here > 2, Ordering::AcqRel);
                is_over.load(Ordering::Acquire)
            })
        });
        while !has_helpers.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let here = gather(&|here| {
            is_over.store(true, Ordering::Release);
            here > 2
        });
        assert!(here > 2, "{here}");
    });
}
