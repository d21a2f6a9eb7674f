//! `amdahl-bench scale`: what `amdahl scale` leaves unexplained on real programs, what it costs
//! them, what other tools cost them, and what it takes itself.

mod inputs;
mod planted;
mod postgres;
mod programs;
mod rounds;
mod stage;
mod sweep;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::figures::{self, Figure, Target, Unit};
use crate::spread::Median;
use planted::Case;
use programs::{HACKBENCH_LOOPS, Program, hackbench_of};
use rounds::{Round, Watcher, wall_ratio};
use stage::Stage;
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
    /// Rounds of runs with and without the probe [default: 11, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
    /// Runs that the unexplained is the mean of [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
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
/// Bound of the tool's resident set on a long run.
const RESIDENT_MIB_MAX: f64 = 1024.0;
const LONG_S: f64 = 10.0;

fn names() -> clap::builder::PossibleValuesParser {
    let names = programs::ALL.iter().map(|program| program.name);
    names.chain([PLANTED]).collect::<Vec<_>>().into()
}

/// How often everything is done.
#[derive(Serialize)]
struct Effort {
    quick: bool,
    pairs: u32,
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

#[derive(Default, Serialize)]
struct RawProgram {
    name: &'static str,
    command: Vec<String>,
    /// What rows A and D are made of.
    sweep: Option<Sweep>,
    /// What rows B and C are made of.
    rounds: Vec<Round>,
    /// Ratios of wall times under each watcher to those under nobody.
    costs: Vec<(Watcher, Median)>,
    /// hackbench of ten seconds.
    long: Option<Sweep>,
}

/// The four kinds of rows, in the order of the table.
#[derive(Default)]
struct Rows {
    unexplained: Vec<Figure>,
    costs: Vec<Figure>,
    rivals: Vec<Figure>,
    besides: Vec<Figure>,
    memory: Vec<Figure>,
}

/// Measures, prints the table, writes the files. Returns the exit code.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let stage = Stage::new(arguments.tool.as_deref(), arguments.out.as_deref())?;
    if !arguments.no_install {
        let script = stage.root.join("benches/install.sh");
        let mut install = stage.command(&script.to_string_lossy());
        if let Err(error) = stage.run(&mut install) {
            eprintln!("amdahl-bench: {error}");
        }
    }
    let quick = arguments.quick;
    let mut raw = Raw {
        started: OffsetDateTime::now_utc()
            .format(&Rfc3339)
            .map_err(|error| error.to_string())?,
        cpus: stage.cpus,
        effort: Effort {
            quick,
            pairs: arguments.pairs.unwrap_or(if quick { 2 } else { 11 }),
            runs: arguments.runs.unwrap_or(if quick { 1 } else { 3 }),
            long_s: if quick { LONG_S / 4.0 } else { LONG_S },
        },
        programs: Vec::new(),
        planted: Vec::new(),
    };
    let mut rows = Rows::default();
    let is_wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    for program in programs::ALL
        .iter()
        .filter(|program| is_wanted(program.name))
    {
        let begun = Instant::now();
        let measured = measure(&stage, program, &raw.effort, &mut rows);
        raw.programs.push(measured);
        eprintln!("{}: {:.0} s", program.name, begun.elapsed().as_secs_f64());
    }
    if is_wanted(PLANTED) {
        raw.planted = measure_planted(&stage, &raw.effort, &mut rows);
    }
    let Rows {
        unexplained,
        costs,
        rivals,
        besides,
        memory,
    } = rows;
    let all = [unexplained, costs, rivals, besides, memory].concat();
    print!("{}", figures::table(&all));
    let (table, details) = (
        stage.bench.join("scale.json"),
        stage.bench.join("scale-raw.json"),
    );
    figures::write(&all, &table).map_err(|error| format!("{}: {error}", table.display()))?;
    let text = serde_json::to_string(&raw).map_err(|error| error.to_string())?;
    fs::write(&details, text).map_err(|error| format!("{}: {error}", details.display()))?;
    println!("Written to {} and {}", table.display(), details.display());
    if stage.is_asked_to_stop() {
        return Ok(130);
    }
    Ok(u8::from(arguments.strict && !all.iter().all(Figure::is_ok)))
}

/// One CPU, for comparison, and all.
fn counts(stage: &Stage) -> String {
    if stage.cpus > 1 {
        format!("1,{}", stage.cpus)
    } else {
        "1".to_owned()
    }
}

/// All rows of one program.
fn measure(stage: &Stage, program: &Program, effort: &Effort, rows: &mut Rows) -> RawProgram {
    let name = program.name;
    let mut raw = RawProgram {
        name,
        ..RawProgram::default()
    };
    // What was not measured for want of an earlier step has its reason.
    let prepared = (program.prepare)(stage);
    let warmed = prepared.and_then(|command| {
        raw.command.clone_from(&command);
        let timed = rounds::watch(stage, &command, Watcher::Nobody)?;
        Ok((command, timed))
    });
    let swept = warmed
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|(command, _)| {
            let options = Options {
                cpus: &counts(stage),
                runs: effort.runs,
            };
            Sweep::run(stage, &options, command).map_err(|error| error.to_string())
        });
    explain_rows(name, &swept, stage, rows);
    raw.sweep = swept.ok();

    let command = warmed
        .as_ref()
        .map(|(command, _)| &**command)
        .map_err(Clone::clone);
    let mut watchers = vec![Watcher::Nobody, Watcher::Amdahl];
    let mut missing = None;
    if program.has_rivals {
        let tried = [Watcher::PerfSched, Watcher::PerfLock].map(|rival| {
            let nothing = ["true".to_owned()];
            (rival, rounds::watch(stage, &nothing, rival))
        });
        for (rival, tried) in tried {
            match tried {
                Ok(_) => watchers.push(rival),
                Err(why) => missing = Some(why),
            }
        }
    }
    let rounds =
        command.and_then(|command| rounds::rounds(stage, command, &watchers, effort.pairs));
    cost_rows(program, &rounds, missing, rows);
    raw.rounds = rounds.unwrap_or_default();
    raw.costs = watchers
        .into_iter()
        .filter_map(|watcher| Some((watcher, wall_ratio(&raw.rounds, watcher, Watcher::Nobody)?)))
        .collect();

    if name == "hackbench" {
        let long = warmed.and_then(|(_, timed)| {
            let loops = (HACKBENCH_LOOPS as f64 * effort.long_s / timed.wall_s.max(1e-3)) as u64;
            let options = Options {
                cpus: &stage.cpus.to_string(),
                runs: 1,
            };
            Sweep::run(stage, &options, &hackbench_of(loops.max(1)))
                .map_err(|error| error.to_string())
        });
        memory_rows(&long, rows);
        raw.long = long.ok();
    }
    raw
}

/// A and D: what stays unexplained, and how long the explanation takes.
fn explain_rows(name: &str, swept: &Result<Sweep, String>, stage: &Stage, rows: &mut Rows) {
    let swept = swept.as_ref().map_err(Clone::clone);
    let unexplained = swept
        .clone()
        .and_then(|sweep| sweep.unexplained().ok_or_else(|| "no stack".to_owned()));
    rows.unexplained.push(Figure {
        name: format!("unexplained: {name}"),
        value: unexplained,
        unit: Unit::Capacity,
        target: Target::Below(0.05),
        versus: format!(
            "{} CPUs x wall time of the runs with the probe{}",
            stage.cpus,
            swept
                .as_ref()
                .map_or_else(|_| String::new(), |sweep| sweep.unexplained_most())
        ),
    });
    rows.besides.push(Figure {
        name: format!("post-processing / run: {name}"),
        value: swept.clone().and_then(|sweep| sweep.besides_runs().ok_or_else(|| "no runs".to_owned())),
        unit: Unit::Ratio,
        target: Target::Below(1.0),
        versus: format!(
            "all that the tool takes besides its runs (start, analysis, names, files) / wall time of the runs{}",
            swept.map_or_else(|_| String::new(), |sweep| format!("; analysis alone {:.3}", sweep.analysis()))
        ),
    });
}

/// B and C: what the probe costs, without and with rivals.
fn cost_rows(
    program: &Program,
    rounds: &Result<Vec<Round>, String>,
    missing: Option<String>,
    rows: &mut Rows,
) {
    let ratio = |other: Watcher| -> Result<Median, String> {
        let rounds = rounds.as_ref().map_err(Clone::clone)?;
        wall_ratio(rounds, Watcher::Amdahl, other)
            .ok_or_else(|| missing.clone().unwrap_or_else(|| "no rounds".to_owned()))
    };
    let figure = |name: String, ratio: Result<Median, String>, limit: f64, what: String| Figure {
        versus: match &ratio {
            Ok(Median {
                interval: Some([low, high]),
                count,
                ..
            }) => {
                format!("{what}; median of {count} rounds, 95 % between {low:.3} and {high:.3}")
            }
            Ok(Median { count, .. }) => format!("{what}; median of {count} rounds"),
            Err(_) => what,
        },
        name,
        value: ratio.map(|median| median.value),
        unit: Unit::Ratio,
        target: Target::AtMost(limit),
    };
    let name = program.name;
    rows.costs.push(figure(
        format!("probe cost: {name}"),
        ratio(Watcher::Nobody),
        program.cost_max,
        "wall time with the probe / with no tool there, all CPUs".to_owned(),
    ));
    if !program.has_rivals {
        return;
    }
    for (rival, command) in [
        (Watcher::PerfSched, "perf sched record"),
        (Watcher::PerfLock, "perf lock record"),
    ] {
        let own = rounds
            .as_ref()
            .ok()
            .and_then(|rounds| wall_ratio(rounds, rival, Watcher::Nobody));
        let own = own.map_or_else(String::new, |own| {
            format!("; {command} itself costs {:.3}", own.value)
        });
        rows.rivals.push(figure(
            format!("probe cost / {command} cost: {name}"),
            ratio(rival),
            1.0,
            format!("wall time with the probe / under {command} in the same round{own}"),
        ));
    }
}

/// D: memory on a long run.
fn memory_rows(long: &Result<Sweep, String>, rows: &mut Rows) {
    let long = long.as_ref().map_err(Clone::clone);
    let of = long.as_ref().map_or_else(
        |_| String::new(),
        |sweep| {
            let events: u64 = sweep.result.points.iter().map(|point| point.events).sum();
            format!("; a run of {:.1} s with {events} events", sweep.runs_s())
        },
    );
    let besides = long
        .clone()
        .and_then(|sweep| sweep.besides_runs().ok_or_else(|| "no runs".to_owned()));
    rows.besides.push(Figure {
        name: "post-processing / run: hackbench, long".to_owned(),
        value: besides,
        unit: Unit::Ratio,
        target: Target::Below(1.0),
        versus: format!("all that the tool takes besides its run / wall time of the run{of}"),
    });
    rows.memory.push(Figure {
        name: "peak memory: hackbench, long".to_owned(),
        value: long.map(|sweep| sweep.resident_bytes_max as f64 / f64::from(1 << 20)),
        unit: Unit::MiB,
        target: Target::AtMost(RESIDENT_MIB_MAX),
        versus: format!("a bound; largest resident set of the tool{of}"),
    });
}

/// A for the planted programs: the worst of them.
fn measure_planted(stage: &Stage, effort: &Effort, rows: &mut Rows) -> Vec<Case> {
    let options = Options {
        cpus: &counts(stage),
        runs: effort.runs,
    };
    let measured = if stage.cpus > 1 {
        planted::measure(stage, &options)
    } else {
        Err("the planted programs want two CPUs".to_owned())
    };
    let shares = measured.as_ref().map_err(Clone::clone).map(|cases| {
        let share = |case: &Case| Some((case.sweep.unexplained()?, case.name));
        cases
            .iter()
            .filter_map(share)
            .max_by(|a, b| a.0.total_cmp(&b.0))
    });
    let worst = shares.and_then(|worst| worst.ok_or_else(|| "no stack".to_owned()));
    rows.unexplained.push(Figure {
        name: format!("unexplained: {PLANTED}, worst of 6"),
        unit: Unit::Capacity,
        target: Target::Below(0.05),
        versus: match &worst {
            Ok((_, name)) => format!(
                "{} CPUs x wall time of the runs of {name} with the probe",
                stage.cpus
            ),
            Err(_) => String::new(),
        },
        value: worst.map(|(share, _)| share),
    });
    measured.unwrap_or_default()
}
