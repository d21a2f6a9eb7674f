//! Why there is no page, or nothing on it.

use core::fmt;

/// Why a page cannot be used at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// Nobody publishes one for this process: neither the environment nor the usual places have it.
    NotFound,
    /// `AMDAHL_PHANTOM=off`.
    SwitchedOff,
    /// A system call failed.
    System {
        /// Which.
        operation: &'static str,
        /// errno.
        errno: i32,
    },
    /// Not a regular file, or shorter than a page.
    NotAPage,
    /// It belongs to another user than root or the reader, or others than its owner may write it.
    Untrusted {
        /// The owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It does not begin as a page does: no writer has made it ready yet, or it is something else.
    NoMagic,
    /// Of another version than [`VERSION`](crate::VERSION).
    Version(u32),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            OpenError::NotFound => {
                f.write_str("nobody publishes a page for this process; amdahl phantom --serve does")
            }
            OpenError::SwitchedOff => f.write_str("switched off by AMDAHL_PHANTOM=off"),
            OpenError::System { operation, errno } => {
                write!(f, "cannot {operation} the page: error {errno}")
            }
            OpenError::NotAPage => f.write_str("not a regular file of the size of a page"),
            OpenError::Untrusted { uid, mode } => write!(
                f,
                "not to be trusted: owned by user {uid}, mode {mode:04o}; it must be root's or ours, and writable by its owner alone"
            ),
            OpenError::NoMagic => f.write_str("not a page of estimates"),
            OpenError::Version(version) => write!(
                f,
                "version {version} of the page's layout, where {} is read",
                crate::VERSION
            ),
        }
    }
}

impl core::error::Error for OpenError {}

/// Why a page has nothing to say now. Behave as without a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The writer was at it during all attempts, or was stopped in the middle of a change.
    Busy,
    /// Nothing has been published yet.
    Empty,
    /// Values that cannot be.
    Damaged,
    /// Nothing was published for [`STALE_TICKS`](crate::STALE_TICKS) ticks: the writer is gone or does not get a CPU.
    Stale,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadError::Busy => "the page is being written",
            ReadError::Empty => "nothing was published yet",
            ReadError::Damaged => "the page holds values that cannot be",
            ReadError::Stale => "the page is stale",
        })
    }
}

impl core::error::Error for ReadError {}

/// Why a page of another machine says nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignError {
    /// It is no page that can be read.
    Open(OpenError),
    /// It is one, and says nothing.
    Read(ReadError),
}

impl fmt::Display for ForeignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForeignError::Open(error) => error.fmt(f),
            ForeignError::Read(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ForeignError {}

impl From<OpenError> for ForeignError {
    fn from(error: OpenError) -> ForeignError {
        ForeignError::Open(error)
    }
}

impl From<ReadError> for ForeignError {
    fn from(error: ReadError) -> ForeignError {
        ForeignError::Read(error)
    }
}
