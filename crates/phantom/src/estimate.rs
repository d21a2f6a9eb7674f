//! Readings in, estimates out. No clock, no I/O; DESIGN.md defines each figure.

use std::collections::VecDeque;

use amdahl_phantom_page::{Cpus, Snapshot};

use crate::average::Averages;
use crate::reading::Reading;

/// How readings become estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Over which time figures are averaged, at least. It is lengthened to the longest period of a quota that holds.
    pub window_ns: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            window_ns: 100_000_000,
        }
    }
}

/// Half a thread that waits is overload: less comes from wake-ups and interrupts alone.
pub const OVERLOAD: f64 = 0.5;
/// The longest span in which idle CPUs must have been seen, in windows.
pub const SPAN_MAX: u32 = 8;
/// A period of a quota is not longer than this by the kernel's own rules; whatever says so is not followed.
const PERIOD_MAX_NS: u64 = 1_000_000_000;

/// A day: nobody means a longer one.
const WINDOW_MAX_NS: u64 = 86_400_000_000_000;

/// What was found at a tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// When the window ended, `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The averages over the window.
    pub window: Averages,
    /// CPUs that are free for us and have been in each of the last two spans.
    pub idle_avg: f64,
    /// Windows that such a span has now: 1, 2, 4 or 8.
    pub span: u32,
}

impl Estimate {
    /// CPUs that our threads ran on or that were free for them.
    pub fn runnable_cpus(&self) -> f64 {
        self.window.runnable
    }

    /// Our threads that could run and did not.
    pub fn phantom_avg(&self) -> f64 {
        self.window.phantom
    }

    /// What is published of it, as tick number `ticks`, where `tick_ns` are between two.
    pub fn snapshot(&self, ticks: u64, tick_ns: u64) -> Snapshot {
        let micros = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        Snapshot {
            time_ns: self.at_ns,
            ticks,
            tick_us: micros(tick_ns),
            window_us: micros(self.window.span_ns),
            runnable: Cpus::from_f64(self.window.runnable),
            phantom: Cpus::from_f64(self.window.phantom),
            idle: Cpus::from_f64(self.idle_avg),
            running: Cpus::from_f64(self.window.running),
            others: Cpus::from_f64(
                self.window.others_threads + self.window.host_others.unwrap_or(0.0),
            ),
            quota: Cpus::from_f64(self.window.quota.unwrap_or(0.0)),
            allowed: self.window.allowed as u32,
        }
    }
}

/// Follows one workload.
#[derive(Clone, Debug)]
pub struct Estimator {
    settings: Settings,
    /// The oldest first; as many as the longest span needs.
    readings: VecDeque<Reading>,
    span: u32,
    /// When the span was last changed or overload last seen.
    unchanged_since_ns: u64,
}

impl Estimator {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Estimator {
        Estimator {
            settings: Settings {
                window_ns: settings.window_ns.clamp(1, WINDOW_MAX_NS),
            },
            readings: VecDeque::new(),
            span: 1,
            unchanged_since_ns: 0,
        }
    }

    /// Takes the reading of a tick. `None` if there is nothing to compare it with: it is the first one, or the first since the
    /// allowed CPUs or the quotas have changed.
    pub fn tick(&mut self, reading: Reading) -> Option<Estimate> {
        let continues = self
            .readings
            .back()
            .is_some_and(|last| reading.continues(last));
        if !continues {
            self.readings.clear();
        }
        let at_ns = reading.at_ns;
        self.readings.push_back(reading);
        let window_ns = self.window_ns();
        self.forget(window_ns);
        let window = self.averages(0, window_ns)?;
        self.follow_overload(at_ns, window.phantom, window_ns);
        let mut idle_avg = self.idle(window_ns);
        if window.host_runnable.is_some() {
            // Of the spans it may not have been known what the host had.
            idle_avg = idle_avg.min(window.free);
        }
        Some(Estimate {
            at_ns,
            window,
            idle_avg,
            span: self.span,
        })
    }

    /// The window in use.
    pub fn window_ns(&self) -> u64 {
        let quotas = self.readings.back().map_or(&[][..], |last| &last.quotas);
        let periods = quotas
            .iter()
            .map(|quota| quota.period_ns.min(PERIOD_MAX_NS));
        periods.fold(self.settings.window_ns, u64::max)
    }

    /// Averages over the `length_ns` that ended `ago_ns` before the last reading: from the last reading at or before its
    /// beginning, or from the first there is, to the last at or before its end.
    fn averages(&self, ago_ns: u64, length_ns: u64) -> Option<Averages> {
        let last = self.readings.back()?;
        let end_ns = last.at_ns.saturating_sub(ago_ns);
        let end = self.at_or_before(end_ns)?;
        let begin = self
            .at_or_before(end_ns.saturating_sub(length_ns))
            .unwrap_or(0);
        (begin < end).then(|| Averages::between(&self.readings[begin], &self.readings[end]))
    }

    fn at_or_before(&self, ns: u64) -> Option<usize> {
        self.readings
            .partition_point(|reading| reading.at_ns <= ns)
            .checked_sub(1)
    }

    /// Keeps what two of the longest spans need, and one reading before.
    fn forget(&mut self, window_ns: u64) {
        let last = self.readings.back().map_or(0, |last| last.at_ns);
        let needed = last.saturating_sub(2 * u64::from(SPAN_MAX) * window_ns);
        while self
            .readings
            .get(1)
            .is_some_and(|second| second.at_ns <= needed)
        {
            self.readings.pop_front();
        }
    }

    /// Overload doubles the span, once a window: what was free then was wanted by others soon after. Four spans
    /// without overload halve it.
    fn follow_overload(&mut self, at_ns: u64, phantom: f64, window_ns: u64) {
        let unchanged_ns = at_ns.saturating_sub(self.unchanged_since_ns);
        if phantom >= OVERLOAD {
            if unchanged_ns >= window_ns {
                self.span = (self.span * 2).min(SPAN_MAX);
                self.unchanged_since_ns = at_ns;
            }
        } else if unchanged_ns >= 4 * u64::from(self.span) * window_ns {
            self.span = (self.span / 2).max(1);
            self.unchanged_since_ns = at_ns;
        }
    }

    /// The least of what was free in the last span and in the one before; 0 while it is not known for that long.
    fn idle(&self, window_ns: u64) -> f64 {
        let span_ns = u64::from(self.span) * window_ns;
        let last = self.readings.back().map_or(0, |last| last.at_ns);
        let is_known = last
            .checked_sub(2 * span_ns)
            .is_some_and(|begin| self.at_or_before(begin).is_some());
        if !is_known {
            return 0.0;
        }
        let free = |ago_ns| self.averages(ago_ns, span_ns).map_or(0.0, |span| span.free);
        free(0).min(free(span_ns))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reading::{HostReading, QuotaReading};

    const MS: u64 = 1_000_000;

    /// A machine of two CPUs, whose counters move as told.
    struct Machine(Reading);

    impl Machine {
        fn new() -> Machine {
            Machine(Reading {
                at_ns: 1,
                allowed: 2,
                wait_ns: Some(0),
                ..Reading::default()
            })
        }

        /// `ms` pass; of each CPU-millisecond so much is spent.
        fn pass(&mut self, ms: u64, run: f64, wait: f64, idle: f64) -> Reading {
            let reading = &mut self.0;
            let spent = |share: f64| (share * (ms * MS) as f64) as u64;
            reading.at_ns += ms * MS;
            reading.run_ns += spent(run);
            reading.wait_ns = reading.wait_ns.map(|sum| sum + spent(wait));
            reading.idle_ns += spent(idle);
            reading.clone()
        }
    }

    fn estimator(machine: &Machine) -> Estimator {
        let mut estimator = Estimator::new(Settings::default());
        assert_eq!(
            estimator.tick(machine.0.clone()),
            None,
            "nothing to compare with"
        );
        estimator
    }

    #[test]
    fn ticks_shorter_than_the_window_slide_it() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        for _ in 0..10 {
            estimator.tick(machine.pass(20, 2.0, 0.0, 0.0));
        }
        // A neighbour comes: each tick shows a fifth more of it.
        for n in 1..=7_u32 {
            let estimate = estimator.tick(machine.pass(20, 1.0, 1.0, 0.0)).unwrap();
            let expected = 2.0 - f64::from(n.min(5)) / 5.0;
            assert!(
                (estimate.runnable_cpus() - expected).abs() < 1e-9,
                "{n}: {estimate:?}"
            );
            assert!((estimate.phantom_avg() - (2.0 - expected)).abs() < 1e-9);
        }
    }

    #[test]
    fn idle_cpus_count_when_two_spans_had_them() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        let idle = |estimate: Option<Estimate>| estimate.unwrap().idle_avg;
        assert_eq!(
            idle(estimator.tick(machine.pass(100, 1.0, 0.0, 1.0))),
            0.0,
            "known for one span"
        );
        assert_eq!(idle(estimator.tick(machine.pass(100, 1.0, 0.0, 1.0))), 1.0);
        assert_eq!(
            idle(estimator.tick(machine.pass(100, 1.75, 0.0, 0.25))),
            0.25,
            "the least"
        );
        assert_eq!(idle(estimator.tick(machine.pass(100, 1.0, 0.0, 1.0))), 0.25);
        assert_eq!(idle(estimator.tick(machine.pass(100, 1.0, 0.0, 1.0))), 1.0);
    }

    #[test]
    fn overload_makes_the_spans_longer_and_calm_shorter() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        for expected in [2, 4, 8, 8] {
            let estimate = estimator.tick(machine.pass(100, 1.0, 1.0, 0.0)).unwrap();
            assert_eq!((estimate.span, estimate.idle_avg), (expected, 0.0));
        }
        let mut spans = Vec::new();
        for n in 1..200 {
            let estimate = estimator.tick(machine.pass(100, 1.0, 0.0, 1.0)).unwrap();
            if spans.last() != Some(&estimate.span) {
                spans.push(estimate.span);
            }
            // The overload must be out of both spans.
            if n < 8 {
                assert!(estimate.idle_avg < 1.0, "{n}");
            }
        }
        assert_eq!(spans, [8, 4, 2, 1]);
    }

    #[test]
    fn a_quota_s_period_lengthens_the_window() {
        let mut machine = Machine::new();
        machine.0.quotas = vec![QuotaReading {
            cpus: 0.5,
            period_ns: 400 * MS,
            usage_ns: Some(0),
            throttled_ns: Some(0),
        }];
        let mut estimator = estimator(&machine);
        assert_eq!(estimator.window_ns(), 400 * MS);
        let mut last = None;
        for n in 0..40 {
            // Two threads use up the quota within the first 100 ms of each period.
            let (run, wait) = if n % 4 == 0 { (2.0, 0.0) } else { (0.0, 2.0) };
            let mut reading = machine.pass(100, run, wait, 2.0 - run);
            reading.quotas[0].usage_ns = Some(reading.run_ns);
            machine.0.quotas.clone_from(&reading.quotas);
            last = estimator.tick(reading);
        }
        let last = last.unwrap();
        assert!((last.runnable_cpus() - 0.5).abs() < 1e-9, "{last:?}");
        assert_eq!(last.idle_avg, 0.0);
        assert!((last.phantom_avg() - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_change_of_the_allowed_cpus_begins_anew() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        estimator.tick(machine.pass(100, 1.0, 0.0, 1.0)).unwrap();
        machine.0.allowed = 1;
        assert_eq!(estimator.tick(machine.pass(100, 1.0, 0.0, 0.0)), None);
        let estimate = estimator.tick(machine.pass(100, 1.0, 0.0, 0.0)).unwrap();
        assert_eq!(estimate.runnable_cpus(), 1.0);
    }

    #[test]
    fn a_late_tick_is_averaged_over_all_its_time() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        let estimate = estimator.tick(machine.pass(5_000, 0.5, 0.0, 1.0)).unwrap();
        assert_eq!(
            (estimate.runnable_cpus(), estimate.window.span_ns),
            (1.5, 5_000 * MS)
        );
    }

    #[test]
    fn what_the_host_has_bounds_runnable_cpus_as_long_as_it_is_known() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        let mut next = |has: Option<f64>| {
            let mut reading = machine.pass(100, 0.0, 0.0, 2.0);
            reading.host = has.map(|cpus| {
                let before = machine.0.host.unwrap_or_default();
                HostReading {
                    known_ns: before.known_ns + 100 * MS,
                    runnable_ns: before.runnable_ns + (cpus * 100.0 * MS as f64) as u64,
                    steal_ns: 0,
                    others_ns: 0,
                }
            });
            machine.0.host = reading.host;
            let estimate = estimator.tick(reading).unwrap();
            (estimate.runnable_cpus(), estimate.idle_avg)
        };
        for _ in 0..5 {
            next(None);
        }
        assert_eq!(next(None), (2.0, 2.0));
        assert_eq!(next(Some(0.5)), (2.0, 2.0), "not known before");
        assert_eq!(next(Some(0.5)), (0.5, 0.5), "at once, for idle CPUs too");
        assert_eq!(next(Some(0.5)), (0.5, 0.5));
        // Idle CPUs that come back must have been there for two spans.
        assert_eq!(next(Some(2.0)), (2.0, 0.5));
        assert_eq!(next(Some(2.0)), (2.0, 2.0));
        assert_eq!(next(Some(1.0)), (1.0, 1.0));
        assert_eq!(next(None), (2.0, 1.0), "the guest's own, since then");
        assert_eq!(next(None), (2.0, 2.0));
    }

    /// Who reads a page in a guest is told of those too with whom the guest shares the host.
    #[test]
    fn others_on_the_host_are_others_on_the_page() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        let mut others = |host: Option<HostReading>| {
            let mut reading = machine.pass(100, 1.0, 0.0, 1.0);
            reading.others_ns += 50 * MS;
            machine.0.others_ns = reading.others_ns;
            reading.host = host;
            machine.0.host = host;
            let estimate = estimator.tick(reading).unwrap();
            estimate.snapshot(1, 1).others.to_f64()
        };
        assert!((others(None) - 0.5).abs() < 1e-3);
        let host = |known_ms: u64| HostReading {
            known_ns: known_ms * MS,
            runnable_ns: known_ms * MS,
            steal_ns: 0,
            others_ns: 3 * known_ms * MS,
        };
        others(Some(host(100)));
        assert!((others(Some(host(200))) - 3.5).abs() < 1e-3);
        assert!((others(None) - 0.5).abs() < 1e-3);
    }

    /// A span may be longer than the host has been heard.
    #[test]
    fn idle_cpus_that_the_host_has_not_are_not_idle_in_a_long_span_either() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        estimator.tick(machine.pass(100, 1.0, 1.0, 0.0));
        let mut last = None;
        for _ in 0..5 {
            last = estimator.tick(machine.pass(100, 0.0, 0.0, 2.0));
        }
        assert_eq!(last.map(|last| (last.span, last.idle_avg)), Some((2, 2.0)));
        for n in 1..=2 {
            machine.0.host = Some(HostReading {
                known_ns: n * 100 * MS,
                runnable_ns: n * 50 * MS,
                steal_ns: 0,
                others_ns: 0,
            });
            last = estimator.tick(machine.pass(100, 0.0, 0.0, 2.0));
        }
        assert_eq!(last.map(|last| (last.span, last.idle_avg)), Some((2, 0.5)));
    }

    #[test]
    fn history_is_bounded() {
        let mut machine = Machine::new();
        let mut estimator = estimator(&machine);
        for _ in 0..10_000 {
            estimator.tick(machine.pass(10, 1.0, 0.0, 1.0));
        }
        assert!(estimator.readings.len() <= 2 * SPAN_MAX as usize * 10 + 2);
    }

    fn any_reading() -> impl Strategy<Value = Reading> {
        let counters = proptest::array::uniform8(prop_oneof![any::<u64>(), 0..2_000_000_000_u64]);
        let quota = (
            0.01..100.0,
            any::<u64>(),
            any::<Option<u64>>(),
            any::<Option<u64>>(),
        );
        (
            counters,
            any::<(bool, bool)>(),
            1..5_u32,
            any::<Option<u16>>(),
            prop::collection::vec(quota, 0..3),
            any::<u64>(),
            any::<Option<(u64, u64, u64, u64)>>(),
        )
            .prop_map(
                |(c, (run_has_steal, knows_waits), allowed, limit, quotas, elsewhere_ns, host)| {
                    Reading {
                        at_ns: c[0],
                        run_ns: c[1],
                        run_has_steal,
                        wait_ns: knows_waits.then_some(c[2]),
                        pressure_ns: Some(c[3]),
                        idle_ns: c[4],
                        steal_ns: c[5],
                        irq_ns: c[6],
                        others_ns: c[7],
                        allowed,
                        limit: limit.map(u32::from),
                        elsewhere_ns,
                        host: host.map(|(known_ns, runnable_ns, steal_ns, others_ns)| {
                            HostReading {
                                known_ns,
                                runnable_ns,
                                steal_ns,
                                others_ns,
                            }
                        }),
                        quotas: quotas
                            .into_iter()
                            .map(|(cpus, period_ns, usage_ns, throttled_ns)| QuotaReading {
                                cpus,
                                period_ns,
                                usage_ns,
                                throttled_ns,
                            })
                            .collect(),
                    }
                },
            )
    }

    proptest! {
        /// Whatever counters do, all figures are finite and within their bounds.
        #[test]
        fn nonsense_is_bounded(readings in prop::collection::vec(any_reading(), 0..20)) {
            let mut estimator = Estimator::new(Settings::default());
            for reading in readings {
                let Some(estimate) = estimator.tick(reading) else { continue };
                let Averages { allowed, running, others, idle, steal, irq, phantom, throttled, runnable, free, others_threads, .. } =
                    estimate.window;
                for figure in [running, others, idle, steal, irq, runnable, free, estimate.idle_avg] {
                    prop_assert!((0.0..=allowed).contains(&figure), "{estimate:?}");
                }
                for figure in [phantom, throttled, others_threads] {
                    prop_assert!(figure >= 0.0 && figure.is_finite());
                }
                prop_assert!((running + others + idle + steal - allowed).abs() < 1e-6);
                prop_assert!(estimate.idle_avg <= idle.max(allowed));
                let snapshot = estimate.snapshot(1, 1);
                prop_assert!(snapshot.runnable <= Cpus::whole(snapshot.allowed as u16));
            }
        }

        /// Readings of a steady load tell the load, whenever they are made.
        #[test]
        fn steady_load_is_found(
            run in 0.0..1.0, wait in 0.0..3.0, idle in 0.0..1.0, ticks in prop::collection::vec(1..300_u64, 3..60),
        ) {
            let mut machine = Machine::new();
            let mut estimator = estimator(&machine);
            for ms in ticks {
                let estimate = estimator.tick(machine.pass(ms, run, wait, idle)).expect("there is one before");
                prop_assert!((estimate.runnable_cpus() - (run + idle)).abs() < 1e-4);
                prop_assert!((estimate.phantom_avg() - wait).abs() < 1e-4);
                prop_assert!(estimate.idle_avg == 0.0 || (estimate.idle_avg - idle).abs() < 1e-4);
            }
        }

        /// What is said to be free was free: over the last two spans taken together at least as much.
        #[test]
        fn idle_is_never_more_than_was_seen(shares in prop::collection::vec((0.0..1.0, 0.0..1.0), 1..100)) {
            let mut machine = Machine::new();
            let mut estimator = estimator(&machine);
            let mut frees: Vec<f64> = Vec::new();
            for (idle, wait) in shares {
                let estimate = estimator.tick(machine.pass(100, 2.0 - idle, wait, idle)).unwrap();
                frees.push(idle);
                let spans = 2 * estimate.span as usize;
                if frees.len() < spans {
                    prop_assert_eq!(estimate.idle_avg, 0.0);
                } else {
                    let seen = &frees[frees.len() - spans..];
                    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
                    let (older, newer) = seen.split_at(spans / 2);
                    prop_assert!((estimate.idle_avg - mean(older).min(mean(newer))).abs() < 1e-4);
                }
            }
        }
    }
}
