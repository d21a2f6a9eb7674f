//! The degree of parallelism: how many threads a region gets that may have fewer than it asks for.
//!
//! After the thesis behind "OpenMP in oversubscribed VMs" (H. Chhaya-Shailesh): threads that could run and do not
//! (phantoms) shrink teams at once; CPUs that have been idle for a while let them grow; otherwise they stay. Where
//! nobody publishes how many those are (`amdahl-phantom-page`), what the threads lost themselves stands for phantoms, and
//! growing is tried, more and more rarely as long as it turns out wrong.
//!
//! That is for CPUs that are gone. A scheduler that shares them fairly among threads, as that of this kernel does among
//! processes, gives a team of fewer threads less: there a team shrinks only if it gains more by not waiting for who is preempted.

use std::sync::atomic::Ordering;

use amdahl_phantom_page::{Finder, Snapshot};

use crate::page::{Kept, Page};
use crate::thread::Thread;
use crate::{capacity, icv, sys, team};

/// What a region that begins is to be decided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Threads of this process that could run and did not, on average.
    pub phantoms: f64,
    /// CPUs that are free for it; `None` if nobody knows.
    pub idle: Option<f64>,
    /// Who has the phantoms' CPUs are threads of others beside this process's, and not a hypervisor's.
    pub is_shared: bool,
}

impl Load {
    /// What a page says to a process whose teams have `threads` threads. Who publishes it may watch more than this process:
    /// a tree of them, or the whole machine. Of all threads there that ran or could run it takes its share, or all of them
    /// would shrink by what one is to shrink by.
    fn of(snapshot: &Snapshot, threads: u32) -> Load {
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

/// The number of CPUs that teams are made for.
#[derive(Clone, Copy, Debug)]
pub struct Degree {
    cpus: u32,
    /// Quiet windows until one more is tried, where nobody knows of idle CPUs.
    patience: u32,
    quiet: u32,
    /// The last change was such a try.
    was_tried: bool,
}

/// Phantoms below this are the scheduler's housekeeping.
const FEW: f64 = 0.5;
const PATIENCE: std::ops::RangeInclusive<u32> = 2..=64;

impl Degree {
    /// Begins with all that may be used.
    pub fn new(cpus: u32) -> Degree {
        Degree {
            cpus: cpus.max(1),
            patience: *PATIENCE.start(),
            quiet: 0,
            was_tried: false,
        }
    }

    /// The CPUs to use after a window with this load, of `usable` ones. O(1).
    pub fn next(&mut self, load: Load, usable: u32) -> u32 {
        let usable = usable.max(1);
        if load.phantoms >= FEW {
            let threads = self.cpus.min(usable);
            self.cpus = if load.is_shared {
                best_beside_others(threads, load.phantoms, usable)
            } else {
                let fewer = load.phantoms.round().min(f64::from(u32::MAX)) as u32;
                threads.saturating_sub(fewer).max(1)
            };
            if self.was_tried && self.cpus < threads {
                self.patience = (self.patience * 2).min(*PATIENCE.end());
            }
            (self.quiet, self.was_tried) = (0, false);
        } else if let Some(idle) = load.idle {
            self.cpus = self
                .cpus
                .saturating_add(idle.clamp(0.0, f64::from(usable)) as u32);
        } else {
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
        self.cpus = self.cpus.min(usable);
        self.cpus
    }
}

/// What a team does of the work that its CPU time would allow where its threads lose their CPUs one by one: measured on two CPUs
/// beside two processes as 0.8 to 0.9.
const TOGETHER: f64 = 0.85;
/// A size is left for one that promises this much more: shares are measured in windows of few slices.
const MORE: f64 = 1.1;

/// The best size of a team of `threads`, of which `phantoms` could run and did not because a fair scheduler gave `usable` CPUs to
/// others as well. O(1).
///
/// So many threads beside `others` get `usable / (threads + others)` of a CPU each. The more threads, the more of the machine; but as
/// long as each has a CPU of its own they do not wait for each other.
fn best_beside_others(threads: u32, phantoms: f64, usable: u32) -> u32 {
    /// No thread is told to have less of its CPU than this.
    const SHARE_LEAST: f64 = 1.0 / 64.0;
    let (all, now) = (f64::from(usable), f64::from(threads));
    let share = (1.0 - phantoms / now).max(SHARE_LEAST);
    let others = (all / share - now).max(0.0);
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

/// The number of threads of a region. `specified`: by a clause, 0 if there is none; `useful`: more cannot be used
/// (sections), 0 if that is not known.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn resolve(thread: *mut Thread, specified: u32, useful: u32) -> u32 {
    if specified == 1 {
        return 1;
    }
    // SAFETY: the caller's promise.
    let (icv, at) = unsafe { (Thread::icv(thread), (*thread).at) };
    if at.active_level >= icv.max_active_levels {
        return 1;
    }
    capacity::follow();
    let mut threads = if specified == 0 {
        icv.nthreads
    } else {
        specified
    };
    if icv::globals().own.dynamic.unwrap_or(icv.dynamic) {
        threads = threads.min(self::threads());
        if useful != 0 {
            threads = threads.min(useful);
        }
    }
    if icv.thread_limit != u32::MAX && threads > 1 {
        let left = icv.thread_limit.saturating_sub(1);
        let mut reserved = threads - 1;
        // SAFETY: the group's counter lives as long as its initial thread, or as its target region.
        if let Some(busy) = unsafe { at.group.as_ref() } {
            // Relaxed: a count, and nothing else is known by it.
            let reserve = |busy: u32| {
                reserved = (threads - 1).min(left.saturating_sub(busy));
                Some(busy + reserved)
            };
            let _ = busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
            // SAFETY: the caller's own.
            unsafe { (*thread).reserved = reserved };
        }
        threads = reserved.min(left) + 1;
    }
    threads.max(1)
}

/// Looks are no closer together than this.
const WINDOW_NS: u64 = 20_000_000;
/// `idle_avg` is of two spans of the page, one of which is no longer than this many of its windows.
const SPAN_WINDOWS: u64 = 8;

struct State {
    degree: Degree,
    finder: Finder,
    page: Page,
    looked_ns: u64,
    lost_ns: u64,
    stolen: Stolen,
    /// The tick of the page that was looked at last.
    tick: u64,
    /// Since when teams have had their size.
    changed_ns: u64,
}

static STATE: Kept<State> = Kept::new();

/// After `fork`, in the child.
pub(crate) fn in_child() {
    STATE.in_child();
}

impl State {
    fn new(finder: Finder, now_ns: u64, lost_ns: u64, usable: u32) -> State {
        State {
            degree: Degree::new(usable),
            finder,
            page: Page::default(),
            looked_ns: now_ns,
            lost_ns,
            stolen: Stolen::default(),
            tick: 0,
            changed_ns: now_ns,
        }
    }

    /// Takes a look at `now_ns`: `published` is what a page says, `lost_ns` what the threads have lost until now, `stolen_ns` tells
    /// what a hypervisor has taken from the machine.
    fn look(
        &mut self,
        now_ns: u64,
        published: Option<Snapshot>,
        lost_ns: u64,
        stolen_ns: impl FnOnce() -> Option<u64>,
        usable: u32,
    ) {
        let since_ns = self.looked_ns;
        let passed = now_ns.saturating_sub(since_ns).max(1);
        let lost_here = lost_ns.saturating_sub(self.lost_ns) as f64 / passed as f64;
        (self.looked_ns, self.lost_ns) = (now_ns, lost_ns);
        let load = match published {
            // The same tick says nothing new.
            Some(Snapshot { ticks, .. }) if ticks == self.tick => None,
            Some(snapshot) => {
                self.tick = snapshot.ticks;
                self.since_change(&snapshot)
            }
            None if lost_here < FEW => Some(Load {
                phantoms: lost_here,
                idle: None,
                is_shared: false,
            }),
            // Who has the CPUs decides what to do: it is waited for.
            None => self
                .stolen
                .cpus(since_ns, now_ns, stolen_ns)
                .map(|cpus| Load {
                    phantoms: lost_here,
                    idle: None,
                    is_shared: cpus < lost_here / 2.0,
                }),
        };
        if let Some(load) = load {
            let before = self.degree.cpus;
            if self.degree.next(load, usable) != before {
                self.changed_ns = now_ns;
            }
        }
    }

    /// What a page says of teams of the size that they have now: averages from before the last change would have it
    /// made again. Ticks are more frequent than windows end.
    fn since_change(&self, snapshot: &Snapshot) -> Option<Load> {
        let ago_ns = |us: u64| snapshot.time_ns.saturating_sub(us.saturating_mul(1_000));
        let window_us = u64::from(snapshot.window_us);
        if ago_ns(window_us) < self.changed_ns {
            return None;
        }
        let mut load = Load::of(snapshot, self.degree.cpus);
        // A span begins with the tick before.
        if ago_ns(SPAN_WINDOWS * window_us + u64::from(snapshot.tick_us)) < self.changed_ns {
            load.idle = Some(0.0);
        }
        Some(load)
    }
}

/// What a hypervisor takes, which is looked at where threads have lost something, and not more often than this.
const STOLEN_NS: u64 = 100_000_000;
/// A look is forgotten that was so long before the window that is asked about: what was taken in it would be shared out over a
/// quiet time.
const STOLEN_OLD_NS: u64 = 1_000_000_000;

#[derive(Default)]
struct Stolen {
    /// When it was looked at, and what was stolen until then.
    looked: Option<(u64, u64)>,
    cpus: Option<f64>,
}

impl Stolen {
    /// CPUs of the machine that a hypervisor takes, for a window since `since_ns`. `None` at the first look and after a long time
    /// without one: the next one tells. 0 where nobody does.
    fn cpus(
        &mut self,
        since_ns: u64,
        now_ns: u64,
        stolen_ns: impl FnOnce() -> Option<u64>,
    ) -> Option<f64> {
        let passed = |at| now_ns.saturating_sub(at);
        if self.looked.is_some_and(|(at, _)| passed(at) < STOLEN_NS) {
            return self.cpus;
        }
        let Some(stolen) = stolen_ns() else {
            return Some(0.0);
        };
        let last = self.looked.replace((now_ns, stolen));
        self.cpus = last
            .filter(|&(at, _)| since_ns <= at.saturating_add(STOLEN_OLD_NS))
            .map(|(at, before)| stolen.saturating_sub(before) as f64 / passed(at) as f64);
        self.cpus
    }
}

/// Threads that a region may have whose size is the runtime's to choose. A lock and a clock; who finds the lock taken
/// takes `usable`.
pub fn threads() -> u32 {
    let usable = capacity::usable_cpus();
    let Ok(mut state) = STATE.lock().try_lock() else {
        return usable;
    };
    let now = sys::monotonic_ns();
    let lost = team::CONTENTION.missed_ns();
    let state =
        state.get_or_insert_with(|| State::new(Finder::from_environment(), now, lost, usable));
    if now.saturating_sub(state.looked_ns) >= WINDOW_NS {
        let finder = &state.finder;
        let published = state.page.read(now, || finder.find().ok());
        state.look(now, published, lost, sys::stolen_ns, usable);
    }
    state.degree.cpus.min(usable)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use amdahl_phantom::{Estimator, Reading, SPAN_MAX, Settings};
    use amdahl_phantom_page::{Cpus, Publisher, Reader, Source};
    use proptest::prelude::*;

    const QUIET: Load = Load {
        phantoms: 0.0,
        idle: None,
        is_shared: false,
    };

    #[test]
    fn phantoms_shrink_at_once_and_idle_cpus_let_grow() {
        let mut degree = Degree::new(16);
        let load = |phantoms, idle| Load {
            phantoms,
            idle: Some(idle),
            is_shared: false,
        };
        assert_eq!(degree.next(load(5.6, 0.0), 16), 10);
        assert_eq!(degree.next(load(0.4, 0.9), 16), 10);
        assert_eq!(degree.next(load(0.0, 3.7), 16), 13);
        assert_eq!(degree.next(load(0.0, 1e9), 16), 16);
        assert_eq!(degree.next(load(1e300, 0.0), 16), 1);
    }

    #[test]
    fn growing_that_turns_out_wrong_becomes_rare() {
        let mut degree = Degree::new(4);
        degree.next(
            Load {
                phantoms: 2.0,
                idle: None,
                is_shared: false,
            },
            4,
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
            if degree.next(load, 4) > had {
                tries.push(window);
            }
        }
        let gaps: Vec<i32> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.windows(2).all(|pair| pair[0] <= pair[1]), "{gaps:?}");
        assert!(tries.len() < 20, "{tries:?}");
    }

    #[test]
    fn what_was_taken_comes_back_when_nobody_takes_it() {
        let mut degree = Degree::new(8);
        degree.next(
            Load {
                phantoms: 6.0,
                idle: None,
                is_shared: false,
            },
            8,
        );
        let windows = (0..1000).find(|_| degree.next(QUIET, 8) == 8);
        assert!(windows.is_some());
    }

    /// A team on `usable` CPUs that a fair scheduler shares among it and `others` busy threads: its size after a while.
    fn beside(others: f64, usable: u32, begins_with: u32) -> u32 {
        let mut degree = Degree::new(begins_with);
        for _ in 0..50 {
            let threads = f64::from(degree.cpus);
            let share = (f64::from(usable) / (threads + others)).min(1.0);
            let load = Load {
                phantoms: threads * (1.0 - share),
                idle: None,
                is_shared: true,
            };
            degree.next(load, usable);
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

    #[test]
    fn what_a_hypervisor_takes_is_gone() {
        let mut state = State::new(Finder::from_environment(), 0, 0, 8);
        let mut lost_ns = 0;
        let mut size = |window: u64, stolen_cpus: u64| {
            let now_ns = window * 200 * MS;
            lost_ns += 4 * 200 * MS;
            state.look(now_ns, None, lost_ns, || Some(stolen_cpus * now_ns), 8);
            state.degree.cpus
        };
        // Four of eight threads at a time have no CPU: first because of others here.
        assert_eq!(size(1, 0), 8);
        assert_eq!(size(2, 0), 8);
        assert_eq!(size(3, 4), 4);
    }

    /// What a hypervisor took was shared out over all the time since somebody had last asked, maybe minutes.
    #[test]
    fn what_is_stolen_after_a_quiet_time_is_not_shared_out_over_it() {
        let mut stolen = Stolen::default();
        let mut at = |since_ms: u64, now_ms: u64, cpu_ms: u64| {
            stolen.cpus(since_ms * MS, now_ms * MS, || Some(cpu_ms * MS))
        };
        assert_eq!(at(0, 1_000, 0), None);
        assert_eq!(at(1_080, 1_100, 200), Some(2.0));
        // A minute later, in a window of 20 ms: 80 ms of four CPUs.
        assert_eq!(at(61_080, 61_100, 280), None);
        assert_eq!(at(61_100, 61_120, 360), None);
        assert_eq!(at(61_180, 61_200, 680), Some(4.0));
        // A region begins each 5 s: windows are as long.
        assert_eq!(at(61_200, 66_200, 10_680), Some(2.0));
        assert_eq!(stolen.cpus(66_200 * MS, 67_000 * MS, || None), Some(0.0));
    }

    const MS: u64 = 1_000_000;

    /// Processes under one page, on a machine that has `capacity` CPUs for them at each millisecond: teams as large as each
    /// of them chooses wherever it looks, which is after each tick of 20 ms. Their sizes after each tick.
    fn closed_loop(
        processes: usize,
        usable: u32,
        ticks: u64,
        capacity: impl Fn(u64) -> u32,
    ) -> Vec<Vec<u32>> {
        let tick_ns = 20 * MS;
        let mut estimator = Estimator::new(Settings::default());
        let mut reading = Reading {
            at_ns: 1_000 * MS,
            allowed: usable,
            wait_ns: Some(0),
            ..Reading::default()
        };
        let mut states: Vec<State> = (0..processes)
            .map(|_| State::new(Finder::from_environment(), reading.at_ns, 0, usable))
            .collect();
        estimator.tick(reading.clone());
        let step = |tick| {
            let threads: u32 = states.iter().map(|state| state.degree.cpus).sum();
            let capacity = capacity(20 * tick);
            let running = threads.min(capacity);
            let spent = |cpus: u32| u64::from(cpus) * tick_ns;
            reading.at_ns += tick_ns;
            reading.run_ns += spent(running);
            reading.wait_ns = Some(reading.wait_ns.unwrap_or(0) + spent(threads - running));
            reading.idle_ns += spent(capacity - running);
            let estimate = estimator
                .tick(reading.clone())
                .expect("there is one before");
            let published = Some(estimate.snapshot(tick + 1, tick_ns));
            for state in &mut states {
                state.look(reading.at_ns + MS, published, 0, || None, usable);
            }
            states.iter().map(|state| state.degree.cpus).collect()
        };
        (0..ticks).map(step).collect()
    }

    /// A page that is renewed five times in a window told the same phantoms again after they were gone: 4 of 16 threads
    /// without a CPU left a team of 4.
    #[test]
    fn phantoms_that_a_change_has_ended_shrink_no_further() {
        let sizes: Vec<u32> = closed_loop(1, 16, 100, |_| 12).concat();
        assert_eq!(sizes.iter().min(), Some(&12), "{sizes:?}");
        assert_eq!(sizes.last(), Some(&12), "{sizes:?}");
    }

    /// The same CPUs were idle in window after window, and taken each time.
    #[test]
    fn idle_cpus_are_taken_once() {
        let capacity = |ms| if ms < 1_000 { 8 } else { 16 };
        let sizes: Vec<u32> = closed_loop(1, 32, 300, capacity).concat();
        assert_eq!(sizes[49], 8, "{sizes:?}");
        assert!(sizes[50..].iter().all(|&size| size <= 16), "{sizes:?}");
        assert_eq!(sizes.last(), Some(&16), "{sizes:?}");
        assert_eq!(SPAN_WINDOWS, u64::from(SPAN_MAX));
    }

    /// Eight processes of one `mpirun` had one page, and each of them shrank by the phantoms of all: to one thread.
    #[test]
    fn processes_under_one_page_shrink_and_grow_together() {
        let capacity = |ms| if ms < 1_000 { 16 } else { 32 };
        let sizes = closed_loop(8, 32, 300, capacity);
        assert_eq!(sizes[49], [2; 8], "{sizes:?}");
        for sizes in &sizes[50..] {
            assert!(sizes.iter().sum::<u32>() <= 32, "{sizes:?}");
        }
        assert_eq!(sizes.last().unwrap(), &[4; 8], "{sizes:?}");
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

    /// A page was sought once, at the first region: one that came later, or was made anew, was never read.
    #[test]
    fn a_page_that_comes_late_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let sought = Cell::new(0);
        let mut page = Page::default();
        let mut ticks = |now_ns| {
            let find = || {
                sought.set(sought.get() + 1);
                Reader::open(&name).ok()
            };
            page.read(now_ns, find).map(|snapshot| snapshot.ticks)
        };
        let publish = |time_ns, ticks| {
            let mut publisher = Publisher::create(&path, Source::Proc).unwrap();
            publisher.publish(Snapshot {
                time_ns,
                ticks,
                tick_us: 100_000,
                window_us: 100_000,
                allowed: 16,
                ..Snapshot::default()
            });
            publisher
        };
        let at = |ms: u64| 1_000_000_000_000 + ms * MS;
        assert_eq!(ticks(at(0)), None);
        let first = publish(at(100), 1);
        assert_eq!((ticks(at(999)), sought.get()), (None, 1));
        assert_eq!((ticks(at(1_000)), sought.get()), (Some(1), 2));
        // Its writer is gone, and another one has come.
        drop(first);
        assert_eq!((ticks(at(1_500)), sought.get()), (None, 2));
        assert_eq!((ticks(at(2_500)), sought.get()), (None, 3));
        let _second = publish(at(3_400), 2);
        assert_eq!((ticks(at(3_499)), sought.get()), (None, 3));
        assert_eq!((ticks(at(3_500)), sought.get()), (Some(2), 4));
        assert_eq!((ticks(at(4_400)), sought.get()), (Some(2), 4));
    }

    /// A thread was choosing while another one forked. Nobody gave the lock back in the child, whose teams stayed as large as
    /// could be.
    #[test]
    fn a_child_of_fork_can_choose_whoever_was_choosing() {
        team::init();
        let _choosing = STATE.lock().lock();
        // SAFETY: the child calls nothing but what follows.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_stuck = STATE.lock().try_lock().is_err();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(is_stuck)) };
        }
        let mut status = 0;
        // SAFETY: our child; `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    proptest! {
        #[test]
        fn there_is_always_one_and_never_more_than_usable(
            loads in prop::collection::vec((0.0f64..1e6, prop::option::of(0.0f64..1e6), any::<bool>()), 0..200),
            usable in 0u32..600,
        ) {
            let mut degree = Degree::new(usable);
            for (phantoms, idle, is_shared) in loads {
                let cpus = degree.next(Load { phantoms, idle, is_shared }, usable);
                prop_assert!((1..=usable.max(1)).contains(&cpus));
            }
        }
    }
}
