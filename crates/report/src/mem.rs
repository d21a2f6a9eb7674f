//! The result of `amdahl mem`: its documented shape, and how it is shown.
//!
//! `result.json` has the schema [`schema::SCHEMA`] and is untrusted when it is read:
//! see [`parse`].

mod check;
pub mod csv;
mod headline;
pub mod html;
pub mod schema;
pub mod terminal;

use std::path::PathBuf;

use crate::load::{LoadError, parse_as};
use crate::save::{SaveError, json_of};
use schema::{MemResult, SCHEMA};

/// Reads and checks a result from the content of its file; `path` is for messages alone.
///
/// # Errors
/// Every way in which it can be unreadable or untrue, see [`LoadError`].
pub fn parse(bytes: &[u8], path: PathBuf) -> Result<MemResult, LoadError> {
    parse_as(
        bytes,
        path,
        SCHEMA,
        |result: &MemResult| &result.schema,
        check::check,
    )
}

/// Checks `result` and gives it as the text of `result.json`.
///
/// # Errors
/// [`SaveError::Invalid`] when [`parse`] would refuse it.
pub fn to_json(result: &MemResult) -> Result<String, SaveError> {
    json_of(result, check::check, serde_json::to_string_pretty)
}

#[cfg(test)]
mod tests;
