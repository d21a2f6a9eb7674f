//! `amdahl sim`, as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::duration;

pub(super) const SIM_EXAMPLES: &str = "\
Examples:
  amdahl sim run hackbench --machine '10 core x 2 thread' --policy linux,steal
  amdahl sim run build --set jobs=32 --machine '32 core' --policy single,dispatcher --runs 5
  amdahl sim run my.toml --trace my.json.gz
  amdahl sim run amdahl-sched --machine '2 node x 24 core'
  amdahl sim calibrate -o costs.json
  amdahl sim sweep sweep.toml
  amdahl sim policies
  amdahl sim costs

A workload is a file (docs/sim-workload.md), rt-app's JSON, a folder that `amdahl sched record`
wrote, or one of those built in: barrier, build, hackbench, lock-storm, openmp, paging,
ping-pong.";

/// `amdahl sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// What to do
    #[command(subcommand)]
    pub command: SimCommand,
}

/// What `amdahl sim` does.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a workload under one or several policies
    #[command(after_help = SIM_EXAMPLES)]
    Run(SimRun),
    /// Run all combinations of parameters, machines, policies and seeds of a file; continues where it was interrupted
    #[command(
        after_help = "Examples:\n  amdahl sim sweep sweep.toml\n  amdahl sim sweep sweep.toml --engine slurm --shards 64\n\ndocs/sim-workload.md describes the file."
    )]
    Sweep(SimSweep),
    /// Measure what context switches, wake-ups, cache lines, pipes and system calls cost here
    #[command(
        after_help = "Examples:\n  amdahl sim calibrate\n  amdahl sim calibrate -o costs.json\n  amdahl sim run hackbench --costs costs.json\n\nNot all costs are measured: `amdahl sim costs` tells which. The file says in `source` what was."
    )]
    Calibrate(SimCalibrate),
    /// List what things cost: which of it `calibrate` measures, which is assumed, and the published sets with their sources
    #[command(
        after_help = "Examples:\n  amdahl sim costs\n  amdahl sim costs --json\n  amdahl sim run hackbench --machine '10 core x 2 thread' --costs e5-2630-v4"
    )]
    Costs(SimCosts),
    /// List the policies, their sources and their known bad cases
    Policies(SimPolicies),
}

/// `amdahl sim run`.
#[derive(Debug, Args)]
pub struct SimRun {
    /// A file, a folder of `amdahl sched record`, or the name of a built-in workload
    pub workload: String,
    /// A machine such as '2 node x 2 llc x 8 core x 2 thread' [default: this one]
    #[arg(long, value_name = "DESC")]
    pub machine: Option<String>,
    /// Policies to compare, the first one being what others are compared with
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "linux"
    )]
    pub policy: Vec<String>,
    /// Where random numbers begin
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Runs of each policy, with the seeds that follow
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: u32,
    /// Set a parameter of the workload
    #[arg(long, value_name = "PARAM=VALUE")]
    pub set: Vec<String>,
    /// What things cost: a file of `amdahl sim calibrate`, or a published set that `amdahl sim costs` lists [default: assumed]
    #[arg(long, value_name = "FILE")]
    pub costs: Option<String>,
    /// Stop a run that is not over after this simulated time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub limit: Option<std::time::Duration>,
    /// Stop a run that is not over after this many events
    #[arg(long, value_name = "N", default_value_t = 20_000_000_000)]
    pub events: u64,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Write a trace of the first run for Perfetto to this file (.json.gz)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Nothing on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

/// `amdahl sim sweep`.
#[derive(Debug, Args)]
pub struct SimSweep {
    /// What to sweep over (TOML)
    pub file: PathBuf,
    /// Folder for the results, which are not computed again [default: FILE without its ending]
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Where to run
    #[arg(long, value_name = "WHERE", default_value = "local")]
    pub engine: SimEngine,
    /// Do only this part of the work: I/N, counting from 0
    #[arg(long, value_name = "I/N")]
    pub shard: Option<String>,
    /// Of the points that this file lists, as --engine slurm does
    #[arg(long, value_name = "FILE", requires = "shard", hide = true)]
    pub points: Option<PathBuf>,
    /// Tasks of the Slurm job array, at most as many as Slurm takes
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub shards: u32,
    /// CPUs of each task of the Slurm job array, which uses as many threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub cpus_per_task: u32,
    /// Wait until the Slurm jobs have ended, then show the results
    #[arg(long)]
    pub wait: bool,
    /// Further options for sbatch, e.g. --sbatch=--partition=long
    #[arg(long, value_name = "OPTION")]
    pub sbatch: Vec<String>,
    /// Print a line of JSON for each result instead of a table
    #[arg(long)]
    pub json: bool,
    /// Nothing on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

/// Where a sweep runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SimEngine {
    /// On all CPUs of this machine.
    Local,
    /// As a job array of Slurm.
    Slurm,
}

/// `amdahl sim calibrate`.
#[derive(Debug, Args)]
pub struct SimCalibrate {
    /// Write the costs to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Time for each measurement
    #[arg(long = "for", value_name = "TIME", default_value = "300ms", value_parser = duration)]
    pub duration: std::time::Duration,
    /// Nothing on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

/// `amdahl sim policies`.
#[derive(Debug, Args)]
pub struct SimPolicies {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `amdahl sim costs`.
#[derive(Debug, Args)]
pub struct SimCosts {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
