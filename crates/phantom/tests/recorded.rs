//! What a scheduler really did, recorded once (`data/record.sh`): the estimator, fed as the tool feeds it, against what a look at the
//! whole trace says.

use std::collections::BTreeSet;

use amdahl_phantom::{Estimate, Estimator, Event, QuotaReading, Reading, Settings, Tally};
use amdahl_sched::event::{Event as Told, Off};
use amdahl_sched::recording;

const MS: u64 = 1_000_000;
const CPUS: u32 = 2;

/// The events of a recording, and whose threads are whose.
struct Trace {
    events: Vec<Told>,
    ours: BTreeSet<u32>,
    taker: Option<u32>,
}

/// Who is or waits where, and from when to when.
type Stretches = Vec<(u64, u64)>;

impl Trace {
    fn read(parquet: &[u8]) -> Trace {
        let events = recording::read_part(parquet.to_vec())
            .expect("a part of a recording")
            .events;
        let named = |wanted: &str| -> BTreeSet<u32> {
            let names = events.iter().filter_map(|event| match event {
                Told::Thread { tid, name, .. } if **name == *wanted => Some(*tid),
                _ => None,
            });
            names.collect()
        };
        let (ours, taker) = (named("ours"), named("taker").first().copied());
        assert_eq!(ours.len(), 4);
        Trace {
            events,
            ours,
            taker,
        }
    }

    /// From when all is known, until one of ours ends.
    fn span(&self) -> (u64, u64) {
        let first_on = |wanted: u32| {
            let on = |event: &&Told| matches!(event, Told::Switch { cpu, .. } if *cpu == wanted);
            self.events.iter().find(on).expect("its first switch").ts()
        };
        let known = (0..CPUS).map(first_on).max().expect("a CPU");
        let ends = |event: &&Told| matches!(event, Told::Switch { prev, off: Off::Exited, .. } if self.ours.contains(prev));
        let end = self.events.iter().find(ends).expect("they end").ts();
        (known, end)
    }

    /// When a thread ran, and when it could run and did not.
    fn of(&self, thread: u32) -> (Stretches, Stretches) {
        let (mut ran, mut waited) = (vec![], vec![]);
        let (mut runs_since, mut waits_since) = (None, None);
        for event in &self.events {
            match *event {
                Told::Switch { ts, prev, off, .. } if prev == thread => {
                    ran.extend(runs_since.take().map(|since| (since, ts)));
                    waits_since = matches!(off, Off::Preempted | Off::Yielded).then_some(ts);
                }
                Told::Switch { ts, next, .. } if next == thread => {
                    waited.extend(waits_since.take().map(|since| (since, ts)));
                    runs_since = Some(ts);
                }
                Told::Waking { ts, tid, .. } | Told::Fork { ts, child: tid, .. }
                    if tid == thread && runs_since.is_none() =>
                {
                    waits_since.get_or_insert(ts);
                }
                _ => {}
            }
        }
        (ran, waited)
    }

    /// When CPUs had nothing to run. One that is taken in the meantime still has nothing to run, as its guest sees it: without its host's page it
    /// cannot know.
    fn idle(&self) -> Stretches {
        let mut idle = vec![];
        for wanted in 0..CPUS {
            let mut since = None;
            for event in &self.events {
                let Told::Switch {
                    ts,
                    cpu,
                    prev,
                    off,
                    next,
                } = *event
                else {
                    continue;
                };
                if cpu == wanted {
                    let is_left = prev == 0 || matches!(off, Off::Blocked { .. } | Off::Exited);
                    let is_idle = next == 0 || Some(next) == self.taker && is_left;
                    idle.extend(since.take().map(|since| (since, ts)));
                    since = is_idle.then_some(ts);
                }
            }
        }
        idle
    }
}

/// How many of them there were on average.
fn average(stretches: &Stretches, (from, to): (u64, u64)) -> f64 {
    let within = |&(begin, end): &(u64, u64)| end.min(to).saturating_sub(begin.max(from));
    stretches.iter().map(within).sum::<u64>() as f64 / (to - from) as f64
}

/// What the whole trace says.
struct Truth {
    ran: Stretches,
    waited: Stretches,
    idle: Stretches,
    cap: f64,
}

impl Truth {
    fn of(trace: &Trace, cap: f64) -> Truth {
        let (mut ran, mut waited) = (vec![], vec![]);
        for &thread in &trace.ours {
            let of = trace.of(thread);
            ran.extend(of.0);
            waited.extend(of.1);
        }
        let idle = trace.idle();
        Truth {
            ran,
            waited,
            idle,
            cap,
        }
    }

    fn runnable(&self, window: (u64, u64)) -> f64 {
        (average(&self.ran, window) + average(&self.idle, window)).min(self.cap)
    }

    fn free(&self, window: (u64, u64)) -> f64 {
        let left = self.cap - average(&self.ran, window);
        left.clamp(0.0, average(&self.idle, window))
    }

    /// What was free in both of the last two spans.
    fn idle_avg(&self, at: u64, span: u64) -> f64 {
        let last = self.free((at - span, at));
        last.min(self.free((at - 2 * span, at - span)))
    }
}

/// A guest's view of a trace in which a thread of high priority is the hypervisor: what it interrupts goes on, and time is stolen.
struct Guest<'a> {
    taker: Option<u32>,
    tally: &'a mut Tally,
    /// Whom the hypervisor has interrupted on each CPU, since when.
    interrupted: [Option<(u32, u64)>; CPUS as usize],
    stolen_ns: u64,
}

impl Guest<'_> {
    fn take(&mut self, event: &Told) {
        match *event {
            Told::Switch {
                ts,
                cpu,
                prev,
                off,
                next,
            } => {
                let is_runnable = matches!(off, Off::Preempted | Off::Yielded);
                let mut switch = |prev, is_runnable, next| {
                    let event = Event::Switch {
                        cpu,
                        prev,
                        is_runnable,
                        next,
                    };
                    self.tally.take(ts, event);
                };
                let interrupted = &mut self.interrupted[cpu as usize];
                if Some(next) == self.taker {
                    match is_runnable && prev != 0 {
                        true => *interrupted = Some((prev, ts)),
                        false => switch(prev, false, 0),
                    }
                } else if Some(prev) == self.taker {
                    let (before, since) = interrupted.take().unwrap_or((0, ts));
                    self.stolen_ns += ts - since;
                    if before != next {
                        switch(before, true, next);
                    }
                } else {
                    switch(prev, is_runnable, next);
                }
            }
            Told::Waking { ts, tid, cpu, .. }
            | Told::Fork {
                ts,
                child: tid,
                cpu,
                ..
            } => self.tally.take(ts, Event::Wake { cpu, tid }),
            _ => {}
        }
    }

    fn stolen_ns(&self, now: u64) -> u64 {
        let open = self.interrupted.iter().flatten();
        self.stolen_ns + open.map(|&(_, since)| now - since).sum::<u64>()
    }
}

/// Estimates at each of `ticks`, for which `quotas` tells what holds.
fn estimates(
    trace: &Trace,
    ticks: &[u64],
    quotas: impl Fn(usize, u64) -> Vec<QuotaReading>,
) -> Vec<Estimate> {
    let mut tally = Tally::new(CPUS);
    for &thread in &trace.ours {
        tally.add(thread);
    }
    let mut guest = Guest {
        taker: trace.taker,
        tally: &mut tally,
        interrupted: [None; CPUS as usize],
        stolen_ns: 0,
    };
    let mut estimator = Estimator::new(Settings::default());
    let mut events = trace.events.iter().peekable();
    let mut found = vec![];
    for (i, &now) in ticks.iter().enumerate() {
        while let Some(event) = events.next_if(|event| event.ts() <= now) {
            guest.take(event);
        }
        let totals = guest.tally.totals(now, |_| true);
        let reading = Reading {
            at_ns: now,
            run_ns: totals.run_ns,
            run_has_steal: true,
            wait_ns: Some(totals.wait_ns),
            idle_ns: totals.idle_ns,
            steal_ns: guest.stolen_ns(now),
            allowed: CPUS,
            quotas: quotas(i, totals.run_ns),
            ..Reading::default()
        };
        found.extend(estimator.tick(reading));
    }
    found
}

/// Estimates are within a quarter of a CPU of the truth in 95 % of windows. The most of each that there was is returned.
fn compare(trace: &Trace, truth: &Truth, estimates: &[Estimate]) -> [f64; 3] {
    const NEAR: f64 = 0.25;
    let (known, end) = trace.span();
    let (mut most, mut near, mut windows) = ([0.0_f64; 3], [0; 3], 0);
    for estimate in estimates {
        let (at, length) = (estimate.at_ns, estimate.window.span_ns);
        let span = u64::from(estimate.span) * length;
        if at > end || at - (2 * span).max(length) < known {
            continue;
        }
        let window = (at - length, at);
        let pairs = [
            (estimate.runnable_cpus(), truth.runnable(window)),
            (estimate.phantom_avg(), average(&truth.waited, window)),
            (estimate.idle_avg, truth.idle_avg(at, span)),
        ];
        windows += 1;
        for (i, (found, true_one)) in pairs.into_iter().enumerate() {
            most[i] = most[i].max(true_one);
            near[i] += u32::from((found - true_one).abs() <= NEAR);
        }
    }
    assert!(windows > 20, "{windows}");
    assert!(
        near.iter().all(|&near| near * 100 >= windows * 95),
        "{near:?} of {windows}"
    );
    most
}

fn ticks(trace: &Trace) -> Vec<u64> {
    let (known, end) = trace.span();
    (known..=end).step_by(20 * MS as usize).collect()
}

#[test]
fn four_threads_beside_two_busy_ones() {
    let trace = Trace::read(include_bytes!("data/beside.parquet"));
    let estimates = estimates(&trace, &ticks(&trace), |_, _| vec![]);
    let most = compare(&trace, &Truth::of(&trace, f64::from(CPUS)), &estimates);
    assert!(most[0] > 1.0 && most[1] > 1.0, "{most:?}");
}

/// The group's own files say for how long it was held back; what it used is what its threads ran.
#[test]
fn four_threads_under_half_a_cpu() {
    let trace = Trace::read(include_bytes!("data/quota.parquet"));
    let counters: Vec<(u64, u64)> = include_str!("data/quota.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let (at, throttled) = line.split_once(',').expect("two numbers");
            (at.parse().unwrap(), throttled.parse().unwrap())
        })
        .collect();
    let ticks: Vec<u64> = counters.iter().map(|&(at, _)| at).collect();
    let quotas = |i: usize, used: u64| {
        vec![QuotaReading {
            cpus: 0.5,
            period_ns: 100 * MS,
            usage_ns: Some(used),
            throttled_ns: Some(counters[i].1),
        }]
    };
    let estimates = estimates(&trace, &ticks, quotas);
    let most = compare(&trace, &Truth::of(&trace, 0.5), &estimates);
    assert!(most[0] > 0.4 && most[1] > 1.0, "{most:?}");
    let held = estimates.iter().map(|estimate| estimate.window.throttled);
    assert!(held.fold(0.0, f64::max) > 0.5, "nobody was held back");
}

/// The kernel of a guest sees its threads run while their virtual CPU is taken.
#[test]
fn four_threads_of_a_guest_whose_cpu_is_taken() {
    let trace = Trace::read(include_bytes!("data/taken.parquet"));
    let estimates = estimates(&trace, &ticks(&trace), |_, _| vec![]);
    let most = compare(&trace, &Truth::of(&trace, f64::from(CPUS)), &estimates);
    assert!(most[0] > 1.0 && most[1] > 1.0, "{most:?}");
    let by_steal = estimates
        .iter()
        .map(|estimate| estimate.window.phantom_by_steal);
    assert!(by_steal.fold(0.0, f64::max) > 0.3, "nothing was stolen");
}
