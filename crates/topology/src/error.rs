//! What can go wrong when the machine is read.

use std::io;
use std::path::{Path, PathBuf};

/// Result of reading the machine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the machine could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of the kernel holds something else than expected.
    #[error("{} holds `{value}` instead of {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds, cut after 80 characters.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// There is no CPU below this sysfs folder.
    #[error("no CPU found in {}", path.display())]
    NoCpus {
        /// The folder.
        path: PathBuf,
    },
    /// A system call on the affinity mask of a thread failed.
    #[error("{operation} of thread {tid} (0 is the caller): {source}")]
    Affinity {
        /// The system call.
        operation: &'static str,
        /// The thread; 0 for the caller.
        tid: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Error::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, value: &str, expected: &'static str) -> Self {
        Error::Malformed {
            path: path.to_owned(),
            value: value.chars().take(80).collect(),
            expected,
        }
    }
}
