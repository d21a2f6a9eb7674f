//! Interleaved runs: in every round one without a tool and one with each tool, in turn, so that
//! drift hits all alike. The same clock measures inside all of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::spread::{Median, median};
use crate::stage::Stage;
use crate::timed::{Timed, take};

/// What watches a run.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watcher {
    /// Nobody: no tool is there.
    Nobody,
    /// `amdahl scale`.
    Amdahl,
    /// The same with hardly any samples of what runs: events of the scheduler and of locks, with stacks of the waits.
    AmdahlEvents,
    /// `amdahl locks --system`.
    Locks,
    /// `amdahl sched record --system`.
    Sched,
    /// `perf sched record`.
    PerfSched,
    /// `perf record` of switches, wake-ups, contended locks of the kernel and on-CPU samples, each with its stack: about what `amdahl scale`
    /// records.
    PerfStacks,
    /// `perf lock record`, which records what `perf lock contention` reports.
    PerfLock,
    /// `perf lock contention -ab`, which adds up in the kernel; not in every perf.
    PerfContention,
}

impl Watcher {
    /// Which `amdahl scale` tells as much as this one or more, at a cost that has a target beside it: beside what records events alone,
    /// events alone. `perf lock contention -ab` adds up waits for contended locks of the kernel, and does nothing at all where there are
    /// none: it has its like in `amdahl locks`.
    pub fn ours(self) -> Option<Watcher> {
        match self {
            Watcher::Nobody | Watcher::PerfStacks => Some(Watcher::Amdahl),
            Watcher::PerfSched | Watcher::PerfLock => Some(Watcher::AmdahlEvents),
            Watcher::PerfContention
            | Watcher::Amdahl
            | Watcher::AmdahlEvents
            | Watcher::Locks
            | Watcher::Sched => None,
        }
    }

    /// What a user types.
    pub fn name(self) -> &'static str {
        match self {
            Watcher::Nobody => "nothing",
            Watcher::Amdahl => "amdahl scale",
            Watcher::AmdahlEvents => "amdahl scale --sample-hz 10",
            Watcher::Locks => "amdahl locks --system",
            Watcher::Sched => "amdahl sched record --system",
            Watcher::PerfSched => "perf sched record",
            Watcher::PerfStacks => "perf record of as much",
            Watcher::PerfLock => "perf lock record",
            Watcher::PerfContention => "perf lock contention -ab",
        }
    }
}

/// 99 samples a second are the usual number for perf, and no more than `amdahl scale` takes in runs of some seconds. The lock tracepoints
/// are there since Linux 5.19.
const PERF_STACKS: [&str; 15] = [
    "perf",
    "record",
    "-q",
    "-a",
    "-g",
    "-e",
    "sched:sched_switch",
    "-e",
    "sched:sched_waking",
    "-e",
    "lock:contention_begin",
    "-e",
    "lock:contention_end",
    "-e",
    "cpu-clock/freq=99/",
];
/// The environment stays what it is without the tool.
const SCALE: [&str; 12] = [
    "scale",
    "--probe",
    "bpf",
    "--keep-env",
    "--no-warmup",
    "--no-output",
    "--json",
    "-q",
    "--runs",
    "1",
    "--bare-runs",
    "0",
];
const FEW_SAMPLES: [&str; 2] = ["--sample-hz", "10"];
const PERF_CONTENTION: [&str; 4] = ["lock", "contention", "-ab", "--"];

/// The perf that `perf-with-bpf.sh` built, if it did, else the one that is found.
fn perf_with_bpf() -> String {
    let built = std::env::var_os("PERF_WITH_BPF").and_then(|path| fs::canonicalize(path).ok());
    built.map_or("perf".into(), |path| path.to_string_lossy().into_owned())
}

/// A program for trying out a watcher. It does not end at once: `perf lock contention` begins to wait for its end after it has
/// let it go, and then sleeps for ever.
pub const SHORT: [&str; 2] = ["sleep", "0.2"];

/// There is a perf that was built with `perf lock contention -b`.
pub fn has_perf_contention(stage: &Stage) -> bool {
    let mut words = vec![perf_with_bpf()];
    words.extend(
        PERF_CONTENTION
            .iter()
            .chain(&SHORT)
            .map(|&word| word.to_owned()),
    );
    stage.run(&mut stage.unfilled(&words)).is_ok()
}

/// Runs one after the other.
#[derive(Serialize)]
pub struct Round {
    /// In which order.
    pub order: Vec<Watcher>,
    /// What they took.
    pub times: BTreeMap<Watcher, Timed>,
    /// Bytes of what was recorded, where that is a file.
    pub bytes: BTreeMap<Watcher, u64>,
}

/// Makes `count` rounds. Who interrupts them has those that are complete.
pub fn rounds(
    stage: &Stage,
    workload: &[String],
    watchers: &[Watcher],
    count: u32,
) -> Result<Vec<Round>, String> {
    let mut all = Vec::new();
    further(stage, workload, watchers, count, &mut all)?;
    Ok(all)
}

/// The same with accounts of what watching takes, which make runs longer.
pub fn accounts(
    stage: &Stage,
    workload: &[String],
    watchers: &[Watcher],
    count: u32,
) -> Result<Vec<Round>, String> {
    let me = std::process::id().to_string();
    let mut all = Vec::new();
    further_with(
        stage,
        workload,
        watchers,
        count,
        &["--account", &me],
        &mut all,
    )?;
    Ok(all)
}

/// Adds `count` rounds to those that were made.
pub fn further(
    stage: &Stage,
    workload: &[String],
    watchers: &[Watcher],
    count: u32,
    all: &mut Vec<Round>,
) -> Result<(), String> {
    further_with(stage, workload, watchers, count, &[], all)
}

/// `flags` are for the clock.
fn further_with(
    stage: &Stage,
    workload: &[String],
    watchers: &[Watcher],
    count: u32,
    flags: &[&str],
    all: &mut Vec<Round>,
) -> Result<(), String> {
    let orders = balanced(watchers);
    let made = all.len();
    for order in orders.iter().cycle().skip(made).take(count as usize) {
        let (mut times, mut bytes) = (BTreeMap::new(), BTreeMap::new());
        for &watcher in order {
            let (timed, recorded) = match watch_with(stage, workload, watcher, flags) {
                Err(_) if stage.is_asked_to_stop() && !all.is_empty() => return Ok(()),
                watched => watched?,
            };
            times.insert(watcher, timed);
            if recorded > 0 {
                bytes.insert(watcher, recorded);
            }
        }
        all.push(Round {
            order: order.clone(),
            times,
            bytes,
        });
    }
    Ok(())
}

/// Orders in which each comes in each place, and after each other one, equally often: what a run leaves behind (caches,
/// files in memory, the host's favour) falls on all alike. Williams' design: a Latin square for an even number, and
/// the same with its mirror for an odd one.
fn balanced<T: Copy>(all: &[T]) -> Vec<Vec<T>> {
    let n = all.len();
    // 0, 1, n - 1, 2, n - 2, ...: neighbours' differences are all different.
    let zigzag = |at: usize| {
        if at % 2 == 1 {
            at.div_ceil(2)
        } else {
            (n - at / 2) % n
        }
    };
    let square = (0..n).map(|row| (0..n).map(|at| all[(zigzag(at) + row) % n]).collect());
    let mut orders: Vec<Vec<T>> = square.collect();
    if n % 2 == 1 {
        let mirrored: Vec<Vec<T>> = orders
            .iter()
            .map(|order| order.iter().rev().copied().collect())
            .collect();
        orders.extend(mirrored);
    }
    orders
}

/// One run: what it took, and the bytes of what was recorded.
pub fn watch(stage: &Stage, workload: &[String], watcher: Watcher) -> Result<(Timed, u64), String> {
    watch_with(stage, workload, watcher, &[])
}

fn watch_with(
    stage: &Stage,
    workload: &[String],
    watcher: Watcher,
    flags: &[&str],
) -> Result<(Timed, u64), String> {
    let times = stage.scratch().join("times.json");
    let record = stage.scratch().join(match watcher {
        Watcher::Sched => "recording",
        _ => "perf.data",
    });
    let (times_to, record_to) = (times.to_string_lossy(), record.to_string_lossy());
    let (me, tool, cpus) = (
        stage.me.to_string_lossy(),
        stage.tool.to_string_lossy(),
        stage.cpus.to_string(),
    );
    let perf_with_bpf = perf_with_bpf();
    let on_cpus = ["--cpus", &*cpus, "--"];
    let around: &[&str] = match watcher {
        Watcher::Nobody => &[],
        Watcher::Amdahl => &[&[&*tool], &SCALE[..], &on_cpus].concat(),
        Watcher::AmdahlEvents => &[&[&*tool], &SCALE[..], &FEW_SAMPLES, &on_cpus].concat(),
        Watcher::Locks => &[
            &tool, "locks", "--probe", "bpf", "--system", "--json", "-q", "--",
        ],
        Watcher::Sched => &[
            &tool, "sched", "record", "--probe", "bpf", "--system", "-q", "-o", &record_to, "--",
        ],
        Watcher::PerfSched => &["perf", "sched", "record", "-o", &record_to, "--"],
        Watcher::PerfStacks => &[&PERF_STACKS[..], &["-o", &record_to, "--"]].concat(),
        Watcher::PerfLock => &["perf", "lock", "record", "-o", &record_to, "--"],
        Watcher::PerfContention => &[&[&*perf_with_bpf], &PERF_CONTENTION[..]].concat(),
    };
    let clock = [&[&*me, "time", "--to", &times_to], flags, &["--"]].concat();
    let mut words: Vec<String> = around
        .iter()
        .copied()
        .chain(clock)
        .map(str::to_owned)
        .collect();
    words.extend_from_slice(workload);
    stage
        .run(&mut stage.filled(&words))
        .map_err(|error| error.to_string())?;
    let removed = |error| format!("{record_to}: {error}");
    let mut bytes = 0;
    if record.is_dir() {
        bytes = events_in(&record).map_err(removed)?;
        fs::remove_dir_all(&record).map_err(removed)?;
    } else if record.exists() {
        bytes = fs::metadata(&record).map_err(removed)?.len();
        fs::remove_file(&record).map_err(removed)?;
    }
    Ok((take(&times)?, bytes))
}

/// Bytes of the events of a recording: what it must keep, as perf.data does, to be shown again.
fn events_in(recording: &Path) -> std::io::Result<u64> {
    let parts = fs::read_dir(recording.join("events"))?;
    parts.map(|part| Ok(part?.metadata()?.len())).sum()
}

/// Bytes recorded by `watcher` / bytes recorded by `other` in the same round.
pub fn size_ratio(rounds: &[Round], watcher: Watcher, other: Watcher) -> Option<Median> {
    let ratio = |round: &Round| {
        let (bytes, others) = (round.bytes.get(&watcher)?, round.bytes.get(&other)?);
        Some(*bytes as f64 / *others as f64)
    };
    median(rounds.iter().filter_map(ratio))
}

/// Fastest run under `watcher` / fastest under `other`: what others do beside only slows down.
pub fn fastest_ratio(rounds: &[Round], watcher: Watcher, other: Watcher) -> Option<f64> {
    let fastest = |of: Watcher| {
        let walls = rounds
            .iter()
            .filter_map(|round| Some(round.times.get(&of)?.wall_s));
        walls.min_by(f64::total_cmp)
    };
    Some(fastest(watcher)? / fastest(other)?)
}

/// Wall time under `watcher` / wall time under `other` of the same round.
pub fn wall_ratio(rounds: &[Round], watcher: Watcher, other: Watcher) -> Option<Median> {
    let ratio =
        |round: &Round| Some(round.times.get(&watcher)?.wall_s / round.times.get(&other)?.wall_s);
    median(rounds.iter().filter_map(ratio))
}

/// CPU time that `watcher` took from the program / that `other` took, in the same round.
pub fn taken_ratio(rounds: &[Round], watcher: Watcher, other: Watcher) -> Option<Median> {
    let ratio = |round: &Round| Some(taken_of(round, watcher)? / taken_of(round, other)?);
    median(rounds.iter().filter_map(ratio))
}

/// CPUs that `watcher` took.
fn taken_of(round: &Round, watcher: Watcher) -> Option<f64> {
    let timed = round.times.get(&watcher)?;
    Some(timed.taken?.all_s() / timed.wall_s)
}

/// CPU time that `watcher` took / all CPU time there was.
pub fn taken_share(rounds: &[Round], watcher: Watcher, cpus: u32) -> Option<Median> {
    let share = |round: &Round| Some(taken_of(round, watcher)? / f64::from(cpus));
    median(rounds.iter().filter_map(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_favoured_by_who_came_before() {
        for n in 1..=7_usize {
            let all: Vec<usize> = (0..n).collect();
            let orders = balanced(&all);
            let mut follows = BTreeMap::new();
            let mut places = BTreeMap::new();
            for order in &orders {
                for (place, &one) in order.iter().enumerate() {
                    *places.entry((one, place)).or_insert(0) += 1;
                }
                for two in order.windows(2) {
                    *follows.entry((two[0], two[1])).or_insert(0) += 1;
                }
            }
            assert_eq!((places.len(), follows.len()), (n * n, n * (n - 1)), "{n}");
            let times = orders.len() / n;
            assert!(
                places
                    .values()
                    .chain(follows.values())
                    .all(|&count| count == times),
                "{n}"
            );
        }
    }
}
