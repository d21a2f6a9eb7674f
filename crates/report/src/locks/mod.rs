//! The result of `amdahl locks`: which locks were waited for, where, how long and because of whom.

mod check;
mod csv;
mod html;
pub mod lines;
pub mod schema;
mod terminal;

use std::path::{Path, PathBuf};

use crate::load::{LoadError, parse_as, read};
use crate::save::{SaveError, json_of};
use schema::{LocksResult, SCHEMA};

pub use csv::csv;
pub use html::render as render_html;
pub use terminal::{Shown, losses, render};

/// Reads and checks a result from its file or from the folder that holds it.
///
/// # Errors
/// Every way in which the file can be unreadable or untrue, see [`LoadError`].
pub fn load(path: &Path) -> Result<LocksResult, LoadError> {
    let (bytes, path) = read(path)?;
    parse(&bytes, path)
}

/// Parses and checks a result; `path` is for messages alone.
///
/// # Errors
/// As [`load`], without the errors of the file system.
pub fn parse(bytes: &[u8], path: PathBuf) -> Result<LocksResult, LoadError> {
    parse_as(
        bytes,
        path,
        SCHEMA,
        |result: &LocksResult| &result.schema,
        check::check,
    )
}

/// Checks `result` and gives it as the text of `result.json`.
///
/// # Errors
/// [`SaveError::Invalid`] when [`parse`] would refuse it.
pub fn to_json(result: &LocksResult) -> Result<String, SaveError> {
    json_of(result, check::check, serde_json::to_string_pretty)
}
