//! The idle time of the intervals between polls, divided.
//!
//! An interval knows averages: how much ran, queued and waited. How the idle CPUs of a
//! moment divide depends on whether anybody ran at that moment, which the polls at both
//! ends tell, within what the averages allow. How much idle time there was is measured
//! over a window of many intervals, because the kernel tells it in units of 10 ms.

use rustc_hash::FxHashMap;

use crate::event::{StackId, Tid};

/// Who gets idle CPU time first; see [`crate::partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// Threads that have work to do.
    Active,
    /// Threads that hardly ever run.
    Service,
    /// Threads that wait for the work of others to end: never charged themselves.
    Serial,
}

/// Part of an interval that a thread waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) key: u32,
    pub(super) tier: Tier,
    pub(super) ns: f64,
    /// 1 if this was all that the thread waited for, less if it waited for several things.
    pub(super) part: f64,
}

/// Part of an interval that a thread was runnable without a CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) tid: Tid,
    pub(super) ns: f64,
    /// What it was most likely woken from.
    pub(super) from: Option<(u32, Tier)>,
}

/// The time between two polls. All times are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Interval {
    pub(super) dt: f64,
    pub(super) capacity: f64,
    pub(super) ran: f64,
    /// Of that what no clock told yet: threads that stayed runnable on a CPU that nobody else had.
    pub(super) assumed: f64,
    pub(super) queued: f64,
    /// Time in queues whose end fell into the interval, more than fits into it.
    pub(super) told: f64,
    /// Held back by a quota.
    pub(super) throttled: f64,
    /// Fraction of the interval in which no thread was runnable.
    pub(super) nobody: f64,
    /// CPUs with runnable threads, mean of the two polls.
    pub(super) occupied: f64,
    /// Runnable threads behind others beside idle CPUs, mean of the two polls.
    pub(super) behind: f64,
    pub(super) waits: Vec<Share>,
    pub(super) running: Vec<(Tid, f64)>,
    pub(super) queues: Vec<Queued>,
    /// What was sampled meanwhile, in order of threads.
    pub(super) sampled: Vec<(Tid, StackId)>,
}

/// Who ran, and where if that was sampled.
pub(super) type Ran = (Tid, Option<StackId>);

/// Charges of a window.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) waits: FxHashMap<u32, f64>,
    pub(super) serial: FxHashMap<Ran, f64>,
    pub(super) placement: FxHashMap<Ran, f64>,
    /// Held back by a quota.
    pub(super) throttled: f64,
}

/// Intervals whose idle time is not yet known.
#[derive(Debug, Default)]
pub(super) struct Window {
    intervals: Vec<Interval>,
    shares: usize,
    /// Idle part of the CPU time that the workload did not use, in the last window.
    idle_part: Option<f64>,
    /// Held back by a quota before it was told, and not found in the window in which it was.
    untold: f64,
}

impl Window {
    pub(super) fn push(&mut self, interval: Interval) {
        self.shares += interval.waits.len() + interval.running.len() + interval.queues.len();
        self.shares += interval.sampled.len();
        self.intervals.push(interval);
    }

    pub(super) fn intervals(&self) -> usize {
        self.intervals.len()
    }

    pub(super) fn shares(&self) -> usize {
        self.shares
    }

    pub(super) fn span(&self) -> f64 {
        self.intervals.iter().map(|interval| interval.dt).sum()
    }

    /// Divides `idle_ns`, or the same part of the unused time as last time. Quotas have held back `throttled_ns`.
    pub(super) fn settle(&mut self, idle_ns: Option<f64>, throttled_ns: f64) -> Settled {
        self.set_throttled(throttled_ns);
        let unused = |interval: &Interval| (interval.capacity - interval.ran).max(0.0);
        let all: f64 = self.intervals.iter().map(unused).sum();
        let part = match idle_ns {
            Some(_) if all <= 0.0 => self.idle_part.unwrap_or(1.0),
            Some(idle) => (idle / all).clamp(0.0, 1.0),
            None => self.idle_part.unwrap_or(1.0),
        };
        if idle_ns.is_some() {
            self.idle_part = Some(part);
        }
        let mut out = Settled::default();
        // Runnable threads are also those just woken: no more is misplaced than was queued. That
        // is told only when it ends, so it cannot be compared interval by interval.
        let queued: f64 = self.intervals.iter().map(|interval| interval.told).sum();
        let behind: f64 = self.intervals.iter().map(|i| i.behind * i.dt).sum();
        let displaced = if behind > 0.0 {
            queued.min(behind) / behind
        } else {
            0.0
        };
        let throttled = |interval: &Interval| interval.throttled.min(unused(interval) * part);
        out.throttled = self.intervals.iter().map(throttled).sum();
        // CPU times are told by ticks, so the idle time of one interval is rough: what placement
        // takes more than there was here is missing elsewhere in the window.
        let idle = |interval: &Interval| unused(interval) * part - throttled(interval);
        let placed = |interval: &Interval| interval.behind * interval.dt * displaced;
        let idle_sum: f64 = self.intervals.iter().map(idle).sum();
        let placed_sum: f64 = self.intervals.iter().map(placed).sum();
        let fits = if placed_sum > idle_sum {
            idle_sum / placed_sum
        } else {
            1.0
        };
        let left = |interval: &Interval| (idle(interval) - placed(interval) * fits).max(0.0);
        let left_sum: f64 = self.intervals.iter().map(left).sum();
        let keep = if left_sum > 0.0 {
            (idle_sum - placed_sum * fits) / left_sum
        } else {
            0.0
        };
        for interval in self.intervals.drain(..) {
            let placement = placed(&interval) * fits;
            let queues: Vec<(Tid, f64)> = interval
                .queues
                .iter()
                .map(|queue| (queue.tid, queue.ns))
                .collect();
            spread(&mut out.placement, &queues, &interval.sampled, placement);
            let known = placement + throttled(&interval);
            interval.divide(left(&interval) * keep, known, part, &mut out);
        }
        self.shares = 0;
        out
    }

    /// Divides what a quota held back among the intervals: it is told for the whole window, and fell on CPUs whose
    /// threads were runnable and did not run. The kernel tells it when they may go on: a part may have been due earlier,
    /// and the next window, where as much is under way again, takes it.
    fn set_throttled(&mut self, ns: f64) {
        let stalled = |interval: &Interval| {
            let runnable = interval.occupied * interval.dt;
            (runnable - (interval.ran - interval.assumed)).max(0.0)
        };
        let all: f64 = self.intervals.iter().map(stalled).sum();
        let ns = self.untold + ns;
        self.untold = (ns - all).max(0.0);
        if ns <= 0.0 || all <= 0.0 {
            return;
        }
        for interval in &mut self.intervals {
            interval.throttled = stalled(interval) * (ns / all).min(1.0);
            interval.ran -= interval.throttled.min(interval.assumed);
        }
    }
}

impl Interval {
    /// Divides `idle`; of the time in queues it is `known` what for.
    fn divide(&self, idle: f64, known: f64, part: f64, out: &mut Settled) {
        if idle <= 0.0 {
            return;
        }
        let waited = |tier: Tier| {
            self.waits
                .iter()
                .filter(move |share| share.tier == tier)
                .map(|share| share.ns)
                .sum()
        };
        let (active, service): (f64, f64) = (waited(Tier::Active), waited(Tier::Service));
        // While nobody runs, ending the waits would end the whole time: they get all of it.
        // While somebody runs, a waiting thread can use one CPU at most.
        let deserted = (self.capacity * part * self.nobody).min(idle);
        let crowded = idle - deserted;
        // Whoever waits at all also waited all the time in which nobody ran.
        let then: f64 = self
            .waits
            .iter()
            .filter(|share| share.tier == Tier::Active)
            .map(|share| share.ns.min(self.nobody * self.dt * share.part))
            .sum();
        let claimed = (active - then).clamp(0.0, crowded);
        let mut serial = crowded - claimed;
        if active > 0.0 {
            self.charge(Tier::Active, (deserted + claimed) / active, out);
        } else if service > 0.0 {
            self.charge(Tier::Service, deserted / service, out);
        } else {
            serial += deserted;
        }
        // A wake-up under way to an idle CPU is still the cost of the wait that it ends.
        let woken = |queue: &&Queued| matches!(queue.from, Some((_, Tier::Active)));
        let waking: f64 = self.queues.iter().filter(woken).map(|queue| queue.ns).sum();
        let under_way = (waking - known).clamp(0.0, serial);
        if under_way > 0.0 {
            for queue in self.queues.iter().filter(woken) {
                let Some((key, _)) = queue.from else { continue };
                *out.waits.entry(key).or_default() += queue.ns * under_way / waking;
            }
            serial -= under_way;
        }
        spread(&mut out.serial, &self.running, &self.sampled, serial);
    }

    fn charge(&self, tier: Tier, rate: f64, out: &mut Settled) {
        for share in self.waits.iter().filter(|share| share.tier == tier) {
            *out.waits.entry(share.key).or_default() += share.ns * rate;
        }
    }
}

/// Divides `ns` in proportion to `weights`, each thread's part equally among its samples; what
/// nobody stands for goes to thread 0.
fn spread(
    into: &mut FxHashMap<Ran, f64>,
    weights: &[(Tid, f64)],
    sampled: &[(Tid, StackId)],
    ns: f64,
) {
    if ns <= 0.0 {
        return;
    }
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    if total <= 0.0 {
        // Threads that came and went between two polls were sampled all the same.
        for &(tid, stack) in sampled {
            *into.entry((tid, Some(stack))).or_default() += ns / sampled.len() as f64;
        }
        if sampled.is_empty() {
            *into.entry((0, None)).or_default() += ns;
        }
        return;
    }
    for &(tid, weight) in weights {
        let part = ns * weight / total;
        let begin = sampled.partition_point(|&(other, _)| other < tid);
        let end = sampled.partition_point(|&(other, _)| other <= tid);
        let own = &sampled[begin..end];
        for &(_, stack) in own {
            *into.entry((tid, Some(stack))).or_default() += part / own.len() as f64;
        }
        if own.is_empty() {
            *into.entry((tid, None)).or_default() += part;
        }
    }
}
