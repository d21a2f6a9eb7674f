//! What the pool's threads get of the CPUs: an estimate of how many can really run. Pure.

use std::collections::HashMap;

use amdahl_phantom_page::{Degree, Snapshot, best_beside_others};

use crate::budget::Budget;
use crate::cpus::StealStat;

/// Above this part of the time that they were runnable without running, threads do not own their CPUs.
const CROWDED: f64 = 0.10;
/// Below this they do again.
const FREE: f64 = 0.03;
/// So many looks in a row must be free, before it is believed.
const FREE_LOOKS: u32 = 3;
/// So many looks long nobody shares fairly who makes use of helpers of the lowest priority.
const LOWERED_LOOKS: u32 = 100;
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
    /// Looks until what helpers of the lowest priority got is forgotten.
    lowered_looks: u32,
    /// What is made of a page, while there is one.
    published: Option<Degree>,
}

/// What a look sees.
#[derive(Debug, Default)]
pub(crate) struct Look<'a> {
    /// The clock of the page.
    pub(crate) now_ns: u64,
    /// Since the last look.
    pub(crate) wall_ns: u64,
    /// Threads with the nanoseconds that they ran and waited for a CPU, each since it began.
    pub(crate) threads: &'a [(u32, u64, u64)],
    /// Since the last look one of them got the lowest priority: others' threads do not share with it.
    pub(crate) has_lowered: bool,
    /// In CPUs.
    pub(crate) quota: Option<f64>,
    /// Whether it held them back since the last look.
    pub(crate) is_throttled: bool,
    /// What a hypervisor took until now, if it is told.
    pub(crate) steal: Option<StealStat>,
    /// What a page says that is fresh.
    pub(crate) published: Option<Snapshot>,
    /// How many may run at most.
    pub(crate) most: u32,
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

    /// Whether it is worth asking for a page: somebody takes CPUs away, or there is one.
    pub(crate) fn wants_page(&self) -> bool {
        self.verdict.is_crowded || self.published.is_some()
    }

    pub(crate) fn look(&mut self, look: &Look<'_>) -> Verdict {
        let (wall_ns, most) = (look.wall_ns, look.most);
        self.note_steal(look.steal);
        self.lowered_looks = match look.has_lowered {
            true => LOWERED_LOOKS,
            false => self.lowered_looks.saturating_sub(1),
        };
        let (mut ran, mut waited) = (0, 0);
        for &(thread, now_ran, now_waited) in look.threads {
            let last = self.last.insert(thread, (now_ran, now_waited));
            if let Some((last_ran, last_waited)) = last {
                ran += now_ran.saturating_sub(last_ran);
                waited += now_waited.saturating_sub(last_waited);
            }
        }
        // A quota that others in the group use up says nothing of a pool that wants little.
        let is_throttled = look.is_throttled && (ran + waited) as f64 > LEAST * wall_ns as f64;
        // Who spins then takes from the quota of who works.
        let is_tight = self.budget.look(look.quota, wall_ns, ran, is_throttled);
        let wall = wall_ns.max(1) as f64;
        let (ran, waited) = (ran as f64 / wall, waited as f64 / wall);
        let wanted = ran + waited;
        let published = self.follow_page(look);
        // What is stolen does not say how many would fit: with fewer threads the hypervisor may take as large a share
        // of each CPU. A page may know it.
        let lost = (waited / wanted.max(LEAST))
            .max(self.stolen)
            .max(published.unwrap_or(0.0));
        if wanted > LEAST && (is_throttled || is_tight || lost > CROWDED) {
            self.free_looks = 0;
            self.verdict.is_crowded = true;
            // More than half a thread only queued for CPUs: so many less. One step a look, so that
            // a burst of somebody else does not stop everybody.
            if waited > 0.5 && published.is_none() {
                let now = self.verdict.limit.unwrap_or(most).min(most);
                let mut fit = (ran + 0.5).round().max(1.0) as u32;
                if self.lowered_looks == 0 {
                    // As if all ran that may, with as large a part of a CPU each.
                    let phantoms = f64::from(now) * waited / wanted;
                    fit = fit.max(best_beside_others(now, phantoms, most));
                }
                self.verdict.limit = Some(now.saturating_sub(1).max(fit).clamp(1, most))
                    .filter(|&limit| limit < most);
            }
        } else if lost < FREE || wanted <= LEAST {
            self.free_looks += 1;
            if self.free_looks >= FREE_LOOKS {
                self.verdict.is_crowded = false;
                if published.is_none() {
                    self.verdict.limit = self
                        .verdict
                        .limit
                        .map(|limit| limit + 1)
                        .filter(|&limit| limit < most);
                }
            }
        }
        self.verdict
    }

    /// How many may run is what the page's figures come to, as long as there is one. Of what the pool's threads want they lose this
    /// part, by the page; `None` without one.
    fn follow_page(&mut self, look: &Look<'_>) -> Option<f64> {
        let Some(snapshot) = &look.published else {
            // What it said last is where one's own looks go on from.
            self.published = None;
            return None;
        };
        let now = self.verdict.limit.unwrap_or(look.most).min(look.most);
        let degree = (self.published).get_or_insert_with(|| Degree::new(now, look.now_ns));
        if let Some(mut load) = degree.published(snapshot) {
            load.is_shared &= self.lowered_looks == 0;
            degree.next(load, look.most, look.now_ns);
        }
        let limit = Some(degree.cpus()).filter(|&limit| limit < look.most);
        self.verdict.limit = limit;
        let phantoms = snapshot.phantom.to_f64();
        Some(phantoms / (snapshot.running.to_f64() + phantoms).max(LEAST))
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
        has_lowered: bool,
        threads: u32,
        (ran, waited): (u64, u64),
        times: u64,
    ) -> Verdict {
        let mut verdict = None;
        for _ in 0..times {
            let each: Vec<_> = (0..threads)
                .map(|t| {
                    let (r, w) = load.last.get(&t).copied().unwrap_or_default();
                    (t, r + ran * MS, w + waited * MS)
                })
                .collect();
            verdict = Some(load.look(&Look {
                threads: &each,
                has_lowered,
                ..ten_ms(threads)
            }));
        }
        verdict.unwrap()
    }

    /// Nothing but time passes.
    fn ten_ms(most: u32) -> Look<'static> {
        Look {
            wall_ns: 10 * MS,
            most,
            ..Look::default()
        }
    }

    #[test]
    fn competitors_stop_spinners_and_shrink_the_pool_and_leave_no_trace() {
        let mut load = Load::default();
        let all = Verdict {
            is_crowded: false,
            limit: None,
        };
        assert_eq!(looks(&mut load, true, 4, (10, 0), 5), all);
        assert!(!load.wants_page(), "nobody takes anything");
        // Four threads get half of each CPU.
        let half = looks(&mut load, true, 4, (5, 5), 10);
        assert_eq!(
            half,
            Verdict {
                is_crowded: true,
                limit: Some(3)
            }
        );
        assert!(load.wants_page());
        // One of them only waits a little: spinners stop, threads stay.
        let little = looks(&mut load, true, 4, (9, 1), 3);
        assert_eq!(little.limit, Some(3));
        assert!(looks(&mut load, true, 4, (10, 0), 2).is_crowded);
        assert_eq!(looks(&mut load, true, 4, (10, 0), 10), all);
    }

    /// A pool on `most` CPUs that a fair scheduler shares among it and `others` busy threads: how many may run after a while.
    fn beside(others: f64, most: u32) -> u32 {
        let (mut load, mut sums) = (Load::default(), vec![(0, 0); most as usize]);
        for _ in 0..100 {
            let limit = load.verdict().limit.unwrap_or(most);
            let share = (f64::from(most) / (f64::from(limit) + others)).min(1.0);
            for (ran, waited) in &mut sums[..limit as usize] {
                *ran += (share * 10.0 * MS as f64) as u64;
                *waited += ((1.0 - share) * 10.0 * MS as f64) as u64;
            }
            let of = |(thread, &(ran, waited)): (usize, &(u64, u64))| (thread as u32, ran, waited);
            let threads: Vec<_> = sums.iter().enumerate().map(of).collect();
            load.look(&Look {
                threads: &threads,
                ..ten_ms(most)
            });
        }
        load.verdict().limit.unwrap_or(most)
    }

    /// Beside as many busy threads as CPUs a pool on eight of them shrank to three, which got a fifth of the machine.
    #[test]
    fn beside_others_the_pool_keeps_its_share_unless_it_does_better_without_waiting() {
        for most in [2, 8, 160] {
            assert_eq!(beside(f64::from(most), most), most);
        }
        let left_to_two = beside(2.0, 16);
        assert!((14..16).contains(&left_to_two), "{left_to_two}");
    }

    /// A page whose tick is 20 ms and window 100 ms, at so many ms.
    fn page(at_ms: u64, running: f64, phantom: f64, idle: f64, others: f64) -> Snapshot {
        use amdahl_phantom_page::Cpus;
        Snapshot {
            time_ns: at_ms * MS,
            ticks: at_ms / 20,
            tick_us: 20_000,
            window_us: 100_000,
            running: Cpus::from_f64(running),
            phantom: Cpus::from_f64(phantom),
            idle: Cpus::from_f64(idle),
            others: Cpus::from_f64(others),
            allowed: 8,
            ..Snapshot::default()
        }
    }

    /// As far as the guest's kernel knows nobody waits: only a page tells that the hypervisor has given five of eight CPUs.
    #[test]
    fn a_page_tells_how_many_fit_and_what_it_said_last_is_where_own_looks_go_on() {
        let mut load = Load::default();
        let mut at_ms = 1_000;
        // For so long, with so many CPUs, of which a page tells or not.
        let mut looks = |ms: u64, cpus: u32, is_published: bool| {
            let end_ms = at_ms + ms;
            let mut limits = vec![];
            while at_ms < end_ms {
                at_ms += 10;
                let limit = load.verdict().limit.unwrap_or(8);
                let running = f64::from(limit.min(cpus));
                let (phantom, idle) = (f64::from(limit) - running, f64::from(cpus) - running);
                let ran = at_ms * MS;
                let threads: Vec<_> = (0..8).map(|thread| (thread, ran, 0)).collect();
                load.look(&Look {
                    now_ns: at_ms * MS,
                    threads: &threads,
                    published: is_published.then(|| page(at_ms, running, phantom, idle, 0.0)),
                    ..ten_ms(8)
                });
                limits.push(load.verdict().limit.unwrap_or(8));
            }
            (limits, load.verdict().is_crowded)
        };
        assert_eq!(looks(100, 5, false), (vec![8; 10], false));
        let (limits, is_crowded) = looks(130, 5, true);
        assert_eq!((limits.last(), is_crowded), (Some(&5), true));
        // What it said before that is not acted upon again.
        assert_eq!(looks(1_500, 5, true).0, [5; 150]);
        assert_eq!(looks(500, 7, true).0.last(), Some(&7));
        let (limits, is_crowded) = looks(2_000, 8, true);
        assert_eq!((limits.last(), is_crowded), (Some(&8), false));
        assert_eq!(looks(500, 5, true).0.last(), Some(&5));
        // Who publishes has gone: one more at a time, as nobody waits.
        assert_eq!(looks(50, 5, false).0, [6, 7, 8, 8, 8]);
    }

    proptest::proptest! {
        /// Whatever a page says, whoever wrote it: somebody may run, and nobody beyond the CPUs.
        #[test]
        fn no_page_stops_the_pool(
            pages in proptest::collection::vec(
                proptest::option::of((0u64..100_000, 0.0..1e5, 0.0..1e5, 0.0..1e5, 0.0..1e5)), 0..100),
            most in 1u32..600, has_lowered: bool,
        ) {
            let mut load = Load::default();
            for (n, published) in (0..).zip(pages) {
                let published = published.map(|(at, running, phantom, idle, others)|
                    page(at, running, phantom, idle, others));
                let verdict = load.look(&Look {
                    now_ns: n * 10 * MS,
                    threads: &[(1, n * 10 * MS, 0)],
                    has_lowered,
                    published,
                    ..ten_ms(most)
                });
                proptest::prop_assert!(verdict.limit.is_none_or(|limit| (1..most).contains(&limit)));
            }
        }
    }

    #[test]
    fn a_quota_crowds_too() {
        let mut load = Load::default();
        let mut look = |ran| {
            load.look(&Look {
                wall_ns: MS,
                threads: &[(1, ran, 0)],
                quota: Some(1.0),
                is_throttled: true,
                most: 2,
                ..Look::default()
            })
        };
        assert!(!look(0).is_crowded, "idle");
        assert!(look(MS).is_crowded);
    }

    /// Who spun until the kernel held the group back had used up the time of those who work.
    #[test]
    fn a_quota_that_is_nearly_used_up_crowds_before_anybody_is_held_back() {
        let mut load = Load::default();
        let mut look = |n: u64| {
            let ran = n * 10 * MS;
            load.look(&Look {
                threads: &[(1, ran, 0), (2, ran, 0)],
                quota: Some(1.0),
                ..ten_ms(2)
            })
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
                verdict = load.look(&Look {
                    threads: &[(1, ran, 0), (2, ran, 0)],
                    steal: Some(at),
                    ..ten_ms(2)
                });
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
            load.look(&Look {
                wall_ns: 1000 * MS,
                threads: &[(1, ran, 0)],
                steal: Some(at),
                most: 2,
                ..Look::default()
            });
            load.stolen
        };
        look(0, 0);
        assert_eq!(look(500 * MS, 500 * MS), 0.5);
        assert_eq!(look(10 * MS, 400 * MS), 0.5, "nothing is known of it");
        assert_eq!(look(10 * MS, 1400 * MS), 0.0);
        load.look(&ten_ms(2));
        assert_eq!(load.last_steal, None);
    }

    #[test]
    fn idle_threads_say_nothing() {
        let mut load = Load::default();
        looks(&mut load, false, 2, (5, 5), 10);
        assert!(looks(&mut load, false, 2, (0, 0), 1).is_crowded);
        assert!(
            !looks(&mut load, false, 2, (0, 0), 3).is_crowded,
            "nobody waits"
        );
    }
}
