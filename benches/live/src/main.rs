//! `amdahl-bench-live`: the same programs, simulated and measured.

mod case;
mod costs;
mod measured;
mod others;
mod work;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use amdahl_des::program::Level;
use amdahl_des::{Costs, median};
use amdahl_figures::{self as figures, Figure, Target, Unit};
use amdahl_topology::Topology;
use clap::Parser;

use case::{CASES, Case};
use costs::Primitives;
use others::Others;

/// How far a simulated time may be from the measured one.
const ERROR: f64 = 0.15;

/// Runs programs in the pool, simulates the same ones, and compares the times.
#[derive(Parser)]
#[command(
    name = "amdahl-bench-live",
    after_help = "\
Examples:
  amdahl sim calibrate -o costs.json
  amdahl-bench-live --costs costs.json
  amdahl-bench-live --costs costs.json lock skewed     only rows whose names contain one of the words
  amdahl-bench-live --again FOLDER --table FOLDER      simulates once more what --table has written beside costs.json, measures nothing"
)]
struct Cli {
    /// Parts of names of rows; all without
    words: Vec<String>,
    /// What this machine's operations cost, as `amdahl sim calibrate -o FILE` writes it
    #[arg(long, value_name = "FILE", required_unless_present = "again")]
    costs: Option<PathBuf>,
    /// Simulate anew and compare with what a run with --table has measured and written into this folder, where the costs of the
    /// machine are too, as costs.json
    #[arg(long, value_name = "FOLDER", conflicts_with = "costs")]
    again: Option<PathBuf>,
    /// How often each program is measured; the rows take turns
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: u32,
    /// Write results.md, results.csv and the costs that were simulated with into this folder too
    #[arg(long, value_name = "FOLDER")]
    table: Option<PathBuf>,
    #[command(flatten)]
    output: figures::Output,
}

/// A round is not counted if other processes or the hypervisor took a larger share of the CPUs.
const DISTURBED: f64 = 0.03;

struct Row {
    case: &'static Case,
    measured_ns: f64,
    /// A quarter of the rounds was below, and above.
    quarter_ns: [f64; 2],
    simulated_ns: f64,
}

impl Row {
    fn error(&self) -> f64 {
        self.simulated_ns / self.measured_ns - 1.0
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.output.exit_code("amdahl-bench-live", run(&cli))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn run(cli: &Cli) -> Result<bool, String> {
    if let Some(folder) = &cli.again {
        return again(cli, folder);
    }
    let costs = cli.costs.as_ref().expect("clap wants one of both");
    let machine: Costs = read(costs)?;
    let topology = Topology::read().map_err(|error| error.to_string())?;
    let cpus = amdahl_topology::allowed().map_or(1, |cpus| cpus.len());
    if cpus < topology.cpu_set().len() {
        return Err(
            "this process may not use all CPUs, but the simulated machine has all: \
             give it all (taskset, cpuset)"
                .to_owned(),
        );
    }
    work::learn_speed(cpus);
    let primitives = Primitives::measure();
    let wanted = |case: &&Case| figures::is_wanted(&cli.words, case.name);
    let rows = compare(
        CASES.iter().filter(wanted).collect(),
        &topology,
        [
            &primitives.of_jobs(&machine),
            &primitives.of_threads(&machine),
        ],
        (cli.rounds, cpus),
    )?;
    if let Some(folder) = &cli.table {
        save(folder, &rows, &primitives, &machine)?;
    }
    cli.output.finish("live", &as_figures(&rows))
}

/// Simulates what was measured before, on the same machine as far as its costs say.
fn again(cli: &Cli, folder: &Path) -> Result<bool, String> {
    if cli.table.as_deref() == Some(folder) && !cli.words.is_empty() {
        return Err(
            "what was measured of the other rows would be lost: name no rows, or another folder for --table"
                .to_owned(),
        );
    }
    let machine: Costs = read(&folder.join("costs.json"))?;
    let primitives: Primitives = read(&folder.join("pool.json"))?;
    let path = folder.join("results.csv");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let topology =
        Topology::synthetic(&shape(&machine.source)?).map_err(|error| error.to_string())?;
    let (of_jobs, of_threads) = (
        primitives.of_jobs(&machine),
        primitives.of_threads(&machine),
    );
    let costs = [&of_jobs, &of_threads];
    let mut rows = vec![];
    for case in CASES {
        if !figures::is_wanted(&cli.words, case.name) {
            continue;
        }
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("\"{}\",", case.name)))
            .ok_or_else(|| format!("{}: no row is called `{}`", path.display(), case.name))?;
        let numbers: Vec<f64> = line
            .split(',')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [_, measured_ns, low, high, ..] = numbers[..] else {
            return Err(format!(
                "{}: `{}` has too few numbers",
                path.display(),
                case.name
            ));
        };
        rows.push(Row {
            case,
            simulated_ns: case.simulate(&topology, case.level_of(costs))?,
            quarter_ns: [low, high],
            measured_ns,
        });
    }
    if let Some(folder) = &cli.table {
        save(folder, &rows, &primitives, &machine)?;
    }
    cli.output.finish("live", &as_figures(&rows))
}

/// The machine on which costs were measured, as they tell it.
fn shape(source: &str) -> Result<String, String> {
    let told = source.split_once("measured on ").map(|(_, told)| told);
    let shape = told.and_then(|told| told.split_once(':'));
    shape.map(|(shape, _)| shape.to_owned()).ok_or_else(|| {
        format!("the costs do not say on which machine they were measured, but `{source}`")
    })
}

/// All programs in turns, so that what disturbs one disturbs the others.
fn compare(
    cases: Vec<&'static Case>,
    topology: &Topology,
    costs: [&Costs; 2],
    (rounds, cpus): (u32, usize),
) -> Result<Vec<Row>, String> {
    let programs = cases
        .iter()
        .map(|case| measured::program(case, &case.workload()?.params))
        .collect::<Result<Vec<_>, String>>()?;
    let mut times = vec![Vec::new(); cases.len()];
    // The first round warms up.
    let (mut round, mut disturbed) = (0, 0);
    while round <= rounds {
        let others = Others::begin();
        work::learn_speed(cpus);
        let ns: Vec<f64> = programs.iter().map(|run| run()).collect();
        if others.share(cpus) > DISTURBED {
            disturbed += 1;
            if disturbed > 3 * rounds {
                return Err(format!(
                    "others take more than {} % of the CPUs most of the time: nothing can be compared; \
                     end them, or try again later",
                    DISTURBED * 100.0
                ));
            }
            continue;
        }
        if round > 0 {
            times
                .iter_mut()
                .zip(ns)
                .for_each(|(times, ns)| times.push(ns));
        }
        round += 1;
    }
    if disturbed > 0 {
        eprintln!("{disturbed} rounds were left out: others took the CPUs");
    }
    let row = |(case, mut times): (&'static Case, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        Ok(Row {
            case,
            simulated_ns: case.simulate(topology, case.level_of(costs))?,
            quarter_ns: [times[times.len() / 4], times[times.len() * 3 / 4]],
            measured_ns: median(times),
        })
    };
    cases.into_iter().zip(times).map(row).collect()
}

fn as_figures(rows: &[Row]) -> Vec<Figure> {
    rows.iter()
        .map(|row| Figure {
            name: format!("live: {}", row.case.name),
            value: Ok(row.error().abs()),
            unit: Unit::Difference,
            target: Target::AtMost(ERROR),
            versus: format!(
                "simulated {:.3} ms, measured {:.3} ms (median; quartiles {:.3} and {:.3})",
                row.simulated_ns / 1e6,
                row.measured_ns / 1e6,
                row.quarter_ns[0] / 1e6,
                row.quarter_ns[1] / 1e6
            ),
        })
        .collect()
}

fn save(folder: &Path, rows: &[Row], of_pool: &Primitives, machine: &Costs) -> Result<(), String> {
    let mut csv =
        "row,policy,simulated_ns,measured_ns,measured_p25_ns,measured_p75_ns,error\n".to_owned();
    let mut page = format!(
        "Costs of the machine: {}.\n\nOf the pool, in ns: {of_pool:.0?}.\n\n\
         | row | policy | simulated ms | measured ms (quartiles) | error |\n|---|---|---:|---:|---:|\n",
        machine.source
    );
    for row in rows {
        let (ms, error) = (|ns: f64| ns / 1e6, row.error());
        let policy = match row.case.level {
            Level::Jobs => row.case.policy,
            Level::Threads => "the kernel; linux",
        };
        let [low, high] = row.quarter_ns;
        let _ = writeln!(
            csv,
            "\"{}\",{policy},{:.0},{:.0},{low:.0},{high:.0},{error:.4}",
            row.case.name, row.simulated_ns, row.measured_ns
        );
        let _ = writeln!(
            page,
            "| {} | {policy} | {:.3} | {:.3} ({:.3}-{:.3}) | {:+.1} % |",
            row.case.name,
            ms(row.simulated_ns),
            ms(row.measured_ns),
            ms(low),
            ms(high),
            error * 100.0
        );
    }
    let costs =
        |costs: &Costs| serde_json::to_string_pretty(costs).expect("numbers and a text") + "\n";
    let files = [
        ("results.csv", csv),
        ("results.md", page),
        (
            "pool.json",
            serde_json::to_string_pretty(of_pool).expect("numbers") + "\n",
        ),
        ("costs-of-jobs.json", costs(&of_pool.of_jobs(machine))),
        ("costs-of-threads.json", costs(&of_pool.of_threads(machine))),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}
