//! What the kernel accounts for each process, from `/proc`: all that is known without BPF of processes that run already.
//!
//! Processes come and go between two looks. Who started one gets its faults when it waits for its end: by that
//! those count that were never seen.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use amdahl_report::mem::schema::{FaultKind, FaultSite, Faults};

use super::look::BUDGET;
use crate::cli::Selection;
use crate::watch::processes;

/// How often: one that lives shorter may be missed.
const PAUSE: Duration = Duration::from_millis(500);
/// Processes that are gone and are kept; of the half with fewer faults there are sums beyond.
const GONE_MAX: usize = 10_000;
/// Processes that are listed.
const SITES_MAX: usize = 500;

/// Minor and major faults.
type Counted = [u64; 2];

fn add(sums: &mut Counted, more: Counted) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}

fn without(all: Counted, less: Counted) -> Counted {
    [0, 1].map(|kind| all[kind].saturating_sub(less[kind]))
}

/// What `/proc/PID/stat` tells of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// When it began, in ticks since the machine did.
    began: u64,
    /// Its faults in all its life.
    own: Counted,
    /// Those of its children, and of theirs, for whose end it has waited.
    waited: Counted,
}

fn parse(stat: &str) -> Option<Stat> {
    // The name may hold anything.
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().take(20).collect();
    let number = |at: usize| fields.get(at)?.parse().ok();
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        own: [number(7)?, number(9)?],
        waited: [number(8)?, number(10)?],
        began: number(19)?,
    })
}

/// What processes had since the first look.
#[derive(Default)]
struct Processes {
    /// By number and time of their beginning: numbers come again.
    all: HashMap<(u32, u64), Process>,
    /// Of those that are gone and have no entry any more.
    forgotten: Sums,
    looks: u64,
    /// When the first look was, in ticks since the machine began.
    since: u64,
}

struct Process {
    before: Stat,
    now: Stat,
    name: String,
    /// The look at which it was there last.
    at: u64,
    /// Who started it was watched then, too.
    is_inner: bool,
}

/// Faults of several processes.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Their own.
    own: Counted,
    /// Those of children for whose end they have waited.
    waited: Counted,
    /// Of `waited`, what was seen while the children lived, or was before the first look.
    seen: Counted,
}

impl Process {
    fn faults(&self) -> Counted {
        without(self.now.own, self.before.own)
    }

    fn add_to(&self, sums: &mut Sums, is_gone: bool) {
        add(&mut sums.own, self.faults());
        add(
            &mut sums.waited,
            without(self.now.waited, self.before.waited),
        );
        if is_gone && self.is_inner {
            add(&mut sums.seen, self.now.own);
            add(&mut sums.seen, self.now.waited);
        }
    }
}

impl Processes {
    fn begin_look(&mut self, ticks: u64) {
        if self.looks == 0 {
            self.since = ticks;
        }
        self.looks += 1;
    }

    /// A process that is there; `is_inner`: so is who started it.
    fn add(&mut self, pid: u32, stat: Stat, is_inner: bool, name: impl FnOnce() -> String) {
        let at = self.looks;
        // One that began since has had all its faults since. Others were there, or have joined.
        let is_new = at > 1 && stat.began >= self.since;
        let process = self
            .all
            .entry((pid, stat.began))
            .or_insert_with(|| Process {
                before: if is_new { Stat::default() } else { stat },
                now: stat,
                name: name(),
                at,
                is_inner,
            });
        (process.now, process.at, process.is_inner) = (stat, at, is_inner);
    }

    fn end_look(&mut self) {
        // Who was missed once may only have been unreadable, and would count from its beginning when it is back.
        let is_gone = |process: &Process| process.at + 1 < self.looks;
        if self.all.len() <= GONE_MAX {
            return;
        }
        let gone = self.all.iter().filter(|(_, process)| is_gone(process));
        let mut gone: Vec<_> = gone
            .map(|(&key, process)| (Reverse(process.faults().iter().sum::<u64>()), key))
            .collect();
        if gone.len() <= GONE_MAX {
            return;
        }
        gone.sort_unstable();
        for (_, key) in gone.split_off(GONE_MAX / 2) {
            if let Some(process) = self.all.remove(&key) {
                process.add_to(&mut self.forgotten, true);
            }
        }
    }

    /// All faults: those of processes that were seen, and of their children what was not.
    fn sums(&self) -> Counted {
        let mut sums = self.forgotten;
        for process in self.all.values() {
            process.add_to(&mut sums, process.at < self.looks);
        }
        let mut all = sums.own;
        add(&mut all, without(sums.waited, sums.seen));
        all
    }
}

/// The faults of those whom a selection names.
pub struct Accounted {
    selection: Selection,
    root: Option<u32>,
    processes: Processes,
}

impl Accounted {
    /// Of whom `selection` says. The first look is the beginning.
    pub fn new(selection: &Selection) -> Accounted {
        Accounted {
            selection: selection.clone(),
            root: selection.pid,
            processes: Processes::default(),
        }
    }

    /// Looks once. Returns after which time to do it again.
    pub fn look(&mut self) -> Duration {
        let begun = Instant::now();
        let me = std::process::id();
        self.processes.begin_look(ticks());
        let pids = match (&self.selection.cgroup, self.root) {
            (None, None) => processes::pids(),
            _ => {
                let present = crate::watch::present(&self.selection, self.root);
                present.into_iter().map(|(pid, _)| pid).collect()
            }
        };
        let here: HashSet<u32> = pids.iter().copied().collect();
        for pid in pids {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            let Some(mut stat) = stat.ok().and_then(|stat| parse(&stat)) else {
                continue;
            };
            if pid == me {
                // What we do ourselves is none of the program's business, what we have started is.
                stat.own = [0; 2];
            }
            let name = || processes::comm(pid, pid);
            self.processes
                .add(pid, stat, here.contains(&stat.parent), name);
        }
        self.processes.end_look();
        PAUSE.max(begun.elapsed() * BUDGET)
    }

    /// Looks before `watch` runs, again and again meanwhile, and once more then.
    pub fn while_looking<T>(&mut self, watch: impl FnOnce() -> T) -> T {
        let mut pause = self.look();
        let over = AtomicBool::new(false);
        let looks_again = || {
            loop {
                std::thread::park_timeout(pause);
                if over.load(Ordering::Relaxed) {
                    break;
                }
                pause = self.look();
            }
        };
        // It must also end where the watching panics.
        struct Stop<'a>(&'a AtomicBool, Option<&'a Thread>);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
                self.1.inspect(|thread| thread.unpark());
            }
        }
        let watched = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("amdahl-account".into());
            // Without it the first and the last look must do.
            let looking = builder.spawn_scoped(scope, looks_again).ok();
            let _stop = Stop(&over, looking.as_ref().map(|looking| looking.thread()));
            watch()
        });
        self.look();
        watched
    }

    /// Their faults so far, by process.
    pub fn faults(&self) -> Faults {
        let kinds = ["minor", "major"].into_iter().zip(self.processes.sums());
        let kinds: Vec<FaultKind> = kinds
            .map(|(kind, count)| FaultKind {
                kind: kind.to_owned(),
                count,
                ..FaultKind::default()
            })
            .collect();
        let mut sites = Vec::new();
        for (&(pid, _), process) in &self.processes.all {
            for (kind, count) in kinds.iter().zip(process.faults()) {
                if count > 0 {
                    sites.push(FaultSite {
                        kind: kind.kind.clone(),
                        count,
                        pid,
                        process: process.name.clone(),
                        ..FaultSite::default()
                    });
                }
            }
        }
        sites.sort_by_key(|site| (Reverse(site.count), site.pid));
        sites.truncate(SITES_MAX);
        let count = kinds.iter().map(|kind| kind.count).sum();
        let listed: u64 = sites.iter().map(|site| site.count).sum();
        Faults {
            count,
            kinds,
            left_out: count - listed,
            sites,
            ..Faults::default()
        }
    }
}

/// Since the machine began, as `/proc` counts.
fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    let part = now.tv_nsec as u64 * per_second / 1_000_000_000;
    (now.tv_sec as u64).saturating_mul(per_second) + part
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "42 (a) b) R 1 42 42 0 -1 4194304 95 3 7 2 0 0 0 0 20 0 1 0 7788 2469888 227";

    #[test]
    fn names_may_hold_anything() {
        let stat = Stat {
            parent: 1,
            began: 7788,
            own: [95, 7],
            waited: [3, 2],
        };
        assert_eq!(parse(STAT), Some(stat));
        assert_eq!(parse("42 (a R 1"), None);
    }

    #[test]
    fn processes_began_before_now() {
        let me = std::fs::read_to_string("/proc/self/stat").expect("our own");
        let began = parse(&me).expect("understood").began;
        let now = ticks();
        assert!(
            began <= now && now - began < 100 * 3600 * 24,
            "{began} {now}"
        );
    }

    fn stat(began: u64, own: Counted) -> Stat {
        Stat {
            began,
            own,
            ..Stat::default()
        }
    }

    fn look(processes: &mut Processes, found: &[(u32, u64, Counted)]) {
        processes.begin_look(0);
        for &(pid, began, own) in found {
            processes.add(pid, stat(began, own), false, String::new);
        }
        processes.end_look();
    }

    /// The totals fell when a number came again: those of the other process had been taken for its own.
    #[test]
    fn a_number_that_comes_again_is_another_process() {
        let mut processes = Processes::default();
        look(&mut processes, &[(7, 1, [100, 10])]);
        look(&mut processes, &[(7, 1, [140, 10])]);
        assert_eq!(processes.sums(), [40, 0]);
        look(&mut processes, &[(7, 9, [30, 2])]);
        assert_eq!(processes.sums(), [70, 2]);
    }

    /// After 100,000 processes all further ones were left out without a word.
    #[test]
    fn of_processes_that_are_gone_the_sums_are_kept() {
        let mut processes = Processes::default();
        let mut expected = [0, 0];
        look(&mut processes, &[]);
        for at in 0..1_200_u32 {
            let found: Vec<_> = (100 * at..100 * at + 100)
                .map(|pid| (pid, u64::from(at), [u64::from(pid % 7), 1]))
                .chain([(u32::MAX, 0, [u64::from(at), 0])])
                .collect();
            look(&mut processes, &found);
            for &(_, _, counts) in &found[..100] {
                add(&mut expected, counts);
            }
            let all = [expected[0] + u64::from(at), expected[1]];
            assert_eq!(processes.sums(), all);
            assert!(processes.all.len() <= GONE_MAX + 300);
        }
        assert!(processes.all.contains_key(&(u32::MAX, 0)));
    }

    /// Of who joined a control group all its life was counted.
    #[test]
    fn who_was_there_before_counts_from_when_it_is_seen() {
        let mut processes = Processes::default();
        processes.begin_look(50);
        processes.begin_look(60);
        processes.add(7, stat(49, [1000, 9]), false, String::new);
        processes.add(8, stat(50, [30, 1]), false, String::new);
        assert_eq!(processes.sums(), [30, 1]);
    }

    /// Processes that lived between two looks were not counted at all.
    #[test]
    fn children_count_that_were_never_seen() {
        let mut processes = Processes::default();
        let parent = |own: u64, waited: u64| Stat {
            own: [own, 0],
            waited: [waited, 0],
            ..Stat::default()
        };
        let see = |processes: &mut Processes, all: &[(u32, Stat)]| {
            processes.begin_look(0);
            for &(pid, stat) in all {
                processes.add(pid, stat, pid > 1, String::new);
            }
            processes.end_look();
        };
        // It has waited for 500 before, and its child 2 had 40.
        see(&mut processes, &[(1, parent(100, 500)), (2, parent(40, 0))]);
        assert_eq!(processes.sums(), [0, 0]);
        // 3 came and went with 70; 2 had 5 more.
        see(&mut processes, &[(1, parent(110, 570)), (2, parent(45, 0))]);
        assert_eq!(processes.sums(), [10 + 70 + 5, 0]);
        // 2 had 3 more, and has ended; 4 is new and has had 20.
        see(&mut processes, &[(1, parent(110, 618)), (4, parent(20, 0))]);
        assert_eq!(processes.sums(), [10 + 70 + 8 + 20, 0]);
        // 4 has waited for 11 of its own child and ended.
        see(&mut processes, &[(1, parent(110, 618 + 31))]);
        assert_eq!(processes.sums(), [10 + 70 + 8 + 31, 0]);
    }

    #[test]
    fn faults_of_a_process_are_counted_while_it_is_looked_at() {
        let selection = Selection {
            pid: Some(std::process::id()),
            cgroup: None,
            system: false,
            duration: None,
            memory: 16,
            probe: crate::cli::ProbeKind::Proc,
            quiet: true,
            command: Vec::new(),
        };
        let mut accounted = Accounted::new(&selection);
        // We ourselves count for nothing, a child that we wait for does.
        accounted.while_looking(|| {
            let ran = std::process::Command::new("true").status();
            assert!(ran.expect("true").success());
        });
        let faults = accounted.faults();
        assert!(faults.count > 0, "{faults:?}");
        let listed: u64 = faults.sites.iter().map(|site| site.count).sum();
        assert_eq!(faults.count, listed + faults.left_out);
        assert!(
            faults
                .sites
                .iter()
                .all(|site| site.pid != std::process::id())
        );
    }
}
