//! Finding, opening and reading a page. Allocates nothing and needs no `std`.

use core::ffi::{CStr, c_int};
use core::fmt::{self, Write};

use crate::error::{OpenError, ReadError};
use crate::layout::{PAGE_BYTES, Page, check};
use crate::snapshot::{Snapshot, Source};

/// The variable that names a page: a path, `/proc/self/fd/N` for an inherited descriptor, or `off`.
pub const ENVIRONMENT: &CStr = c"AMDAHL_PHANTOM";

/// A page that is mapped for reading. Shared by threads at will.
pub struct Reader {
    page: *const Page,
}

// SAFETY: the mapping is process-wide memory, of which only atomics are read.
unsafe impl Send for Reader {}
// SAFETY: as above.
unsafe impl Sync for Reader {}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("writer", &self.writer())
            .field("source", &self.source())
            .finish()
    }
}

pub(crate) fn system(operation: &'static str) -> OpenError {
    // SAFETY: always a valid address of this thread.
    let errno = unsafe { *libc::__errno_location() };
    OpenError::System { operation, errno }
}

impl Reader {
    /// The page of this process: the one that the environment names; else one published for its id, by its user
    /// or by root. The environment of a set-uid program is not asked.
    ///
    /// # Errors
    /// [`OpenError`], each of which means: go on without a page.
    pub fn find() -> Result<Reader, OpenError> {
        Finder::from_environment().find()
    }

    /// The page at `path`, or of the descriptor N if that is `/proc/self/fd/N`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &CStr) -> Result<Reader, OpenError> {
        if let Some(number) = path.to_bytes().strip_prefix(b"/proc/self/fd/") {
            let number = core::str::from_utf8(number)
                .ok()
                .and_then(|text| text.parse().ok());
            return Reader::from_descriptor(number.ok_or(OpenError::NotFound)?);
        }
        open_file(path).and_then(Reader::of)
    }

    /// The page of an open descriptor, which stays open and need not.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn from_descriptor(descriptor: c_int) -> Result<Reader, OpenError> {
        // SAFETY: an all-zero `stat` is a value of the type.
        let mut about: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `about` is writable and of the right type.
        if unsafe { libc::fstat(descriptor, &mut about) } != 0 {
            return Err(system("look at"));
        }
        if about.st_mode & libc::S_IFMT != libc::S_IFREG || about.st_size < PAGE_BYTES as i64 {
            return Err(OpenError::NotAPage);
        }
        // SAFETY: cannot fail.
        let me = unsafe { libc::geteuid() };
        // Whoever else could write it could shorten it as well, which kills its readers. A memfd has mode 0777 whatever
        // its maker wants; nobody reaches it but through a descriptor that its owner gave away.
        let is_owner_s = about.st_uid == 0 || about.st_uid == me;
        let is_sealed = is_sealed(descriptor);
        if !is_owner_s || (about.st_mode & 0o022 != 0 && !is_sealed) {
            return Err(OpenError::Untrusted {
                uid: about.st_uid,
                mode: about.st_mode & 0o7777,
            });
        }
        // What is read cannot fail as what is mapped does: a hole for which its file system has no room, or a file that is shorter than it
        // says, would be SIGBUS. A page that begins as it should is there.
        let mut words = [0_u64; PAGE_BYTES / 8];
        // SAFETY: `words` is writable and of this length.
        let len = unsafe { libc::pread(descriptor, words.as_mut_ptr().cast(), PAGE_BYTES, 0) };
        match usize::try_from(len) {
            Err(_) => return Err(system("read")),
            Ok(PAGE_BYTES) => check(words[0], words[1])?,
            Ok(_) => return Err(OpenError::NotAPage),
        }
        let address = map(descriptor)?;
        let reader = Reader { page: address };
        reader.page().check()?;
        Ok(reader)
    }

    fn of(file: File) -> Result<Reader, OpenError> {
        Reader::from_descriptor(file.0)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and longer than a `Page`, and consists of
        // atomics, which any process may change meanwhile.
        unsafe { &*self.page }
    }

    /// What was published last, however old. One cache line is read.
    ///
    /// # Errors
    /// [`ReadError`], but never [`ReadError::Stale`].
    #[inline]
    pub fn read(&self) -> Result<Snapshot, ReadError> {
        self.page().read()
    }

    /// The same if it is fresh at `now_ns`, for which [`coarse_now_ns`](crate::coarse_now_ns) is good enough.
    ///
    /// # Errors
    /// [`ReadError`], each of which means: behave as without a page, for now. The writer may come back to the same page; one
    /// that was started after the page's file was removed has another, which a [`Finder`] finds.
    #[inline]
    pub fn read_fresh(&self, now_ns: u64) -> Result<Snapshot, ReadError> {
        let snapshot = self.read()?;
        if snapshot.is_stale(now_ns) {
            return Err(ReadError::Stale);
        }
        Ok(snapshot)
    }

    /// Process id of the writer, in its own namespace; for people to read.
    pub fn writer(&self) -> u32 {
        self.page().writer()
    }

    /// Where the figures come from.
    pub fn source(&self) -> Source {
        self.page().source()
    }
}

/// Looks for the page of this process as [`Reader::find`] does, again and again: it may come late, and who publishes may begin
/// anew with another. The environment is asked once, since asking is not safe while a program changes it.
pub struct Finder {
    /// [`ENVIRONMENT`]'s value.
    named: Option<Buffer<PATH_BYTES>>,
    /// That of `XDG_RUNTIME_DIR`.
    runtime: Option<Buffer<PLACE_BYTES>>,
}

impl Finder {
    /// By the environment as it is now; that of a set-uid program is not asked.
    pub fn from_environment() -> Finder {
        // SAFETY: a query without side effects.
        if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
            return Finder {
                named: None,
                runtime: None,
            };
        }
        Finder {
            // Longer than any path: nowhere.
            named: environment(ENVIRONMENT)
                .map(|path| Buffer::of(path.to_bytes()).unwrap_or(Buffer::EMPTY)),
            runtime: environment(c"XDG_RUNTIME_DIR")
                .and_then(|folder| Buffer::of(folder.to_bytes())),
        }
    }

    /// The page, if there is one now. Some system calls.
    ///
    /// # Errors
    /// [`OpenError`], each of which means: go on without a page. [`OpenError::SwitchedOff`] stays so.
    pub fn find(&self) -> Result<Reader, OpenError> {
        if let Some(named) = &self.named {
            return match named.text() {
                b"off" => Err(OpenError::SwitchedOff),
                _ => Reader::open(named.path()),
            };
        }
        // SAFETY: both cannot fail.
        let (pid, uid) = unsafe { (libc::getpid(), libc::geteuid()) };
        let runtime = self.runtime.as_ref();
        if let Some(runtime) = runtime.and_then(|folder| core::str::from_utf8(folder.text()).ok()) {
            let place = open_place(format_args!("{runtime}/amdahl/phantom-pid-{pid}"));
            if place != Err(OpenError::NotFound) {
                return place.and_then(Reader::of);
            }
        }
        for owner in [uid, 0] {
            let place = open_place(format_args!("/dev/shm/amdahl-{owner}/phantom-pid-{pid}"));
            if place != Err(OpenError::NotFound) {
                return place.and_then(Reader::of);
            }
        }
        Err(OpenError::NotFound)
    }
}

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder")
            .field("named", &self.named.as_ref().map(Buffer::path))
            .field("runtime", &self.runtime.as_ref().map(Buffer::path))
            .finish()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; nothing borrows from it beyond `self`.
        unsafe { libc::munmap(self.page.cast_mut().cast(), PAGE_BYTES) };
    }
}

/// Nobody with another descriptor can shorten or write it.
fn is_sealed(descriptor: c_int) -> bool {
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: a query of a descriptor; fails where there are no seals.
    let seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    seals >= 0 && seals & wanted == wanted
}

/// A variable, if it has a value.
fn environment(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: `name` ends with a zero; nobody keeps the value, it is copied. As ever with the environment, the program must
    // not change it on another thread at the same time.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a string that ends with a zero.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then_some(value)
}

/// Closed on drop.
#[derive(Debug, PartialEq)]
pub(crate) struct File(pub(crate) c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Maps the page of a file for reading, at an address the kernel chooses. It is unmapped by its length.
pub(crate) fn map(descriptor: c_int) -> Result<*const Page, OpenError> {
    // SAFETY: a fresh mapping at an address the kernel chooses.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            PAGE_BYTES,
            libc::PROT_READ,
            libc::MAP_SHARED,
            descriptor,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(system("map"));
    }
    Ok(address.cast_const().cast())
}

pub(crate) fn open_file(path: &CStr) -> Result<File, OpenError> {
    // Not through a link: whoever may put one there may not choose what is opened.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: `path` ends with a zero.
    let descriptor = unsafe { libc::open(path.as_ptr(), flags) };
    if descriptor >= 0 {
        return Ok(File(descriptor));
    }
    match system("open") {
        OpenError::System {
            errno: libc::ENOENT | libc::ENOTDIR,
            ..
        } => Err(OpenError::NotFound),
        error => Err(error),
    }
}

/// The longest path that the kernel takes, with the zero at its end.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Of the usual places.
const PLACE_BYTES: usize = 512;

/// A path that is kept without allocating.
struct Buffer<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
}

impl<const BYTES: usize> Buffer<BYTES> {
    const EMPTY: Self = Buffer {
        bytes: [0; BYTES],
        len: 0,
    };

    /// `None` if it is too long.
    fn of(text: &[u8]) -> Option<Self> {
        let mut buffer = Self::EMPTY;
        buffer.push(text).ok().map(|()| buffer)
    }

    fn push(&mut self, text: &[u8]) -> fmt::Result {
        let end = self.len + text.len();
        // One byte stays for the zero at the end.
        if end >= BYTES {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text);
        self.len = end;
        Ok(())
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written to")
    }
}

impl<const BYTES: usize> Write for Buffer<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes())
    }
}

/// One that is too long is nowhere.
fn open_place(path: fmt::Arguments<'_>) -> Result<File, OpenError> {
    let mut buffer = Buffer::<PLACE_BYTES>::EMPTY;
    buffer.write_fmt(path).map_err(|_| OpenError::NotFound)?;
    open_file(buffer.path())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::Publisher;

    #[test]
    fn a_page_that_comes_late_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let buffer = |path: &std::path::Path| path.as_os_str().as_bytes().to_vec();
        let named = folder.path().join("page");
        let usual = folder.path().join("amdahl");
        let finders = [
            Finder {
                named: Buffer::of(&buffer(&named)),
                runtime: None,
            },
            Finder {
                named: None,
                runtime: Buffer::of(&buffer(folder.path())),
            },
        ];
        std::fs::create_dir(&usual).unwrap();
        let usual = usual.join(format!("phantom-pid-{}", std::process::id()));
        for (finder, path) in finders.iter().zip([named, usual]) {
            assert_eq!(finder.find().err(), Some(OpenError::NotFound));
            let _publisher = Publisher::create(&path, Source::Proc).unwrap();
            assert_eq!(finder.find().unwrap().writer(), std::process::id());
        }
    }

    #[test]
    fn what_the_environment_says_may_be_too_long_or_off() {
        let finder = |named: &[u8]| Finder {
            named: Some(Buffer::of(named).unwrap_or(Buffer::EMPTY)),
            runtime: None,
        };
        assert_eq!(finder(b"off").find().err(), Some(OpenError::SwitchedOff));
        let long = [b'x'; PATH_BYTES];
        assert_eq!(finder(&long).find().err(), Some(OpenError::NotFound));
        assert!(Buffer::<PATH_BYTES>::of(&long[1..]).is_some());
    }
}
