//! Interleaved runs: in every round one without a tool and one with each tool, in turn, so that
//! drift hits all alike. The same clock measures inside all of them.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

use super::stage::Stage;
use crate::spread::{Median, median};
use crate::timed::{Timed, take};

/// What watches a run.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watcher {
    /// Nobody: no tool is there.
    Nobody,
    /// `amdahl scale`.
    Amdahl,
    /// `perf sched record`.
    PerfSched,
    /// `perf lock record`, which records what `perf lock contention` reports.
    PerfLock,
}

impl Watcher {
    /// What a user types.
    pub fn name(self) -> &'static str {
        match self {
            Watcher::Nobody => "nothing",
            Watcher::Amdahl => "amdahl scale",
            Watcher::PerfSched => "perf sched record",
            Watcher::PerfLock => "perf lock record",
        }
    }
}

/// Runs one after the other.
#[derive(Serialize)]
pub struct Round {
    /// In which order.
    pub order: Vec<Watcher>,
    /// What they took.
    pub times: BTreeMap<Watcher, Timed>,
}

/// Makes `count` rounds.
pub fn rounds(
    stage: &Stage,
    workload: &[String],
    watchers: &[Watcher],
    count: u32,
) -> Result<Vec<Round>, String> {
    let mut order = watchers.to_vec();
    let mut all = Vec::new();
    for _ in 0..count {
        let mut times = BTreeMap::new();
        for &watcher in &order {
            times.insert(watcher, watch(stage, workload, watcher)?);
        }
        all.push(Round {
            order: order.clone(),
            times,
        });
        order.rotate_left(1);
    }
    Ok(all)
}

/// One run.
pub fn watch(stage: &Stage, workload: &[String], watcher: Watcher) -> Result<Timed, String> {
    let times = stage.scratch().join("times.json");
    let record = stage.scratch().join("perf.data");
    let (times_to, record_to) = (times.to_string_lossy(), record.to_string_lossy());
    let (me, tool, cpus) = (
        stage.me.to_string_lossy(),
        stage.tool.to_string_lossy(),
        stage.cpus.to_string(),
    );
    let around: &[&str] = match watcher {
        Watcher::Nobody => &[],
        Watcher::Amdahl => &[
            // The environment is what it is without the tool.
            &tool,
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
            "--cpus",
            &cpus,
            "--",
        ],
        Watcher::PerfSched => &["perf", "sched", "record", "-o", &record_to, "--"],
        Watcher::PerfLock => &["perf", "lock", "record", "-o", &record_to, "--"],
    };
    let clock = [&*me, "time", "--to", &times_to, "--"];
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
    if record.exists() {
        fs::remove_file(&record).map_err(|error| format!("{record_to}: {error}"))?;
    }
    take(&times)
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
