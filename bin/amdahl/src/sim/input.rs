//! What the user names: workloads, machines, costs, policies.

use std::collections::BTreeMap;
use std::path::Path;

use amdahl_des::program::Workload;
use amdahl_des::{Costs, published, workload};
use amdahl_placement::Policy;
use amdahl_topology::Topology;

use super::recorded;
use crate::failure::Failure;

/// What a workload is made of, before its parameters are known.
pub enum Source {
    /// A text, and whether it is rt-app's.
    Text {
        name: String,
        text: String,
        is_rt_app: bool,
    },
    /// A recording, and a text that tells it apart.
    Recording(Box<Workload>, String),
}

impl Source {
    /// For whoever wants to know whether it has changed.
    pub fn text(&self) -> &str {
        match self {
            Source::Text { text, .. } | Source::Recording(_, text) => text,
        }
    }

    /// The workload with these parameters.
    pub fn workload(&self, set: &BTreeMap<String, String>) -> Result<Workload, Failure> {
        let (name, read) = match self {
            Source::Text {
                name,
                text,
                is_rt_app: true,
            } => (name, workload::rt_app(text, set)),
            Source::Text {
                name,
                text,
                is_rt_app: false,
            } => (name, workload::parse(text, set)),
            Source::Recording(workload, _) => match set.keys().next() {
                None => return Ok((**workload).clone()),
                Some(param) => {
                    return Err(Failure::usage(format!(
                        "a recording has no parameter `{param}`: leave out --set"
                    )));
                }
            },
        };
        read.map_err(|error| Failure::usage(format!("{name}: {error}")))
    }
}

/// Reads the workload of this name.
pub fn source(name: &str) -> Result<Source, Failure> {
    let path = Path::new(name);
    if path.is_dir() && (recorded::is_recording(path) || !is_built_in(name)) {
        let (workload, text) = recorded::read(path)?;
        return Ok(Source::Recording(Box::new(workload), text));
    }
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => match workload::BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => (*text).to_owned(),
            None => {
                let known: Vec<&str> = workload::BUILT_IN.iter().map(|&(name, _)| name).collect();
                let known = known.join(", ");
                return Err(Failure::usage(format!(
                    "cannot read the workload {name}: {error}; it is a file, a folder of `amdahl sched record`, or one of {known}"
                )));
            }
        },
    };
    Ok(Source::Text {
        name: name.to_owned(),
        text,
        is_rt_app: path
            .extension()
            .is_some_and(|extension| extension == "json"),
    })
}

/// Whether a workload of this name is always there, folders of the same name notwithstanding.
pub fn is_built_in(name: &str) -> bool {
    workload::BUILT_IN.iter().any(|(known, _)| *known == name)
}

/// `name=value` as typed.
pub fn set(typed: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let pairs = typed.iter().map(|pair| match pair.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::usage(format!(
            "--set {pair}: expected PARAM=VALUE"
        ))),
    });
    pairs.collect()
}

/// The machine of a description, or this one.
pub fn machine(description: Option<&str>) -> Result<Topology, Failure> {
    match description {
        Some(description) => Topology::synthetic(description).map_err(|error| {
            Failure::usage(format!("the machine `{description}`: {error}; an example: '2 node x 2 llc x 8 core x 2 thread'"))
        }),
        None => Topology::read().map_err(|error| {
            Failure::machine(format!("cannot read this machine's topology: {error}; describe one with --machine"))
        }),
    }
}

/// The costs of a file or of a published set.
pub fn costs(name: Option<&str>) -> Result<Costs, Failure> {
    let Some(name) = name else {
        return Ok(Costs::default());
    };
    let text = match std::fs::read_to_string(name) {
        Ok(text) => text,
        Err(error) => match published().into_iter().find(|(known, _)| known == name) {
            Some((_, costs)) => return Ok(costs),
            None => {
                let known: Vec<String> = published().into_iter().map(|(name, _)| name).collect();
                return Err(Failure::usage(format!(
                    "cannot read the costs {name}: {error}; they are a file of `amdahl sim calibrate`, or one of {}, which `amdahl sim costs` describes",
                    known.join(", ")
                )));
            }
        },
    };
    let costs: Costs = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("the costs {name}: {error}")))?;
    costs
        .check()
        .map_err(|error| Failure::usage(format!("the costs {name}: {error}")))?;
    Ok(costs)
}

/// The policy of this name.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, Failure> {
    amdahl_placement::policy(name).map_err(|error| Failure::usage(error.to_string()))
}
