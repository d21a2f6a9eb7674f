//! Why there is nothing to read from.

use std::io;

/// Why a source cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No BPF.
    #[cfg(feature = "bpf")]
    #[error(transparent)]
    Bpf(#[from] amdahl_probe::bpf::RecorderError),
    /// Which CPUs there are, or the control groups of a process, cannot be read.
    #[error(transparent)]
    Topology(#[from] amdahl_topology::Error),
    /// A file of `/proc` cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: &'static str,
        /// Why.
        source: io::Error,
    },
}
