#![doc = include_str!("../README.md")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// A folder that we have made.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _lock: File,
}

impl Claim {
    /// Makes a folder in `place` by `make`, called `prefix`, our process id, `-` and a number.
    ///
    /// # Errors
    /// Those of `make`, and of opening and locking what it made.
    pub fn new(
        place: &Path,
        prefix: &str,
        make: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<Claim> {
        let mut attempt = 0_u32;
        loop {
            let path = place.join(format!("{prefix}{}-{attempt}", std::process::id()));
            attempt += 1;
            match make(&path) {
                // Of another thread, or of a process with our number in another container.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < 10_000 => continue,
                other => other?,
            }
            // Who cleans up may take the new folder for an abandoned one before it is locked.
            let lock = match File::open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            flock(&lock, FlockOperation::LockShared)?;
            if is_same(&lock, &path) {
                return Ok(Claim { path, _lock: lock });
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A folder that one of this user's processes had made by [`Claim::new`] and that is nobody's now, locked while it is
/// cleaned up; `None` for all others.
#[must_use]
pub fn abandoned(folder: &Path, prefix: &str) -> Option<File> {
    let name = folder.file_name()?.to_str()?;
    let (pid, attempt) = name.strip_prefix(prefix)?.split_once('-')?;
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let about = fs::symlink_metadata(folder).ok()?;
    let me = rustix::process::geteuid().as_raw();
    if !is_number(pid) || !is_number(attempt) || !about.is_dir() || about.uid() != me {
        return None;
    }
    let lock = File::open(folder).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_same(&lock, folder).then_some(lock)
}

fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_abandoned_when_its_owner_is_gone() {
        let place = tempfile::tempdir().expect("a folder");
        let make = |path: &Path| fs::create_dir(path);
        let claim = Claim::new(place.path(), "x-", make).expect("made");
        let other = Claim::new(place.path(), "x-", make).expect("made");
        assert_ne!(claim.path(), other.path());
        let path = claim.path().to_owned();
        assert!(abandoned(&path, "x-").is_none(), "its owner lives");
        drop(claim);
        assert!(abandoned(&path, "y-").is_none(), "another name");
        assert!(abandoned(&path, "x-").is_some());
    }

    #[test]
    fn what_only_looks_alike_is_left_alone() {
        let place = tempfile::tempdir().expect("a folder");
        for name in ["x-", "x-1", "x-1-", "x-a-1", "x-1-1-1"] {
            let path = place.path().join(name);
            fs::create_dir(&path).expect("made");
            assert!(abandoned(&path, "x-").is_none(), "{name}");
        }
        fs::write(place.path().join("x-1-2"), "").expect("written");
        assert!(abandoned(&place.path().join("x-1-2"), "x-").is_none());
    }
}
