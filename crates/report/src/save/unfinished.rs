//! A hidden folder for files that are being written, locked while its writer lives.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

const PREFIX: &str = ".amdahl-unfinished-";

/// Removed with all its files when dropped.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    /// The lock ends with its writer, however that ends.
    _lock: File,
}

impl Unfinished {
    /// Makes one in `place`, after removing those whose writer was killed.
    pub fn create(place: &Path) -> io::Result<Unfinished> {
        remove_abandoned(place);
        let mut attempt = 0_u32;
        loop {
            let path = place.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
            attempt += 1;
            match fs::create_dir(&path) {
                // Of another thread, or of a process with our number in another container.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < 10_000 => continue,
                other => other?,
            }
            // Another writer may take the new folder for an abandoned one before it is locked.
            let lock = match File::open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            flock(&lock, FlockOperation::LockShared)?;
            if is_same(&lock, &path) {
                return Ok(Unfinished { path, _lock: lock });
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Gone already when it was renamed into place; if it cannot be removed now, the next
        // writer tries again.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders that nobody has locked. What cannot be removed is somebody else's and no
/// reason to fail.
fn remove_abandoned(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(folder) = File::open(entry.path()) else {
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
