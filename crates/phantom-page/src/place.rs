//! Where pages lie, and what their files are called.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject<'a> {
    /// A process with its descendants.
    Process(u32),
    /// A control group, by its folder.
    Group(&'a Path),
    /// The CPUs of a virtual machine, by its process.
    Machine(u32),
    /// Everything that runs here.
    System,
}

/// There is no place for pages.
#[derive(Debug)]
pub struct PlaceError {
    /// Where they would lie.
    pub directory: PathBuf,
    /// Why not.
    pub source: io::Error,
}

impl std::fmt::Display for PlaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PlaceError { directory, source } = self;
        write!(
            f,
            "pages cannot lie in {}: {source}; set XDG_RUNTIME_DIR to a folder of yours",
            directory.display()
        )
    }
}

impl std::error::Error for PlaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// How the names of pages begin.
pub(crate) const PREFIX: &str = "phantom-";

/// The folder for pages of this user: `amdahl` in `XDG_RUNTIME_DIR`, else `/dev/shm/amdahl-UID`, which everybody may read. Root's is
/// always the latter, or other users would not find it. It is made if it is not there.
///
/// # Errors
/// When it cannot be made, or when it is there and others may change what lies in it.
pub fn directory() -> Result<PathBuf, PlaceError> {
    // SAFETY: cannot fail.
    let me = unsafe { libc::geteuid() };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty() && me != 0);
    let directory = match runtime {
        Some(runtime) => Path::new(&runtime).join("amdahl"),
        None => PathBuf::from(format!("/dev/shm/amdahl-{me}")),
    };
    match prepare(&directory, me) {
        Ok(()) => Ok(directory),
        Err(source) => Err(PlaceError { directory, source }),
    }
}

fn prepare(directory: &Path, me: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // /dev/shm is everybody's: somebody else may have made it first.
    let about = fs::symlink_metadata(directory)?;
    if !about.is_dir() || about.uid() != me || about.mode() & 0o022 != 0 {
        return Err(io::Error::other(
            "it is there already, and is not a folder that this user alone may change",
        ));
    }
    Ok(())
}

/// The file of the page about `subject`, in [`directory`].
///
/// # Errors
/// As [`directory`].
pub fn path(subject: Subject<'_>) -> Result<PathBuf, PlaceError> {
    Ok(directory()?.join(name(subject)))
}

fn name(subject: Subject<'_>) -> String {
    match subject {
        Subject::Process(pid) => format!("{PREFIX}pid-{pid}"),
        Subject::Machine(pid) => format!("{PREFIX}vm-{pid}"),
        Subject::System => format!("{PREFIX}system"),
        Subject::Group(folder) => {
            // Paths may be longer than names: the last part for people, all of it as a number.
            let last = folder.file_name().unwrap_or(OsStr::new("root"));
            let last: String = last
                .to_string_lossy()
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
                .take(64)
                .collect();
            let hash = fnv(folder.as_os_str().as_bytes());
            format!("{PREFIX}cgroup-{last}-{hash:016x}")
        }
    }
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits: the same number in every version.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn names_tell_subjects_apart() {
        assert_eq!(name(Subject::Process(7)), "phantom-pid-7");
        assert_eq!(name(Subject::Machine(7)), "phantom-vm-7");
        assert_eq!(name(Subject::System), "phantom-system");
        let group = |path: &str| name(Subject::Group(Path::new(path)));
        assert!(group("/sys/fs/cgroup/a/b c").starts_with("phantom-cgroup-b_c-"));
        assert_ne!(group("/sys/fs/cgroup/a/b"), group("/sys/fs/cgroup/c/b"));
        let long = format!("/sys/fs/cgroup/{}", "é".repeat(2000));
        assert!(group(&long).len() < 128);
        // Of FNV's own test suite.
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_folder_that_others_may_change_is_refused() {
        // SAFETY: cannot fail.
        let me = unsafe { libc::geteuid() };
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("amdahl");
        prepare(&inside, me).unwrap();
        prepare(&inside, me).unwrap();
        assert!(prepare(&inside, me + 1).is_err());
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare(&inside, me).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(prepare(&link, me).is_err());
    }
}
