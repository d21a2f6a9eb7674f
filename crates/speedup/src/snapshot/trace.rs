//! What threads did from poll to poll, for a trace.
//!
//! The kernel tells exactly how long a thread ran, queued and waited between two polls, but not when. So an
//! interval shows what the thread did for most of it, nothing finer, and intervals alike are one stretch.

use rustc_hash::FxHashMap;

use crate::cause::Cause;
use crate::event::{CpuId, Ns, Tid};
use crate::partition::{RunPartition, Stretch};

use super::interval::Interval;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    On(CpuId),
    /// For what has this index.
    Waiting(u32),
}

#[derive(Clone, Copy, Debug)]
struct Done {
    tid: Tid,
    doing: Doing,
    from: Ns,
    to: Ns,
}

/// Stretches of a run, if asked for.
#[derive(Debug, Default)]
pub(super) struct Trace {
    max: usize,
    doing: FxHashMap<Tid, (Doing, Ns)>,
    done: Vec<Done>,
    /// The end of the first that was not kept.
    until: Option<Ns>,
}

impl Trace {
    pub(super) fn keeping(max: usize) -> Trace {
        Trace {
            max,
            ..Trace::default()
        }
    }

    /// There is one.
    pub(super) fn is_asked_for(&self) -> bool {
        self.max > 0
    }

    /// Takes the interval between two polls. `cpu_of` is the watched CPU of a thread, `waiter` the thread of a wait, 0 if
    /// that is not known.
    pub(super) fn take(
        &mut self,
        [from, to]: [Ns; 2],
        interval: &Interval,
        cpu_of: impl Fn(Tid) -> Option<CpuId>,
        waiter: impl Fn(u32) -> Tid,
    ) {
        if !self.is_asked_for() || from >= to {
            return;
        }
        let mut now = most_of_it(interval, cpu_of, waiter);
        let mut ended = Vec::new();
        self.doing.retain(|&tid, &mut (doing, since)| {
            let goes_on = now.get(&tid) == Some(&doing);
            if goes_on {
                now.remove(&tid);
            } else {
                ended.push((tid, doing, since));
            }
            goes_on
        });
        for (tid, doing, since) in ended {
            self.close(tid, doing, since, from);
        }
        let begun = now.into_iter().map(|(tid, doing)| (tid, (doing, from)));
        self.doing.extend(begun);
    }

    fn close(&mut self, tid: Tid, doing: Doing, from: Ns, to: Ns) {
        if self.done.len() < self.max {
            self.done.push(Done {
                tid,
                doing,
                from,
                to,
            });
        } else {
            self.until = self.until.or(Some(to));
        }
    }

    /// All stretches of a run that was polled until `last` and ended at `end`, with the causes of the waits.
    pub(super) fn finish(
        mut self,
        [last, end]: [Ns; 2],
        cause: impl Fn(u32) -> Cause,
        out: &mut RunPartition,
    ) {
        for (tid, (doing, since)) in std::mem::take(&mut self.doing) {
            self.close(tid, doing, since, last);
        }
        // The last poll comes when the end has been noticed.
        self.done.retain_mut(|done| {
            done.to = done.to.min(end);
            done.from < done.to
        });
        let stretch = |done: Done| {
            let (cpu, cause) = match done.doing {
                Doing::On(cpu) => (Some(cpu), None),
                Doing::Waiting(key) => (None, Some(cause(key))),
            };
            Stretch {
                cpu,
                tid: done.tid,
                from: done.from,
                to: done.to,
                cause,
            }
        };
        out.stretches = self.done.into_iter().map(stretch).collect();
        out.stretches_until = self.until;
    }
}

/// What each thread did for at least half of the interval. A CPU has one thread at most: the times of running threads are as
/// old as the last tick, so that two may seem to have had it for more than half.
fn most_of_it(
    interval: &Interval,
    cpu_of: impl Fn(Tid) -> Option<CpuId>,
    waiter: impl Fn(u32) -> Tid,
) -> FxHashMap<Tid, Doing> {
    let half = interval.dt / 2.0;
    // By thread: all its waits, and the longest of them.
    let mut waits: FxHashMap<Tid, (f64, u32, f64)> = FxHashMap::default();
    let shares = interval.waits.iter();
    let known = shares
        .map(|share| (waiter(share.key), share))
        .filter(|&(tid, _)| tid != 0);
    for (tid, share) in known {
        let (all, longest, ns) = waits.entry(tid).or_insert((0.0, share.key, 0.0));
        *all += share.ns;
        if share.ns > *ns {
            (*longest, *ns) = (share.key, share.ns);
        }
    }
    let mut doing: FxHashMap<Tid, Doing> = waits
        .into_iter()
        .filter(|&(_, (all, ..))| all >= half)
        .map(|(tid, (_, longest, _))| (tid, Doing::Waiting(longest)))
        .collect();
    let mut ran: FxHashMap<Tid, f64> = FxHashMap::default();
    for &(tid, ns) in &interval.running {
        *ran.entry(tid).or_default() += ns;
    }
    let mut on: FxHashMap<CpuId, (f64, Tid)> = FxHashMap::default();
    for (tid, ns) in ran.into_iter().filter(|&(_, ns)| ns >= half) {
        let Some(cpu) = cpu_of(tid) else { continue };
        let most = on.entry(cpu).or_insert((ns, tid));
        if (ns, tid) > *most {
            *most = (ns, tid);
        }
    }
    doing.extend(on.into_iter().map(|(cpu, (_, tid))| (tid, Doing::On(cpu))));
    doing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::interval::{Share, Tier};

    const MS: f64 = 1e6;

    /// Between two polls 10 ms apart.
    fn interval(running: &[(Tid, f64)], waits: &[(u32, f64)]) -> Interval {
        Interval {
            dt: 10.0 * MS,
            running: running.iter().map(|&(tid, ms)| (tid, ms * MS)).collect(),
            waits: waits
                .iter()
                .map(|&(key, ms)| Share {
                    key,
                    tier: Tier::Active,
                    ns: ms * MS,
                    part: 1.0,
                })
                .collect(),
            ..Interval::default()
        }
    }

    /// Takes intervals of 10 ns, whose threads are on CPU 0; waits with index k are those of thread k / 10.
    fn stretches(max: usize, intervals: &[Interval]) -> RunPartition {
        let mut trace = Trace::keeping(max);
        for (at, interval) in (0..).zip(intervals) {
            let span = [at * 10, at * 10 + 10];
            trace.take(span, interval, |_| Some(0), |key| key / 10);
        }
        let mut out = RunPartition::default();
        let cause = |key| {
            if key % 10 == 0 {
                Cause::Io
            } else {
                Cause::Sleep
            }
        };
        let last = intervals.len() as Ns * 10;
        trace.finish([last, last], cause, &mut out);
        out
    }

    fn on(tid: Tid, from: Ns, to: Ns) -> Stretch {
        Stretch {
            cpu: Some(0),
            tid,
            from,
            to,
            cause: None,
        }
    }

    fn waits(tid: Tid, cause: Cause, from: Ns, to: Ns) -> Stretch {
        Stretch {
            cpu: None,
            cause: Some(cause),
            ..on(tid, from, to)
        }
    }

    #[test]
    fn an_interval_shows_what_took_most_of_it_and_intervals_alike_are_one() {
        let found = stretches(
            9,
            &[
                interval(&[(7, 9.0)], &[]),
                interval(&[(7, 4.0), (7, 2.0)], &[(70, 4.0)]),
                interval(&[(7, 3.0)], &[(70, 3.0), (71, 4.0)]),
                interval(&[], &[(71, 10.0)]),
                interval(&[(7, 4.0)], &[(71, 4.0)]),
            ],
        );
        assert_eq!(
            found.stretches,
            [on(7, 0, 20), waits(7, Cause::Sleep, 20, 40)],
            "for most of the last one it was in a queue"
        );
        assert_eq!(found.stretches_until, None);
    }

    #[test]
    fn a_cpu_has_one_thread_at_a_time() {
        let found = stretches(
            9,
            &[
                interval(&[(7, 6.0), (8, 8.0)], &[]),
                interval(&[(7, 8.0), (8, 6.0)], &[]),
            ],
        );
        assert_eq!(found.stretches, [on(8, 0, 10), on(7, 10, 20)]);
    }

    #[test]
    fn what_does_not_fit_is_told_by_its_time() {
        let two = [interval(&[(7, 9.0)], &[]), interval(&[(8, 9.0)], &[])];
        let found = stretches(1, &two);
        assert_eq!(found.stretches, [on(7, 0, 10)]);
        assert_eq!(found.stretches_until, Some(20));
        let not_asked = stretches(0, &two);
        assert_eq!(not_asked.stretches, []);
        assert_eq!(not_asked.stretches_until, None);
    }
}
