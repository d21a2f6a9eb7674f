//! Files that appear whole under their name or not at all.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use crate::{Error, Result};

const SUFFIX: &str = ".amdahl-part";

/// A file on its way to its name. Its writer holds a lock on it as long as it lives, whatever ends it: a partial file
/// without one is rubbish, which the next writer to that name removes.
pub(crate) struct Partial {
    file: NamedTempFile,
    path: PathBuf,
    folder: PathBuf,
}

impl Partial {
    /// Begins a file that is to be called `path`.
    pub fn create(path: &Path) -> Result<Partial> {
        // On the path as it was given: the kernel refuses links that strangers planted in shared folders.
        let there = match fs::metadata(path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("look at", path, error)),
        };
        // Through a link to what it leads to, as writing would.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return Err(Error::input(format!(
                "{}: is there and is no regular file",
                path.display()
            )));
        }
        let Some(name) = path.file_name() else {
            return Err(Error::input(format!("{}: names no file", path.display())));
        };
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        remove_dead(&folder, prefix.as_encoded_bytes());
        // Memory has secrets: who could not read the old file cannot read the new one, not even its beginning.
        let kept = there.map(|there| there.mode() & 0o777);
        loop {
            let file = tempfile::Builder::new()
                .prefix(&prefix)
                .suffix(SUFFIX)
                .permissions(Permissions::from_mode(kept.map_or(0o666, |_| 0o600)))
                .tempfile_in(&folder)
                .map_err(|error| Error::io("create a file in", &folder, error))?;
            let lived = lock(file.as_file());
            if !lived.map_err(|error| Error::io("lock a file in", &folder, error))? {
                continue;
            }
            if let Some(mode) = kept {
                // Where that is not possible it stays the owner's alone.
                let _ = file.as_file().set_permissions(Permissions::from_mode(mode));
            }
            return Ok(Partial { file, path, folder });
        }
    }

    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Where messages say that it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that it is in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives it its name, once it is on the disk.
    pub fn commit(self) -> Result<()> {
        let Partial { file, path, folder } = self;
        let synced = file.as_file().sync_all();
        synced.map_err(|error| Error::io("write", &path, error))?;
        file.persist(&path)
            .map_err(|error| Error::io("rename to", &path, error.error))?;
        // The name too. A folder that may be written but not read cannot be synced; nor can those of some file systems.
        let Ok(open) = File::open(&folder) else {
            return Ok(());
        };
        match rustix::fs::fsync(&open) {
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            Err(error) => Err(Error::io("write the folder", &folder, error.into())),
        }
    }
}

/// Locks a new file; whether it still has its name. Another writer may have taken it for rubbish before: that one holds
/// the lock until the file is gone, so it is waited for.
fn lock(file: &File) -> io::Result<bool> {
    loop {
        match rustix::fs::flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            // Where files cannot be locked nobody removes others' files either.
            Ok(()) | Err(Errno::NOSYS | Errno::NOTSUP | Errno::NOLCK | Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(file.metadata()?.nlink() > 0)
}

/// Two names of one file.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    canonical(a).is_some_and(|a| canonical(b) == Some(a))
}

/// Removes what writers to the same name left when they were killed.
fn remove_dead(folder: &Path, prefix: &[u8]) {
    let Ok(files) = fs::read_dir(folder) else {
        return;
    };
    for file in files.flatten() {
        let name = file.file_name();
        let name = name.as_encoded_bytes();
        let random = name
            .strip_prefix(prefix)
            .and_then(|name| name.strip_suffix(SUFFIX.as_bytes()));
        // Exactly what is made above: another image's name may begin as ours does.
        let ours = random.is_some_and(|random| random.len() == 6 && !random.contains(&b'.'));
        if !ours || !file.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Some file systems lock only what is open for writing.
        let open = File::options()
            .write(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(file.path());
        if let Ok(open) = open
            && rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn dead_writers_files_go_living_ones_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ami");
        let living = Partial::create(&path).unwrap();
        for name in [
            ".a.ami.dEad00.amdahl-part",
            ".a.ami.x.dEad00.amdahl-part",
            ".a.ami.123456",
        ] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let second = Partial::create(&path).unwrap();
        let left = names(folder.path());
        assert!(
            !left.contains(&".a.ami.dEad00.amdahl-part".to_owned()),
            "{left:?}"
        );
        assert_eq!(left.len(), 4, "{left:?}");
        living.commit().unwrap();
        drop(second);
        let left = names(folder.path());
        assert_eq!(
            left,
            [".a.ami.123456", ".a.ami.x.dEad00.amdahl-part", "a.ami"]
        );
    }

    #[test]
    fn a_writer_waits_for_who_takes_its_file_for_rubbish() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let new = File::create(&path).unwrap();
        let other = File::options().write(true).open(&path).unwrap();
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::thread::scope(|scope| {
            let lived = scope.spawn(|| lock(&new).unwrap());
            fs::remove_file(&path).unwrap();
            drop(other);
            assert!(!lived.join().unwrap());
        });
        assert!(lock(&File::create(&path).unwrap()).unwrap());
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ami");
        for mode in [0o600, 0o640, 0o666] {
            fs::write(&path, "secret").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let partial = Partial::create(&path).unwrap();
            let is = |file: fs::Metadata| file.mode() & 0o777;
            assert_eq!(is(partial.file().metadata().unwrap()), mode);
            partial.commit().unwrap();
            assert_eq!(is(fs::metadata(&path).unwrap()), mode);
        }
    }

    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Partial::create(folder.path()).is_err());
        assert!(Partial::create(Path::new("/dev/null")).is_err());
        assert!(Partial::create(&folder.path().join("none/a")).is_err());
    }
}
