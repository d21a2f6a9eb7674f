//! `amdahl-bench-memory`: measures `range-alloc`, `range-lock` and `spread` beside their competitors.

mod alloc;
mod lines;
mod lock;
mod spread;

use std::process::ExitCode;

use amdahl_figures::{self as figures, Figure};
use clap::{Parser, ValueEnum};

/// Measures the parts for shared memory beside their competitors, and prints a row for each target.
#[derive(Parser)]
#[command(name = "amdahl-bench-memory")]
struct Cli {
    /// Measure only these parts: a crate, or some of its rows
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    output: figures::Output,
}

/// How long to measure.
#[derive(clap::Args, Clone, Copy)]
pub struct Effort {
    /// A short look, whose figures mean little
    #[arg(long)]
    pub quick: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// range-alloc, all of it
    Alloc,
    /// range-alloc: random sizes, alignments and zones
    AllocSteady,
    /// range-alloc: in the style of test_vmalloc
    AllocCases,
    /// range-alloc: recorded traces
    AllocTraces,
    /// range-alloc: the shared form
    AllocThreads,
    /// range-alloc: magazines of the shared form
    AllocMagazines,
    /// range-alloc: how high the addresses of the shared form are
    AllocDrift,
    /// range-alloc: a lock of its own for what is freed lazily
    AllocLazy,
    /// range-alloc: the longest allocation
    AllocGrowth,
    /// range-lock, all of it
    Lock,
    /// range-lock: two threads against one
    LockScaling,
    /// range-lock: beside other locks
    LockMixes,
    /// range-lock: short ranges, the segmented form beside the ordered one
    LockShort,
    /// range-lock: one thread, pauses, many threads
    LockOthers,
    /// SeqRangeMap
    LockMap,
    /// spread, all of it
    Spread,
    /// What moves between two CPUs, for the model of larger machines
    Lines,
}

type Measure = fn(&Effort) -> Vec<Figure>;
/// What is measured, in this order: the crate, the rows, how.
const PARTS: [(Part, Part, Measure); 15] = [
    (Part::Alloc, Part::AllocSteady, alloc::steady),
    (Part::Alloc, Part::AllocCases, alloc::cases),
    (Part::Alloc, Part::AllocTraces, alloc::traces),
    (Part::Alloc, Part::AllocThreads, alloc::threads),
    (Part::Alloc, Part::AllocMagazines, alloc::magazines),
    (Part::Alloc, Part::AllocDrift, alloc::drift),
    (Part::Alloc, Part::AllocLazy, alloc::lazy),
    (Part::Alloc, Part::AllocGrowth, alloc::growth),
    (Part::Lock, Part::LockScaling, lock::disjoint_scaling),
    (Part::Lock, Part::LockMixes, lock::array_mixes),
    (Part::Lock, Part::LockShort, lock::short_ranges),
    (Part::Lock, Part::LockOthers, lock::other_threads),
    (Part::Lock, Part::LockMap, lock::map),
    (Part::Spread, Part::Spread, spread::figures),
    (Part::Lines, Part::Lines, lines::figures),
];

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.output.exit_code("amdahl-bench-memory", run(&cli))
}

fn run(cli: &Cli) -> Result<bool, String> {
    let mut all = Vec::new();
    for (of, part, measure) in PARTS {
        let only = &cli.only;
        if only.is_empty() || only.contains(&of) || only.contains(&part) {
            all.extend(measure(&cli.effort));
        }
    }
    cli.output.finish("memory", &all)
}
