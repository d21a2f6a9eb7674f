//! What can go wrong, and what it means for the two sides.

use std::net::IpAddr;
use std::time::Duration;

use amdahl_pager::Loss;
use rustix::io::Errno;
use thiserror::Error;

use crate::wire::WireError;

/// Why a migration did not come to its end.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Kernel or privileges do not allow it. Says what would.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked for cannot be.
    #[error("{0}")]
    Config(&'static str),
    /// A system call failed.
    #[error("{operation}: {}", std::io::Error::from(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// Nobody can be reached there.
    #[error("{way}: {why}")]
    Unreachable {
        /// Where.
        way: String,
        /// What the system says.
        why: String,
    },
    /// Memory is not sent to other hosts, or taken from them, unless both sides know each other.
    #[error("{0} is another host: certificates are needed")]
    Insecure(IpAddr),
    /// A process cannot be asked to let its memory move, or says no more about it.
    #[error("process {pid}: {why}")]
    NoDoor {
        /// Which.
        pid: u32,
        /// Why, and what can be asked.
        why: &'static str,
    },
    /// The connection is gone.
    #[error("the connection to the other side is gone: {0}")]
    Cut(String),
    /// The other side said nothing.
    #[error("the other side said nothing for {0:?}")]
    Late(Duration),
    /// From the call of [`Guest::pause`](crate::Guest::pause) to the word of the other side that it is ready more time went by than
    /// [`Departure::pause_max`](crate::Departure::pause_max).
    #[error("the guest stood still for {0:?}, and the other side was not ready")]
    PausedTooLong(Duration),
    /// The other side said something else than it may.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The other side does not want to.
    #[error("the other side refuses: {0}")]
    Refused(String),
    /// Our owner does not want to.
    #[error("{0}")]
    Guest(String),
    /// It was asked to end.
    #[error("cancelled")]
    Cancelled,
    /// The memory is written faster than it is sent.
    #[error(
        "after {rounds} rounds {dirty_pages} pages are still to be sent and the pause would last {estimate:?}: allow post-copy, a longer pause or more rounds, or let the guest be slowed down"
    )]
    NotConverging {
        /// Rounds.
        rounds: u32,
        /// Pages left.
        dirty_pages: u64,
        /// How long the guest would stand still.
        estimate: Duration,
    },
    /// A page that is to be fetched is there, although it was given up: its content would be wrong.
    #[error(
        "page {page} is there although it was given up: who else uses this memory, or are huge pages forced (shmem_enabled)?"
    )]
    NotGivenUp {
        /// Which.
        page: u64,
    },
    /// Pages cannot be served or fetched.
    #[error("pages: {0}")]
    Remote(String),
    /// The pager did not start.
    #[error("{0}")]
    Pager(String),
    /// After the switch-over: whether the destination runs is not known here. The guest stays stopped, and its memory is served on.
    #[error(
        "whether the destination runs is not known: {0}. Ask there; only if it does not run may the guest go on here"
    )]
    Unknown(Box<Error>),
    /// After the switch-over: pages can be had no more. The guest is to be ended; it has seen nothing wrong.
    #[error(
        "{pages} pages from page {page} on cannot be had from the source any more: {why}. The guest cannot go on, here or there"
    )]
    Lost {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
        /// Why.
        why: Loss,
    },
}

impl From<amdahl_remote::Error> for Error {
    fn from(error: amdahl_remote::Error) -> Error {
        Error::Remote(error.to_string())
    }
}
