//! What a simulation has found, as documented in docs/sim-result.md.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::time::Ns;
use crate::trace::Slice;

/// Version of [`RunResult`]. It grows when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// A run: the result that is kept, and what only this process has.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The result.
    pub result: RunResult,
    /// Stretches for a trace.
    pub slices: Vec<Slice>,
    /// There were more of them.
    pub is_cut: bool,
}

/// The result of one run. The same workload, machine, costs, policy and seed give the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// [`VERSION`].
    pub version: u32,
    /// What ran.
    pub workload: String,
    /// Its parameters.
    pub params: BTreeMap<String, i64>,
    /// On what.
    pub machine: String,
    /// How many CPUs that has.
    pub cpus: u32,
    /// Who decided.
    pub policy: String,
    /// Where the costs are from.
    pub costs: String,
    /// Where random numbers began.
    pub seed: u64,
    /// `done`, `duration` (it was to last so long), `deadlock`, `time-limit`, `event-limit`, `task-limit`,
    /// `livelock` or `stopped`.
    pub end: String,
    /// More about the end, e.g. who waits for whom.
    pub why: Vec<String>,
    /// Simulated time until the last task ended.
    pub makespan_ns: Ns,
    /// Share of the capacity, CPUs x makespan without the time for which CPUs were offline, that was not idle.
    pub busy: f64,
    /// Share that went into looking for work or for a CPU.
    pub search: f64,
    /// Nanoseconds of all CPUs by what they went into.
    pub used_ns: BTreeMap<String, Ns>,
    /// Counters of the scheduler.
    pub sched: SchedCounts,
    /// From wake-up to running.
    pub wakeup_ns: Latency,
    /// Counters of the workload.
    pub counters: BTreeMap<String, u64>,
    /// Histograms of the workload.
    pub histograms: BTreeMap<String, Latency>,
    /// Kinds of tasks.
    pub tasks: Vec<TaskRow>,
    /// Each CPU.
    pub cpu_rows: Vec<CpuRow>,
    /// Locks that were waited for, and those that the workload names.
    pub locks: Vec<LockRow>,
    /// Pipes, barriers, devices and lines.
    pub objects: Vec<ObjectRow>,
    /// Events simulated.
    pub events: u64,
    /// Operations of programs.
    pub operations: u64,
}

impl RunResult {
    /// It ended as the workload wanted it.
    pub fn is_complete(&self) -> bool {
        matches!(self.end.as_str(), "done" | "duration")
    }

    /// Moves between CPUs, whatever the distance.
    pub fn migrations(&self) -> u64 {
        let Migrations {
            core,
            llc,
            node,
            remote,
        } = self.sched.migrations;
        core + llc + node + remote
    }
}

/// What the scheduler did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedCounts {
    /// From one task to another, or from idle to one.
    pub switches: u64,
    /// Tasks made ready.
    pub wakeups: u64,
    /// Those that ran thereupon.
    pub wakeups_delivered: u64,
    /// Tasks that CPUs without work took from queues that serve others.
    pub steals: u64,
    /// Tasks that ticks moved between queues.
    #[serde(default)]
    pub balanced: u64,
    /// Tasks taken off a CPU though they could go on.
    pub preemptions: u64,
    /// CPUs that went to sleep.
    pub idle_entries: u64,
    /// Questions of idle CPUs to the policy.
    pub searches: u64,
    /// CPUs and queues that all decisions looked at.
    pub examined: u64,
    /// Moves between CPUs of one core, one LLC, one node, and of different nodes.
    pub migrations: Migrations,
    /// Tasks that a dispatcher assigned.
    pub dispatched: u64,
    /// Tasks made by others.
    pub forks: u64,
    /// Tasks that may run anywhere because all their CPUs had gone.
    pub affinity_broken: u64,
    /// Most tasks at once.
    pub tasks_max: u64,
}

/// Moves by distance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migrations {
    /// Within a core.
    pub core: u64,
    /// Within a last-level cache.
    pub llc: u64,
    /// Within a node.
    pub node: u64,
    /// Between nodes.
    pub remote: u64,
}

/// A distribution, in nanoseconds, to three digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Median.
    pub p50: Ns,
    /// 90 %.
    pub p90: Ns,
    /// 99 %.
    pub p99: Ns,
    /// 99.9 %.
    pub p999: Ns,
    /// Largest.
    pub max: Ns,
}

/// Sums over the tasks of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRow {
    /// The kind.
    pub name: String,
    /// How many there were.
    pub count: u64,
    /// How many ended.
    pub ended: u64,
    /// On CPUs.
    pub ran_ns: Ns,
    /// Of this, spinning.
    pub spun_ns: Ns,
    /// Ready, in queues.
    pub waited_ns: Ns,
    /// Blocked.
    pub slept_ns: Ns,
    /// Least time of one on CPUs.
    pub ran_ns_min: Ns,
    /// Most.
    pub ran_ns_max: Ns,
    /// How often they left a CPU.
    pub switches: u64,
    /// How often they moved.
    pub migrations: u64,
    /// When the last one ended.
    pub last_end_ns: Ns,
}

/// A CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuRow {
    /// Its kernel number.
    pub cpu: u32,
    /// Nanoseconds by what they went into; what is 0 is left out.
    pub used_ns: BTreeMap<String, Ns>,
    /// Tasks switched to.
    pub switches: u64,
    /// Tasks that it stole.
    pub steals: u64,
    /// How often it went to sleep.
    pub idle_entries: u64,
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockRow {
    /// What the workload calls it; the address-space locks of all processes are one row.
    pub lock: String,
    /// How often it was taken.
    pub acquired: u64,
    /// How often it was waited for.
    pub contended: u64,
    /// Sum of the waits that ended.
    pub waited_ns: Ns,
    /// Longest wait.
    pub waited_ns_max: Ns,
    /// How long it was held.
    pub held_ns: Ns,
    /// What hand-overs from one CPU to the next cost.
    pub handed_ns: Ns,
}

/// Another thing that tasks meet at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRow {
    /// `pipe`, `barrier`, `device` or `line`.
    pub kind: String,
    /// What the workload calls it; an array is one row.
    pub name: String,
    /// Reads, passes, requests or touches.
    pub uses: u64,
    /// Waits at barriers, for servers of devices and for lines.
    pub waited_ns: Ns,
}
