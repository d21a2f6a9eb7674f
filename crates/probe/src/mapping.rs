//! A shared mapping of a file descriptor: BPF maps and perf rings.

use std::os::fd::{AsFd, AsRawFd};
use std::{io, ptr};

/// Unmapped on drop.
pub struct Mapping {
    address: *mut u8,
    len: usize,
}

// SAFETY: the mapping is process-wide memory; what lies in it is accessed through atomics or by
// the protocol of its owner.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd`, readable and writable.
    pub fn new(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// The same, only readable.
    pub fn read_only(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, libc::PROT_READ)
    }

    fn with(fd: impl AsFd, len: usize, protection: libc::c_int) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address the kernel chooses.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping {
            address: address.cast(),
            len,
        })
    }

    /// Where it begins, page-aligned.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; nobody borrows from it beyond its owner.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}
