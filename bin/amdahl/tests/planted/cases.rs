//! `planted/cases.toml`: what is planted in which program. `planted/unprivileged.toml`: what of
//! it is to be found without privileges. Both explain their fields themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use amdahl_report::schema::ScaleResult;
use amdahl_speedup::cause::Cause;
use serde::Deserialize;

/// Stands for "nothing is to be blamed".
pub const NONE: &str = "none";

/// One planted program. Unknown fields are refused: they would be promises that nobody keeps.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub lang: String,
    #[serde(rename = "source")]
    _source: String,
    #[serde(default, rename = "flags")]
    _flags: String,
    bin: Option<String>,
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub beside: Option<String>,
    #[serde(default)]
    pub around: Vec<String>,
    pub cause: String,
    pub second: Option<String>,
    fraction_at_2: Option<f64>,
    second_fraction_at_2: Option<f64>,
    #[serde(default)]
    relative: bool,
    function: Vec<String>,
    #[serde(default)]
    second_function: Vec<String>,
    #[serde(default)]
    pub merged_without_counters: Vec<String>,
    #[serde(default)]
    pub needs_root: bool,
    #[serde(default)]
    pub needs_libgomp: bool,
    #[serde(default)]
    pub needs_disk: bool,
    pub note: String,
}

/// A cause planted in a case.
#[derive(Clone, Copy, Debug)]
pub struct Plant<'a> {
    pub cause: &'a str,
    /// Share of capacity with two CPUs, by arithmetic.
    pub fraction_at_2: Option<f64>,
    /// One CPU needs this activity too: only its growth is a loss.
    pub is_relative: bool,
    /// One of these is to be named.
    pub functions: &'a [String],
}

impl Case {
    /// File in the folder of the binaries.
    pub fn bin(&self) -> &str {
        self.bin.as_deref().unwrap_or(&self.name)
    }

    /// What must come first; `None` where nothing is to be blamed.
    pub fn first(&self) -> Option<Plant<'_>> {
        (self.cause != NONE).then_some(Plant {
            cause: &self.cause,
            fraction_at_2: self.fraction_at_2,
            is_relative: self.relative,
            functions: &self.function,
        })
    }

    /// What must come second, where two causes are planted. Never relative.
    pub fn second(&self) -> Option<Plant<'_>> {
        Some(Plant {
            cause: self.second.as_deref()?,
            fraction_at_2: self.second_fraction_at_2,
            is_relative: false,
            functions: &self.second_function,
        })
    }

    /// `cause` is planted here.
    pub fn plants(&self, cause: Cause) -> bool {
        self.cause == cause.id() || self.second.as_deref() == Some(cause.id())
    }
}

/// What a planted program said of itself at its end.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    pub cause: String,
    /// Seconds of all its threads together.
    pub seconds: f64,
    /// Seconds from its beginning to the line.
    pub wall: f64,
    /// Threads it was told to use.
    pub cpus: u32,
}

/// How well a cause can be found without privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// As with privileges.
    Found,
    /// It comes first, but its size is rough and the code need not be named.
    Approximated,
    /// It is, wholly or in part, counted as one of `into`.
    Merged,
}

/// What to expect of a cause, or of a case, without privileges.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    pub expect: Expect,
    #[serde(default)]
    pub into: Vec<String>,
    pub within: Option<f64>,
    pub function: Option<bool>,
    pub unexplained_below: Option<f64>,
    /// What to expect instead where perf events are refused.
    without_samples: Option<Box<Expectation>>,
    /// For the reader of the file.
    #[serde(rename = "note")]
    _note: Option<String>,
}

/// All of `unprivileged.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unprivileged {
    cause: BTreeMap<String, Expectation>,
    #[serde(default)]
    case: BTreeMap<String, Expectation>,
}

impl Unprivileged {
    /// Reads and checks the file.
    pub fn read(path: &Path, cases: &[Case]) -> Result<Unprivileged, String> {
        let all: Unprivileged = parse(path)?;
        for (name, entry) in all.cause.iter().chain(&all.case) {
            let otherwise = entry.without_samples.iter().flat_map(|other| &other.into);
            for id in entry.into.iter().chain(otherwise) {
                known(id).map_err(|why| format!("{}: {name}: {why}", path.display()))?;
            }
        }
        for id in all.cause.keys().filter(|id| *id != NONE) {
            known(id).map_err(|why| format!("{}: {why}", path.display()))?;
        }
        if let Some(name) = all
            .case
            .keys()
            .find(|name| !cases.iter().any(|case| case.name == **name))
        {
            return Err(format!("{}: there is no case {name}", path.display()));
        }
        for cause in cases
            .iter()
            .flat_map(|case| [Some(&case.cause), case.second.as_ref()])
            .flatten()
        {
            if !all.cause.contains_key(cause) {
                return Err(format!("{}: says nothing of {cause}", path.display()));
            }
        }
        Ok(all)
    }

    /// What to expect of a cause of a case; what is said of the case itself goes before.
    pub fn of(&self, case: &Case, cause: &str, result: &ScaleResult) -> &Expectation {
        let expectation = self
            .case
            .get(&case.name)
            .unwrap_or_else(|| &self.cause[cause]);
        let mut stacks = result
            .sources
            .iter()
            .filter(|source| source.what.ends_with("stacks"));
        match &expectation.without_samples {
            Some(otherwise) if stacks.all(|source| source.how == "missing") => otherwise,
            _ => expectation,
        }
    }
}

/// Reads and checks `cases.toml`.
pub fn read(path: &Path) -> Result<Vec<Case>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cases {
        case: Vec<Case>,
    }
    let Cases { case: cases } = parse(path)?;
    let mut names = BTreeSet::new();
    for case in &cases {
        let wrong = |why: String| format!("{}: case {}: {why}", path.display(), case.name);
        if !names.insert(&case.name) {
            return Err(wrong("occurs twice".to_owned()));
        }
        let causes = [
            case.first().map(|plant| plant.cause),
            case.second.as_deref(),
        ];
        let causes = causes.into_iter().flatten();
        for id in causes.chain(case.merged_without_counters.iter().map(String::as_str)) {
            known(id).map_err(wrong)?;
        }
    }
    Ok(cases)
}

fn known(id: &str) -> Result<(), String> {
    Cause::from_id(id)
        .map(drop)
        .ok_or_else(|| format!("there is no cause {id}"))
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}
