//! Published sums against their bound, on a simulated clock.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    let each = if one_sign { threshold } else { 3 * threshold };
    counter.parts() as u64 * each
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

/// Threads add while time goes by; when they are done, an interval later the bound holds.
#[test]
fn threads_that_publish_at_once_forget_nothing() {
    const ADDITIONS: i64 = if cfg!(miri) { 40 } else { 500 };
    let all = 4 * ADDITIONS;
    for placement in [Placement::PerCpu, Placement::PerLlc] {
        let clock = Simulated::default();
        for round in 0..if cfg!(miri) { 2 } else { 50 } {
            let threshold = 1 + round % 7;
            let counter = counter(threshold, placement, &clock);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let mut last = 0;
                        for n in 0..ADDITIONS {
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
