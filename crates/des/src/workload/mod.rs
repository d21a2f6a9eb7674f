//! Workload files, compiled to what the engine runs.

mod compile;
mod expression;
mod file;
mod graph;
mod json;
mod lex;
mod objects;
mod replay;
mod rt_app;

use std::collections::BTreeMap;

use crate::program::Workload;
pub use replay::Replay;
pub use rt_app::rt_app;

/// Workloads that come with the crate: name and text.
pub const BUILT_IN: [(&str, &str); 7] = [
    ("barrier", include_str!("../../workloads/barrier.toml")),
    ("build", include_str!("../../workloads/build.toml")),
    ("hackbench", include_str!("../../workloads/hackbench.toml")),
    (
        "lock-storm",
        include_str!("../../workloads/lock-storm.toml"),
    ),
    ("openmp", include_str!("../../workloads/openmp.toml")),
    ("paging", include_str!("../../workloads/paging.toml")),
    ("ping-pong", include_str!("../../workloads/ping-pong.toml")),
];

/// What is wrong with a workload, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadError {
    /// Line of the file, from 1; `None` if it is no single one.
    pub line: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

impl WorkloadError {
    pub(crate) fn new(line: Option<usize>, message: impl Into<String>) -> WorkloadError {
        WorkloadError {
            line,
            message: message.into(),
        }
    }
}

impl std::fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for WorkloadError {}

pub(crate) type Result<T> = std::result::Result<T, WorkloadError>;

/// Reads a workload in the format of docs/sim-workload.md. `set` replaces the values of parameters.
///
/// # Errors
/// What is wrong, with the line.
pub fn parse(text: &str, set: &BTreeMap<String, String>) -> Result<Workload> {
    let file = file::read(text)?;
    compile::compile(text, file, set)
}

/// The line, from 1, in which a byte is.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// What a text within the file begins with: where lines of it are.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    first: usize,
}

impl Origin {
    /// Of a string of the file, quotes included in `span`.
    pub fn of(text: &str, span: std::ops::Range<usize>) -> Origin {
        let first = line_of(text, span.start);
        let quoted = text.get(span).unwrap_or_default();
        let inner = quoted
            .strip_prefix("'''")
            .or_else(|| quoted.strip_prefix("\"\"\""));
        // A line break right behind three quotes is no part of the string.
        let skips = inner.is_some_and(|inner| inner.starts_with('\n') || inner.starts_with("\r\n"));
        Origin {
            first: first + usize::from(skips),
        }
    }

    pub fn line(self, inner: &str, at: usize) -> usize {
        self.first + line_of(inner, at) - 1
    }
}
