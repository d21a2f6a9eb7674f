//! What the pool's threads get of the CPUs: an estimate of how many can really run. Pure.

use std::collections::HashMap;

use crate::budget::Budget;
use crate::cpus::StealStat;

/// Above this part of the time that they were runnable without running, threads do not own their CPUs.
const CROWDED: f64 = 0.10;
/// Below this they do again.
const FREE: f64 = 0.03;
/// So many looks in a row must be free, before it is believed.
const FREE_LOOKS: u32 = 3;
/// A look at less running than this part of one CPU says nothing.
const LEAST: f64 = 0.02;

/// The share that a hypervisor took is that of at least so much time: it is told in ticks, mostly of 10 ms.
const STEAL_NS_MIN: u64 = 200_000_000;

/// The last look, and what came of all.
#[derive(Debug, Default)]
pub(crate) struct Load {
    last: HashMap<u32, (u64, u64)>,
    last_steal: Option<StealStat>,
    /// Of the time that all programs wanted on these CPUs, this share was stolen.
    stolen: f64,
    free_looks: u32,
    verdict: Verdict,
    budget: Budget,
}

/// What comes of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Threads lose their CPUs: spinning takes them from who is waited for.
    pub(crate) is_crowded: bool,
    /// So many threads should run; `None`: as many as there are CPUs.
    pub(crate) limit: Option<u32>,
}

impl Load {
    /// What came of the last look.
    pub(crate) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How many threads may run under the quota, as far as the last looks tell.
    pub(crate) fn threads_of(&self, quota: f64) -> u32 {
        self.budget.threads(quota)
    }

    /// Threads with the nanoseconds that they ran and waited for a CPU, each since it began; `wall_ns` since the
    /// last look; the quota in CPUs, and whether it held them back meanwhile; what a hypervisor took until now, if it is told; how many may
    /// run at most.
    pub(crate) fn look(
        &mut self,
        threads: &[(u32, u64, u64)],
        wall_ns: u64,
        (quota, is_throttled): (Option<f64>, bool),
        steal: Option<StealStat>,
        most: u32,
    ) -> Verdict {
        self.note_steal(steal);
        let (mut ran, mut waited) = (0, 0);
        for &(thread, now_ran, now_waited) in threads {
            let last = self.last.insert(thread, (now_ran, now_waited));
            if let Some((last_ran, last_waited)) = last {
                ran += now_ran.saturating_sub(last_ran);
                waited += now_waited.saturating_sub(last_waited);
            }
        }
        // A quota that others in the group use up says nothing of a pool that wants little.
        let is_throttled = is_throttled && (ran + waited) as f64 > LEAST * wall_ns as f64;
        // Who spins then takes from the quota of who works.
        let is_tight = self.budget.look(quota, wall_ns, ran, is_throttled);
        let wall = wall_ns.max(1) as f64;
        let (ran, waited) = (ran as f64 / wall, waited as f64 / wall);
        let wanted = ran + waited;
        // What is stolen does not say how many would fit: with fewer threads the hypervisor may take as large a share
        // of each CPU.
        if wanted > LEAST
            && (is_throttled || is_tight || waited > CROWDED * wanted || self.stolen > CROWDED)
        {
            self.free_looks = 0;
            self.verdict.is_crowded = true;
            // More than half a thread only queued for CPUs: so many less. One step a look, so that
            // a burst of somebody else does not stop everybody.
            if waited > 0.5 {
                let fit = (ran + 0.5).round().max(1.0) as u32;
                let now = self.verdict.limit.unwrap_or(most).min(most);
                self.verdict.limit = Some(now.saturating_sub(1).max(fit).clamp(1, most));
            }
        } else if waited < FREE * wanted && self.stolen < FREE || wanted <= LEAST {
            self.free_looks += 1;
            if self.free_looks >= FREE_LOOKS {
                self.verdict.is_crowded = false;
                self.verdict.limit = self
                    .verdict
                    .limit
                    .map(|limit| limit + 1)
                    .filter(|&limit| limit < most);
            }
        }
        self.verdict
    }

    /// Whoever ran on the CPUs lost the same share: a thread that a hypervisor has stopped runs as far as the kernel knows,
    /// and waits for nothing.
    fn note_steal(&mut self, now: Option<StealStat>) {
        let Some(now) = now else {
            (self.last_steal, self.stolen) = (None, 0.0);
            return;
        };
        let last = *self.last_steal.get_or_insert(now);
        // CPUs may have gone, and their times with them.
        let (Some(stolen), Some(ran)) = (
            now.stolen_ns.checked_sub(last.stolen_ns),
            now.ran_ns.checked_sub(last.ran_ns),
        ) else {
            self.last_steal = Some(now);
            return;
        };
        let wanted = stolen.saturating_add(ran);
        if wanted >= STEAL_NS_MIN {
            self.last_steal = Some(now);
            self.stolen = stolen as f64 / wanted as f64;
        }
    }

    /// Nobody looks for a while: what was found out may not hold any more.
    pub(crate) fn forget(&mut self) {
        *self = Load::default();
    }

    /// Threads that have ended are forgotten.
    pub(crate) fn retain(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.last.retain(|&thread, _| is_alive(thread));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks every 10 ms at threads that each run `ran` ms and wait `waited` ms of them.
    fn looks(
        load: &mut Load,
        clock: &mut u64,
        threads: u32,
        ran: u64,
        waited: u64,
        times: u64,
    ) -> Verdict {
        let mut verdict = None;
        for _ in 0..times {
            *clock += 1;
            let each: Vec<_> = (0..threads)
                .map(|t| {
                    let (r, w) = load.last.get(&t).copied().unwrap_or_default();
                    (t, r + ran * MS, w + waited * MS)
                })
                .collect();
            verdict = Some(load.look(&each, 10 * MS, (None, false), None, threads));
        }
        verdict.unwrap()
    }

    #[test]
    fn competitors_stop_spinners_and_shrink_the_pool_and_leave_no_trace() {
        let (mut load, mut clock) = (Load::default(), 0);
        let all = Verdict {
            is_crowded: false,
            limit: None,
        };
        assert_eq!(looks(&mut load, &mut clock, 4, 10, 0, 5), all);
        // Four threads get half of each CPU.
        let half = looks(&mut load, &mut clock, 4, 5, 5, 10);
        assert_eq!(
            half,
            Verdict {
                is_crowded: true,
                limit: Some(3)
            }
        );
        // One of them only waits a little: spinners stop, threads stay.
        let little = looks(&mut load, &mut clock, 4, 9, 1, 3);
        assert_eq!(little.limit, Some(3));
        assert!(looks(&mut load, &mut clock, 4, 10, 0, 2).is_crowded);
        assert_eq!(looks(&mut load, &mut clock, 4, 10, 0, 10), all);
    }

    #[test]
    fn a_quota_crowds_too() {
        let mut load = Load::default();
        assert!(
            !load
                .look(&[(1, 0, 0)], MS, (Some(1.0), true), None, 2)
                .is_crowded,
            "idle"
        );
        assert!(
            load.look(&[(1, MS, 0)], MS, (Some(1.0), true), None, 2)
                .is_crowded
        );
    }

    /// Who spun until the kernel held the group back had used up the time of those who work.
    #[test]
    fn a_quota_that_is_nearly_used_up_crowds_before_anybody_is_held_back() {
        let mut load = Load::default();
        let mut look = |n: u64| {
            let ran = n * 10 * MS;
            load.look(
                &[(1, ran, 0), (2, ran, 0)],
                10 * MS,
                (Some(1.0), false),
                None,
                2,
            )
        };
        assert!((0..5).all(|n| !look(n).is_crowded));
        assert!(look(5).is_crowded);
        assert_eq!(load.threads_of(1.0), 1);
    }

    /// Under a hypervisor that took half of each CPU threads never waited, as far as the kernel knew: they went on spinning.
    #[test]
    fn a_hypervisor_crowds_too() {
        let (mut load, mut ran, mut at) = (Load::default(), 0, StealStat::default());
        let mut looks = |stolen: u64, times| {
            let mut verdict = Verdict::default();
            for _ in 0..times {
                ran += 10 * MS - stolen;
                at.stolen_ns += 2 * stolen;
                at.ran_ns += 2 * (10 * MS - stolen);
                let threads = [(1, ran, 0), (2, ran, 0)];
                verdict = load.look(&threads, 10 * MS, (None, false), Some(at), 2);
            }
            verdict
        };
        assert_eq!(looks(0, 20), Verdict::default());
        assert!(!looks(5 * MS, 2).is_crowded, "a few ticks are none");
        let half = Verdict {
            is_crowded: true,
            limit: None,
        };
        assert_eq!(looks(5 * MS, 20), half);
        // The last of it, and then as long as it takes to believe it.
        assert!(looks(0, 10).is_crowded);
        assert_eq!(looks(0, 20), Verdict::default());
    }

    #[test]
    fn steal_of_cpus_that_have_gone_is_forgotten() {
        let mut load = Load::default();
        let mut look = |stolen_ns, ran_ns| {
            let ran = ran_ns;
            let at = StealStat { stolen_ns, ran_ns };
            load.look(&[(1, ran, 0)], 1000 * MS, (None, false), Some(at), 2);
            load.stolen
        };
        look(0, 0);
        assert_eq!(look(500 * MS, 500 * MS), 0.5);
        assert_eq!(look(10 * MS, 400 * MS), 0.5, "nothing is known of it");
        assert_eq!(look(10 * MS, 1400 * MS), 0.0);
        load.look(&[], MS, (None, false), None, 2);
        assert_eq!(load.last_steal, None);
    }

    #[test]
    fn idle_threads_say_nothing() {
        let (mut load, mut clock) = (Load::default(), 0);
        looks(&mut load, &mut clock, 2, 5, 5, 10);
        let crowded = looks(&mut load, &mut clock, 2, 0, 0, 1);
        assert!(crowded.is_crowded);
        assert!(
            !looks(&mut load, &mut clock, 2, 0, 0, 3).is_crowded,
            "nobody waits"
        );
    }
}
