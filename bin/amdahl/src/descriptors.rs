//! How many files may be open: we may have as many as the hard limit allows, programs that we start have what we had.
//!
//! A recording takes several descriptors for each CPU, and the usual soft limit is 1,024, for the sake of programs that use
//! `select`. A program whose own limit were raised might close descriptors one by one up to it.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that we were started with.
static INHERITED: OnceLock<Rlimit> = OnceLock::new();

/// Raises our own limit. Where that is refused, it stays.
pub fn allow_many() {
    let limit = *INHERITED.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// What gives a new process the limit that we were started with. It makes a system call and nothing else.
pub fn give_back() -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
    let limit = INHERITED.get().copied();
    move || match limit {
        Some(limit) => Ok(setrlimit(Resource::Nofile, limit)?),
        None => Ok(()),
    }
}
