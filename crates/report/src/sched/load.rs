//! Reads a result of `amdahl sched`, which may come from anybody.

use std::path::{Path, PathBuf};

use super::check::check;
use super::schema::{SCHEMA, SchedResult};
use crate::load::{LoadError, read};
use crate::plain::{elide, plain, quote};

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
    let result: SchedResult = match serde_json::from_slice(bytes) {
        Ok(result) => result,
        Err(error) => {
            let detail = elide(&plain(&error.to_string()), 200, "...");
            return Err(LoadError::Syntax { path, detail });
        }
    };
    if result.schema != SCHEMA {
        let found = quote(&result.schema);
        return Err(LoadError::Schema { path, found });
    }
    match check(&result) {
        Ok(()) => Ok(result),
        Err(invalid) => Err(LoadError::Invalid {
            path,
            at: invalid.at,
            what: invalid.what,
        }),
    }
}
