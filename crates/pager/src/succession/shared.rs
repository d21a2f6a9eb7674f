//! Memory of a fixed size that several processes have mapped, word by word.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::ledger::{LedgerError, system};

/// Its size stays as it is.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// `HUGETLBFS_MAGIC` of <linux/magic.h>.
const HUGETLBFS: u32 = 0x9584_58f6;

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

/// Whether it is memory of just this size that nobody can change, in pages of 4 KiB, and all of it is there: nothing in it ends us by a signal.
fn is_memory(fd: &OwnedFd, len: usize) -> Result<(), LedgerError> {
    let seals =
        fcntl_get_seals(fd).map_err(|_| LedgerError::Wrong("is no memory that can be sealed"))?;
    if !seals.contains(SEALS) {
        return Err(LedgerError::Wrong("is not sealed"));
    }
    let stat = fstat(fd).map_err(system("fstat"))?;
    if stat.st_size != len as i64 {
        return Err(LedgerError::Wrong("is of another size than it must be"));
    }
    // Of hugetlb, pages could be missing though they are allocated elsewhere. The size of a block does not tell: other shared memory has large ones
    // as well, where the machine uses huge pages for it (shmem_enabled).
    if fstatfs(fd).map_err(system("fstatfs"))?.f_type as u32 == HUGETLBFS {
        return Err(LedgerError::Wrong("has pages of another size than 4096"));
    }
    fallocate(fd, FallocateFlags::empty(), 0, len as u64).map_err(system("fallocate"))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn memory_in_huge_pages_is_known_by_its_kind() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let huge = flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let sealed = |flags| -> Result<OwnedFd, Errno> {
            let fd = memfd_create("memory", flags)?;
            rustix::fs::ftruncate(&fd, crate::BLOCK as u64)?;
            fcntl_add_seals(&fd, SEALS)?;
            Ok(fd)
        };
        is_memory(&sealed(flags).unwrap(), crate::BLOCK).unwrap();
        match sealed(huge) {
            Ok(huge) => {
                let refused = is_memory(&huge, crate::BLOCK).unwrap_err().to_string();
                assert!(refused.contains("pages of another size"), "{refused}");
            }
            Err(errno) => println!("SKIPPED: memory in huge pages: {errno}"),
        }
    }
}
