//! Why there is no recorder.

use std::io;

/// Why there is no recorder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// The kernel has no type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux): {0}; use a kernel built with CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoBtf(String),
    /// The kernel lacks what the programs use.
    #[error("BPF programs as used here need Linux {needed} or newer: {why}")]
    TooOld {
        /// The oldest that has all.
        needed: &'static str,
        /// What the kernel said.
        why: String,
    },
    /// Not allowed, or not supported.
    #[error("cannot load the BPF programs: {0}")]
    Load(String),
    /// A program could not be attached.
    #[error("cannot attach to {hook}: {why}")]
    Attach {
        /// Tracepoint or event.
        hook: String,
        /// What the kernel said.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// errno.
        source: io::Error,
    },
}
pub fn system(what: &'static str) -> impl Fn(io::Error) -> RecorderError {
    move |source| RecorderError::System { what, source }
}

/// An error and what it comes from, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
