//! Memory of a fixed size that several processes have mapped, word by word.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::arbiter::is_memory;
use super::ledger::{LedgerError, system};

/// Its size stays as it is.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A memfd, mapped.
#[derive(Debug)]
pub(super) struct Shared {
    fd: OwnedFd,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who uses it answers for races.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// New memory, of zeros, all of which is there: nobody must find out by a signal later that there is none.
    pub fn new(name: &str, len: usize) -> Result<Shared, LedgerError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(name, flags).map_err(system("memfd_create"))?;
        fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(system("fallocate"))?;
        fcntl_add_seals(&fd, SEALS).map_err(system("fcntl(F_ADD_SEALS)"))?;
        Shared::map(fd, len)
    }

    /// What another process has made. What is in it is not looked at.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Shared, LedgerError> {
        is_memory(&fd, len)?;
        Shared::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Shared, LedgerError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of memory that is as long and stays so.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED | MapFlags::POPULATE,
                &fd,
                0,
            )
        }
        .map_err(system("mmap"))?;
        let start = NonNull::new(start.cast()).ok_or(LedgerError::Wrong("is at address 0"))?;
        Ok(Shared { fd, start, len })
    }

    /// To be sent to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where something is.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.len);
        // SAFETY: inside of the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// A word, by its place in bytes.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        // SAFETY: aligned and inside of the mapping; all changes are atomic.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used by nobody any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Closes a header: its last word is a checksum of those before.
pub(super) fn checked<const N: usize>(mut header: [u64; N]) -> [u64; N] {
    let mut sum = crc32fast::Hasher::new();
    for word in &header[..N - 1] {
        sum.update(&word.to_le_bytes());
    }
    header[N - 1] = sum.finalize().into();
    header
}

/// What memory is known by, in words.
pub(super) fn halves(identity: [u8; 16]) -> [u64; 2] {
    let (low, high) = identity.split_at(8);
    [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes")))
}
