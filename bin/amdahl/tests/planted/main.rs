//! Ground truth: programs with a known cause of a known size, measured by the real binary.
//!
//! `cargo test --test planted [NAME...]` builds the programs in `planted/`, runs
//! `amdahl scale --json` on each whose name contains one of the NAMEs, compares cause, size and
//! named code with what is planted, and prints a table, which is also written to
//! `target/planted/table.md` and `table.json`. The cases run one after the other and want the
//! machine for themselves; what the machine does not allow is SKIPPED with the reason.
//!
//! - `PLANTED_RUNS`: counted runs per CPU count, 1 unless given.
//! - `PLANTED_PROBE=proc`: without privileges, as another user if started by root; expectations
//!   are those of `planted/unprivileged.toml`, the tables are `table-proc.md` and
//!   `table-proc.json`.

mod attempt;
mod cases;
mod check;
mod processes;
mod stage;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use amdahl_topology::{Order, Topology};
use clap::Parser;

use attempt::{Attempt, Settings};
use cases::{Case, Unprivileged};
use check::{CPUS, Demand, Judgement};
use stage::Stage;
use table::{Entry, Table, Verdict};

/// Runs the tool on programs with known causes.
#[derive(Parser)]
struct Arguments {
    /// Only cases whose name contains one of these.
    names: Vec<String>,
    /// Names are whole names.
    #[arg(long)]
    exact: bool,
    /// Only print the names.
    #[arg(long)]
    list: bool,
}

impl Arguments {
    fn select(&self, case: &Case) -> bool {
        let fits = |name: &String| {
            if self.exact {
                case.name == *name
            } else {
                case.name.contains(name)
            }
        };
        self.names.is_empty() || self.names.iter().any(fits)
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(table) if table.failed == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("planted: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What the environment asks for.
struct Wish {
    runs: u32,
    probe: Option<String>,
}

impl Wish {
    fn read() -> Result<Wish, String> {
        let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let runs = given("PLANTED_RUNS").map_or(Ok(1), |runs| {
            let count = runs.parse::<u32>().ok().filter(|count| *count > 0);
            count.ok_or_else(|| format!("PLANTED_RUNS: {runs} is not a number of runs"))
        })?;
        let probe = given("PLANTED_PROBE");
        match probe.as_deref() {
            None | Some("bpf" | "proc") => Ok(Wish { runs, probe }),
            Some(other) => Err(format!("PLANTED_PROBE: {other} is neither bpf nor proc")),
        }
    }
}

fn run(arguments: &Arguments) -> Result<Table, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root
        .canonicalize()
        .map_err(|error| format!("{}: {error}", root.display()))?;
    let source = root.join("planted");
    let all = cases::read(&source.join("cases.toml"))?;
    let unprivileged = Unprivileged::read(&source.join("unprivileged.toml"), &all)?;
    let selected: Vec<&Case> = all.iter().filter(|case| arguments.select(case)).collect();
    if arguments.list {
        selected
            .iter()
            .for_each(|case| println!("{}: test", case.name));
        return Ok(Table::default());
    }
    if selected.is_empty() {
        return Err(format!(
            "no case is called {}",
            arguments.names.join(" or ")
        ));
    }
    let wish = Wish::read()?;
    let is_proc = wish.probe.as_deref() == Some("proc");
    let planted = root.join("target/planted");
    let mut table = Table {
        runs: wish.runs,
        probe: wish.probe.clone().unwrap_or_else(|| "bpf".to_owned()),
        is_unprivileged: is_proc,
        ..Table::default()
    };
    match prepare(&wish, &source, &planted)? {
        Ok((settings, stage)) => {
            let expectations = is_proc.then_some(&unprivileged);
            let mut entries: Vec<Entry> = Vec::new();
            for (at, case) in selected.iter().enumerate() {
                let begun = Instant::now();
                let entry = try_case(case, &settings, &stage, expectations, &mut table);
                tell(at + 1, selected.len(), &entry, begun);
                entries.push(entry);
            }
            // What disturbs a shared machine lasts for seconds, and so spoils all tries of a case.
            for (at, case) in selected.iter().enumerate() {
                if entries[at].verdict == Verdict::Failed {
                    let begun = Instant::now();
                    let entry = try_case(case, &settings, &stage, expectations, &mut table);
                    tell(at + 1, selected.len(), &entry, begun);
                    entries[at].again(entry);
                }
            }
            entries.into_iter().for_each(|entry| table.push(entry));
        }
        Err(why) => {
            println!("SKIPPED planted programs: {why}");
            selected
                .iter()
                .for_each(|case| table.push(skipped(case, why.clone())));
        }
    }
    let name = if is_proc { "table-proc" } else { "table" };
    table
        .write(&planted, name)
        .map_err(|error| format!("cannot write {}: {error}", planted.display()))?;
    println!(
        "\n{}\nWritten to {}/{name}.md and {name}.json\n{}",
        table.text(),
        planted.display(),
        table.closing_line()
    );
    Ok(table)
}

fn tell(at: usize, all: usize, entry: &Entry, begun: Instant) {
    let outcome = match entry.verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "FAILED",
        Verdict::Skipped => "SKIPPED",
    };
    let seconds = begun.elapsed().as_secs_f64();
    println!("{at:2}/{all} {:24} {outcome} ({seconds:.1} s)", entry.case);
}

/// What every case needs; the inner error says why nothing can be measured here.
fn prepare(
    wish: &Wish,
    source: &Path,
    planted: &Path,
) -> Result<Result<(Settings, Stage), String>, String> {
    let allowed = amdahl_topology::allowed().map_err(|error| error.to_string())?;
    let wanted = CPUS[CPUS.len() - 1] as usize;
    if allowed.len() < wanted {
        return Ok(Err(format!(
            "{wanted} CPUs are needed, {} allowed here",
            allowed.len()
        )));
    }
    let is_root = rustix::process::geteuid().is_root();
    if wish.probe.is_none() && !is_root {
        let why = "the BPF probe takes root; PLANTED_PROBE=proc tries what an ordinary user gets, \
                   PLANTED_PROBE=bpf tries it nevertheless";
        return Ok(Err(why.to_owned()));
    }
    stage::build(source, planted)?;
    // The CPUs that the tool chooses.
    let topology = Topology::read()
        .ok()
        .or_else(|| Topology::flat(&allowed))
        .ok_or("no CPU is known")?;
    let order = topology.sweep_order(Order::Compact, &allowed);
    let last_cpu = *order
        .get(wanted - 1)
        .ok_or("the topology knows too few CPUs")?;
    let tool = PathBuf::from(env!("CARGO_BIN_EXE_amdahl"));
    stage::bring_libgomp(&tool, planted).map_err(|error| format!("our OpenMP runtime: {error}"))?;
    let is_proc = wish.probe.as_deref() == Some("proc");
    let stage = if is_proc && is_root {
        Stage::of_nobody(&tool, planted)
            .map_err(|error| format!("cannot copy for an unprivileged user: {error}"))?
    } else {
        Stage::of_this_user(tool, planted.to_owned())
    };
    let probe = if is_proc { "proc" } else { "bpf" };
    let settings = Settings {
        source: source.to_owned(),
        runs: wish.runs,
        probe: probe.to_owned(),
        last_cpu,
    };
    if let Err(why) = attempt::rehearse(&settings, &stage)? {
        return Ok(Err(why));
    }
    processes::adopt_orphans().map_err(|error| format!("cannot adopt orphans: {error}"))?;
    Ok(Ok((settings, stage)))
}

/// Runs a case; once more if it failed and the result itself tells of a disturbance.
fn try_case(
    case: &Case,
    settings: &Settings,
    stage: &Stage,
    unprivileged: Option<&Unprivileged>,
    table: &mut Table,
) -> Entry {
    if let Some(why) = stage::obstacle(case, &stage.planted) {
        return skipped(case, why);
    }
    let mut tries: Vec<Judgement> = Vec::new();
    let (verdict, reason) = loop {
        let (result, lines, taken_s) = match attempt::run(case, settings, stage) {
            Attempt::Measured(result, lines, taken_s) => (result, lines, taken_s),
            Attempt::Skipped(why) => break (Verdict::Skipped, Some(why)),
            Attempt::Failed(why) => break (Verdict::Failed, Some(why)),
        };
        if table.started.is_empty() {
            table.amdahl_version.clone_from(&result.amdahl_version);
            table.kernel.clone_from(&result.machine.kernel);
            table.cpu_model.clone_from(&result.machine.cpu_model);
            table.topology.clone_from(&result.machine.topology);
            table.started.clone_from(&result.started);
        }
        let demand_of = |cause: &str| match unprivileged {
            Some(expectations) => Demand::of(expectations.of(case, cause, &result)),
            None => Demand::full(case, &result),
        };
        let mut judgement = check::judge(case, demand_of, &lines, settings.runs, taken_s, &result);
        let has_passed = judgement.failures.is_empty();
        let is_disturbed = judgement.noise.is_some();
        // One run per CPU count on a shared machine: a miss is measured once more, and once again
        // if the result tells of disturbance. Every try is in the table.
        let is_last = tries.len() >= if is_disturbed { 2 } else { 1 };
        if !has_passed && !is_last && !is_disturbed {
            judgement.noise = Some(judgement.failures.join("; "));
        }
        tries.push(judgement);
        if has_passed {
            break (Verdict::Passed, None);
        }
        if is_last {
            break (Verdict::Failed, None);
        }
    };
    Entry {
        verdict,
        reason,
        tries,
        ..entry(case)
    }
}

fn skipped(case: &Case, why: String) -> Entry {
    Entry {
        reason: Some(why),
        ..entry(case)
    }
}

fn entry(case: &Case) -> Entry {
    Entry {
        case: case.name.clone(),
        lang: case.lang.clone(),
        cause: case.cause.clone(),
        note: case.note.clone(),
        verdict: Verdict::Skipped,
        reason: None,
        tries: Vec::new(),
    }
}
