//! `amdahl sim sweep`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amdahl_des::program::Workload;
use amdahl_des::time::{Ns, show};
use amdahl_des::{Costs, Limits, RunResult, Simulation, content_hash, median, table};
use amdahl_topology::Topology;
use serde::Deserialize;

use super::{input, plain_lines, recorded, runs, slurm};
use crate::cli::{SimEngine, SimSweep};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;

/// Most points of a sweep.
const POINTS_MAX: usize = 10_000_000;

/// The file: docs/sim-workload.md.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workload: String,
    machines: Vec<String>,
    policies: Vec<String>,
    #[serde(default = "one")]
    seeds: u64,
    #[serde(default = "one")]
    first_seed: u64,
    costs: Option<String>,
    #[serde(default)]
    set: BTreeMap<String, Values>,
}

fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    Number(i64),
    Text(String),
    List(Vec<Value>),
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Value {
    Number(i64),
    Text(String),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
        }
    }
}

/// One run of a sweep.
struct Point<'a> {
    /// Of the prepared workloads.
    workload: usize,
    machine: usize,
    policy: &'a str,
    seed: u64,
    /// Names the result.
    hash: String,
}

struct Prepared {
    workloads: Vec<Workload>,
    machines: Vec<Topology>,
    costs: Costs,
}

/// Runs what is missing and shows all.
pub fn main(args: &SimSweep) -> Result<u8, Failure> {
    let text = fs::read_to_string(&args.file).map_err(|error| {
        Failure::usage(format!(
            "cannot read the sweep {}: {error}",
            args.file.display()
        ))
    })?;
    let file: File = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(String::new(), |span| {
            format!(
                "line {}: ",
                text[..span.start.min(text.len())].matches('\n').count() + 1
            )
        });
        Failure::usage(format!(
            "{}: {line}{}",
            args.file.display(),
            error.message()
        ))
    })?;
    let (prepared, points) = plan(&args.file, &file)?;
    let folder = args
        .output
        .clone()
        .unwrap_or_else(|| args.file.with_extension(""));
    let folder = if folder == args.file {
        args.file.with_extension("results")
    } else {
        folder
    };
    fs::create_dir_all(&folder)
        .map_err(|error| Failure::result(format!("cannot create {}: {error}", folder.display())))?;
    clean_up(&folder);
    let shard = args.shard.as_deref().map(shard).transpose()?;
    // A worker looks at its own points only.
    let is_mine = |at: u64| shard.is_none_or(|(i, n)| at % n == i);
    let missing = points
        .iter()
        .zip(0..)
        .filter(|&(point, at)| is_mine(at) && load(&folder, point).is_none());
    let missing: Vec<&Point> = missing.map(|(point, _)| point).collect();
    if args.engine == SimEngine::Slurm && !missing.is_empty() {
        slurm::submit(args, &folder, missing.len())?;
        if !args.wait {
            return Ok(0);
        }
    }
    let interrupt = Interrupt::catch();
    let mine = if args.engine == SimEngine::Slurm {
        vec![]
    } else {
        missing
    };
    note(
        args,
        &format!(
            "{} runs, {} of them to do, results in {}",
            points.len(),
            mine.len(),
            folder.display()
        ),
    );
    let done = runs::all(mine.len(), args.quiet, &interrupt, |at| {
        run(&prepared, mine[at], &folder, &interrupt)
    });
    for one in done.into_iter().flatten() {
        one?;
    }
    if shard.is_none() {
        finish(args, &prepared, &points, &folder)?;
    }
    let left = points
        .iter()
        .zip(0..)
        .filter(|&(point, at)| is_mine(at) && load(&folder, point).is_none())
        .count();
    if interrupt.asked() {
        note(
            args,
            &format!("{left} runs are left; the same command continues"),
        );
        return Ok(5);
    }
    Ok(if left > 0 { 4 } else { 0 })
}

fn note(args: &SimSweep, text: &str) {
    if !args.quiet {
        // Nobody may be reading.
        let _ = writeln!(anstream::stderr(), "amdahl: {text}");
    }
}

/// `i/n`.
fn shard(text: &str) -> Result<(u64, u64), Failure> {
    let parts = text
        .split_once('/')
        .and_then(|(i, n)| Some((i.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
    match parts {
        Some((i, n)) if i < n => Ok((i, n)),
        _ => Err(Failure::usage(format!(
            "--shard {text}: expected I/N with I below N, e.g. 0/16"
        ))),
    }
}

/// All combinations, the workloads of each set of parameters compiled once.
fn plan<'a>(path: &Path, file: &'a File) -> Result<(Prepared, Vec<Point<'a>>), Failure> {
    for (what, is_empty) in [
        ("machines", file.machines.is_empty()),
        ("policies", file.policies.is_empty()),
        ("seeds", file.seeds == 0),
    ] {
        if is_empty {
            return Err(Failure::usage(format!(
                "{}: `{what}` is empty",
                path.display()
            )));
        }
    }
    let mut sets: usize = 1;
    for (name, values) in &file.set {
        let values = match values {
            Values::List(list) => list.len(),
            Values::Number(_) | Values::Text(_) => 1,
        };
        if values == 0 {
            return Err(Failure::usage(format!(
                "{}: `{name}` in [set] has no values",
                path.display()
            )));
        }
        sets = sets.saturating_mul(values);
    }
    let count = sets
        .saturating_mul(file.machines.len())
        .saturating_mul(file.policies.len())
        .saturating_mul(file.seeds as usize);
    if count > POINTS_MAX {
        return Err(Failure::usage(format!(
            "{}: {count} runs, more than {POINTS_MAX}",
            path.display()
        )));
    }
    let combinations = combinations(&file.set);
    // What the file names is beside it, unless it is built in.
    let beside = |name: &str| {
        let there = path.parent().unwrap_or(Path::new("")).join(name);
        // Folders of a built-in's name may be results, of this sweep for one.
        let is_meant = there.is_file() || recorded::is_recording(&there);
        if is_meant || there.exists() && !input::is_built_in(name) {
            there.to_string_lossy().into_owned()
        } else {
            name.to_owned()
        }
    };
    let costs = input::costs(file.costs.as_deref().map(beside).as_deref())?;
    let machines = file
        .machines
        .iter()
        .map(|machine| input::machine(Some(machine)))
        .collect::<Result<Vec<_>, _>>()?;
    for policy in &file.policies {
        input::policy(policy)?;
    }
    let costs_text =
        serde_json::to_string(&costs).map_err(|error| Failure::result(error.to_string()))?;
    let (mut workloads, mut points) = (vec![], vec![]);
    for set in &combinations {
        let (workload, text) = input::workload(&beside(&file.workload), set)?;
        for (machine, description) in file.machines.iter().enumerate() {
            for policy in &file.policies {
                for seed in (0..file.seeds).map(|i| file.first_seed.wrapping_add(i)) {
                    let params = serde_json::to_string(set)
                        .map_err(|error| Failure::result(error.to_string()))?;
                    let seed_text = seed.to_string();
                    let hash = content_hash(&[
                        amdahl_des::MODEL,
                        &text,
                        &params,
                        description,
                        policy,
                        &seed_text,
                        &costs_text,
                    ]);
                    points.push(Point {
                        workload: workloads.len(),
                        machine,
                        policy,
                        seed,
                        hash,
                    });
                }
            }
        }
        workloads.push(workload);
    }
    Ok((
        Prepared {
            workloads,
            machines,
            costs,
        },
        points,
    ))
}

fn combinations(set: &BTreeMap<String, Values>) -> Vec<BTreeMap<String, String>> {
    let mut all = vec![BTreeMap::new()];
    for (name, values) in set {
        let values: Vec<String> = match values {
            Values::Number(number) => vec![number.to_string()],
            Values::Text(text) => vec![text.clone()],
            Values::List(list) => list.iter().map(Value::text).collect(),
        };
        all = all
            .iter()
            .flat_map(|set| {
                values.iter().map(|value| {
                    let mut set = set.clone();
                    set.insert(name.clone(), value.clone());
                    set
                })
            })
            .collect();
    }
    all
}

fn file_of(folder: &Path, point: &Point) -> PathBuf {
    folder.join(format!("{}.json", point.hash))
}

/// A result that is there and whole.
fn load(folder: &Path, point: &Point) -> Option<RunResult> {
    let text = fs::read_to_string(file_of(folder, point)).ok()?;
    let result: RunResult = serde_json::from_str(&text).ok()?;
    (result.version == amdahl_des::result::VERSION && result.end != "stopped").then_some(result)
}

fn run(
    prepared: &Prepared,
    point: &Point,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let policy = input::policy(point.policy)?;
    let simulation = Simulation {
        workload: &prepared.workloads[point.workload],
        topology: &prepared.machines[point.machine],
        costs: &prepared.costs,
        policy: &*policy,
        seed: point.seed,
        limits: Limits::default(),
    };
    let result = simulation
        .run_until(&mut || interrupt.asked())
        .map_err(|error| Failure::usage(error.to_string()))?
        .result;
    if result.end == "stopped" {
        return Ok(());
    }
    let path = file_of(folder, point);
    let failed = |error: std::io::Error| {
        Failure::result(format!("cannot write {}: {error}", path.display()))
    };
    let json =
        serde_json::to_string(&result).map_err(|error| Failure::result(error.to_string()))?;
    // Whoever is killed in between leaves a part. Others may be at the same point: no two write to one file.
    static PARTS: AtomicU64 = AtomicU64::new(0);
    let number = PARTS.fetch_add(1, Ordering::Relaxed);
    let part = folder.join(format!(
        ".{}.{}-{number}.part",
        point.hash,
        std::process::id()
    ));
    fs::write(&part, json).map_err(failed)?;
    fs::rename(&part, &path).map_err(failed)
}

/// Removes parts that the killed left in `folder`.
fn clean_up(folder: &Path) {
    /// To write one takes moments, and who writes it may be on another host.
    const LEFT: Duration = Duration::from_secs(60);
    let is_part = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with('.') && name.ends_with(".part")
    };
    let is_old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|file| file.modified());
        let age = modified.ok().and_then(|modified| modified.elapsed().ok());
        age.is_some_and(|age| age > LEFT)
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // By the name first: results may be millions.
    for entry in entries.filter(|entry| is_part(entry) && is_old(entry)) {
        // It is in nobody's way.
        let _ = fs::remove_file(entry.path());
    }
}

/// A table of medians over the seeds.
fn finish(
    args: &SimSweep,
    prepared: &Prepared,
    points: &[Point],
    folder: &Path,
) -> Result<(), Failure> {
    let mut rows: Vec<Vec<String>> = vec![];
    let mut header: Vec<String> = vec!["machine".to_owned()];
    header.extend(
        prepared
            .workloads
            .iter()
            .flat_map(|workload| workload.params.keys().cloned())
            .collect::<std::collections::BTreeSet<_>>(),
    );
    let params: Vec<String> = header[1..].to_vec();
    // Only parameters that differ are told.
    let differs = |name: &String| {
        prepared
            .workloads
            .windows(2)
            .any(|pair| pair[0].params.get(name) != pair[1].params.get(name))
    };
    let params: Vec<String> = params.into_iter().filter(|name| differs(name)).collect();
    rows.push(
        std::iter::once("machine".to_owned())
            .chain(params.iter().cloned())
            .chain(
                [
                    "policy",
                    "runs",
                    "makespan",
                    "busy",
                    "search",
                    "wake-up p99",
                    "end",
                ]
                .map(str::to_owned),
            )
            .collect(),
    );
    let mut at = 0;
    while at < points.len() {
        let same = |point: &Point| {
            (point.workload, point.machine, point.policy)
                == (points[at].workload, points[at].machine, points[at].policy)
        };
        let len = points[at..].iter().take_while(|point| same(point)).count();
        let results: Vec<RunResult> = points[at..at + len]
            .iter()
            .filter_map(|point| load(folder, point))
            .collect();
        if args.json {
            for result in &results {
                let json = serde_json::to_string(result)
                    .map_err(|error| Failure::result(error.to_string()))?;
                screen::print(&(json + "\n"))?;
            }
        } else if let Some(first) = results.first() {
            let of = |figure: fn(&RunResult) -> f64| median(results.iter().map(figure));
            let mut row = vec![first.machine.clone()];
            row.extend(
                params
                    .iter()
                    .map(|name| first.params.get(name).map_or(String::new(), i64::to_string)),
            );
            let ends: std::collections::BTreeSet<&str> =
                results.iter().map(|result| result.end.as_str()).collect();
            row.extend([
                first.policy.clone(),
                results.len().to_string(),
                show(of(|result| result.makespan_ns as f64) as Ns),
                format!("{:.2} %", of(|result| result.busy) * 100.0),
                format!("{:.2} %", of(|result| result.search) * 100.0),
                show(of(|result| result.wakeup_ns.p99 as f64) as Ns),
                ends.into_iter().collect::<Vec<_>>().join(" "),
            ]);
            rows.push(row);
        }
        at += len;
    }
    if !args.json {
        screen::print(&plain_lines(&table(&rows)))?;
    }
    Ok(())
}
