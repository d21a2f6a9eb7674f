//! Reads `result.json`. The file may come from anybody: everything in it is checked before use.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::check::check;
use crate::plain::{elide, plain, quote};
use crate::schema::{SCHEMA, ScaleResult};

/// Name of the result inside its folder.
pub const RESULT_FILE: &str = "result.json";
/// Larger files are refused unread.
pub const RESULT_BYTES_MAX: u64 = 64 << 20;

/// Why a result could not be read. Each message says what, why and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The operating system refused.
    #[error("cannot {operation} {}: {source}; give the folder that `amdahl scale` wrote, or its {RESULT_FILE}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// With the error number of the system call.
        #[source]
        source: io::Error,
    },
    /// A device, pipe or socket.
    #[error("{} is not a regular file; give the folder that `amdahl scale` wrote, or its {RESULT_FILE}", path.display())]
    NotAFile {
        /// Which path.
        path: PathBuf,
    },
    /// Beyond [`RESULT_BYTES_MAX`].
    #[error("{} is larger than {RESULT_BYTES_MAX} bytes, which no result is; check that it is the right file", path.display())]
    TooLarge {
        /// Which path.
        path: PathBuf,
    },
    /// Not JSON, or not of the documented shape.
    #[error("{} is not a readable result: {detail}; it is damaged or not from `amdahl scale`, measure again", path.display())]
    Syntax {
        /// Which path.
        path: PathBuf,
        /// Place and reason.
        detail: String,
    },
    /// Another format or version.
    #[error("{} has the schema {found}, this version reads `{SCHEMA}`; use the amdahl version that wrote it, or measure again", path.display())]
    Schema {
        /// Which path.
        path: PathBuf,
        /// What it claims to be, quoted.
        found: String,
    },
    /// Well-formed, but a figure cannot be true.
    #[error("{} is damaged: `{at}` {what}; measure again", path.display())]
    Invalid {
        /// Which path.
        path: PathBuf,
        /// Path of the figure, e.g. `points.0.wall_s.median`.
        at: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Reads and checks a result from its file or from the folder that holds it.
///
/// # Errors
/// Every way in which the file can be unreadable or untrue, see [`LoadError`].
pub fn load(path: &Path) -> Result<ScaleResult, LoadError> {
    let (bytes, path) = read(path)?;
    parse(&bytes, path)
}

/// The schema that a result claims to have, cut after 100 characters; `None` if it cannot be read.
pub fn schema_of(path: &Path) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Claim {
        schema: String,
    }
    let (bytes, _) = read(path).ok()?;
    let claim: Claim = serde_json::from_slice(&bytes).ok()?;
    Some(claim.schema.chars().take(100).collect())
}

/// The bytes of a result and the path of its file.
pub(crate) fn read(path: &Path) -> Result<(Vec<u8>, PathBuf), LoadError> {
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Io {
            operation,
            path,
            source,
        }
    };
    let mut path = path.to_owned();
    let mut metadata = fs::metadata(&path).map_err(failed("open", &path))?;
    if metadata.is_dir() {
        path.push(RESULT_FILE);
        metadata = fs::metadata(&path).map_err(failed("open", &path))?;
    }
    // Asked before opening: opening a pipe would wait for a writer.
    if !metadata.is_file() {
        return Err(LoadError::NotAFile { path });
    }
    let file = File::open(&path).map_err(failed("open", &path))?;
    let mut bytes = Vec::new();
    file.take(RESULT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("read", &path))?;
    if bytes.len() as u64 > RESULT_BYTES_MAX {
        return Err(LoadError::TooLarge { path });
    }
    Ok((bytes, path))
}

/// Parses and checks a result; `path` is for messages alone.
///
/// # Errors
/// As [`load`], without the errors of the file system.
pub fn parse(bytes: &[u8], path: PathBuf) -> Result<ScaleResult, LoadError> {
    let result: ScaleResult = match serde_json::from_slice(bytes) {
        Ok(result) => result,
        // serde's message may quote the file at length.
        Err(e) => {
            return Err(LoadError::Syntax {
                path,
                detail: elide(&plain(&e.to_string()), 200, "..."),
            });
        }
    };
    if result.schema != SCHEMA {
        let found = if result.schema.is_empty() {
            "none".to_owned()
        } else {
            quote(&result.schema)
        };
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
