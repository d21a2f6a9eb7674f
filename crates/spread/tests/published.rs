//! Published sums against their bound, on a simulated clock.

mod threads;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use amdahl_spread::{Clock, LlcMap, Monotonic, Placement, PublishedCounter};
use amdahl_topology::Topology;
use proptest::prelude::*;

const INTERVAL_NS: u64 = PublishedCounter::<Monotonic>::INTERVAL_NS;

#[derive(Clone, Default)]
struct Simulated(Arc<AtomicU64>);

impl Clock for Simulated {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn map() -> Arc<LlcMap> {
    let topology = Topology::synthetic("2 llc x 4 core").expect("valid");
    Arc::new(LlcMap::new(&topology, 8))
}

fn counter(threshold: u64, placement: Placement, clock: &Simulated) -> PublishedCounter<Simulated> {
    let threshold = NonZeroU64::new(threshold).expect("not 0");
    PublishedCounter::with(threshold, placement, map(), clock.clone())
}

/// What `read` may be off by when nobody else is at work.
fn slack(counter: &PublishedCounter<Simulated>, threshold: u64, one_sign: bool) -> u64 {
    // Less than these.
    let each = if one_sign { threshold } else { 3 * threshold };
    counter.parts() as u64 * (each - 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 200 }))]

    /// Steps of time and additions on one thread: the bound holds, and publications are rare.
    #[test]
    fn what_is_read_is_within_the_bound(
        steps in prop::collection::vec((0..INTERVAL_NS / 2, -300_i64..300), 1..200),
        threshold in 1_u64..500,
        one_sign: bool,
        per_cpu: bool,
    ) {
        let clock = Simulated::default();
        let placement = if per_cpu { Placement::PerCpu } else { Placement::PerLlc };
        let counter = counter(threshold, placement, &clock);
        let slack = slack(&counter, threshold, one_sign);
        // When it was added, and how much.
        let mut history: Vec<(u64, u64)> = Vec::new();
        let (mut exact, mut last, mut changed_ns) = (0, 0, None);
        for (wait_ns, delta) in steps {
            let now_ns = clock.0.fetch_add(wait_ns, Ordering::Relaxed) + wait_ns;
            let delta = if one_sign { delta.abs() } else { delta };
            counter.add(delta);
            exact += delta;
            history.push((now_ns, delta.unsigned_abs()));
            let lately = history.iter().rev();
            let lately = lately.take_while(|(at_ns, _)| now_ns - at_ns <= INTERVAL_NS);
            let lately: u64 = lately.map(|(_, amount)| amount).sum();
            let read = counter.read();
            prop_assert!(
                read.abs_diff(exact) <= slack + lately,
                "{read} for {exact}, {slack} + {lately}"
            );
            prop_assert_eq!(counter.read_exact(), exact);
            if read != last {
                prop_assert!(changed_ns.is_none_or(|at| now_ns - at >= INTERVAL_NS));
                (last, changed_ns) = (read, Some(now_ns));
            }
        }
        // Without further additions the last interval passes, too.
        clock.0.fetch_add(INTERVAL_NS, Ordering::Relaxed);
        prop_assert!(counter.read().abs_diff(exact) <= slack);
    }
}

#[test]
fn a_threshold_of_one_is_exact_an_interval_later() {
    for placement in [Placement::PerCpu, Placement::PerLlc] {
        let clock = Simulated::default();
        let counter = counter(1, placement, &clock);
        counter.add(7);
        assert_eq!((counter.read(), counter.read_exact()), (0, 7));
        clock.0.store(INTERVAL_NS, Ordering::Relaxed);
        assert_eq!(counter.read(), 7);
        counter.sub(8);
        assert_eq!(counter.read(), 7, "not twice in an interval");
        clock.0.store(2 * INTERVAL_NS, Ordering::Relaxed);
        assert_eq!(counter.read(), -1);
    }
}

/// So many threads add while time goes by; when they are done, an interval later the bound holds.
fn publish_at_once(threads: i64, additions: i64) {
    let all = threads * additions;
    for placement in [Placement::PerCpu, Placement::PerLlc] {
        let clock = Simulated::default();
        for round in 0..if cfg!(miri) { 2 } else { 50 } {
            let threshold = 1 + round % 7;
            let counter = counter(threshold, placement, &clock);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let mut last = 0;
                        for n in 0..additions {
                            counter.add(1);
                            if n % 8 == 0 {
                                clock.0.fetch_add(INTERVAL_NS / 4, Ordering::Relaxed);
                                // Sums that only grow are published in order.
                                let read = counter.read();
                                assert!((last..=all).contains(&read), "{read} after {last}");
                                last = read;
                            }
                        }
                    });
                }
            });
            clock.0.fetch_add(INTERVAL_NS, Ordering::Relaxed);
            let slack = slack(&counter, threshold, true);
            assert!(counter.read().abs_diff(all) <= slack, "{counter:?}");
            assert_eq!(counter.read_exact(), all);
        }
    }
}

#[test]
fn threads_that_publish_at_once_forget_nothing() {
    publish_at_once(4, if cfg!(miri) { 40 } else { 500 });
}

#[test]
#[ignore = "takes two minutes"]
fn sixty_four_threads_that_publish_at_once_forget_nothing_for_minutes() {
    threads::for_minutes(|| {
        publish_at_once(64, 40);
        publish_while_time_stands(64, 40);
    });
}

/// Lets others go first when a thread asks for the first few times.
struct Yielding(Simulated);

thread_local! {
    static YIELDS: Cell<u32> = const { Cell::new(3) };
}

impl Clock for Yielding {
    fn now_ns(&self) -> u64 {
        let now_ns = self.0.now_ns();
        if let Some(left) = YIELDS.get().checked_sub(1) {
            YIELDS.set(left);
            thread::yield_now();
        }
        now_ns
    }
}

/// The clock stands while so many threads add, and goes on when all are done: in each of these intervals what is read changes
/// once at most, for whatever thread reads it.
fn publish_while_time_stands(threads: i64, additions: i64) {
    for placement in [Placement::PerCpu, Placement::PerLlc] {
        let clock = Simulated::default();
        let yielding = Yielding(clock.clone());
        let counter = PublishedCounter::with(NonZeroU64::MIN, placement, map(), yielding);
        let (mut before, mut changes) = (0, 0);
        let rounds = if cfg!(miri) { 3 } else { 25 };
        for round in 1..=rounds {
            clock.0.fetch_add(INTERVAL_NS, Ordering::Relaxed);
            let seen: BTreeSet<i64> = thread::scope(|scope| {
                let add_and_read = || {
                    let add = |_| {
                        counter.add(1);
                        counter.read()
                    };
                    (0..additions).map(add).collect::<BTreeSet<i64>>()
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(add_and_read)).collect();
                all.into_iter()
                    .flat_map(|one| one.join().unwrap())
                    .collect()
            });
            let after = counter.read();
            let others: Vec<&i64> = seen.iter().filter(|&&sum| sum != before).collect();
            assert!(
                others.iter().all(|&&sum| sum == after),
                "{before} {others:?} {after}"
            );
            assert_eq!(counter.read_exact(), round * threads * additions);
            changes += i64::from(after != before);
            before = after;
        }
        assert_eq!(changes, rounds, "the sum is due each time");
    }
}

#[test]
fn the_published_sum_changes_once_an_interval_however_many_threads_add() {
    let (threads, additions) = if cfg!(miri) { (3, 5) } else { (8, 200) };
    publish_while_time_stands(threads, additions);
}

/// Holds whoever asks for the time a second time in an addition, which is between finding that a publication is due and beginning it.
struct Holding<'a> {
    time: &'a Simulated,
    held: &'a Barrier,
    let_go: &'a Barrier,
}

thread_local! {
    /// How often this thread may ask until it is held.
    static QUESTIONS: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Clock for Holding<'_> {
    fn now_ns(&self) -> u64 {
        let now_ns = self.time.now_ns();
        let left = QUESTIONS.get().map(|left| left - 1);
        QUESTIONS.set(left.filter(|&left| left > 0));
        if left == Some(0) {
            self.held.wait();
            self.let_go.wait();
        }
        now_ns
    }
}

/// Who found that a publication was due, and was late, does not publish again.
#[test]
fn of_many_for_whom_a_publication_was_due_one_publishes() {
    const LATE: usize = 7;
    let time = &Simulated::default();
    let (held, let_go) = (&Barrier::new(LATE + 1), &Barrier::new(LATE + 1));
    let clock = Holding { time, held, let_go };
    let counter = PublishedCounter::with(NonZeroU64::MIN, Placement::PerLlc, map(), clock);
    time.0.store(INTERVAL_NS, Ordering::Relaxed);
    thread::scope(|scope| {
        for _ in 0..LATE {
            scope.spawn(|| {
                QUESTIONS.set(Some(2));
                counter.add(1);
            });
        }
        held.wait();
        counter.add(1);
        assert_eq!(counter.read(), 1 + LATE as i64);
        counter.add(1);
        let_go.wait();
    });
    assert_eq!(counter.read(), 1 + LATE as i64, "not twice in an interval");
    time.0.store(2 * INTERVAL_NS, Ordering::Relaxed);
    assert_eq!(counter.read(), 2 + LATE as i64);
}

/// Panics at the question with this number.
struct Fragile(AtomicU64, u64);

impl Clock for Fragile {
    fn now_ns(&self) -> u64 {
        let asked = self.0.fetch_add(1, Ordering::Relaxed);
        assert_ne!(asked, self.1, "the clock is broken");
        asked * INTERVAL_NS
    }
}

/// Nobody published any more.
#[test]
fn a_clock_that_panics_once_stops_nothing() {
    let threshold = NonZeroU64::MIN;
    for broken in 1..8 {
        let clock = Fragile(AtomicU64::new(0), broken);
        let counter = PublishedCounter::with(threshold, Placement::PerLlc, map(), clock);
        let mut panics = 0;
        for _ in 0..8 {
            let add = || counter.add(1);
            panics +=
                u32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(add)).is_err());
        }
        assert_eq!((panics, counter.read()), (1, 8), "{broken}");
    }
}

#[test]
fn ends_of_the_range_wrap() {
    let clock = Simulated::default();
    let counter = counter(u64::MAX, Placement::PerCpu, &clock);
    counter.add(i64::MIN);
    counter.add(i64::MIN);
    counter.sub(i64::MIN);
    assert_eq!(counter.read_exact(), i64::MIN);
}
