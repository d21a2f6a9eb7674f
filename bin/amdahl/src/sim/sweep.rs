//! `amdahl sim sweep`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amdahl_des::program::Workload;
use amdahl_des::time::{Ns, show};
use amdahl_des::{Costs, Limits, RunResult, Simulation, content_hash, median, table};
use amdahl_topology::Topology;
use serde::Deserialize;

use super::{input, plain_lines, points, recorded, runs, slurm};
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
    /// Among all.
    at: u64,
    /// Of the prepared parameters.
    set: usize,
    machine: usize,
    policy: &'a str,
    seed: u64,
    /// Names the result.
    hash: String,
}

/// Values of the parameters, and the workload with them, compiled when it is needed.
struct Set {
    values: BTreeMap<String, String>,
    values_text: String,
    workload: OnceLock<Workload>,
}

struct Prepared<'a> {
    file: &'a File,
    source: input::Source,
    sets: Vec<Set>,
    machines: Vec<Topology>,
    costs: Costs,
    costs_text: String,
}

impl Prepared<'_> {
    fn count(&self) -> u64 {
        let file = self.file;
        (self.sets.len() * file.machines.len() * file.policies.len()) as u64 * file.seeds
    }

    /// Point `at` of all: seeds change fastest, then policies, machines, parameters.
    fn point(&self, at: u64) -> Point<'_> {
        let file = self.file;
        let (rest, seed) = (
            at / file.seeds,
            file.first_seed.wrapping_add(at % file.seeds),
        );
        let rest = rest as usize;
        let (rest, policy) = (rest / file.policies.len(), rest % file.policies.len());
        let (set, machine) = (rest / file.machines.len(), rest % file.machines.len());
        let policy = &file.policies[policy];
        let hash = content_hash(&[
            amdahl_des::MODEL,
            self.source.text(),
            &self.sets[set].values_text,
            &file.machines[machine],
            policy,
            &seed.to_string(),
            &self.costs_text,
        ]);
        Point {
            at,
            set,
            machine,
            policy,
            seed,
            hash,
        }
    }

    /// Compiles the workload with parameters `set`, unless that is done.
    fn compile(&self, set: usize) -> Result<&Workload, Failure> {
        let set = &self.sets[set];
        if let Some(workload) = set.workload.get() {
            return Ok(workload);
        }
        let workload = self.source.workload(&set.values)?;
        Ok(set.workload.get_or_init(|| workload))
    }
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
    let prepared = plan(&args.file, &file)?;
    let shard = args.shard.as_deref().map(shard).transpose()?;
    if shard.is_none() {
        // All of them are shown, and what is wrong is told before anything runs. A worker looks at its own points only.
        for set in 0..prepared.sets.len() {
            prepared.compile(set)?;
        }
    }
    let chosen = match &args.points {
        Some(path) => points::read(path, prepared.count())?,
        None => (0..prepared.count()).collect(),
    };
    let mine = |nth: u64| shard.is_none_or(|(i, n)| nth % n == i);
    let points: Vec<Point> = (0..)
        .zip(chosen)
        .filter(|&(nth, _)| mine(nth))
        .map(|(_, at)| prepared.point(at))
        .collect();
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
    if shard.is_none() {
        clean_up(&folder);
    }
    let is_missing = |point: &&Point| load(&folder, point).is_none();
    let missing: Vec<&Point> = points.iter().filter(is_missing).collect();
    let is_slurm = args.engine == SimEngine::Slurm;
    if is_slurm && !missing.is_empty() {
        let numbers: Vec<u64> = missing.iter().map(|point| point.at).collect();
        let job = slurm::submit(args, &folder, &numbers, |text| note(args, text))?;
        if !args.wait {
            return Ok(0);
        }
        if !job.ended.success() {
            note(
                args,
                &format!(
                    "of the {} tasks of job {} some failed ({}): see slurm-*.out in {}",
                    job.tasks,
                    job.job,
                    job.ended,
                    folder.display()
                ),
            );
        }
        // On NFS a name that was not there is looked up again when its folder is opened.
        let _ = fs::read_dir(&folder);
    }
    let interrupt = Interrupt::catch();
    let mine = if is_slurm { vec![] } else { missing };
    for point in &mine {
        prepared.compile(point.set)?;
    }
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
    let left = points.iter().filter(is_missing).count();
    let is_interrupted = interrupt.asked();
    if is_interrupted || is_slurm && left > 0 {
        note(
            args,
            &format!("{left} runs are left; the same command continues"),
        );
    }
    Ok(match () {
        () if is_interrupted => 5,
        () if left > 0 => 4,
        () => 0,
    })
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

/// Reads what the file names; nothing is compiled yet.
fn plan<'a>(path: &Path, file: &'a File) -> Result<Prepared<'a>, Failure> {
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
    let sets = combinations.into_iter().map(|values| {
        let values_text =
            serde_json::to_string(&values).map_err(|error| Failure::result(error.to_string()))?;
        Ok(Set {
            values,
            values_text,
            workload: OnceLock::new(),
        })
    });
    Ok(Prepared {
        file,
        source: input::source(&beside(&file.workload))?,
        sets: sets.collect::<Result<_, Failure>>()?,
        machines,
        costs,
        costs_text,
    })
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
        workload: prepared.compile(point.set)?,
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
    let host = rustix::system::uname();
    let part = folder.join(format!(
        ".{}.{}-{}-{number}.part",
        point.hash,
        host.nodename().to_string_lossy(),
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
    let workloads = || prepared.sets.iter().filter_map(|set| set.workload.get());
    let params: std::collections::BTreeSet<&String> = workloads()
        .flat_map(|workload| workload.params.keys())
        .collect();
    // Only parameters that differ are told.
    let differs = |name: &&String| {
        let mut values = workloads().map(|workload| workload.params.get(*name));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let params: Vec<String> = params.into_iter().filter(differs).cloned().collect();
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
            (point.set, point.machine, point.policy)
                == (points[at].set, points[at].machine, points[at].policy)
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
