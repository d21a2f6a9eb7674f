//! Measures the OpenMP runtime beside GCC's and LLVM's, alone and where others take the CPUs, and what tells it of them.

mod case;
mod measure;
mod others;
mod owner;
mod phantom;
mod quota;
mod rivals;
mod rows;
mod stage;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use amdahl_figures::Figure;
use clap::Parser;
use measure::{Extent, Results};
use rivals::Side;
use rows::Overheads;
use serde::Serialize;
use stage::{RunError, Stage};

#[derive(Parser)]
#[command(
    about = "Measures the OpenMP runtime beside GCC's and LLVM's, alone and where others take the CPUs",
    after_help = "\
Examples:
  amdahl-bench-openmp --ours /tmp/lib/libgomp.so.1           all figures of a library, about 25 minutes
  amdahl-bench-openmp --only dedicated --only overheads      two parts
  amdahl-bench-openmp --only busy-4/lu --rounds 10           one kernel in one case, often
  amdahl-bench-openmp --only phantom                         what `amdahl phantom` says and costs, a minute and a half
  amdahl-bench-openmp --list                                 names of cases and kernels"
)]
struct Args {
    /// Only these, by parts of names; several are several
    #[arg(long, value_name = "CASE/KERNEL")]
    only: Vec<String>,
    /// A short look, whose figures mean little
    #[arg(long)]
    quick: bool,
    /// The library to measure [default: openmp/libgomp.so.1 beside this program]
    #[arg(long, value_name = "FILE")]
    ours: Option<PathBuf>,
    /// Rounds of each case, instead of 1 to 5
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Prints the names of the cases and kernels
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    output: amdahl_figures::Output,
}

const OVERHEADS: &str = "overheads";
/// Of which the constructs' costs are told; the others only wait in another way.
const WITH_OVERHEADS: [Side; 4] = [Side::Ours, Side::Gcc, Side::GccActive, Side::Llvm];

fn main() -> ExitCode {
    let args = Args::parse();
    args.output.exit_code("amdahl-bench-openmp", run(&args))
}

fn run(args: &Args) -> Result<bool, String> {
    if args.list {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let cases = case::all(cpus).into_iter().map(|case| case.to_string());
        for case in [OVERHEADS.to_owned(), phantom::NAME.to_owned()]
            .into_iter()
            .chain(cases)
        {
            println!("{case}");
        }
        println!("kernels: {}", stage::KERNELS.join(", "));
        return Ok(true);
    }
    quota::clean_up_after_the_killed();
    stage::clean_up_after_the_killed();
    let ours = args.ours.clone().or_else(default_library);
    if let Some(file) = args.ours.as_ref().filter(|file| !file.exists()) {
        return Err(format!("{}: there is no such file", file.display()));
    }
    let stage = Stage::new(ours.as_deref()).map_err(|error| error.to_string())?;
    let extent = Extent {
        only: args.only.clone(),
        is_quick: args.quick,
        rounds: args.rounds.map(usize::from),
    };
    for side in [Side::Ours, Side::Llvm] {
        if let Some(why) = stage.runtimes.missing(side) {
            eprintln!("{} is not measured: {why}", side.name());
        }
    }
    if let Some(busy) = others::busy_cpus().filter(|busy| *busy > 0.05) {
        eprintln!(
            "others keep {busy:.2} CPUs busy: the figures will say more of them than of the runtimes"
        );
    }
    let cases = extent.cases(stage.cpus);
    let has_overheads = case::is_wanted(&args.only, OVERHEADS, "");
    let has_phantom = case::is_wanted(&args.only, phantom::NAME, "");
    if cases.is_empty() && !has_overheads && !has_phantom {
        return Err(format!(
            "nothing is named {}; --list names what there is",
            args.only.join(" or ")
        ));
    }
    let missing = stage.runtimes.missing(Side::Ours);
    let mut figures = Vec::new();
    let mut raw = Raw::default();
    if has_overheads {
        let (all, failed) = overheads(&stage, &extent);
        figures.extend(rows::of_overheads(&all, failed.as_deref().or(missing)));
        raw.add_overheads(&all);
    }
    if has_phantom && !stage.is_asked_to_stop() {
        let (rows, loads) = phantom::run(&stage, args.quick);
        figures.extend(rows);
        raw.phantom = loads;
    }
    if !cases.is_empty() {
        let minutes = (extent.seconds(stage.cpus) / 60.0).ceil();
        eprintln!(
            "{} cases, about {minutes} minutes; times are in relation to libgomp alone",
            cases.len()
        );
    }
    for (number, case) in cases.iter().enumerate() {
        if stage.is_asked_to_stop() {
            break;
        }
        let progress = format!("[{}/{}]", number + 1, cases.len());
        let results = measure::case(&stage, &extent, *case, &progress);
        figures.extend(rows::of_case(&results, stage.cpus, missing));
        raw.add(&results);
    }
    let all_ok = finish(args, &figures, &raw)?;
    match stage.is_asked_to_stop() {
        true => Err("interrupted; what was measured is written".to_owned()),
        false => Ok(all_ok),
    }
}

/// Also why ours failed.
fn overheads(stage: &Stage, extent: &Extent) -> (Overheads, Option<String>) {
    let mut all = Overheads::new();
    let mut failed = None;
    let (rounds, samples) = if extent.is_quick { (1, 3) } else { (5, 9) };
    for round in 0..extent.rounds.unwrap_or(rounds) {
        for i in 0..WITH_OVERHEADS.len() {
            let side = WITH_OVERHEADS[(i + round) % WITH_OVERHEADS.len()];
            if stage.runtimes.missing(side).is_some() {
                continue;
            }
            match stage.overheads(side, samples) {
                Ok(found) => {
                    for overhead in found {
                        let key = (overhead.construct, side);
                        all.entry(key).or_default().push(overhead.ns);
                    }
                }
                Err(RunError::Interrupted) => return (all, failed),
                Err(error) => {
                    eprintln!("overheads: {error}");
                    if side == Side::Ours {
                        failed = Some(error.to_string());
                    }
                }
            }
        }
        eprintln!("{OVERHEADS}: round {}", round + 1);
    }
    (all, failed)
}

fn finish(args: &Args, figures: &[Figure], raw: &Raw) -> Result<bool, String> {
    let all_ok = args.output.finish("openmp", figures)?;
    let path = args.output.folder()?.join("openmp-raw.json");
    let text = serde_json::to_string(raw).map_err(|error| error.to_string())?;
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(all_ok)
}

fn default_library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let library = program.parent()?.join("openmp/libgomp.so.1");
    library.exists().then_some(library)
}

/// All runs, as JSON.
#[derive(Default, Serialize)]
struct Raw {
    runs: Vec<RawRun>,
    overheads: Vec<RawOverhead>,
    phantom: Vec<phantom::RawLoad>,
}

#[derive(Serialize)]
struct RawRun {
    case: String,
    kernel: &'static str,
    who: measure::Who,
    round: usize,
    bound: Option<f64>,
    wall_s: Option<f64>,
    cpu_s: Option<f64>,
    load_per_s: Option<f64>,
    is_cut: bool,
    failed: Option<String>,
}

#[derive(Serialize)]
struct RawOverhead {
    construct: String,
    side: Side,
    ns: Vec<f64>,
}

impl Raw {
    fn add(&mut self, results: &Results) {
        for ((kernel, who, round), run) in &results.runs {
            let measured = run.as_ref().ok();
            self.runs.push(RawRun {
                case: results.case.to_string(),
                kernel,
                who: *who,
                round: *round,
                bound: results.bounds.get(&(*kernel, *round)).copied(),
                wall_s: measured.map(|run| run.wall_s),
                cpu_s: measured.map(|run| run.cpu_s),
                load_per_s: measured.and_then(|run| run.load_per_s),
                is_cut: measured.is_some_and(|run| run.is_cut),
                failed: run.as_ref().err().cloned(),
            });
        }
    }

    fn add_overheads(&mut self, all: &Overheads) {
        let rows = all.iter().map(|((construct, side), ns)| RawOverhead {
            construct: construct.clone(),
            side: *side,
            ns: ns.clone(),
        });
        self.overheads.extend(rows);
    }
}
