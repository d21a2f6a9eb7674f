//! Reads a result of `amdahl sched`, which may come from anybody.

use std::path::{Path, PathBuf};

use super::check::check;
use super::schema::{SCHEMA, SchedResult};
use crate::load::{LoadError, parse_as, read};

/// Reads and checks a result from its file or from the folder that holds it.
///
/// # Errors
/// Every way in which the file can be unreadable or untrue, see [`LoadError`].
pub fn load(path: &Path) -> Result<SchedResult, LoadError> {
    let (bytes, path) = read(path)?;
    parse(&bytes, path)
}

/// Parses and checks a result; `path` is for messages alone.
///
/// # Errors
/// As [`load`], without the errors of the file system.
pub fn parse(bytes: &[u8], path: PathBuf) -> Result<SchedResult, LoadError> {
    parse_as(
        bytes,
        path,
        SCHEMA,
        |result: &SchedResult| &result.schema,
        check,
    )
}
