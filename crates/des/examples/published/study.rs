//! Which runs the rows need, and what these runs gave.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use amdahl_des::{Costs, Limits, RunResult, Simulation, workload};
use amdahl_topology::Topology;

use crate::Result;
use crate::measure::Measure;
use crate::page::{Cell, Column, Lengths, MachineSpec, Page, Table, Value};

/// A simulated configuration, without the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    workload: String,
    topology: String,
    costs: Costs,
    policy: String,
    set: BTreeMap<String, i64>,
    seeds: u64,
    lengths: Option<[f64; 3]>,
    parameter: String,
}

impl Case {
    fn key(&self) -> String {
        format!("{self:?}")
    }
}

/// What a row is computed from.
#[derive(Clone)]
pub enum Source {
    Run(Box<Case>, Measure),
    /// Rows of the same table, by their index on the page.
    Ratio(usize, usize),
    Gain(usize, usize),
}

/// A row before it is simulated.
#[derive(Clone)]
pub struct RowSpec {
    pub name: String,
    pub published: Option<f64>,
    pub source: Source,
}

pub struct Study {
    pub folder: PathBuf,
    /// Values of the constants.
    pub constants: BTreeMap<String, f64>,
    runs: HashMap<String, Vec<Vec<RunResult>>>,
}

impl Study {
    pub fn new(folder: PathBuf, constants: BTreeMap<String, f64>) -> Study {
        Study {
            folder,
            constants,
            runs: HashMap::new(),
        }
    }

    fn value(&self, value: &Value) -> Result<f64> {
        match value {
            Value::Number(number) => Ok(*number),
            Value::Name(name) => self.constants.get(name).copied().ok_or_else(|| {
                format!("there is no constant `{name}`: fit it with --fit, or name it on a page")
                    .into()
            }),
        }
    }

    fn costs(&self, machine: &MachineSpec) -> Result<Costs> {
        let mut costs = serde_json::Map::new();
        if let Some(name) = &machine.costs {
            let path = self.folder.join("costs").join(name).with_extension("json");
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            costs = serde_json::from_str(&text)?;
        }
        for (name, value) in &machine.with {
            costs.insert(name.clone(), (self.value(value)?.round() as u64).into());
        }
        Ok(serde_json::from_value(costs.into())?)
    }

    /// All rows of a page, those of its tables one after the other.
    pub fn rows(&self, page: &Page) -> Result<Vec<RowSpec>> {
        let mut rows = vec![];
        for table in &page.tables {
            for cells in &table.rows {
                self.line(page, table, cells, &mut rows)
                    .map_err(|error| format!("{}: {error}", page.file))?;
            }
        }
        Ok(rows)
    }

    fn line(
        &self,
        page: &Page,
        table: &Table,
        cells: &[Cell],
        rows: &mut Vec<RowSpec>,
    ) -> Result<()> {
        let (given, figures) = cells
            .split_at_checked(table.parameters.len())
            .ok_or("a row has fewer cells than parameters")?;
        if figures.len() != table.columns.len() {
            let (figures, columns) = (figures.len(), table.columns.len());
            return Err(format!("a row has {figures} figures for {columns} columns").into());
        }
        let is_named = table.parameters.iter().any(|one| one == "name");
        let mut set = table.set.clone();
        let mut texts: BTreeMap<&str, &str> = BTreeMap::new();
        let mut label = vec![];
        for (parameter, cell) in table.parameters.iter().zip(given) {
            match cell {
                Cell::Text(text) => {
                    if parameter == "name" || !is_named {
                        label.push(text.clone());
                    }
                    texts.insert(parameter, text);
                }
                Cell::Number(number) => {
                    if !is_named {
                        label.push(format!("{number} {parameter}"));
                    }
                    set.insert(parameter.clone(), Value::Number(*number));
                }
            }
        }
        let label = label.join(", ");
        let first = rows.len();
        let index = |name: &str| {
            let at = table.columns.iter().position(|column| column.name == *name);
            at.map(|at| first + at)
                .ok_or_else(|| format!("no column is called `{name}`"))
        };
        for (column, figure) in table.columns.iter().zip(figures) {
            let published = match figure {
                Cell::Number(number) => Some(*number),
                Cell::Text(text) if text == "-" => None,
                Cell::Text(text) => return Err(format!("`{text}` is no figure").into()),
            };
            let source = match (&column.measure, &column.ratio, &column.gain_percent) {
                (None, Some([a, b]), None) => Source::Ratio(index(a)?, index(b)?),
                (None, None, Some([a, b])) => Source::Gain(index(a)?, index(b)?),
                (Some(measure), None, None) => {
                    let case = self.case(page, table, column, &texts, &set)?;
                    Source::Run(Box::new(case), measure.parse()?)
                }
                _ => {
                    return Err(format!(
                        "column `{}` needs one of measure, ratio and gain_percent",
                        column.name
                    )
                    .into());
                }
            };
            let name = match label.is_empty() {
                true => column.name.clone(),
                false => format!("{label}: {}", column.name),
            };
            rows.push(RowSpec {
                name,
                published,
                source,
            });
        }
        Ok(())
    }

    fn case(
        &self,
        page: &Page,
        table: &Table,
        column: &Column,
        texts: &BTreeMap<&str, &str>,
        set: &BTreeMap<String, Value>,
    ) -> Result<Case> {
        let choose = |what: &str, of_column: &Option<String>, of_table: &Option<String>| {
            let of_row = texts.get(what).map(|text| (*text).to_owned());
            of_column
                .clone()
                .or(of_row)
                .or_else(|| of_table.clone())
                .ok_or_else(|| format!("column `{}`: no {what} is named", column.name))
        };
        let name = choose("machine", &column.machine, &table.machine)?;
        let machine = page
            .machines
            .get(&name)
            .ok_or_else(|| format!("no machine is called `{name}`"))?;
        let mut numbers = BTreeMap::new();
        for (name, value) in set.iter().chain(&column.set) {
            numbers.insert(name.clone(), self.value(value)?.round() as i64);
        }
        let lengths = table.lengths.as_ref();
        Ok(Case {
            workload: choose("workload", &column.workload, &table.workload)?,
            topology: machine.topology.clone(),
            costs: self.costs(machine)?,
            policy: choose("policy", &column.policy, &table.policy)?,
            set: numbers,
            seeds: table.seeds,
            lengths: lengths.map(
                |Lengths {
                     short, long, full, ..
                 }| [*short, *long, *full],
            ),
            parameter: lengths.map_or_else(String::new, |lengths| lengths.parameter.clone()),
        })
    }

    /// Simulates what is not known yet, on all CPUs.
    pub fn simulate(&mut self, rows: &[RowSpec]) -> Result<()> {
        let mut cases: Vec<&Case> = vec![];
        let mut seen = BTreeSet::new();
        for row in rows {
            if let Source::Run(case, _) = &row.source {
                let key = case.key();
                let known = self.runs.contains_key(&key);
                if !known && seen.insert(key) {
                    cases.push(case);
                }
            }
        }
        let mut jobs = vec![];
        for (at, case) in cases.iter().enumerate() {
            for length in 0..case.lengths.map_or(1, |_| 2) {
                jobs.extend((1..=case.seeds).map(|seed| (at, length, seed)));
            }
        }
        let next = AtomicUsize::new(0);
        let ends = Mutex::new(vec![]);
        let study: &Study = self;
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some(&(at, length, seed)) =
                        jobs.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let end = study
                            .one(cases[at], length, seed)
                            .map_err(|error| error.to_string());
                        ends.lock()
                            .expect("no panic")
                            .push(((at, length, seed), end));
                    }
                });
            }
        });
        let mut ends = ends.into_inner().expect("no panic");
        ends.sort_by_key(|(job, _)| *job);
        for ((at, length, _), end) in ends {
            let of_case = self.runs.entry(cases[at].key()).or_default();
            of_case.resize_with(of_case.len().max(length + 1), Vec::new);
            of_case[length].push(end?);
        }
        Ok(())
    }

    fn one(&self, case: &Case, length: usize, seed: u64) -> Result<RunResult> {
        let path = self
            .folder
            .join("workloads")
            .join(&case.workload)
            .with_extension("toml");
        let mut set: BTreeMap<String, String> = case
            .set
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect();
        if let Some(lengths) = case.lengths {
            set.insert(case.parameter.clone(), lengths[length].to_string());
        }
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let workload =
            workload::parse(&text, &set).map_err(|error| format!("{}: {error}", path.display()))?;
        let simulation = Simulation {
            workload: &workload,
            topology: &Topology::synthetic(&case.topology)?,
            costs: &case.costs,
            policy: &*amdahl_placement::policy(&case.policy)?,
            seed,
            limits: Limits::default(),
        };
        let mut result = simulation.run()?.result;
        if !result.is_complete() {
            let RunResult { end, why, .. } = &result;
            return Err(format!("{} with {}: {end} {why:?}", case.workload, case.policy).into());
        }
        result.cpu_rows.clear();
        result.tasks.clear();
        Ok(result)
    }

    /// The values of simulated rows.
    pub fn values(&self, rows: &[RowSpec]) -> Vec<f64> {
        let mut values = vec![f64::NAN; rows.len()];
        for (row, value) in rows.iter().zip(&mut values) {
            if let Source::Run(case, measure) = &row.source {
                *value = measure.of(&self.runs[&case.key()], case.lengths);
            }
        }
        for at in 0..rows.len() {
            values[at] = match rows[at].source {
                Source::Run(..) => continue,
                Source::Ratio(a, b) => values[a] / values[b],
                Source::Gain(a, b) => (values[a] / values[b] - 1.0) * 100.0,
            };
        }
        values
    }
}
