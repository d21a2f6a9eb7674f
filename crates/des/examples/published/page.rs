//! Published figures as data: the files in `rows/`, described in docs/sim-published.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::Result;

/// One source with its figures.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    #[serde(skip)]
    pub file: String,
    pub title: String,
    pub source: String,
    #[serde(default)]
    pub about: String,
    #[serde(default)]
    pub machines: BTreeMap<String, MachineSpec>,
    #[serde(default)]
    pub constants: Vec<Constant>,
    #[serde(default)]
    pub tables: Vec<Table>,
    #[serde(default)]
    pub orders: Vec<Order>,
    #[serde(default)]
    pub not_modelled: Vec<NotModelled>,
}

/// A machine: its topology and what things cost on it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    pub topology: String,
    /// A file in `costs/`; without it the simulator's defaults.
    pub costs: Option<String>,
    /// Costs that are constants.
    #[serde(default)]
    pub with: BTreeMap<String, Value>,
}

/// A number, or the name of a constant.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Number(f64),
    Name(String),
}

/// A number that was chosen so that one row agrees. It holds for all pages.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    pub name: String,
    pub what: String,
    pub unit: String,
    /// The row of this page.
    pub fitted_on: String,
    /// Where the search begins.
    pub start: [f64; 2],
}

/// Rows that are alike.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    #[serde(default)]
    pub workload: Option<String>,
    #[serde(default)]
    pub machine: Option<String>,
    #[serde(default)]
    pub policy: Option<String>,
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    #[serde(default = "three")]
    pub seeds: u64,
    #[serde(default)]
    pub lengths: Option<Lengths>,
    /// What the first cells of each row mean: `name`, `workload`, `machine`, `policy` or a parameter of the workload.
    #[serde(default)]
    pub parameters: Vec<String>,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

fn three() -> u64 {
    3
}

/// The published run is too long: two short ones, extrapolated.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    pub parameter: String,
    pub short: f64,
    pub long: f64,
    pub full: f64,
}

/// What stands in a column: a measure of a run, or two columns compared.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    pub name: String,
    #[serde(default)]
    pub workload: Option<String>,
    #[serde(default)]
    pub machine: Option<String>,
    #[serde(default)]
    pub policy: Option<String>,
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    #[serde(default)]
    pub measure: Option<String>,
    /// The first column's value by the second one's.
    #[serde(default)]
    pub ratio: Option<[String; 2]>,
    /// The same, less 1, in hundredths.
    #[serde(default)]
    pub gain_percent: Option<[String; 2]>,
}

/// A published figure; a text is a name among the parameters, and `"-"` a figure that was not published.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    Number(f64),
    Text(String),
}

/// What must hold among simulated rows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub what: String,
    /// Each is greater than the next.
    #[serde(default)]
    pub greater: Vec<String>,
    /// By this factor.
    #[serde(default = "one")]
    pub by: f64,
    /// All are as the first one.
    #[serde(default)]
    pub alike: Vec<String>,
    /// But for this share.
    #[serde(default)]
    pub within: f64,
    /// Nobody has published it: it is what one would think.
    #[serde(default)]
    pub expected: bool,
}

fn one() -> f64 {
    1.0
}

/// A published figure that is not predicted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotModelled {
    pub row: String,
    pub published: String,
    pub why: String,
}

/// All pages of a folder, in the order of their names.
pub fn read(folder: &Path) -> Result<Vec<Page>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .map_err(|error| format!("cannot read {}: {error}", folder.display()))?
        .collect::<std::result::Result<Vec<_>, _>>()?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| {
            let mut page: Page = toml::from_str(&fs::read_to_string(path)?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            page.file = path
                .file_stem()
                .expect("it has a name")
                .to_string_lossy()
                .into_owned();
            Ok(page)
        })
        .collect()
}
