//! What two readings say about the time between them.

use crate::reading::{QuotaReading, Reading};

/// Averages over a span of time. `running + others + idle + steal` is `allowed`; interrupts are in whatever they interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Averages {
    /// Length of the span.
    pub span_ns: u64,
    /// CPUs that our threads may use.
    pub allowed: f64,
    /// CPUs that ran our threads.
    pub running: f64,
    /// CPUs that ran threads of others.
    pub others: f64,
    /// CPUs that idled.
    pub idle: f64,
    /// CPUs that the hypervisor took.
    pub steal: f64,
    /// CPUs that were in interrupts.
    pub irq: f64,
    /// Threads of ours that could run and did not: they waited in a run queue, were held back by a quota, or sat on a CPU that
    /// the hypervisor had taken. A lower bound where only pressure is known.
    pub phantom: f64,
    /// What of `phantom` the hypervisor made.
    pub phantom_by_steal: f64,
    /// CPUs that quotas held back.
    pub throttled: f64,
    /// CPUs that quotas and the number of virtual CPUs let us use, at most `allowed`.
    pub cap: f64,
    /// The tightest quota.
    pub quota: Option<f64>,
    /// CPUs that ran our threads or were free for them.
    pub runnable: f64,
    /// CPUs that were free for us.
    pub free: f64,
    /// Threads of others that ran or could run, on the whole machine.
    pub others_threads: f64,
}

impl Averages {
    /// Of the time from `earlier` to `later`, which [continues](Reading::continues) it. Counters that went back count as not moved.
    pub(crate) fn between(earlier: &Reading, later: &Reading) -> Averages {
        let span_ns = later.at_ns.saturating_sub(earlier.at_ns).max(1);
        let per_span =
            |earlier: u64, later: u64| later.saturating_sub(earlier) as f64 / span_ns as f64;
        let allowed = f64::from(later.allowed);
        let idle = per_span(earlier.idle_ns, later.idle_ns).min(allowed);
        // Sources have clocks of their own: their parts are made to fit the whole.
        let steal = per_span(earlier.steal_ns, later.steal_ns).min(allowed - idle);
        let ran = per_span(earlier.run_ns, later.run_ns);
        let (running, phantom_by_steal) =
            split_steal(ran, steal, allowed - idle, later.run_has_steal);
        let waited = match (earlier.wait_ns, later.wait_ns) {
            (Some(earlier), Some(later)) => per_span(earlier, later),
            _ => match (earlier.pressure_ns, later.pressure_ns) {
                (Some(earlier), Some(later)) => per_span(earlier, later).min(1.0),
                _ => 0.0,
            },
        };
        let quotas = || earlier.quotas.iter().zip(&later.quotas);
        let left = quotas().map(|(earlier, later)| left_of(earlier, later, span_ns, running));
        let limits = later.limit.map(f64::from).into_iter().chain([allowed]);
        let cap = left.chain(limits).fold(f64::INFINITY, f64::min);
        let throttled = quotas().map(|(earlier, later)| {
            per_span(
                earlier.throttled_ns.unwrap_or(0),
                later.throttled_ns.unwrap_or(0),
            )
        });
        Averages {
            span_ns,
            allowed,
            running,
            others: (allowed - idle - steal - running).max(0.0),
            idle,
            steal,
            irq: per_span(earlier.irq_ns, later.irq_ns).min(allowed),
            phantom: waited + phantom_by_steal,
            phantom_by_steal,
            // One in the other they may both count the same time.
            throttled: throttled.fold(0.0, f64::max),
            cap,
            quota: later.quotas.iter().map(|quota| quota.cpus).reduce(f64::min),
            runnable: (running + idle).min(cap),
            free: (cap - running).clamp(0.0, idle),
            others_threads: per_span(earlier.others_ns, later.others_ns),
        }
    }
}

/// How many CPUs really ran our threads, and how many that had one of them the hypervisor had taken. It takes from all
/// who run alike, as far as anybody knows.
fn split_steal(ran: f64, steal: f64, busy: f64, ran_has_steal: bool) -> (f64, f64) {
    if ran_has_steal {
        let ran = ran.min(busy);
        let stolen = if busy > 0.0 { steal * ran / busy } else { 0.0 };
        (ran - stolen, stolen)
    } else {
        let busy = busy - steal;
        let ran = ran.min(busy);
        let stolen = if busy > 0.0 { steal * ran / busy } else { 0.0 };
        (ran, stolen)
    }
}

/// CPUs that a quota lets us use, given what others who share it used.
fn left_of(earlier: &QuotaReading, later: &QuotaReading, span_ns: u64, running: f64) -> f64 {
    let delta = |earlier: Option<u64>, later: Option<u64>| {
        earlier
            .zip(later)
            .map(|(earlier, later)| later.saturating_sub(earlier) as f64 / span_ns as f64)
    };
    let left = match delta(earlier.usage_ns, later.usage_ns) {
        Some(used) => later.cpus - (used - running).max(0.0),
        // Who shares it is not known, but that it is used up.
        None if delta(earlier.throttled_ns, later.throttled_ns).is_some_and(|held| held > 0.0) => {
            running
        }
        None => later.cpus,
    };
    // What we got was ours, though not more than is granted: a span that has more periods' ends than periods shows more.
    left.max(running).min(later.cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn between(later: Reading) -> Averages {
        let earlier = Reading {
            wait_ns: later.wait_ns.map(|_| 0),
            pressure_ns: later.pressure_ns.map(|_| 0),
            run_ns: 0,
            idle_ns: 0,
            steal_ns: 0,
            irq_ns: 0,
            others_ns: 0,
            at_ns: 0,
            quotas: later
                .quotas
                .iter()
                .map(|quota| QuotaReading {
                    usage_ns: quota.usage_ns.map(|_| 0),
                    throttled_ns: quota.throttled_ns.map(|_| 0),
                    ..*quota
                })
                .collect(),
            ..later.clone()
        };
        Averages::between(&earlier, &later)
    }

    fn a_second() -> Reading {
        Reading {
            at_ns: S,
            allowed: 2,
            wait_ns: Some(0),
            ..Reading::default()
        }
    }

    #[test]
    fn a_busy_neighbour_on_one_of_two_cpus() {
        let averages = between(Reading {
            run_ns: 3 * S / 2,
            wait_ns: Some(S / 2),
            ..a_second()
        });
        assert_eq!((averages.running, averages.runnable), (1.5, 1.5));
        assert_eq!(
            (averages.others, averages.phantom, averages.free),
            (0.5, 0.5, 0.0)
        );
    }

    #[test]
    fn whoever_sleeps_can_run_where_nobody_does() {
        let averages = between(Reading {
            idle_ns: S,
            ..a_second()
        });
        assert_eq!(
            (averages.runnable, averages.free, averages.running),
            (1.0, 1.0, 0.0)
        );
    }

    #[test]
    fn steal_makes_phantoms_of_those_it_hits() {
        // Half of each CPU is stolen; ours ran on one, another's on the other.
        let accounted = between(Reading {
            run_ns: S / 2,
            steal_ns: S,
            ..a_second()
        });
        let not_accounted = between(Reading {
            run_ns: S,
            run_has_steal: true,
            steal_ns: S,
            ..a_second()
        });
        for averages in [accounted, not_accounted] {
            assert_eq!((averages.running, averages.phantom), (0.5, 0.5));
            assert_eq!(
                (averages.others, averages.steal, averages.runnable),
                (0.5, 1.0, 0.5)
            );
        }
    }

    fn quota(cpus: f64, usage_ns: Option<u64>, throttled_ns: u64) -> Vec<QuotaReading> {
        vec![QuotaReading {
            cpus,
            period_ns: S / 10,
            usage_ns,
            throttled_ns: Some(throttled_ns),
        }]
    }

    #[test]
    fn a_quota_bounds_what_is_free() {
        let with = |run_ns, idle_ns, quotas| {
            between(Reading {
                run_ns,
                idle_ns,
                quotas,
                ..a_second()
            })
        };
        // Used up.
        let averages = with(S / 2, 3 * S / 2, quota(0.5, Some(S / 2), S));
        assert_eq!(
            (averages.runnable, averages.free, averages.throttled),
            (0.5, 0.0, 1.0)
        );
        // Asleep: all of it is there.
        let averages = with(0, 2 * S, quota(0.5, Some(0), 0));
        assert_eq!((averages.runnable, averages.free), (0.5, 0.5));
        // Others of the group use 0.3 of it.
        let averages = with(S / 10, 16 * S / 10, quota(0.5, Some(4 * S / 10), 0));
        assert!((averages.runnable - 0.2).abs() < 1e-9 && (averages.free - 0.1).abs() < 1e-9);
        // Who else uses it is not known, but that it is used up.
        let averages = with(S / 10, 16 * S / 10, quota(0.5, None, 7));
        assert_eq!((averages.runnable, averages.free), (0.1, 0.0));
        // More than the machine.
        assert_eq!(with(0, 2 * S, quota(8.0, Some(0), 0)).runnable, 2.0);
        assert_eq!(with(0, 2 * S, quota(8.0, Some(0), 0)).quota, Some(8.0));
    }

    #[test]
    fn virtual_cpus_bound_too() {
        let averages = between(Reading {
            idle_ns: 2 * S,
            limit: Some(1),
            ..a_second()
        });
        assert_eq!((averages.runnable, averages.cap), (1.0, 1.0));
    }

    #[test]
    fn pressure_stands_in_for_waiting() {
        let averages = between(Reading {
            wait_ns: None,
            pressure_ns: Some(S / 4),
            ..a_second()
        });
        assert_eq!(averages.phantom, 0.25);
    }
}
