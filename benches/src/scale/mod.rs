//! `amdahl-bench scale`: what `amdahl scale` leaves unexplained on real programs, what it costs
//! them, what other tools cost them, and what it takes itself.

mod planted;
mod rows;
mod sweep;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::programs::{self, HACKBENCH_LOOPS, Program, hackbench_of};
use crate::rounds::{self, Round, Watcher, wall_ratio};
use crate::spread::{Median, RESOLUTION};
use crate::stage::Stage;
use amdahl_figures::{self as figures, Figure};
use planted::Case;
use rows::Rows;
use sweep::{Options, Sweep};

/// Flags of `amdahl-bench scale`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A short look: few runs, whose figures mean little
    #[arg(long)]
    quick: bool,
    /// Only this program, or `planted`; may be given again
    #[arg(long, value_name = "NAME", value_parser = names())]
    only: Vec<String>,
    /// Seconds for further rounds of a program whose times differ much [default: 150, or 0 with --quick]
    #[arg(long, value_name = "SECONDS")]
    patience: Option<f64>,
    /// Rounds of runs with and without the probe, at least [default: 15, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
    /// Runs that the unexplained is the mean of [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// No runs under other tools
    #[arg(long)]
    alone: bool,
    /// The tool to measure [default: the one of this checkout, which is built]
    #[arg(long, value_name = "FILE")]
    tool: Option<PathBuf>,
    /// Folder for inputs and results [default: bench/ beside the folder of this program]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Do not install missing programs
    #[arg(long)]
    no_install: bool,
    /// Exit with 1 unless all figures are ok
    #[arg(long)]
    strict: bool,
}

const PLANTED: &str = "planted";
/// Beyond this share of the capacity, what others take spoils the figures.
const STOLEN_MAX: f64 = 0.03;
const LONG_S: f64 = 10.0;

fn names() -> clap::builder::PossibleValuesParser {
    let names = programs::ALL.iter().map(|program| program.name);
    names.chain([PLANTED]).collect::<Vec<_>>().into()
}

/// How often everything is done.
#[derive(Serialize)]
struct Effort {
    quick: bool,
    /// No other tools.
    alone: bool,
    /// Rounds at least.
    pairs: u32,
    /// Seconds for further ones, while the intervals are wider than [`RESOLUTION`].
    patience_s: f64,
    runs: u32,
    long_s: f64,
}

/// `scale-raw.json`: what the figures are made of.
#[derive(Serialize)]
struct Raw {
    started: String,
    cpus: u32,
    effort: Effort,
    programs: Vec<RawProgram>,
    planted: Vec<Case>,
}

#[derive(Serialize)]
struct RawProgram {
    name: &'static str,
    command: Vec<String>,
    /// What rows A and D are made of.
    sweep: Option<Sweep>,
    /// What rows B and C are made of.
    rounds: Vec<Round>,
    /// What the probe takes.
    accounts: Vec<Round>,
    /// Ratios of wall times under each watcher to those under nobody.
    costs: Vec<(Watcher, Median)>,
    /// hackbench of ten seconds.
    long: Option<Sweep>,
}

/// Measures, prints the table, writes the files. Returns the exit code.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let stage = Stage::new(arguments.tool.as_deref(), arguments.out.as_deref())?;
    if !arguments.no_install {
        stage.install();
    }
    let quick = arguments.quick;
    let started = OffsetDateTime::now_utc().format(&Rfc3339);
    let mut raw = Raw {
        started: started.map_err(|error| error.to_string())?,
        cpus: stage.cpus,
        effort: Effort {
            quick,
            alone: arguments.alone,
            pairs: arguments.pairs.unwrap_or(if quick { 2 } else { 15 }),
            patience_s: arguments
                .patience
                .unwrap_or(if quick { 0.0 } else { 150.0 }),
            runs: arguments.runs.unwrap_or(if quick { 1 } else { 3 }),
            long_s: if quick { LONG_S / 4.0 } else { LONG_S },
        },
        programs: Vec::new(),
        planted: Vec::new(),
    };
    let mut rows = Rows::default();
    let only = &arguments.only;
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    for program in &programs::ALL {
        if is_wanted(program.name) {
            let begun = Instant::now();
            raw.programs
                .push(measure(&stage, program, &raw.effort, &mut rows));
            eprintln!("{}: {:.0} s", program.name, begun.elapsed().as_secs_f64());
        }
    }
    if is_wanted(PLANTED) {
        let measured = planted::measure(&stage, &options(&stage, &raw.effort));
        rows.planted(stage.cpus, &measured);
        raw.planted = measured.unwrap_or_default();
    }
    let all = rows.into_figures();
    show(&all, &raw);
    write(&stage, &all, &raw)?;
    if stage.is_asked_to_stop() {
        return Ok(130);
    }
    Ok(u8::from(arguments.strict && !all.iter().all(Figure::is_ok)))
}

fn show(all: &[Figure], raw: &Raw) {
    print!("{}", figures::table(all));
    let sweeps = raw
        .programs
        .iter()
        .filter_map(|program| program.sweep.as_ref());
    let stolen = sweeps.filter_map(Sweep::stolen).fold(0.0, f64::max);
    if stolen > STOLEN_MAX {
        println!(
            "Others took up to {:.0} % of the CPU time: these figures mean little",
            stolen * 100.0
        );
    }
}

fn write(stage: &Stage, all: &[Figure], raw: &Raw) -> Result<(), String> {
    let (table, details) = (
        stage.bench.join("scale.json"),
        stage.bench.join("scale-raw.json"),
    );
    figures::write(all, &table).map_err(|error| format!("{}: {error}", table.display()))?;
    let text = serde_json::to_string(raw).map_err(|error| error.to_string())?;
    fs::write(&details, text).map_err(|error| format!("{}: {error}", details.display()))?;
    println!("Written to {} and {}", table.display(), details.display());
    Ok(())
}

/// One CPU, for comparison, and all.
fn options(stage: &Stage, effort: &Effort) -> Options {
    let mut cpus = vec![1, stage.cpus];
    cpus.dedup();
    Options {
        cpus,
        runs: effort.runs,
    }
}

/// What ours costs is known well enough, against each of those that it has a target beside.
fn is_sure(rounds: &[Round], watchers: &[Watcher]) -> bool {
    let mut others = watchers
        .iter()
        .filter_map(|&other| Some((other.ours()?, other)));
    others.all(|(ours, other)| {
        wall_ratio(rounds, ours, other)
            .and_then(|ratio| ratio.interval)
            .is_some_and(|[low, high]| high - low <= RESOLUTION)
    })
}

/// All rows of one program.
fn measure(stage: &Stage, program: &Program, effort: &Effort, rows: &mut Rows) -> RawProgram {
    let name = program.name;
    // What is not measured for want of an earlier step has the reason of that step.
    let warmed = (program.prepare)(stage).and_then(|command| {
        let (warm_up, _) = rounds::watch(stage, &command, Watcher::Nobody)?;
        Ok((command, warm_up))
    });
    let prepared = || warmed.as_ref().map_err(Clone::clone);

    let swept =
        prepared().and_then(|(command, _)| Sweep::run(stage, &options(stage, effort), command));
    rows.explained(name, stage.cpus, &swept);

    let mut watchers = vec![Watcher::Nobody, Watcher::Amdahl];
    let mut rivals = Vec::new();
    let compared: &[Watcher] = if effort.alone { &[] } else { program.rivals };
    if !compared.is_empty() {
        watchers.push(Watcher::AmdahlEvents);
    }
    for &rival in compared {
        let missing = rounds::watch(stage, &rounds::SHORT.map(str::to_owned), rival).err();
        match missing {
            None => watchers.push(rival),
            // Few have a perf that can: there are no rows then.
            Some(_) if rival == Watcher::PerfContention => continue,
            Some(_) => {}
        }
        rivals.push((rival, missing));
    }
    let rounds = prepared().and_then(|(command, _)| {
        let mut all = rounds::rounds(stage, command, &watchers, effort.pairs)?;
        // Beside the others first, then alone: what others cost is plain sooner than what the probe does.
        let begun = Instant::now();
        for (watchers, share) in [(&watchers[..], 0.5), (&watchers[..2], 1.0)] {
            while begun.elapsed().as_secs_f64() < effort.patience_s * share
                && !is_sure(&all, watchers)
                && !stage.is_asked_to_stop()
            {
                rounds::further(stage, command, watchers, 2, &mut all)?;
            }
        }
        Ok(all)
    });
    let accounts = prepared().and_then(|(command, _)| {
        let count = effort.pairs.div_ceil(3);
        rounds::accounts(stage, command, &[Watcher::Amdahl], count)
    });
    let taken = rows.takes(program, stage.cpus, &accounts);
    rows.cost(program, taken, &rounds);
    for (rival, missing) in rivals {
        rows.rival(program, rival, missing, &rounds);
    }
    let rounds = rounds.unwrap_or_default();
    let cost = |watcher| Some((watcher, wall_ratio(&rounds, watcher, Watcher::Nobody)?));
    let costs = watchers.into_iter().filter_map(cost).collect();

    let mut long = None;
    if name == "hackbench" {
        let swept = prepared().and_then(|(_, warm_up)| {
            let longer = effort.long_s / warm_up.wall_s.max(1e-3);
            let loops = (HACKBENCH_LOOPS as f64 * longer) as u64;
            let options = Options {
                cpus: vec![stage.cpus],
                runs: 1,
            };
            Sweep::run(stage, &options, &hackbench_of(loops.max(1)))
        });
        rows.long(name, &swept);
        long = swept.ok();
    }
    let command = warmed.map(|(command, _)| command).unwrap_or_default();
    RawProgram {
        name,
        command,
        sweep: swept.ok(),
        rounds,
        accounts: accounts.unwrap_or_default(),
        costs,
        long,
    }
}
