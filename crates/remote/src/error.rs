//! What can go wrong before and between answers.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::wire::WireError;

/// Why memory cannot be served or had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of keys or certificates cannot be used.
    #[error("{}: {why}", path.display())]
    Credentials {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Keys and certificates do not fit each other, or nobody can be checked with them.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// An address cannot be used.
    #[error("{address}: {error}")]
    Address {
        /// Which.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// Another host, or an address that others can reach, without TLS.
    #[error("{0} is not of this host alone, and nobody would be checked: TLS is needed there")]
    Open(std::net::SocketAddr),
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side said something else than it may.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// What is there now is not the memory that was there before.
    #[error("another memory is served there now than before")]
    Changed,
    /// The answer took longer than it may.
    #[error("no answer within {0:?}")]
    Late(std::time::Duration),
}
