//! A folder for what a workload's processes write for us, and nobody keeps.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use amdahl_claim::{Claim, abandoned};

/// Removed with its files when dropped; those of killed predecessors are removed by the next start.
#[derive(Debug)]
pub struct Scratch(Claim);

const PREFIX: &str = "amdahl-scratch-";

impl Scratch {
    /// Makes one that is this user's alone.
    pub fn new() -> io::Result<Scratch> {
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        Claim::new(&std::env::temp_dir(), PREFIX, make).map(Scratch)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it cannot be removed now, the next start tries again.
        let _ = fs::remove_dir_all(self.path());
    }
}

/// Removes what nobody owns any more.
pub fn clean_up_after_the_killed() {
    let entries = fs::read_dir(std::env::temp_dir());
    for entry in entries.into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some(_lock) = abandoned(&path, PREFIX) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}
