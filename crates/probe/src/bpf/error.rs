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
    /// Threads have other ids in the kernel than here.
    #[error(
        "this is a PID namespace of its own, as in a container: BPF programs know threads by other ids than are seen here"
    )]
    PidNamespace,
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

impl RecorderError {
    /// This process may open no more files. Not where the whole system may not (`ENFILE`), which a privileged process
    /// does not see.
    pub fn is_at_limit_of_files(&self) -> bool {
        let said =
            |why: &str| why.contains(&io::Error::from_raw_os_error(libc::EMFILE).to_string());
        match self {
            RecorderError::System { source, .. } => source.raw_os_error() == Some(libc::EMFILE),
            RecorderError::Load(why) | RecorderError::Attach { why, .. } => said(why),
            RecorderError::NoBtf(_)
            | RecorderError::PidNamespace
            | RecorderError::TooOld { .. } => false,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("a map")]
    struct Deep(#[source] io::Error);

    #[test]
    fn the_limit_of_files_is_known_wherever_it_shows() {
        let load = |errno| RecorderError::Load(chain(&Deep(io::Error::from_raw_os_error(errno))));
        assert!(load(libc::EMFILE).is_at_limit_of_files());
        assert!(!load(libc::EPERM).is_at_limit_of_files());
        let system = |errno| system("open")(io::Error::from_raw_os_error(errno));
        assert!(system(libc::EMFILE).is_at_limit_of_files());
        assert!(!system(libc::ENFILE).is_at_limit_of_files());
    }
}
