//! The file as written.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{Result, WorkloadError, line_of};

/// A number, or an expression as a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Number {
    Plain(i64),
    Text(String),
}

pub(super) type Field = Option<Spanned<Number>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub name: String,
    /// Nobody reads it but people.
    #[serde(default, rename = "about")]
    _about: String,
    pub level: Option<Spanned<String>>,
    #[serde(default)]
    pub params: BTreeMap<String, Spanned<Number>>,
    pub duration: Field,
    #[serde(default)]
    pub locks: BTreeMap<String, Spanned<LockEntry>>,
    #[serde(default)]
    pub conditions: BTreeMap<String, Spanned<Countable>>,
    #[serde(default)]
    pub barriers: BTreeMap<String, Spanned<BarrierEntry>>,
    #[serde(default)]
    pub numbers: BTreeMap<String, Spanned<Number>>,
    #[serde(default)]
    pub teams: BTreeMap<String, Spanned<TeamEntry>>,
    #[serde(default)]
    pub pipes: BTreeMap<String, Spanned<PipeEntry>>,
    #[serde(default)]
    pub devices: BTreeMap<String, Spanned<DeviceEntry>>,
    #[serde(default)]
    pub notices: BTreeMap<String, Spanned<NoticeEntry>>,
    #[serde(default)]
    pub lines: BTreeMap<String, Spanned<Countable>>,
    #[serde(default)]
    pub graphs: BTreeMap<String, Spanned<GraphEntry>>,
    pub tasks: Vec<Spanned<TaskEntry>>,
    #[serde(default)]
    pub changes: Vec<Spanned<ChangeEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Countable {
    pub count: Field,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LockEntry {
    pub count: Field,
    pub kind: Spanned<String>,
    pub spin: Field,
    #[serde(default)]
    pub keeps_cpu: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BarrierEntry {
    pub count: Field,
    pub parties: Field,
    pub spin: Field,
    pub waits: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TeamEntry {
    pub tasks: Vec<Spanned<String>>,
    pub page: Option<Spanned<String>>,
    pub tick: Field,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PipeEntry {
    pub count: Field,
    pub capacity: Field,
    pub low_water: Field,
    pub lines: Field,
    pub spin: Field,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceEntry {
    pub count: Field,
    pub parallelism: Field,
    pub service: Field,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoticeEntry {
    pub count: Field,
    pub initial: Field,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphEntry {
    pub jobs: Vec<Spanned<JobEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobEntry {
    pub name: String,
    pub count: Field,
    pub work: Field,
    /// All jobs of these names come before.
    #[serde(default)]
    pub after: Vec<Spanned<String>>,
    /// The job with the same number comes before.
    #[serde(default)]
    pub after_each: Vec<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskEntry {
    pub name: String,
    pub count: Field,
    pub start: Field,
    #[serde(default)]
    pub daemon: bool,
    #[serde(default)]
    pub threads: bool,
    pub nice: Field,
    pub cpus: Option<Spanned<String>>,
    pub node: Field,
    pub memory: Field,
    pub program: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeEntry {
    pub at: Field,
    pub offline: Option<Spanned<String>>,
    pub online: Option<Spanned<String>>,
    pub cpus: Option<Spanned<String>>,
    /// In thousandths of full speed.
    pub frequency: Field,
}

pub(super) fn read(text: &str) -> Result<File> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        WorkloadError::new(line, error.message())
    })
}
