//! How many threads should run at once, by what a page or losses of one's own tell. Pure.
//!
//! After the thesis behind "OpenMP in oversubscribed VMs" (H. Chhaya-Shailesh): threads that could run and do not
//! (phantoms) take threads away at once; CPUs that have been idle for a while let them come back; otherwise they stay. Where
//! nobody publishes how many those are, what the threads lost themselves stands for phantoms, and
//! growing is tried, more and more rarely as long as it turns out wrong.
//!
//! That is for CPUs that are gone. A scheduler that shares them fairly among threads, as that of this kernel does among
//! processes, gives a program of fewer threads less: there it has fewer only if it gains more by not waiting for who is preempted.
//!
//! A hypervisor may do either, and does not say which: a share of time that is paid for, or virtual CPUs that are scheduled as other
//! threads are. It shows when the program has fewer threads: none of those is without a CPU then, or the same part of them is as a fair
//! scheduler leaves without.

use crate::snapshot::Snapshot;

/// What a number of threads is decided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Threads of this process that could run and did not, on average.
    pub phantoms: f64,
    /// CPUs that are free for it; `None` if nobody knows.
    pub idle: Option<f64>,
    /// Who has the phantoms' CPUs is known to share them fairly: threads of others beside this process's. Of a hypervisor it has to be
    /// found out.
    pub is_shared: bool,
}

impl Load {
    /// What a page says to a process that has `threads` threads at work. Who publishes it may watch more than this process:
    /// a tree of them, or the whole machine. Of all threads there that ran or could run it takes its share, or all of them
    /// would shrink by what one is to shrink by.
    pub fn of(snapshot: &Snapshot, threads: u32) -> Load {
        let (phantoms, threads) = (snapshot.phantom.to_f64(), f64::from(threads.max(1)));
        // Threads that sleep are not seen: there may be fewer than ours.
        let share = threads / threads.max(snapshot.running.to_f64() + phantoms);
        Load {
            phantoms: phantoms * share,
            idle: Some(snapshot.idle.to_f64() * share),
            is_shared: snapshot.others.to_f64() >= phantoms / 2.0,
        }
    }
}

/// How many threads should run at once: the degree of parallelism.
#[derive(Clone, Copy, Debug)]
pub struct Degree {
    cpus: u32,
    /// Since when there are so many.
    changed_ns: u64,
    /// The tick of the page that was acted upon last.
    tick: u64,
    /// Quiet windows until one more is tried, where nobody knows of idle CPUs.
    patience: u32,
    quiet: u32,
    /// The last change was such a try.
    was_tried: bool,
    takers: Takers,
}

const PATIENCE: std::ops::RangeInclusive<u32> = 2..=64;
/// `idle` on a page is of two spans, one of which is no longer than this many of its windows.
pub const SPAN_WINDOWS: u64 = 8;

impl Degree {
    /// Phantoms below this are the scheduler's housekeeping.
    pub const FEW: f64 = 0.5;

    /// Begins with so many, at `now_ns` of the page's clock.
    pub fn new(cpus: u32, now_ns: u64) -> Degree {
        Degree {
            cpus: cpus.max(1),
            changed_ns: now_ns,
            tick: 0,
            patience: *PATIENCE.start(),
            quiet: 0,
            was_tried: false,
            takers: Takers::default(),
        }
    }

    /// How many.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// How many after a window with this load that ended at `now_ns`, on `usable` CPUs. O(1).
    pub fn next(&mut self, load: Load, usable: u32, now_ns: u64) -> u32 {
        let before = self.cpus;
        self.step(load, usable.max(1), now_ns);
        if self.cpus != before {
            self.changed_ns = now_ns;
        }
        self.cpus
    }

    fn step(&mut self, load: Load, usable: u32, now_ns: u64) {
        if load.phantoms >= Self::FEW {
            self.shrink(load, usable, now_ns);
        } else {
            self.takers.took_no_more();
            self.grow(load.idle, usable);
        }
        self.cpus = self.cpus.min(usable);
    }

    /// Some have no CPU.
    fn shrink(&mut self, load: Load, usable: u32, now_ns: u64) {
        let (threads, phantoms) = (self.cpus.min(usable), load.phantoms);
        self.cpus = if load.is_shared || self.takers.share(threads, phantoms, usable, now_ns) {
            best_beside_others(threads, phantoms, usable)
        } else {
            let fewer = phantoms.round().min(f64::from(u32::MAX)) as u32;
            threads.saturating_sub(fewer).max(1)
        };
        if self.was_tried && self.cpus < threads {
            self.patience = (self.patience * 2).min(*PATIENCE.end());
        }
        (self.quiet, self.was_tried) = (0, false);
    }

    /// All have one; by the CPUs that are known to be idle, or by trying.
    fn grow(&mut self, idle: Option<f64>, usable: u32) {
        if let Some(idle) = idle {
            let more = idle.clamp(0.0, f64::from(usable)) as u32;
            self.cpus = self.cpus.saturating_add(more);
            return;
        }
        self.quiet += 1;
        if self.quiet >= self.patience && self.cpus < usable {
            self.cpus += 1;
            (self.quiet, self.was_tried) = (0, true);
        } else if self.quiet >= 2 * self.patience {
            // What was tried has turned out right.
            self.patience = (self.patience / 2).max(*PATIENCE.start());
            self.was_tried = false;
        }
    }

    /// What a page says of as many threads as there are now; `None` if nothing new: the same tick again, or averages from before
    /// the last change, which would have it made again. Ticks are more frequent than windows end.
    pub fn published(&mut self, snapshot: &Snapshot) -> Option<Load> {
        if snapshot.ticks == self.tick {
            return None;
        }
        self.tick = snapshot.ticks;
        let ago_ns = |us: u64| snapshot.time_ns.saturating_sub(us.saturating_mul(1_000));
        let window_us = u64::from(snapshot.window_us);
        if ago_ns(window_us) < self.changed_ns {
            return None;
        }
        let mut load = Load::of(snapshot, self.cpus);
        // A span begins with the tick before.
        if ago_ns(SPAN_WINDOWS * window_us + u64::from(snapshot.tick_us)) < self.changed_ns {
            load.idle = Some(0.0);
        }
        Some(load)
    }
}

/// Whether those share who take CPUs and of whom that is not known, by what fewer threads are left without.
#[derive(Clone, Copy, Debug, Default)]
struct Takers {
    /// So many threads there were, and of them so many phantoms, when they became fewer.
    shrunk: Option<(u32, f64)>,
    /// Until then they are taken for such that share.
    until_ns: u64,
    /// For how long the last time.
    trust_ns: u64,
}

/// What was found out holds for so long, twice as long each time that it is found again.
const TRUST_NS: core::ops::RangeInclusive<u64> = 2_000_000_000..=32_000_000_000;

impl Takers {
    /// Of `threads` there are so many phantoms. O(1).
    fn share(&mut self, threads: u32, phantoms: f64, usable: u32, now_ns: u64) -> bool {
        if now_ns < self.until_ns {
            return true;
        }
        let left_without = self.shrunk.take().filter(|&(before, _)| threads < before);
        let left_without = left_without.map(|(before, lost)| {
            let all = f64::from(usable) / (f64::from(threads) + others(before, lost, usable));
            f64::from(threads) * (1.0 - all.min(1.0))
        });
        // Half of that is nearer to it than to none.
        let is_found = left_without.is_some_and(|fair| phantoms >= fair / 2.0);
        if is_found {
            let (least, most) = (*TRUST_NS.start(), *TRUST_NS.end());
            self.trust_ns = (2 * self.trust_ns).clamp(least, most);
            self.until_ns = now_ns.saturating_add(self.trust_ns);
        } else {
            self.shrunk = Some((threads, phantoms));
        }
        is_found
    }

    /// Nobody is left without.
    fn took_no_more(&mut self) {
        if self.shrunk.take().is_some() {
            self.trust_ns = 0;
        }
    }
}

/// Threads of others with whom a fair scheduler shares `usable` CPUs, if of `threads` there are so many phantoms.
fn others(threads: u32, phantoms: f64, usable: u32) -> f64 {
    /// No thread is told to have less of its CPU than this.
    const SHARE_LEAST: f64 = 1.0 / 64.0;
    let threads = f64::from(threads);
    let share = (1.0 - phantoms / threads).max(SHARE_LEAST);
    (f64::from(usable) / share - threads).max(0.0)
}

/// What threads that work together do of what their CPU time would allow where they lose their CPUs one by one: measured on two CPUs
/// beside two processes as 0.8 to 0.9.
const TOGETHER: f64 = 0.85;
/// A size is left for one that promises this much more: shares are measured in windows of few slices.
const MORE: f64 = 1.1;

/// The best number of threads of a program that has `threads`, of which `phantoms` could run and did not because a fair scheduler gave `usable` CPUs to
/// others as well. O(1).
///
/// So many threads beside `others` get `usable / (threads + others)` of a CPU each. The more threads, the more of the machine; but as
/// long as each has a CPU of its own they do not wait for each other.
pub fn best_beside_others(threads: u32, phantoms: f64, usable: u32) -> u32 {
    let (usable, threads) = (usable.max(1), threads.max(1));
    let others = others(threads, phantoms, usable);
    let (all, now) = (f64::from(usable), f64::from(threads));
    let rate = |threads: f64| {
        let share = (all / (threads + others)).min(1.0);
        let waits = share < 1.0 && threads > 1.0;
        threads * share * if waits { TOGETHER } else { 1.0 }
    };
    let alone = (all - others).round().clamp(1.0, all);
    let best = if rate(all) < rate(alone) { alone } else { all };
    let is_better = rate(best) > MORE * rate(now);
    (if is_better { best } else { now }) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::Cpus;

    const QUIET: Load = Load {
        phantoms: 0.0,
        idle: None,
        is_shared: false,
    };

    #[test]
    fn phantoms_shrink_at_once_and_idle_cpus_let_grow() {
        let mut degree = Degree::new(16, 0);
        let load = |phantoms, idle| Load {
            phantoms,
            idle: Some(idle),
            is_shared: false,
        };
        assert_eq!(degree.next(load(5.6, 0.0), 16, 0), 10);
        assert_eq!(degree.next(load(0.4, 0.9), 16, 0), 10);
        assert_eq!(degree.next(load(0.0, 3.7), 16, 0), 13);
        assert_eq!(degree.next(load(0.0, 1e9), 16, 0), 16);
        assert_eq!(degree.next(load(1e300, 0.0), 16, 0), 1);
    }

    #[test]
    fn growing_that_turns_out_wrong_becomes_rare() {
        let mut degree = Degree::new(4, 0);
        degree.next(
            Load {
                phantoms: 2.0,
                idle: None,
                is_shared: false,
            },
            4,
            0,
        );
        // Only two CPUs can be had: each try is punished.
        let mut tries = Vec::new();
        for window in 0..400 {
            let had = degree.cpus;
            let load = Load {
                phantoms: f64::from(had.saturating_sub(2)),
                idle: None,
                is_shared: false,
            };
            if degree.next(load, 4, 0) > had {
                tries.push(window);
            }
        }
        let gaps: Vec<i32> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.windows(2).all(|pair| pair[0] <= pair[1]), "{gaps:?}");
        assert!(tries.len() < 20, "{tries:?}");
    }

    #[test]
    fn what_was_taken_comes_back_when_nobody_takes_it() {
        let mut degree = Degree::new(8, 0);
        degree.next(
            Load {
                phantoms: 6.0,
                idle: None,
                is_shared: false,
            },
            8,
            0,
        );
        let windows = (0..1000).find(|_| degree.next(QUIET, 8, 0) == 8);
        assert!(windows.is_some());
    }

    /// A team on `usable` CPUs that a fair scheduler shares among it and `others` busy threads: its size after a while.
    fn beside(others: f64, usable: u32, begins_with: u32) -> u32 {
        let mut degree = Degree::new(begins_with, 0);
        for _ in 0..50 {
            let threads = f64::from(degree.cpus);
            let share = (f64::from(usable) / (threads + others)).min(1.0);
            let load = Load {
                phantoms: threads * (1.0 - share),
                idle: None,
                is_shared: true,
            };
            degree.next(load, usable, 0);
        }
        degree.cpus
    }

    /// Beside two busy processes a team of two on two CPUs shrank to one thread, which gets less of the machine.
    #[test]
    fn beside_as_many_others_as_cpus_a_team_keeps_its_share() {
        for usable in [2, 8, 160] {
            let others = f64::from(usable);
            for begins_with in [1, usable / 2, usable] {
                assert_eq!(beside(others, usable, begins_with), usable, "{begins_with}");
            }
            assert_eq!(beside(4.0 * others, usable, usable), usable);
        }
    }

    #[test]
    fn beside_few_others_a_team_leaves_them_their_cpus() {
        assert_eq!(beside(2.0, 16, 16), 14);
        assert_eq!(beside(16.0, 160, 160), 144);
        // Half of a thread is housekeeping.
        assert_eq!(beside(0.5, 16, 16), 16);
        assert_eq!(beside(0.0, 16, 16), 16);
    }

    /// A team on `usable` CPUs of which a hypervisor has `has` at each of so many windows of 100 ms, for so many threads: its sizes.
    fn stolen(usable: u32, windows: u64, has: impl Fn(u64, f64) -> f64) -> Vec<u32> {
        let mut degree = Degree::new(usable, 0);
        let step = |window| {
            let threads = f64::from(degree.cpus);
            let load = Load {
                phantoms: (threads - has(window, threads)).max(0.0),
                idle: Some(0.0),
                is_shared: false,
            };
            degree.next(load, usable, window * 100_000_000)
        };
        (1..=windows).map(step).collect()
    }

    /// A team of 96 threads beside as many virtual CPUs of others on 96 CPUs shrank to 48, to 32, to 24 and on, which had less each time.
    #[test]
    fn a_hypervisor_that_shares_is_found_out_and_asked_again_more_and_more_rarely() {
        let fair = |_, threads| 96.0 * threads / (threads + 96.0);
        let sizes = stolen(96, 1_000, fair);
        assert_eq!(sizes[..2], [48, 96]);
        let asked: Vec<usize> = (0..sizes.len()).filter(|&at| sizes[at] != 96).collect();
        assert!(asked.iter().all(|&at| sizes[at] == 48), "{sizes:?}");
        assert_eq!(asked, [0, 21, 62, 143, 304, 625, 946]);
    }

    #[test]
    fn cpus_that_a_hypervisor_keeps_are_gone() {
        assert_eq!(stolen(96, 100, |_, _| 48.0), [48; 100]);
        // Fewer and fewer, so that it may look like sharing: that is asked again.
        let fewer = |window, _| if window < 2 { 48.0 } else { 24.0 };
        let sizes = stolen(96, 200, fewer);
        assert_eq!(sizes[..2], [48, 96]);
        assert_eq!(sizes[30..], [24; 170]);
    }

    #[test]
    fn a_page_of_others_too_says_what_one_of_our_own_would() {
        let page = |running, phantom, idle| Snapshot {
            running: Cpus::from_f64(running),
            phantom: Cpus::from_f64(phantom),
            idle: Cpus::from_f64(idle),
            allowed: 16,
            ..Snapshot::default()
        };
        let load = |snapshot, threads| {
            let load = Load::of(&snapshot, threads);
            (load.phantoms, load.idle.unwrap())
        };
        // 16 threads of ours beside 48 of others, which get what they get: a quarter.
        assert_eq!(load(page(16.0, 48.0, 0.0), 16), (12.0, 0.0));
        // Ours alone, awake or asleep.
        assert_eq!(load(page(12.0, 4.0, 0.0), 16), (4.0, 0.0));
        assert_eq!(load(page(2.0, 1.0, 6.0), 16), (1.0, 6.0));
        assert_eq!(load(page(0.0, 0.0, 16.0), 0), (0.0, 16.0));
        assert_eq!(load(page(12.0, 0.0, 4.0), 6), (0.0, 2.0));
    }

    proptest! {
        #[test]
        fn there_is_always_one_and_never_more_than_usable(
            loads in prop::collection::vec((0.0f64..1e6, prop::option::of(0.0f64..1e6), any::<bool>()), 0..200),
            usable in 0u32..600,
        ) {
            let mut degree = Degree::new(usable, 0);
            for (window, (phantoms, idle, is_shared)) in (1..).zip(loads) {
                let cpus = degree.next(Load { phantoms, idle, is_shared }, usable, window * 1_000_000_000);
                prop_assert!((1..=usable.max(1)).contains(&cpus));
            }
        }
    }
}
