//! Runs cases several times and collects rows of the report.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::thread;

use amdahl_des::{Costs, Limits, RunResult, Simulation, workload};
use amdahl_placement::Policy;
use amdahl_topology::Topology;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One simulated configuration.
pub struct Case<'a> {
    pub workload: &'a str,
    pub machine: &'a str,
    pub costs: &'a Costs,
    pub policy: &'a dyn Policy,
    pub set: &'a [(&'a str, f64)],
}

/// Where workloads and costs are, and how often each case runs.
pub struct Lab {
    pub folder: PathBuf,
    pub seeds: u64,
    pub report: String,
    pub csv: String,
}

/// What a row is there for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A constant was chosen so that it agrees.
    Fitted,
    /// It follows.
    Predicted,
    /// Nothing was published; the order matters.
    Order,
}

/// A published figure and the simulated one.
pub struct Row {
    pub what: String,
    pub published: Option<f64>,
    pub simulated: f64,
    pub role: Role,
}

impl Row {
    pub fn new(what: impl Into<String>, published: f64, simulated: f64) -> Row {
        Row {
            what: what.into(),
            published: Some(published),
            simulated,
            role: Role::Predicted,
        }
    }

    pub fn order(what: impl Into<String>, simulated: f64) -> Row {
        Row {
            what: what.into(),
            published: None,
            simulated,
            role: Role::Order,
        }
    }

    pub fn fitted(self) -> Row {
        Row {
            role: Role::Fitted,
            ..self
        }
    }

    fn error_percent(&self) -> Option<f64> {
        self.published
            .map(|published| (self.simulated / published - 1.0) * 100.0)
    }
}

impl Lab {
    pub fn costs(&self, name: &str) -> Result<Costs> {
        let text = fs::read_to_string(self.folder.join("costs").join(name).with_extension("json"))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// All seeds of a case, two at a time.
    pub fn run(&self, case: &Case) -> Result<Vec<RunResult>> {
        let path = self
            .folder
            .join("workloads")
            .join(case.workload)
            .with_extension("toml");
        let set: BTreeMap<String, String> = case
            .set
            .iter()
            .map(|&(name, value)| (name.to_owned(), format!("{}", value.round() as i64)))
            .collect();
        let text = fs::read_to_string(&path)?;
        let workload =
            workload::parse(&text, &set).map_err(|error| format!("{}: {error}", path.display()))?;
        let topology = Topology::synthetic(case.machine)?;
        let one = |seed| {
            let simulation = Simulation {
                workload: &workload,
                topology: &topology,
                costs: case.costs,
                policy: case.policy,
                seed,
                limits: Limits::default(),
            };
            simulation
                .run()
                .map(|outcome| outcome.result)
                .map_err(|error| error.to_string())
        };
        let seeds: Vec<u64> = (1..=self.seeds).collect();
        let mut results = vec![];
        for pair in seeds.chunks(2) {
            let ends = thread::scope(|scope| {
                let threads: Vec<_> = pair
                    .iter()
                    .map(|&seed| scope.spawn(move || one(seed)))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .collect::<Vec<_>>()
            });
            for end in ends {
                let result = end?;
                if !matches!(result.end.as_str(), "done" | "duration") {
                    return Err(format!(
                        "{} with {}: {} {:?}",
                        case.workload, result.policy, result.end, result.why
                    )
                    .into());
                }
                results.push(result);
            }
        }
        Ok(results)
    }

    /// Adds a heading and the text behind it.
    pub fn section(&mut self, title: &str, text: &str) {
        println!("{title}");
        let _ = write!(self.report, "\n## {title}\n\n{}\n", text.trim());
    }

    /// Adds a table of rows.
    pub fn rows(&mut self, section: &str, rows: &[Row]) {
        self.report
            .push_str("\n| | published | simulated | error % | |\n|---|---|---|---|---|\n");
        for row in rows {
            let published = row.published.map_or("-".to_owned(), number);
            let error = row
                .error_percent()
                .map_or("-".to_owned(), |error| format!("{error:+.1}"));
            let role = match row.role {
                Role::Fitted => "fitted",
                Role::Predicted if row.error_percent().is_some_and(|error| error.abs() <= 15.0) => {
                    "predicted"
                }
                Role::Predicted => "predicted, **misses**",
                Role::Order => "",
            };
            let simulated = number(row.simulated);
            println!(
                "  {:<58}{published:>10}{simulated:>10}{error:>8}  {role}",
                row.what
            );
            let _ = writeln!(
                self.report,
                "| {} | {published} | {simulated} | {error} | {role} |",
                row.what
            );
            let _ = writeln!(
                self.csv,
                "{section},\"{}\",{published},{},{error},{role}",
                row.what, row.simulated
            );
        }
    }

    /// Adds whether something holds.
    pub fn claim(&mut self, what: &str, holds: bool) {
        let holds = if holds { "yes" } else { "**no**" };
        println!("  {what}: {holds}");
        let _ = writeln!(self.report, "\n- {what}: {holds}");
    }
}

/// The median of what `of` says.
pub fn median(results: &[RunResult], of: impl Fn(&RunResult) -> f64) -> f64 {
    let mut all: Vec<f64> = results.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

pub fn seconds(result: &RunResult) -> f64 {
    result.makespan_ns as f64 / 1e9
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
