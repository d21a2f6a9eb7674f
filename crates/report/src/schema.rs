//! `result.json`: the versioned, documented result of a sweep.
//!
//! Fractions are of the capacity `cpus * wall`, times in seconds unless the
//! name says otherwise. Unknown fields are ignored on reading; `schema` names the
//! version. Everything read from a file is untrusted: see [`crate::load`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounded::bounded;
use crate::check::{
    CAUSES_MAX, CPUS_MAX, FRAMES_MAX, ITEMS_MAX, POINTS_MAX, RUNS_MAX, SITES_MAX, WORDS_MAX,
};

/// Name and version of the format. The number changes when a reader must change.
pub const SCHEMA: &str = "amdahl.scale/1";

/// [`Settings::speedup_of`] of a result whose runs did an unknown amount of work.
pub const NO_SPEEDUP: &str = "none";

/// The result of `amdahl scale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScaleResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the tool that wrote it.
    pub amdahl_version: String,
    /// The command as typed, `{cpus}` not yet replaced; or the process attached to.
    #[serde(deserialize_with = "bounded::<_, _, WORDS_MAX>")]
    pub command: Vec<String>,
    /// When it began, RFC 3339.
    pub started: String,
    /// The machine.
    pub machine: Machine,
    /// How the runs were made.
    pub settings: Settings,
    /// Where the figures come from, and what is missing.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub sources: Vec<Source>,
    /// One per CPU count, in rising order.
    #[serde(deserialize_with = "bounded::<_, _, POINTS_MAX>")]
    pub points: Vec<Point>,
    /// Index in `points` of the point that `causes` and `profile` are about: the largest number of CPUs with a
    /// thread for each. Where it is absent, the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causes_point: Option<u32>,
    /// For that point: causes in falling order of cost, without `work`.
    #[serde(deserialize_with = "bounded::<_, _, CAUSES_MAX>")]
    pub causes: Vec<CauseReport>,
    /// User code of that point against the same work on the smallest, by the size of the
    /// change.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub profile: Vec<ProfileEntry>,
    /// Scalability models.
    pub models: Models,
    /// What the probe itself cost.
    pub probe_cost: Option<ProbeCost>,
    /// What the reader must know (noise, lost events, knobs).
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub warnings: Vec<Notice>,
    /// Runs that failed.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub failures: Vec<RunFailure>,
    /// The sweep was interrupted; what is here is what was measured.
    pub partial: bool,
}

impl ScaleResult {
    /// There are two CPU counts at least, and how much was done on each is known, so that a speedup means something.
    pub fn has_speedup(&self) -> bool {
        match (self.points.first(), self.points.last()) {
            (Some(first), Some(last)) => {
                first.cpus != last.cpus && self.settings.speedup_of != NO_SPEEDUP
            }
            _ => false,
        }
    }

    /// The point that the causes are about, with its index.
    pub fn main_point(&self) -> Option<(usize, &Point)> {
        let named = self.causes_point.map(|at| at as usize);
        let at = named.unwrap_or(self.points.len().checked_sub(1)?);
        self.points.get(at).map(|point| (at, point))
    }
}

/// The machine that ran it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// Model name of the CPU.
    pub cpu_model: String,
    /// CPUs online.
    pub cpus_online: u32,
    /// CPUs this process may use.
    pub cpus_allowed: u32,
    /// CPUs' worth of quota, if one is set.
    pub quota_cpus: Option<f64>,
    /// The topology in short form, e.g. `1 node x 1 llc x 2 core x 1 thread`.
    pub topology: String,
    /// It is a virtual machine.
    pub is_virtual: bool,
}

/// How the runs were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Counted runs per CPU count, with the probe.
    pub runs: u32,
    /// Runs per CPU count without the probe.
    pub bare_runs: u32,
    /// How the workload was confined, in words.
    pub confinement: String,
    /// Environment variables that were set, with `{cpus}` not yet replaced.
    pub env: BTreeMap<String, String>,
    /// What speedup means here: `wall` (same work, less time), `rate` (work per second), or [`NO_SPEEDUP`]: runs were
    /// ended after a fixed time and told no rate, or a process was attached to.
    pub speedup_of: String,
}

/// Where a kind of figure comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// What is measured: `scheduling`, `user stacks`, `instructions`, ...
    pub what: String,
    /// By what: `bpf`, `perf events`, `/proc`, `preload`, or `missing`.
    pub how: String,
    /// What this takes away, in one sentence; empty when nothing.
    pub missing: String,
    /// What to do to get it; empty when nothing is missing.
    pub remedy: String,
}

/// One CPU count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Number of CPUs.
    pub cpus: u32,
    /// Threads asked of the program: more than `cpus` with `--oversubscribe`.
    pub threads: u32,
    /// The CPUs used.
    #[serde(deserialize_with = "bounded::<_, _, { CPUS_MAX as usize }>")]
    pub cpu_list: Vec<u32>,
    /// Wall time of the runs without the probe (with it, where there are none).
    pub wall_s: Spread,
    /// Wall time of the runs with the probe, which the stack divides.
    pub probed_wall_s: Spread,
    /// Relative to the smallest CPU count, scaled so that ideal is `cpus`; 0, as what follows from it, where there is none.
    pub speedup: f64,
    /// Smallest and largest speedup the runs allow.
    pub speedup_range: [f64; 2],
    /// `speedup / cpus`.
    pub efficiency: f64,
    /// CPU-seconds owned: `cpus * wall` of the probed runs (mean).
    pub capacity_s: f64,
    /// Cause id to fraction of capacity; adds up to 1.
    pub stack: BTreeMap<String, f64>,
    /// Cause id to [lowest, highest] fraction over the runs.
    pub stack_range: BTreeMap<String, [f64; 2]>,
    /// User CPU seconds per run (mean).
    pub user_s: f64,
    /// Kernel CPU seconds per run (mean).
    pub system_s: f64,
    /// User instructions per run (mean), if counted.
    pub instructions: Option<f64>,
    /// Work per second as the program reported it, with `--rate`.
    pub rate: Option<Spread>,
    /// Events that the probe lost.
    pub events_lost: u64,
    /// Events that the probe saw.
    pub events: u64,
    /// Seconds spent analysing the runs of this point.
    pub analysis_s: f64,
    /// Share of the time in which scheduler events were recorded (mean), where it is not all: windows, which stand for
    /// the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<f64>,
}

/// Median and extremes of repeated runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Every run in the order they were made.
    #[serde(deserialize_with = "bounded::<_, _, RUNS_MAX>")]
    pub runs: Vec<f64>,
}

/// A cause at the largest point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseReport {
    /// Cause id.
    pub id: String,
    /// Fraction of capacity.
    pub fraction: f64,
    /// One line in plain words.
    pub text: String,
    /// The code responsible, in falling order; fractions are of capacity.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub sites: Vec<Site>,
}

/// Code that a cause is charged to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Site {
    /// The function a reader should look at.
    pub symbol: String,
    /// Source file, if known.
    pub file: Option<String>,
    /// Source line, if known.
    pub line: Option<u32>,
    /// ELF file or `[kernel]`.
    pub module: String,
    /// Call stack, innermost first.
    #[serde(deserialize_with = "bounded::<_, _, FRAMES_MAX>")]
    pub stack: Vec<String>,
    /// Fraction of capacity.
    pub fraction: f64,
    /// CPU-seconds.
    pub seconds: f64,
    /// Process name.
    pub process: String,
    /// Thread name.
    pub thread: String,
    /// Lock address, file, or peer waited for.
    pub object: String,
}

/// A function of the differential profile: what it takes, and what the same work took on the
/// smallest number of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileEntry {
    /// The function; code that was inlined into it counts as its own.
    pub symbol: String,
    /// ELF file.
    pub module: String,
    /// User CPU-seconds per run, spinning left out (mean).
    pub user_s: f64,
    /// What they were on the smallest number of CPUs, for as much work.
    pub base_user_s: f64,
    /// Fraction of capacity by which more instructions made it grow; negative for fewer.
    pub extra_work: f64,
    /// Fraction of capacity by which slower instructions made it grow; negative for faster ones.
    pub slow_work: f64,
    /// User instructions relative to the smallest number of CPUs, if counted.
    pub instructions_ratio: Option<f64>,
    /// Time per instruction relative to the smallest number of CPUs, by counters or by how fast
    /// loops make progress; null where neither tells.
    pub slowdown: Option<f64>,
}

/// Scalability models fitted to the speedups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Models {
    /// Amdahl's law: `serial_fraction`.
    pub amdahl: Option<Fit>,
    /// Universal Scalability Law: `contention`, `coherence`, and `peak_cpus` where it has one.
    pub usl: Option<Fit>,
    /// Why a model is absent or weak; empty when there is nothing to say.
    pub note: String,
}

/// A fitted model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fit {
    /// Parameter name to estimate.
    pub parameters: BTreeMap<String, f64>,
    /// Parameter name to 95 % confidence interval.
    pub confidence: BTreeMap<String, [f64; 2]>,
    /// Root of the mean squared relative residual.
    pub relative_rmse: f64,
    /// Points it was fitted to.
    pub points: u32,
}

/// Cost of measuring.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeCost {
    /// Median over pairs of how much longer the same work takes with the probe: wall with it / wall without; with `--rate`
    /// rate without / rate with it.
    pub wall_ratio: f64,
    /// Smallest and largest ratio.
    pub range: [f64; 2],
    /// Number of pairs.
    pub pairs: u32,
}

/// Something the reader must know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notice {
    /// Stable code, e.g. `noise`.
    pub code: String,
    /// One sentence: what, and what to do.
    pub text: String,
}

/// A run that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFailure {
    /// CPU count.
    pub cpus: u32,
    /// Threads asked of the program; 0 in older files, where it is not known.
    pub threads: u32,
    /// Which run, from 1.
    pub run: u32,
    /// What happened.
    pub what: String,
}

/// One piece of the partition, as it goes into the Parquet file: a row per
/// (cause, thread, stack) of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleRow {
    /// CPU count.
    pub cpus: u32,
    /// Threads asked of the program: more than `cpus` with `--oversubscribe`.
    pub threads: u32,
    /// Which run, from 1.
    pub run: u32,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Process name.
    pub process: String,
    /// Thread name.
    pub thread: String,
    /// Cause id.
    pub cause: String,
    /// CPU nanoseconds charged.
    pub charged_ns: u64,
    /// How often.
    pub count: u64,
    /// Function.
    pub symbol: String,
    /// Source file, or empty.
    pub file: String,
    /// Source line, or 0.
    pub line: u32,
    /// Whole stack, innermost first, `;` between frames.
    pub stack: String,
    /// Lock address, file, or peer.
    pub object: String,
}

/// A stretch of time on one CPU or of one thread, for the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    /// CPU that ran it; `None` for a stretch of waiting.
    pub cpu: Option<u32>,
    /// Process id; 0 for the idle CPU.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Begin, nanoseconds from the start of the run.
    pub start_ns: u64,
    /// Length.
    pub len_ns: u64,
    /// What is shown: thread name on a CPU track, cause id on a thread track.
    pub label: String,
}
