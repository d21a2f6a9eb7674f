//! What can go wrong when a pager is set up.

use rustix::io::Errno;

/// Why a pager could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kernel or privileges do not allow it. Says what would.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked for cannot be.
    #[error("{0}")]
    Config(&'static str),
    /// It may be possible in a moment.
    #[error("memory that was moved, or copied by fork, is not dealt with yet")]
    Busy,
    /// A system call failed.
    #[error("{operation}: {}", std::io::Error::from(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn system(operation: &'static str) -> impl Fn(Errno) -> Error {
        move |errno| Error::System { operation, errno }
    }
}
