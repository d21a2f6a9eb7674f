//! What is compared: a program, its numbers, and who places its work.

use std::collections::BTreeMap;

use amdahl_des::program::Level;
use amdahl_des::{Costs, Limits, Simulation, median, workload};
use amdahl_topology::Topology;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    ForkJoin,
    Skew,
    Pipeline,
    /// A ticket lock: who waits spins.
    LockSpins,
    /// The standard library's mutex: who waits sleeps.
    LockSleeps,
    Bursts,
    Crowd,
    Pairs,
}

/// One row.
pub struct Case {
    pub name: &'static str,
    pub program: Program,
    /// Of the pool, and of the simulation of [`Level::Jobs`].
    pub policy: &'static str,
    /// What the simulator's tasks are: jobs, placed by the pool's policy, or more threads than CPUs, placed by the kernel's.
    pub level: Level,
    /// Numbers that differ from those of the workload's file; times in ns.
    pub set: &'static [(&'static str, u64)],
}

const STEAL: &str = "steal=machine+spin";
const SINGLE: &str = "single+spin";
const APART: &str = "groups-apart=1+spin";

macro_rules! case {
    ($name:literal, $program:ident, $policy:expr, $level:ident, $($key:ident = $value:expr),*) => {
        Case {
            name: $name,
            program: Program::$program,
            policy: $policy,
            level: Level::$level,
            set: &[$((stringify!($key), $value)),*],
        }
    };
}

/// All rows.
pub const CASES: &[Case] = &[
    case!(
        "fork-join, leaves of 20 us",
        ForkJoin,
        STEAL,
        Jobs,
        leaf = 20_000
    ),
    case!(
        "fork-join, leaves of 5 us",
        ForkJoin,
        STEAL,
        Jobs,
        leaf = 5_000
    ),
    case!("skewed jobs, steal", Skew, STEAL, Jobs, every = 16),
    case!("skewed jobs, single", Skew, SINGLE, Jobs, every = 16),
    case!("skewed jobs, groups apart", Skew, APART, Jobs, every = 16),
    case!(
        "one long job among short ones, steal",
        Skew,
        STEAL,
        Jobs,
        every = 320,
        long = 4_000_000
    ),
    case!("pipeline of tasks, steal", Pipeline, STEAL, Jobs, room = 16),
    case!(
        "pipeline of tasks, single",
        Pipeline,
        SINGLE,
        Jobs,
        room = 16
    ),
    case!(
        "pipeline of tasks, room for one",
        Pipeline,
        STEAL,
        Jobs,
        room = 1
    ),
    case!(
        "spin lock, half of the time inside",
        LockSpins,
        STEAL,
        Jobs,
        inside = 5_000
    ),
    case!(
        "spin lock, most of the time inside",
        LockSpins,
        STEAL,
        Jobs,
        inside = 15_000
    ),
    case!(
        "bursts of 16 jobs after 0.5 ms",
        Bursts,
        STEAL,
        Jobs,
        gap = 500_000
    ),
    case!(
        "bursts of 64 short jobs after 2 ms",
        Bursts,
        STEAL,
        Jobs,
        gap = 2_000_000,
        jobs = 64,
        work = 10_000
    ),
    case!(
        "8 workers on 2 CPUs, computing",
        Crowd,
        SINGLE,
        Threads,
        pause = 0
    ),
    case!(
        "8 workers on 2 CPUs, sleeping 0.3 ms",
        Crowd,
        SINGLE,
        Threads,
        pause = 300_000
    ),
    case!(
        "8 workers on 2 CPUs, sleeping 2 ms",
        Crowd,
        SINGLE,
        Threads,
        pause = 2_000_000
    ),
    case!(
        "mutex, 8 threads on 2 CPUs",
        LockSleeps,
        SINGLE,
        Threads,
        takers = 8,
        rounds = 200,
        inside = 20_000,
        outside = 60_000
    ),
    case!(
        "mutex, 2 threads",
        LockSleeps,
        SINGLE,
        Threads,
        takers = 2,
        rounds = 500,
        inside = 20_000,
        outside = 20_000
    ),
    case!(
        "a pair of threads, 20 us each",
        Pairs,
        SINGLE,
        Threads,
        pairs = 1
    ),
    case!(
        "4 pairs of threads on 2 CPUs",
        Pairs,
        SINGLE,
        Threads,
        pairs = 4,
        rounds = 200
    ),
];

/// Simulated runs of a row, each with another seed.
const SEEDS: u64 = 15;

impl Program {
    fn text(self) -> String {
        match self {
            Program::ForkJoin => include_str!("../workloads/fork-join.toml").to_owned(),
            Program::Skew => include_str!("../workloads/skew.toml").to_owned(),
            Program::Pipeline => include_str!("../workloads/pipeline.toml").to_owned(),
            Program::LockSpins => include_str!("../workloads/lock.toml")
                .replace("KIND", "ticket")
                .replace("SPIN", "0us"),
            Program::LockSleeps => include_str!("../workloads/lock.toml")
                .replace("KIND", "mutex")
                .replace("SPIN", "1us"),
            Program::Bursts => include_str!("../workloads/bursts.toml").to_owned(),
            Program::Crowd => include_str!("../workloads/crowd.toml").to_owned(),
            Program::Pairs => include_str!("../workloads/pairs.toml").to_owned(),
        }
    }
}

impl Case {
    /// Of what jobs and threads have for themselves.
    pub fn level_of<'a, T>(&self, [jobs, threads]: [&'a T; 2]) -> &'a T {
        match self.level {
            Level::Jobs => jobs,
            Level::Threads => threads,
        }
    }

    /// The workload as the simulator reads it; its numbers are the program's too.
    pub fn workload(&self) -> Result<amdahl_des::program::Workload, String> {
        let set: BTreeMap<String, String> = self
            .set
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_string()))
            .collect();
        let mut text = self.program.text();
        let sleeps = self
            .set
            .iter()
            .any(|&(name, value)| name == "pause" && value > 0);
        text = text.replace("PAUSE; ", if sleeps { "sleep pause; " } else { "" });
        let mut workload =
            workload::parse(&text, &set).map_err(|error| format!("{}: {error}", self.name))?;
        workload.level = self.level;
        Ok(workload)
    }

    /// Simulated nanoseconds, the median of some seeds: until all is done, or of the median burst.
    pub fn simulate(&self, topology: &Topology, costs: &Costs) -> Result<f64, String> {
        let workload = self.workload()?;
        let policy = match self.level {
            Level::Jobs => self.policy,
            Level::Threads => "linux",
        };
        let policy = amdahl_placement::policy(policy).map_err(|error| error.to_string())?;
        let run = |seed| {
            let simulation = Simulation {
                workload: &workload,
                topology,
                costs,
                policy: &*policy,
                seed,
                limits: Limits::default(),
            };
            let result = simulation.run().map_err(|error| error.to_string())?.result;
            if !result.is_complete() {
                return Err(format!("{}: {} {:?}", self.name, result.end, result.why));
            }
            Ok(match result.histograms.get("burst") {
                Some(burst) => burst.p50 as f64,
                None => result.makespan_ns as f64,
            })
        };
        let times = (1..=SEEDS).map(run).collect::<Result<Vec<f64>, String>>()?;
        Ok(median(times))
    }
}
