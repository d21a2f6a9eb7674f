//! `amdahl-bench-sim`: how many events a second the simulator does on one CPU, how much memory it takes, and what
//! it says of demand paging with 160 vCPUs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use amdahl_des::program::Workload;
use amdahl_des::{Costs, Limits, Simulation, median, published, workload};
use amdahl_figures::{self as figures, Figure, Target, Unit};
use amdahl_topology::Topology;
use clap::Parser;

/// Measures the simulator and prints a row for each target.
#[derive(Parser)]
#[command(name = "amdahl-bench-sim")]
struct Cli {
    /// A short look, whose figures mean little
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: figures::Output,
}

/// What the simulator must do on one CPU.
const EVENTS_PER_S: f64 = 5e6;
/// What 512 CPUs with 10,000 tasks may take.
const MEMORY_MIB: f64 = 2048.0;

struct Case {
    name: &'static str,
    machine: &'static str,
    set: &'static [(&'static str, &'static str)],
    policy: &'static str,
}

/// 40 tasks a group, as hackbench has them.
const CASES: [Case; 4] = [
    Case {
        name: "hackbench, 20 CPUs, 160 tasks, steal",
        machine: "10 core x 2 thread",
        set: &[("groups", "4")],
        policy: "steal",
    },
    Case {
        name: "hackbench, 20 CPUs, 160 tasks, linux",
        machine: "10 core x 2 thread",
        set: &[("groups", "4")],
        policy: "linux",
    },
    Case {
        name: "hackbench, 512 CPUs, 10,000 tasks, steal",
        machine: "8 node x 2 llc x 16 core x 2 thread",
        set: &[("groups", "250")],
        policy: "steal",
    },
    Case {
        name: "hackbench, 512 CPUs, 10,000 tasks, linux",
        machine: "8 node x 2 llc x 16 core x 2 thread",
        set: &[("groups", "250")],
        policy: "linux",
    },
];

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.output.exit_code("amdahl-bench-sim", run(&cli))
}

fn run(cli: &Cli) -> Result<bool, String> {
    let mut all = vec![];
    for case in &CASES {
        all.push(speed(case, cli.quick));
    }
    all.push(memory());
    all.extend(paging());
    cli.output.finish("sim", &all)
}

fn built_in(wanted: &str, set: &[(&str, &str)]) -> Result<Workload, String> {
    let set: BTreeMap<String, String> = set
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let (_, text) = workload::BUILT_IN
        .iter()
        .find(|(name, _)| *name == wanted)
        .ok_or_else(|| format!("{wanted} is not built in"))?;
    workload::parse(text, &set).map_err(|error| error.to_string())
}

/// Events a second of one thread: the median of five runs, each stopped after the same number of events.
fn speed(case: &Case, quick: bool) -> Figure {
    let measure = || {
        let workload = built_in("hackbench", &[case.set, &[("loops", "1000000")]].concat())?;
        let topology = Topology::synthetic(case.machine).map_err(|error| error.to_string())?;
        let policy = amdahl_placement::policy(case.policy).map_err(|error| error.to_string())?;
        let costs = Costs::default();
        let limits = Limits {
            events: if quick { 500_000 } else { 8_000_000 },
            ..Limits::default()
        };
        let mut rates = vec![];
        for seed in 1..=5 {
            let simulation = Simulation {
                workload: &workload,
                topology: &topology,
                costs: &costs,
                policy: &*policy,
                seed,
                limits,
            };
            let begin = Instant::now();
            let result = simulation.run().map_err(|error| error.to_string())?.result;
            let took = begin.elapsed().as_secs_f64();
            if result.end != "event-limit" {
                return Err(format!(
                    "the run ended by {} before it was measured",
                    result.end
                ));
            }
            rates.push(result.events as f64 / took);
        }
        Ok(median(rates))
    };
    Figure {
        name: format!("events/s of one thread: {}", case.name),
        value: measure(),
        unit: Unit::PerSecond,
        target: Target::AtLeast(EVENTS_PER_S),
        versus: "the target alone; what a run sets up and tells is within the time".to_owned(),
    }
}

/// The most memory that this process has used: 512 CPUs and 10,000 tasks were among the runs.
fn memory() -> Figure {
    let kib = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))?
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse::<f64>()
                .ok()?;
            Some(line)
        });
    Figure {
        name: "most memory: 512 CPUs, 10,000 tasks".to_owned(),
        value: kib
            .map(|kib| kib / 1024.0)
            .ok_or_else(|| "the kernel does not tell VmHWM".to_owned()),
        unit: Unit::MiB,
        target: Target::Below(MEMORY_MIB),
        versus: "the target alone".to_owned(),
    }
}

/// Simulated demand paging on 160 CPUs: pages a second, and the share of the busy CPUs' time that was spent spinning.
fn pages(set: &[(&str, &str)]) -> Result<(f64, f64), String> {
    let workload = built_in("paging", set)?;
    let topology =
        Topology::synthetic("2 node x 40 core x 2 thread").map_err(|error| error.to_string())?;
    let policy = amdahl_placement::policy("linux").map_err(|error| error.to_string())?;
    let (_, costs) = published()
        .into_iter()
        .find(|(name, _)| name == "userfaultfd-2018")
        .ok_or("there are no costs userfaultfd-2018")?;
    let simulation = Simulation {
        workload: &workload,
        topology: &topology,
        costs: &costs,
        policy: &*policy,
        seed: 1,
        limits: Limits::default(),
    };
    let result = simulation.run().map_err(|error| error.to_string())?.result;
    if result.end != "done" {
        return Err(format!("the run ended by {}", result.end));
    }
    let used = |name: &str| result.used_ns.get(name).map_or(0.0, |&ns| ns as f64);
    let busy: f64 = result.used_ns.values().map(|&ns| ns as f64).sum::<f64>() - used("idle");
    let rate = result.counters["pages"] as f64 * 1e9 / result.makespan_ns as f64;
    Ok((rate, used("spin") / busy))
}

/// Matthews, KVM Forum 2018: one reader serves 160 vCPUs hardly better than a few, more readers spin.
fn paging() -> Vec<Figure> {
    let plain = pages(&[]);
    let rate = |set: &[(&str, &str)]| pages(set).map(|(rate, _)| rate);
    let by = |one: Result<f64, String>, other: Result<f64, String>| Ok(one? / other?);
    let all = || plain.clone().map(|(rate, _)| rate);
    vec![
        Figure {
            name: "paging, plain: rate with 160 vCPUs by 4".to_owned(),
            value: by(all(), rate(&[("vcpus", "4"), ("pages", "1600")])),
            unit: Unit::Ratio,
            target: Target::AtMost(1.3),
            versus: "published: flat from about 4 vCPUs on".to_owned(),
        },
        Figure {
            name: "paging, 64 readers of one descriptor: share of time spinning".to_owned(),
            value: pages(&[("readers", "64")]).map(|(_, spinning)| spinning),
            unit: Unit::Ratio,
            target: Target::AtLeast(0.8),
            versus: "published: up to 0.9 beyond 64".to_owned(),
        },
        Figure {
            name: "paging, a descriptor for each CPU by plain: rate with 160 vCPUs, random pages"
                .to_owned(),
            value: by(rate(&[("descriptors", "160"), ("anywhere", "1")]), all()),
            unit: Unit::Ratio,
            target: Target::AtLeast(10.0),
            versus: "one descriptor with one reader".to_owned(),
        },
    ]
}
