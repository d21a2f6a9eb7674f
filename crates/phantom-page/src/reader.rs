//! Finding, opening and reading a page. Allocates nothing and needs no `std`.

use core::ffi::{CStr, c_int};
use core::fmt::{self, Write};

use crate::error::{OpenError, ReadError};
use crate::layout::{PAGE_BYTES, Page};
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

fn system(operation: &'static str) -> OpenError {
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
        // SAFETY: a query without side effects.
        let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        if !is_privileged && let Some(name) = environment(ENVIRONMENT) {
            return match name.to_bytes() {
                b"off" => Err(OpenError::SwitchedOff),
                _ => Reader::open(name),
            };
        }
        // SAFETY: both cannot fail.
        let (pid, uid) = unsafe { (libc::getpid(), libc::geteuid()) };
        let runtime = if is_privileged {
            None
        } else {
            environment(c"XDG_RUNTIME_DIR")
        };
        if let Some(runtime) = runtime.and_then(|runtime| runtime.to_str().ok()) {
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
        let reader = Reader {
            page: address.cast_const().cast(),
        };
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
    /// that was started after the page's file was removed has another, which [`Reader::find`] finds.
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
    // SAFETY: `name` ends with a zero; the value is copied from by nobody who keeps it beyond `find`. As ever with the
    // environment, the program must not change it on another thread at the same time.
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
struct File(c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.0) };
    }
}

fn open_file(path: &CStr) -> Result<File, OpenError> {
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

/// A path that is put together without allocating; too long a one is nowhere.
struct Buffer {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        // One byte stays for the zero at the end.
        if end >= self.bytes.len() {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

fn open_place(path: fmt::Arguments<'_>) -> Result<File, OpenError> {
    let mut buffer = Buffer {
        bytes: [0; 512],
        len: 0,
    };
    buffer.write_fmt(path).map_err(|_| OpenError::NotFound)?;
    let path =
        CStr::from_bytes_until_nul(&buffer.bytes).expect("the last byte is never written to");
    open_file(path)
}
