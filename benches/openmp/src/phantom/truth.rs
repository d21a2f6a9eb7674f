//! Estimates beside the truth: loads of known size run, and each window is compared with what the processes' own CPU
//! clocks say.
//!
//! The truth of a window is the CPU time that our process had, and what nobody had, within the quota. The first is
//! its own clock; the second follows from the clock of the whole machine where there is one (the root of the `cpuacct`
//! controller), else from the clocks of the processes that were started here, so that anything else that runs spoils it.

use std::fs;
use std::time::{Duration, Instant};

use amdahl_figures::Random;
use amdahl_phantom::{
    Estimate, Estimator, How, Members, Sampler, Scope, Settings, SourceError, monotonic_ns,
};
use amdahl_phantom_page::Snapshot;

use super::busy::Busy;
use crate::quota::Group;
use crate::stage::{RunError, Stage};

/// How long a window is.
pub const WINDOW: Duration = Duration::from_millis(100);
/// How far an estimate may be off, in CPUs.
pub const TOLERANCE_CPUS: f64 = 0.25;
/// Windows at the beginning that do not count: they begin before everything does.
const WINDOWS_FIRST: u32 = 3;

/// How `amdahl phantom` may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Bpf,
    Proc,
}

impl Source {
    pub const ALL: [Source; 2] = [Source::Bpf, Source::Proc];

    pub fn name(self) -> &'static str {
        match self {
            Source::Bpf => "with BPF",
            Source::Proc => "without BPF",
        }
    }

    /// How often `amdahl phantom --serve` looks with it, if that is cheap.
    pub fn interval(self) -> Duration {
        match self {
            Source::Bpf => Duration::from_millis(20),
            Source::Proc => WINDOW,
        }
    }

    fn how(self) -> How {
        match self {
            // As `--serve`: nobody asks who else ran.
            Source::Bpf => How::Bpf {
                keeps_takers: false,
            },
            Source::Proc => How::Proc,
        }
    }
}

/// Looks at a process.
pub struct Watcher {
    pid: u32,
    sampler: Sampler,
    estimator: Estimator,
}

impl Watcher {
    /// # Errors
    /// The source may not be used here.
    pub fn new(source: Source, pid: u32) -> Result<Watcher, SourceError> {
        let scope = Scope {
            members: Members::Processes(vec![pid]),
            group: None,
            virtual_cpus: None,
        };
        let window_ns = WINDOW.as_nanos() as u64;
        Ok(Watcher {
            pid,
            sampler: Sampler::new(scope, source.how())?,
            estimator: Estimator::new(Settings { window_ns }),
        })
    }

    pub fn look(&mut self) -> Result<Option<Estimate>, SourceError> {
        Ok(self.estimator.tick(self.sampler.read()?))
    }

    /// Looks at what changes seldom.
    pub fn refresh(&mut self) -> Result<(), SourceError> {
        self.sampler.refresh(Members::Processes(vec![self.pid]))
    }

    /// The same as readers of the page see it.
    pub fn snapshot(&mut self, ticks: u64, interval: Duration) -> Option<Snapshot> {
        let estimate = self.look().ok()??;
        Some(estimate.snapshot(ticks, interval.as_nanos() as u64))
    }
}

/// A load.
pub struct Load {
    pub name: &'static str,
    /// Busy threads of ours.
    threads: usize,
    /// The CPUs of busy processes beside us; `None` is all.
    hogs: &'static [Option<usize>],
    /// How many of them run changes at random, each so many windows.
    step_windows: Option<u32>,
    /// Of one CPU, in percent.
    quota: Option<u64>,
}

const PLAIN: Load = Load {
    name: "",
    threads: 2,
    hogs: &[],
    step_windows: None,
    quota: None,
};

pub const LOADS: &[Load] = &[
    Load {
        name: "alone",
        ..PLAIN
    },
    Load {
        name: "2 busy neighbours",
        hogs: &[None, None],
        ..PLAIN
    },
    Load {
        name: "4 threads, 2 busy neighbours",
        threads: 4,
        hogs: &[None, None],
        ..PLAIN
    },
    Load {
        name: "a neighbour bound to a CPU",
        hogs: &[Some(0)],
        ..PLAIN
    },
    Load {
        name: "asleep beside a neighbour",
        threads: 0,
        hogs: &[Some(0)],
        ..PLAIN
    },
    Load {
        name: "neighbours 0..2 at random, 100 ms",
        hogs: &[None, None],
        step_windows: Some(1),
        ..PLAIN
    },
    Load {
        name: "neighbours 0..2 at random, 1 s",
        hogs: &[None, None],
        step_windows: Some(10),
        ..PLAIN
    },
    Load {
        name: "quota of half a CPU",
        quota: Some(50),
        ..PLAIN
    },
    Load {
        name: "quota of 1.5 CPUs",
        quota: Some(150),
        ..PLAIN
    },
];

/// Windows beside the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Windows {
    /// Compared.
    pub all: u32,
    /// Within the tolerance.
    pub good: u32,
    /// The farthest, in CPUs.
    pub worst_cpus: f64,
}

impl Windows {
    fn compare(&mut self, estimate: &Estimate, truth: f64) {
        let off = (estimate.runnable_cpus() - truth).abs();
        self.all += 1;
        self.good += u32::from(off <= TOLERANCE_CPUS);
        self.worst_cpus = self.worst_cpus.max(off);
    }

    /// These and those.
    pub fn and(self, other: Windows) -> Windows {
        Windows {
            all: self.all + other.all,
            good: self.good + other.good,
            worst_cpus: self.worst_cpus.max(other.worst_cpus),
        }
    }

    pub fn share(self) -> f64 {
        f64::from(self.good) / f64::from(self.all.max(1))
    }
}

/// What clocks say at one time.
struct Clocks {
    at_ns: u64,
    ours_ns: u64,
    hogs_ns: u64,
    everybody_ns: Option<u64>,
}

impl Clocks {
    fn now(ours: &Busy, hogs: &[Busy]) -> Clocks {
        Clocks {
            at_ns: monotonic_ns(),
            ours_ns: ours.cpu_ns(),
            hogs_ns: hogs.iter().map(Busy::cpu_ns).sum(),
            everybody_ns: everybody_ns(),
        }
    }

    /// The CPUs that were ours to run on since `before`.
    fn truth(&self, before: &Clocks, cpus: f64, quota: f64) -> f64 {
        let span = (self.at_ns - before.at_ns) as f64;
        let ours = (self.ours_ns - before.ours_ns) as f64 / span;
        let busy = match (before.everybody_ns, self.everybody_ns) {
            (Some(before), Some(after)) => (after - before) as f64 / span,
            _ => ours + (self.hogs_ns - before.hogs_ns) as f64 / span,
        };
        (ours + (cpus - busy).max(0.0)).min(quota)
    }
}

/// CPU time of everybody, if the kernel tells it in nanoseconds.
fn everybody_ns() -> Option<u64> {
    let text = fs::read_to_string("/sys/fs/cgroup/cpuacct/cpuacct.usage").ok()?;
    text.trim().parse().ok()
}

/// Runs one load; what each of the sources made of it.
///
/// # Errors
/// It cannot be run here, or a source may not be used, or the user wants to stop.
pub fn run(
    stage: &Stage,
    load: &Load,
    sources: &[Source],
    windows: u32,
) -> Result<Vec<Windows>, RunError> {
    let failed = |error: SourceError| RunError::Failed(error.to_string());
    let group = match load.quota {
        Some(percent) => Some(Group::new(percent, 1).map_err(RunError::Failed)?),
        None => None,
    };
    let quota_cpus = load
        .quota
        .map_or(f64::INFINITY, |percent| percent as f64 / 100.0);
    let ours = Busy::start(stage, load.threads, None, group.as_ref())?;
    let hogs = load.hogs.iter();
    let hogs: Vec<Busy> = hogs
        .map(|cpu| Busy::start(stage, 1, *cpu, None))
        .collect::<Result<_, _>>()?;
    let watchers = sources
        .iter()
        .map(|source| Watcher::new(*source, ours.pid()));
    let mut watchers: Vec<Watcher> = watchers.collect::<Result<_, _>>().map_err(failed)?;
    let mut found = vec![Windows::default(); sources.len()];
    let online = amdahl_topology::online().map_err(|error| RunError::Failed(error.to_string()))?;
    let cpus = online.len() as f64;
    let mut random = Random(7);
    let mut before = Clocks::now(&ours, &hogs);
    let mut due = Instant::now();
    for window in 0..windows + WINDOWS_FIRST {
        if stage.is_asked_to_stop() {
            return Err(RunError::Interrupted);
        }
        if let Some(step) = load.step_windows
            && window % step == 0
        {
            let running = random.below(hogs.len() as u64 + 1) as usize;
            for (i, hog) in hogs.iter().enumerate() {
                hog.go_on(i < running);
            }
        }
        due += WINDOW;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let after = Clocks::now(&ours, &hogs);
        let truth = after.truth(&before, cpus, quota_cpus);
        before = after;
        for (watcher, found) in watchers.iter_mut().zip(&mut found) {
            let estimate = watcher.look().map_err(failed)?;
            if let Some(estimate) = estimate
                && window >= WINDOWS_FIRST
            {
                found.compare(&estimate, truth);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(at_ns: u64, ours_ns: u64, hogs_ns: u64, everybody_ns: Option<u64>) -> Clocks {
        Clocks {
            at_ns,
            ours_ns,
            hogs_ns,
            everybody_ns,
        }
    }

    #[test]
    fn what_we_had_and_what_nobody_had_was_ours_within_the_quota() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let before = clocks(0, 0, 0, None);
        let after = clocks(100, 80, 60, None);
        // 0.6 of the two CPUs idled.
        near(after.truth(&before, 2.0, f64::INFINITY), 1.4);
        near(after.truth(&before, 2.0, 0.5), 0.5);
        // Somebody unknown ran as well.
        let before = clocks(0, 0, 0, Some(1000));
        let after = clocks(100, 80, 60, Some(1190));
        near(after.truth(&before, 2.0, f64::INFINITY), 0.9);
    }

    #[test]
    fn windows_add_up() {
        let some = Windows {
            all: 3,
            good: 3,
            worst_cpus: 0.1,
        };
        let others = Windows {
            all: 1,
            good: 0,
            worst_cpus: 0.4,
        };
        assert_eq!(some.and(others).share(), 0.75);
        assert_eq!(some.and(others).worst_cpus, 0.4);
        assert_eq!(Windows::default().share(), 0.0);
    }
}
