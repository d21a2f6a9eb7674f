//! A hidden folder for files that are being written, its writer's while that lives.

use std::fs;
use std::io;
use std::path::Path;

use amdahl_claim::{Claim, abandoned};

const PREFIX: &str = ".amdahl-unfinished-";

/// Removed with all its files when dropped.
#[derive(Debug)]
pub(super) struct Unfinished(Claim);

impl Unfinished {
    /// Makes one in `place`, after removing those whose writer was killed.
    pub fn create(place: &Path) -> io::Result<Unfinished> {
        remove_abandoned(place);
        Claim::new(place, PREFIX, |path| fs::create_dir(path)).map(Unfinished)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Gone already when it was renamed into place; if it cannot be removed now, the next
        // writer tries again.
        let _ = fs::remove_dir_all(self.path());
    }
}

/// What cannot be removed is somebody else's and no reason to fail.
fn remove_abandoned(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if let Some(_lock) = abandoned(&entry.path(), PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
