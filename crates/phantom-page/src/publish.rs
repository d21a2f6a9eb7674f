//! The writer's side: making a page, publishing on it, and taking it away.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::layout::{MAGIC, PAGE_BYTES, Page};
use crate::place::PREFIX;
use crate::snapshot::{Snapshot, Source};

/// Why a page cannot be published.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// Somebody else is doing so.
    Taken {
        /// Its file.
        path: PathBuf,
        /// Process id of the other writer, 0 if it has not told yet.
        writer: u32,
    },
    /// Its file system is full.
    NoRoom {
        /// Its file, which is gone again.
        path: PathBuf,
    },
    /// What is at the path is not to be written to.
    Refused {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// A system call failed.
    System {
        /// Which.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl std::fmt::Display for PublishError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PublishError::Taken { path, writer } => write!(
                f,
                "{} is written by process {writer} already; use that page, or end that process",
                path.display()
            ),
            PublishError::NoRoom { path } => write!(
                f,
                "no room for the page {}: its file system is full; make room there, or (but as root) set XDG_RUNTIME_DIR to a folder elsewhere",
                path.display()
            ),
            PublishError::Refused { path, why } => {
                write!(f, "{} is not written to: {why}", path.display())
            }
            PublishError::System {
                operation,
                path,
                source,
            } => write!(
                f,
                "cannot {operation} the page {}: {source}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PublishError::Taken { .. }
            | PublishError::NoRoom { .. }
            | PublishError::Refused { .. } => None,
            PublishError::System { source, .. } => Some(source),
        }
    }
}

/// The one writer of a page. Dropping it removes the page's file, unless that is kept; readers that have it mapped find it stale.
#[derive(Debug)]
pub struct Publisher {
    page: *mut Page,
    /// Holds the lock on the file for as long as this lives: who is killed lets go of it.
    file: File,
    path: Option<PathBuf>,
    /// The file stays when the writer ends.
    is_kept: bool,
}

// SAFETY: the mapping is process-wide memory of atomics; `publish` takes `&mut self`, so that there is one writer.
unsafe impl Send for Publisher {}

impl Publisher {
    /// Publishes in the file at `path`, which everybody may read. A file that a killed writer has left is taken over: whoever
    /// has it mapped finds it fresh again.
    ///
    /// # Errors
    /// [`PublishError::Taken`] if its writer lives.
    pub fn create(path: &Path, source: Source) -> Result<Publisher, PublishError> {
        Publisher::in_file(path, source, false)
    }

    /// Publishes in the file at `path`, for a virtual machine monitor that maps it into a guest ([`ForeignPage`](crate::ForeignPage) reads
    /// it there). The file is never replaced and stays in the end, with nothing on it, so that the guest sees the next writer.
    ///
    /// A file that is made has [`BAR_BYTES`]; one that is there keeps its size, and must be this user's own, writable by nobody else, of a
    /// size that can be a PCI resource's (a power of two), and a page or zeros.
    ///
    /// # Errors
    /// [`PublishError::Refused`] if it is none of these, [`PublishError::Taken`] if its writer lives.
    pub fn keeping(path: &Path, source: Source) -> Result<Publisher, PublishError> {
        Publisher::in_file(path, source, true)
    }

    fn in_file(path: &Path, source: Source, is_kept: bool) -> Result<Publisher, PublishError> {
        let failed = |operation| {
            move |source| PublishError::System {
                operation,
                path: path.to_owned(),
                source,
            }
        };
        let mut taken_by = None;
        // Each turn means that another writer's end or beginning came in between.
        for _ in 0..1000 {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
                .open(path)
                .map_err(failed("create"))?;
            if is_kept {
                let refused = |why| PublishError::Refused {
                    path: path.to_owned(),
                    why,
                };
                may_keep(&file)
                    .map_err(failed("look at"))?
                    .map_err(refused)?;
            }
            if !lock(&file).map_err(failed("lock"))? {
                let writer = writer_of(&file);
                taken_by = Some(writer);
                if is_there(writer) {
                    break;
                }
                // Who removes what killed writers left holds the lock for a moment, also of a file that is just being made.
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            taken_by = None;
            // Its last writer may have removed it between our opening and locking it.
            if !is_at(&file, path) {
                continue;
            }
            // Readers refuse what others may write; the mask of this process may have been stricter than they need.
            // Those of a file that is kept may be stricter because somebody wants it so.
            let is_new = file.metadata().map_err(failed("look at"))?.len() == 0;
            if !is_kept || is_new {
                file.set_permissions(fs::Permissions::from_mode(0o644))
                    .map_err(failed("share"))?;
            }
            let size = if is_kept {
                allocate_kept(&file)
            } else {
                allocate(&file)
            };
            if let Err(error) = size {
                if !is_kept || is_new {
                    // While the lock is held.
                    let _ = fs::remove_file(path);
                }
                return Err(match error.raw_os_error() {
                    Some(libc::ENOSPC | libc::EDQUOT) => PublishError::NoRoom {
                        path: path.to_owned(),
                    },
                    _ => failed("size")(error),
                });
            }
            let mut publisher =
                Publisher::over(file, Some(path.to_owned())).map_err(failed("map"))?;
            publisher.is_kept = is_kept;
            if is_kept {
                // What the last one has left is not this one's.
                publisher.page().withdraw();
            }
            publisher.begin(source);
            return Ok(publisher);
        }
        Err(match taken_by {
            Some(writer) => PublishError::Taken {
                path: path.to_owned(),
                writer,
            },
            None => failed("keep")(io::ErrorKind::ResourceBusy.into()),
        })
    }

    /// Publishes in memory without a name, for whoever inherits [`Publisher::descriptor`]: `AMDAHL_PHANTOM=/proc/self/fd/N`.
    /// It is sealed: nobody else can write or shorten it.
    ///
    /// # Errors
    /// When the kernel gives no such memory.
    pub fn anonymous(source: Source) -> Result<Publisher, PublishError> {
        let failed = |operation| {
            move |source| PublishError::System {
                operation,
                path: PathBuf::from("(without a name)"),
                source,
            }
        };
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        // SAFETY: the name ends with a zero.
        let descriptor = unsafe { libc::memfd_create(c"amdahl-phantom".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(failed("create")(io::Error::last_os_error()));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        allocate(&file).map_err(failed("size"))?;
        let mut publisher = Publisher::over(file, None).map_err(failed("map"))?;
        let seals =
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: a call on our own descriptor. Our mapping was made before and stays writable.
        if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(failed("seal")(io::Error::last_os_error()));
        }
        publisher.begin(source);
        Ok(publisher)
    }

    fn over(file: File, path: Option<PathBuf>) -> io::Result<Publisher> {
        // SAFETY: a fresh mapping at an address the kernel chooses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Publisher {
            page: address.cast(),
            file,
            path,
            is_kept: false,
        })
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and longer than a `Page`, and consists of atomics.
        unsafe { &*self.page }
    }

    fn begin(&mut self, source: Source) {
        self.page().begin(std::process::id(), source);
    }

    /// Publishes; values out of their ranges are bounded. Some nanoseconds.
    pub fn publish(&mut self, snapshot: Snapshot) {
        self.page().publish(snapshot);
    }

    /// Where the file is, if it has a name.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The file's descriptor. It is closed on exec unless somebody clears that flag.
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.is_kept {
            self.page().withdraw();
        } else if let Some(path) = self.path.take()
            && is_at(&self.file, &path)
        {
            // While the lock is held, so that nobody has taken it over.
            let _ = fs::remove_file(path);
        }
        // SAFETY: made by mmap with this length; nothing borrows from it beyond `self`.
        unsafe { libc::munmap(self.page.cast(), PAGE_BYTES) };
    }
}

/// Removes the pages of killed writers from `directory`. Returns how many.
pub fn remove_abandoned(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(PREFIX))
    });
    ours.filter(|entry| remove_if_abandoned(&entry.path()))
        .count()
}

fn remove_if_abandoned(path: &Path) -> bool {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path);
    let Ok(file) = file else { return false };
    let is_file = file.metadata().is_ok_and(|about| about.is_file());
    is_file
        && matches!(lock(&file), Ok(true))
        && is_at(&file, path)
        && fs::remove_file(path).is_ok()
}

/// Gives the file its size, and memory for all of it: whoever touches a mapped page for which there is none is killed by SIGBUS. What is in
/// it stays; what is written through the descriptor has its memory, or fails, in every file system.
fn allocate(file: &File) -> io::Result<()> {
    if file.metadata()?.len() != PAGE_BYTES as u64 {
        file.set_len(PAGE_BYTES as u64)?;
    }
    let mut bytes = [0; PAGE_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    file.write_all_at(&bytes, 0)
}

/// Bytes of a page's file that a guest maps as a PCI resource: a power of two, as such have, and no less than any kernel's page, so
/// that the resource begins where a page does.
pub const BAR_BYTES: usize = 65_536;

/// The same for a file that is kept: one that is made is as long as a PCI resource, another is as long as it was. What the guest may map
/// beyond the page has memory as well.
fn allocate_kept(file: &File) -> io::Result<()> {
    let len = match file.metadata()?.len() {
        0 => BAR_BYTES,
        len => BAR_BYTES.min(usize::try_from(len).unwrap_or(BAR_BYTES)),
    };
    let mut bytes = vec![0; len];
    if file.metadata()?.len() != 0 {
        file.read_exact_at(&mut bytes, 0)?;
    }
    file.write_all_at(&bytes, 0)
}

/// Whether that may be written to for as long as somebody else has it mapped, or why not.
fn may_keep(file: &File) -> io::Result<Result<(), &'static str>> {
    let about = file.metadata()?;
    // SAFETY: cannot fail.
    let me = unsafe { libc::geteuid() };
    Ok(if !about.is_file() {
        Err("it is not a regular file")
    } else if about.uid() != me {
        Err("it belongs to another user")
    } else if about.mode() & 0o022 != 0 {
        // They could shorten it, which kills the writer.
        Err("others than its owner may write to it")
    } else if about.len() != 0
        && (about.len() < PAGE_BYTES as u64 || !about.len().is_power_of_two())
    {
        Err("its size is not a power of two, or less than 4096 bytes")
    } else if about.len() != 0 && !is_page_or_zeros(file)? {
        Err("it holds something else")
    } else {
        Ok(())
    })
}

fn is_page_or_zeros(file: &File) -> io::Result<bool> {
    let mut bytes = [0; PAGE_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.starts_with(&MAGIC.to_ne_bytes()) || bytes.iter().all(|&byte| byte == 0))
}

/// Takes the lock; `false` if another has it. A lock for writing, which nobody gets who may only read the file.
fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: an all-zero `flock` is a value of the type: the whole file, from its beginning.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: a call on a descriptor that `file` keeps open, with a lock that is only read.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// `path` leads to `file` itself.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

/// A process of this number exists.
fn is_there(pid: u32) -> bool {
    // SAFETY: takes no pointer; 0 only asks.
    let asked = |pid| unsafe { libc::kill(pid, 0) } == 0;
    i32::try_from(pid).is_ok_and(|pid| {
        pid > 0 && (asked(pid) || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM))
    })
}

fn writer_of(file: &File) -> u32 {
    let reader = crate::Reader::from_descriptor(file.as_raw_fd());
    reader.map_or(0, |reader| reader.writer())
}
