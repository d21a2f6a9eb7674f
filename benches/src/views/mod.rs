//! `amdahl-bench views`: what `amdahl locks`, `sched` and `top` cost, how large recordings are, and
//! whether the table of locks tells what programs measured themselves.

mod live;
mod truth;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use crate::programs::{self, Program};
use crate::rounds::{self, Round, Watcher, size_ratio, taken_ratio, wall_ratio};
use crate::spread::{Median, beside_another};
use crate::stage::Stage;
use amdahl_figures::{self as figures, Figure, Target, Unit};

/// Flags of `amdahl-bench views`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A short look: few runs, whose figures mean little
    #[arg(long)]
    quick: bool,
    /// Only this program or part; may be given several times
    #[arg(long, value_name = "NAME", value_parser = ["hackbench", "make", "truth", "live", "long"])]
    only: Vec<String>,
    /// Rounds of runs with and without the views [default: 15, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
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

/// A program that the views are measured on.
struct Measured {
    name: &'static str,
    /// What `locks` may cost it.
    cost_max: f64,
    /// Times as many rounds as asked for: where a run is short, and its times lie further apart than what is looked for.
    rounds: u32,
}

const PROGRAMS: [Measured; 2] = [
    Measured {
        name: "hackbench",
        cost_max: 1.05,
        rounds: 1,
    },
    Measured {
        name: "make",
        cost_max: 1.01,
        rounds: 3,
    },
];
/// A recording / what `perf sched record` writes of the same program.
const SIZE: Target = Target::AtMost(0.5);

/// `views-raw.json`: what the figures are made of.
#[derive(Serialize)]
struct Raw {
    cpus: u32,
    pairs: u32,
    programs: Vec<(&'static str, Vec<Round>)>,
    accounts: Vec<(&'static str, Vec<Round>)>,
    truth: Vec<truth::Agreement>,
    live: Vec<live::Live>,
    long: Option<live::Long>,
    hours: Vec<(&'static str, live::Long)>,
}

/// Measures, prints the table, writes the files. Returns the exit code.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let stage = Stage::new(arguments.tool.as_deref(), arguments.out.as_deref())?;
    if !arguments.no_install {
        stage.install();
    }
    let pairs = arguments
        .pairs
        .unwrap_or(if arguments.quick { 2 } else { 15 });
    let mut raw = Raw {
        cpus: stage.cpus,
        pairs,
        programs: Vec::new(),
        accounts: Vec::new(),
        truth: Vec::new(),
        live: Vec::new(),
        long: None,
        hours: Vec::new(),
    };
    let mut all = Vec::new();
    let is_wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    for Measured {
        name,
        cost_max,
        rounds,
    } in PROGRAMS
    {
        if !is_wanted(name) {
            continue;
        }
        let begun = Instant::now();
        let program = programs::ALL.iter().find(|program| program.name == name);
        let program = program.ok_or("a program has another name now")?;
        let Runs { rounds, accounts } = measure(&stage, program, pairs * rounds, pairs.div_ceil(3));
        let taken = taken(name, &accounts);
        let ratio = taken.value.clone().ok();
        all.extend(costs(name, cost_max, ratio, &rounds));
        all.push(taken);
        raw.programs.push((name, rounds.unwrap_or_default()));
        raw.accounts.push((name, accounts.unwrap_or_default()));
        eprintln!("{name}: {:.0} s", begun.elapsed().as_secs_f64());
    }
    for family in truth::FAMILIES.iter().filter(|_| is_wanted("truth")) {
        let measured = truth::measure(&stage, family);
        all.push(truth::figure(family, &measured));
        raw.truth.extend(measured.ok());
    }
    if is_wanted("truth") {
        all.push(truth::counts(raw.truth.iter()));
    }
    // A view is looked at for a minute at least; its start is in it.
    let (looked, seconds) = if arguments.quick {
        (5.0, 5.0)
    } else {
        (60.0, 20.0)
    };
    for (view, flags) in live::VIEWS.into_iter().filter(|_| is_wanted("live")) {
        let measured = live::top(&stage, view, flags, looked);
        all.push(live::top_figure(view, &measured));
        raw.live.extend(measured.ok());
    }
    if is_wanted("long") {
        let measured = live::long(&stage, seconds);
        let hours = live::HOURS.map(|view| (view, live::hour(&stage, view, arguments.quick)));
        all.extend(live::all_long_figures(&measured, &hours));
        raw.long = measured.ok();
        let measured = hours.into_iter();
        raw.hours = measured
            .filter_map(|(view, hour)| Some((view, hour.ok()?)))
            .collect();
    }

    print!("{}", figures::table(&all));
    let (table, details) = (
        stage.bench.join("views.json"),
        stage.bench.join("views-raw.json"),
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

/// Runs of a program.
struct Runs {
    /// By wall time.
    rounds: Result<Vec<Round>, String>,
    /// By what watching takes, beside `perf lock contention -ab` if it is there: more exact than wall times, which differ from run to
    /// run by more than what is looked for.
    accounts: Result<Vec<Round>, String>,
}

/// Why there is nothing beside `perf lock contention -ab`.
const NO_CONTENTION: &str =
    "no perf here has perf lock contention -b (benches/perf-with-bpf.sh builds one)";

fn measure(stage: &Stage, program: &Program, pairs: u32, accounts: u32) -> Runs {
    let prepared = (program.prepare)(stage).and_then(|command| {
        rounds::watch(stage, &command, Watcher::Nobody)?;
        Ok(command)
    });
    let command = match prepared {
        Ok(command) => command,
        Err(why) => {
            return Runs {
                rounds: Err(why.clone()),
                accounts: Err(why),
            };
        }
    };
    let mut watchers = vec![
        Watcher::Nobody,
        Watcher::Locks,
        Watcher::PerfLock,
        Watcher::Sched,
        Watcher::PerfSched,
    ];
    let has_contention = rounds::has_perf_contention(stage);
    watchers.extend(has_contention.then_some(Watcher::PerfContention));
    let both = [Watcher::Locks, Watcher::PerfContention];
    Runs {
        rounds: rounds::rounds(stage, &command, &watchers, pairs),
        accounts: if has_contention {
            rounds::accounts(stage, &command, &both, accounts)
        } else {
            Err(NO_CONTENTION.to_owned())
        },
    }
}

fn taken(name: &str, measured: &Result<Vec<Round>, String>) -> Figure {
    ratio(
        format!("locks takes / perf lock contention -ab takes: {name}"),
        |_| Target::AtMost(1.0),
        "CPU time of its BPF programs and its own while the program runs: amdahl locks --system / \
         perf lock contention -ab"
            .to_owned(),
        measured,
        |rounds| taken_ratio(rounds, Watcher::Locks, Watcher::PerfContention),
    )
}

/// Rows of wall times; `taken` is what `locks` takes by account / what `perf lock contention -ab` takes.
fn costs(
    name: &str,
    cost_max: f64,
    taken: Option<f64>,
    measured: &Result<Vec<Round>, String>,
) -> Vec<Figure> {
    let figure = |what: &str, watcher: Watcher, other: Watcher| {
        ratio(
            format!("{what}: {name}"),
            |median| match other {
                Watcher::Nobody => Target::AtMost(cost_max),
                Watcher::PerfContention => beside_another(median, taken),
                _ => beside_another(median, None),
            },
            format!(
                "wall time under {} / under {}",
                watcher.name(),
                other.name()
            ),
            measured,
            |rounds| wall_ratio(rounds, watcher, other),
        )
    };
    let rounds = measured.as_ref().map_or(&[][..], Vec::as_slice);
    let is_there = |round: &Round| round.times.contains_key(&Watcher::PerfContention);
    let contention = "locks cost / perf lock contention -ab cost";
    let mut contention = figure(contention, Watcher::Locks, Watcher::PerfContention);
    if !rounds.is_empty() && !rounds.iter().any(is_there) {
        contention.value = Err(NO_CONTENTION.to_owned());
    }
    vec![
        contention,
        figure("locks cost", Watcher::Locks, Watcher::Nobody),
        figure(
            "locks cost / perf lock record cost",
            Watcher::Locks,
            Watcher::PerfLock,
        ),
        figure(
            "sched record cost / perf sched record cost",
            Watcher::Sched,
            Watcher::PerfSched,
        ),
        ratio(
            format!("recording / perf.data: {name}"),
            |_| SIZE,
            "bytes of the events of amdahl sched record / of the file of perf sched record"
                .to_owned(),
            measured,
            |rounds| size_ratio(rounds, Watcher::Sched, Watcher::PerfSched),
        ),
    ]
}

fn ratio<T>(
    name: String,
    target: impl Fn(Option<&Median>) -> Target,
    what: String,
    measured: &Result<Vec<T>, String>,
    of: impl Fn(&[T]) -> Option<Median>,
) -> Figure {
    let found = measured
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|rounds| of(rounds).ok_or_else(|| "there was no round".to_owned()));
    let target = target(found.as_ref().ok());
    Figure {
        name,
        unit: Unit::Ratio,
        target,
        versus: match &found {
            Ok(median) => median.versus(&what, target),
            Err(_) => what,
        },
        value: found.map(|median| median.value),
    }
}
