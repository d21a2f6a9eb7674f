//! A page that the host has written and a guest reads: neither its file nor its clock says anything here.

use core::ffi::{CStr, c_int};
use core::mem::size_of;

use crate::error::{ForeignError, OpenError, ReadError};
use crate::layout::{PAGE_BYTES, Page, READ_ATTEMPTS, SEQUENCE_AT, USED_BYTES};
use crate::reader::{File, map, open_file, system};
use crate::snapshot::{Snapshot, Source};
use crate::sync::{Ordering, fence};

/// What a file of sysfs lies in.
const SYSFS_MAGIC: u32 = 0x6265_6572;

/// A page of another machine: a PCI resource in sysfs, or a file that both share. It may be anybody's, and may be taken away at any
/// time. Its `time_ns` is of another clock: whether it is fresh shows by change alone.
#[derive(Debug)]
pub struct ForeignPage {
    file: File,
    /// Device memory can only be mapped. Anything else is read by system calls, so that who shortens it kills nobody.
    is_device: bool,
}

/// What stands on such a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// What was published last, whenever that was.
    pub snapshot: Snapshot,
    /// Process id of the writer, where that is.
    pub writer: u32,
    /// Where the figures come from.
    pub source: Source,
}

impl ForeignPage {
    /// Opens the file at `path`. Nothing of what is in it is looked at.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &CStr) -> Result<ForeignPage, OpenError> {
        let file = open_file(path)?;
        // SAFETY: an all-zero `stat` is a value of the type.
        let mut about: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `about` is writable and of the right type.
        if unsafe { libc::fstat(file.0, &mut about) } != 0 {
            return Err(system("look at"));
        }
        if about.st_mode & libc::S_IFMT != libc::S_IFREG || about.st_size < PAGE_BYTES as i64 {
            return Err(OpenError::NotAPage);
        }
        Ok(ForeignPage {
            is_device: is_in_sysfs(file.0)?,
            file,
        })
    }

    /// What stands on it now. Some system calls.
    ///
    /// # Errors
    /// [`ForeignError`], never that it is stale.
    pub fn read(&self) -> Result<Foreign, ForeignError> {
        if self.is_device {
            self.read_mapped()
        } else {
            self.read_file()
        }
    }

    /// The mapping lives for one look: touching a device that was taken away kills, and what is not mapped is not touched.
    fn read_mapped(&self) -> Result<Foreign, ForeignError> {
        let address = map(self.file.0)?;
        // SAFETY: the mapping lives until the end of this function, is page-aligned and longer than a `Page`, and consists of
        // atomics, which another machine may change meanwhile.
        let page = unsafe { &*address };
        let read = of_page(page);
        // SAFETY: made above with this length; nothing borrows from it any more.
        unsafe { libc::munmap(address.cast_mut().cast(), PAGE_BYTES) };
        read
    }

    /// The reader's steps of the protocol, by system calls.
    fn read_file(&self) -> Result<Foreign, ForeignError> {
        for _ in 0..READ_ATTEMPTS {
            let mut bytes = [0; USED_BYTES];
            // Its sequence number is at most as new as what is read after it.
            self.read_at(0, &mut bytes)?;
            let before = sequence(&bytes);
            // Acquire: as in `Page::read`; the kernel copies on this CPU, before or after.
            fence(Ordering::Acquire);
            self.read_at(SEQUENCE_AT + 8, &mut bytes[SEQUENCE_AT + 8..])?;
            fence(Ordering::Acquire);
            let mut after = [0; 8];
            self.read_at(SEQUENCE_AT, &mut after)?;
            let page = Page::from_bytes(&bytes);
            page.check()?;
            if before.is_multiple_of(2) && before == u64::from_ne_bytes(after) {
                return of_page(&page);
            }
        }
        Err(ReadError::Busy.into())
    }

    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<(), OpenError> {
        // SAFETY: `bytes` is writable and of this length.
        let len = unsafe {
            libc::pread(
                self.file.0,
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                at as libc::off_t,
            )
        };
        match usize::try_from(len) {
            Err(_) => Err(system("read")),
            Ok(len) if len == bytes.len() => Ok(()),
            Ok(_) => Err(OpenError::NotAPage),
        }
    }
}

fn of_page(page: &Page) -> Result<Foreign, ForeignError> {
    page.check()?;
    Ok(Foreign {
        snapshot: page.read()?,
        writer: page.writer(),
        source: page.source(),
    })
}

fn sequence(bytes: &[u8; USED_BYTES]) -> u64 {
    let mut word = [0; size_of::<u64>()];
    word.copy_from_slice(&bytes[SEQUENCE_AT..SEQUENCE_AT + 8]);
    u64::from_ne_bytes(word)
}

fn is_in_sysfs(descriptor: c_int) -> Result<bool, OpenError> {
    // SAFETY: an all-zero `statfs` is a value of the type.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: `about` is writable and of the right type.
    if unsafe { libc::fstatfs(descriptor, &mut about) } != 0 {
        return Err(system("look at"));
    }
    // Its type differs between architectures; the number has 32 bits.
    Ok(about.f_type as u32 == SYSFS_MAGIC)
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;
    use crate::Publisher;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    /// A file stands in for a device, which is there in guests alone.
    #[test]
    fn what_can_only_be_mapped_says_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resource2");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut publisher = Publisher::keeping(&path, Source::Bpf).unwrap();
        let mut page = ForeignPage::open(&name).unwrap();
        assert!(!page.is_device);
        page.is_device = true;
        assert_eq!(page.read(), Err(ForeignError::Read(ReadError::Empty)));
        publisher.publish(Snapshot {
            time_ns: 7,
            tick_us: 20_000,
            window_us: 100_000,
            allowed: 2,
            ..Snapshot::default()
        });
        let mapped = page.read().unwrap();
        assert_eq!(mapped.snapshot.time_ns, 7);
        page.is_device = false;
        assert_eq!(page.read(), Ok(mapped));
        page.is_device = true;
        std::fs::write(folder.path().join("other"), [0; PAGE_BYTES]).unwrap();
        let other = std::fs::File::open(folder.path().join("other")).unwrap();
        // SAFETY: both are open descriptors; the first goes on under its number as another file.
        unsafe { libc::dup2(other.as_raw_fd(), page.file.0) };
        assert_eq!(
            page.read(),
            Err(ForeignError::Open(OpenError::NoMagic)),
            "looked at each time"
        );
    }

    #[test]
    fn files_of_sysfs_are_devices() {
        let path = c"/sys/kernel/notes";
        let file = match open_file(path) {
            Ok(file) => file,
            Err(error) => {
                return std::eprintln!("SKIPPED files_of_sysfs_are_devices: {path:?}: {error}");
            }
        };
        assert_eq!(is_in_sysfs(file.0), Ok(true));
        let other = open_file(c"/proc/self/stat").unwrap();
        assert_eq!(is_in_sysfs(other.0), Ok(false));
    }
}
