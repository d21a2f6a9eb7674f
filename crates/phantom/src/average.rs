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
    /// The same on the host of this guest, where that says so: who has the CPUs that are stolen.
    pub host_others: Option<f64>,
    /// CPUs that this guest as a whole could run on, where its host says so. At most what `cap` leaves of it is in `runnable`.
    pub host_runnable: Option<f64>,
    /// `steal` is what the host says of it: the hypervisor itself tells of none.
    pub steal_is_by_host: bool,
}

impl Averages {
    /// Of the time from `earlier` to `later`, which [continues](Reading::continues) it. Counters that went back count as not moved.
    pub(crate) fn between(earlier: &Reading, later: &Reading) -> Averages {
        let span_ns = later.at_ns.saturating_sub(earlier.at_ns).max(1);
        let per_span =
            |earlier: u64, later: u64| later.saturating_sub(earlier) as f64 / span_ns as f64;
        let allowed = f64::from(later.allowed);
        let idle = per_span(earlier.idle_ns, later.idle_ns).min(allowed);
        let busy = allowed - idle;
        let elsewhere = per_span(earlier.elsewhere_ns, later.elsewhere_ns);
        let host = Host::between(earlier, later, busy, elsewhere);
        // Steal is counted once. The guest's own is that of these CPUs and of this span; where the hypervisor tells of none, what it
        // took is in whatever it took it from.
        let by_host = host.filter(|_| later.steal_ns == 0);
        // Sources have clocks of their own: their parts are made to fit the whole.
        let steal = match by_host {
            Some(host) => host.steal_here,
            None => per_span(earlier.steal_ns, later.steal_ns).min(busy),
        };
        let ran = per_span(earlier.run_ns, later.run_ns);
        let run_has_steal = later.run_has_steal || by_host.is_some();
        let (running, phantom_by_steal) = split_steal(ran, steal, busy, run_has_steal);
        let others = (allowed - idle - steal - running).max(0.0);
        let elsewhere = elsewhere - by_host.map_or(0.0, |host| host.steal_elsewhere);
        let left_by_host = host.map(|host| (host.runnable - others - elsewhere).max(0.0));
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
        let limits = limits.chain(left_by_host);
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
            others,
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
            host_others: host.map(|host| host.others),
            host_runnable: host.map(|host| host.runnable),
            steal_is_by_host: by_host.is_some(),
        }
    }
}

/// What the host said over a span, and where what it took was taken from.
#[derive(Clone, Copy)]
struct Host {
    runnable: f64,
    others: f64,
    steal_here: f64,
    steal_elsewhere: f64,
}

impl Host {
    /// `busy` of the allowed CPUs and `elsewhere` of the others were, as the guest sees it. `None` where the host was not heard at both ends.
    fn between(earlier: &Reading, later: &Reading, busy: f64, elsewhere: f64) -> Option<Host> {
        let (earlier, later) = (earlier.host?, later.host?);
        // In between it may have been silent.
        let known_ns = later.known_ns.checked_sub(earlier.known_ns)?;
        let mean = |earlier: u64, later: u64| {
            (known_ns > 0).then(|| later.saturating_sub(earlier) as f64 / known_ns as f64)
        };
        let steal = mean(earlier.steal_ns, later.steal_ns)?;
        let all = busy + elsewhere;
        // It hits all who run alike, as far as anybody knows.
        let of = |part: f64| {
            if all > 0.0 {
                (steal * part / all).min(part)
            } else {
                0.0
            }
        };
        Some(Host {
            runnable: mean(earlier.runnable_ns, later.runnable_ns)?,
            others: mean(earlier.others_ns, later.others_ns)?,
            steal_here: of(busy),
            steal_elsewhere: of(elsewhere),
        })
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
    use crate::reading::HostReading;

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
            elsewhere_ns: 0,
            host: later.host.map(|_| HostReading::default()),
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
    /// A guest of four CPUs for a second, of which the host says so much.
    fn guest(host: Option<(f64, f64)>, reading: Reading) -> Averages {
        let ns = |cpus: f64| (cpus * S as f64) as u64;
        between(Reading {
            allowed: 4,
            host: host.map(|(runnable, steal)| HostReading {
                known_ns: S,
                runnable_ns: ns(runnable),
                steal_ns: ns(steal),
                others_ns: 0,
            }),
            ..Reading {
                at_ns: S,
                wait_ns: Some(0),
                ..reading
            }
        })
    }

    fn near(figure: f64, expected: f64) -> bool {
        (figure - expected).abs() < 1e-6
    }

    #[test]
    fn a_host_that_has_less_bounds_what_idles_in_the_guest() {
        // All four idle, and the host has two for them: without it nobody could know.
        let idle = Reading {
            idle_ns: 4 * S,
            ..Reading::default()
        };
        assert_eq!(guest(None, idle.clone()).runnable, 4.0);
        let averages = guest(Some((2.0, 0.0)), idle);
        assert_eq!((averages.runnable, averages.free), (2.0, 2.0));
        assert_eq!(averages.host_runnable, Some(2.0));
        // Others of the guest use one of them, here or on CPUs that are not ours.
        let here = Reading {
            idle_ns: 3 * S,
            ..Reading::default()
        };
        assert!(near(guest(Some((2.0, 0.0)), here).runnable, 1.0));
        let elsewhere = Reading {
            idle_ns: 4 * S,
            elsewhere_ns: S,
            ..Reading::default()
        };
        let averages = guest(Some((2.0, 0.0)), elsewhere);
        assert!(near(averages.runnable, 1.0) && near(averages.free, 1.0));
        // What we run ourselves is not taken from it.
        let ours = Reading {
            run_ns: S,
            idle_ns: 3 * S,
            ..Reading::default()
        };
        let averages = guest(Some((2.0, 0.0)), ours);
        assert!(near(averages.runnable, 2.0) && near(averages.free, 1.0));
    }

    #[test]
    fn a_host_that_has_more_changes_nothing() {
        let reading = Reading {
            run_ns: S,
            idle_ns: 2 * S,
            steal_ns: S / 2,
            ..Reading::default()
        };
        let alone = guest(None, reading.clone());
        let averages = guest(Some((64.0, 0.5)), reading);
        assert_eq!((averages.runnable, averages.free), (3.0, 2.0));
        assert_eq!(
            Averages {
                host_runnable: None,
                host_others: None,
                ..averages
            },
            alone
        );
    }

    #[test]
    fn steal_is_counted_once_by_the_guest_s_own_counter_if_there_is_one() {
        // Ours run on all four, of which the host takes one.
        for run_has_steal in [true, false] {
            let told = Reading {
                run_ns: if run_has_steal { 4 * S } else { 3 * S },
                run_has_steal,
                steal_ns: S,
                ..Reading::default()
            };
            let averages = guest(Some((3.0, 1.5)), told);
            assert!(!averages.steal_is_by_host);
            assert_eq!((averages.steal, averages.running), (1.0, 3.0));
            assert_eq!((averages.phantom, averages.runnable), (1.0, 3.0));
        }
    }

    #[test]
    fn steal_that_the_hypervisor_does_not_tell_of_is_the_host_s() {
        for run_has_steal in [true, false] {
            let averages = guest(
                Some((3.0, 1.0)),
                Reading {
                    run_ns: 4 * S,
                    run_has_steal,
                    ..Reading::default()
                },
            );
            assert!(averages.steal_is_by_host);
            assert_eq!((averages.steal, averages.running), (1.0, 3.0));
            assert_eq!((averages.phantom, averages.runnable), (1.0, 3.0));
            // Ours are half of those who are taken from.
            let averages = guest(
                Some((3.0, 1.0)),
                Reading {
                    run_ns: 2 * S,
                    run_has_steal,
                    ..Reading::default()
                },
            );
            assert_eq!((averages.running, averages.others), (1.5, 1.5));
            assert_eq!((averages.phantom, averages.runnable), (0.5, 1.5));
        }
        // Half of what runs is elsewhere: so is half of what is taken, and others ran as much less.
        let averages = guest(
            Some((3.0, 1.0)),
            Reading {
                run_ns: 2 * S,
                idle_ns: 2 * S,
                elsewhere_ns: 2 * S,
                ..Reading::default()
            },
        );
        assert_eq!((averages.steal, averages.running), (0.5, 1.5));
        assert!(near(averages.runnable, 1.5), "3 less the 1.5 of others");
    }

    #[test]
    fn a_host_that_was_silent_in_between_counts_for_the_time_it_spoke() {
        let earlier = Reading {
            allowed: 4,
            host: Some(HostReading::default()),
            ..Reading::default()
        };
        let mut later = Reading {
            at_ns: 10 * S,
            idle_ns: 40 * S,
            allowed: 4,
            host: Some(HostReading {
                known_ns: S,
                runnable_ns: 2 * S,
                steal_ns: 0,
                others_ns: 0,
            }),
            ..Reading::default()
        };
        assert_eq!(Averages::between(&earlier, &later).runnable, 2.0);
        later.host = None;
        let averages = Averages::between(&earlier, &later);
        assert_eq!((averages.runnable, averages.host_runnable), (4.0, None));
        // Never heard, or counters that went back.
        for host in [
            HostReading::default(),
            HostReading {
                known_ns: 0,
                runnable_ns: u64::MAX,
                steal_ns: u64::MAX,
                others_ns: 0,
            },
        ] {
            later.host = Some(host);
            assert_eq!(Averages::between(&earlier, &later).host_runnable, None);
        }
    }
}
