//! `amdahl-bench-memory`: measures `range-alloc`, `range-lock` and `spread` beside their competitors.

mod alloc;
mod lock;
mod spread;

use std::path::PathBuf;
use std::process::ExitCode;

use amdahl_figures::{self as figures, Figure};
use clap::{Parser, ValueEnum};

/// Measures the parts for shared memory beside their competitors, and prints a row for each target.
#[derive(Parser)]
#[command(name = "amdahl-bench-memory")]
struct Cli {
    /// Measure only these parts
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    #[command(flatten)]
    effort: Effort,
    /// Folder for memory.json [default: bench/ beside the folder of this program]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Exit with 1 unless all figures are ok
    #[arg(long)]
    strict: bool,
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
    Alloc,
    Lock,
    Spread,
}

type Measure = fn(&Effort) -> Vec<Figure>;
const PARTS: [(Part, Measure); 3] = [
    (Part::Alloc, alloc::figures),
    (Part::Lock, lock::figures),
    (Part::Spread, spread::figures),
];

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(all_ok) => ExitCode::from(u8::from(cli.strict && !all_ok)),
        Err(why) => {
            eprintln!("amdahl-bench-memory: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<bool, String> {
    let mut all = Vec::new();
    for (part, measure) in PARTS {
        if cli.only.is_empty() || cli.only.contains(&part) {
            all.extend(measure(&cli.effort));
        }
    }
    figures::finish("memory", &all, cli.out.as_deref())
}
