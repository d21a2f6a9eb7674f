//! Memory of this process that a pager fills.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use crate::{BLOCK, Error, PAGE};

/// What memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Pages of 4 KiB.
    Small,
    /// Transparent huge pages of 2 MiB where whole blocks arrive, pages of 4 KiB elsewhere.
    Huge,
    /// Reserved huge pages of 2 MiB: each fault brings a whole one. Needs `vm.nr_hugepages`.
    HugeTlb,
    /// Shared memory (a memfd) of 4 KiB pages, which other processes can map.
    Shared,
}

/// Memory of this process, mapped and, as long as a pager serves it, filled on demand. Unmapped when the last owner drops it;
/// a pager is one.
///
/// Its start is aligned to 2 MiB. What is not there yet arrives at the first touch, by whatever touches it: see the engines for
/// who may.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
    file: Option<OwnedFd>,
}

// SAFETY: it is memory, as an allocation is; whoever reads and writes it by pointers answers for races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of `len` bytes, rounded up to whole pages of its backing.
    ///
    /// # Errors
    /// [`Error::System`]: no address space, no memory, or no reserved huge pages.
    pub fn new(len: usize, backing: Backing) -> Result<Mapping, Error> {
        let unit = match backing {
            Backing::HugeTlb => BLOCK,
            _ => PAGE,
        };
        let len = len
            .checked_next_multiple_of(unit)
            .filter(|len| *len > 0)
            .ok_or(Error::Config("memory has no bytes, or too many"))?;
        let file = match backing {
            Backing::Shared => {
                let fd = memfd_create("amdahl-pager", MemfdFlags::CLOEXEC)
                    .map_err(Error::system("memfd_create"))?;
                ftruncate(&fd, len as u64).map_err(Error::system("ftruncate"))?;
                Some(fd)
            }
            _ => None,
        };
        // Room to align in; the rest is given back.
        let room = len
            .checked_add(BLOCK)
            .ok_or(Error::Config("memory has too many bytes"))?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                room,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(Error::system("mmap"))?;
        let start = reserved.map_addr(|address| address.next_multiple_of(BLOCK));
        let before = start.addr() - reserved.addr();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces a part of the reservation, which is ours alone.
        let mapped = unsafe {
            match &file {
                Some(fd) => mmap(
                    start,
                    len,
                    protection,
                    MapFlags::SHARED | MapFlags::FIXED,
                    fd,
                    0,
                ),
                None => {
                    let mut flags = MapFlags::PRIVATE | MapFlags::FIXED;
                    match backing {
                        Backing::HugeTlb => flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB,
                        _ => flags |= MapFlags::NORESERVE,
                    }
                    mmap_anonymous(start, len, protection, flags)
                }
            }
        };
        // SAFETY: the ends of the reservation, which is ours alone; all of it if there is no mapping.
        unsafe {
            match &mapped {
                Ok(_) => {
                    if before > 0 {
                        let _ = munmap(reserved, before);
                    }
                    if room > before + len {
                        let _ = munmap(start.byte_add(len), room - before - len);
                    }
                }
                Err(_) => {
                    let _ = munmap(reserved, room);
                }
            }
        }
        mapped.map_err(Error::system(match backing {
            Backing::HugeTlb => "mmap of reserved huge pages (see vm.nr_hugepages)",
            _ => "mmap",
        }))?;
        let mapping = Mapping {
            start: NonNull::new(start.cast()).ok_or(Error::Config("mmap gave address 0"))?,
            len,
            backing,
            file,
        };
        let advice = match backing {
            Backing::Huge => Some(Advice::LinuxHugepage),
            Backing::Small => Some(Advice::LinuxNoHugepage),
            Backing::HugeTlb | Backing::Shared => None,
        };
        if let Some(advice) = advice {
            // SAFETY: says what pages to take; changes no content. A kernel without huge pages refuses, which does no harm.
            let _ = unsafe { madvise(start, len, advice) };
        }
        Ok(mapping)
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is a page at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What it is made of.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The file behind shared memory, for others to map.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// Whether the page at `offset` is there, by the kernel's word.
    pub(crate) fn is_there(&self, offset: usize) -> bool {
        let mut is_there = 0u8;
        let at = self.as_ptr().wrapping_add(offset / PAGE * PAGE);
        // SAFETY: asks about one page, which is mapped or not.
        let asked = unsafe { libc::mincore(at.cast(), PAGE, &mut is_there) };
        asked == 0 && is_there & 1 == 1
    }

    /// Copies bytes out, waiting for those that are not there.
    ///
    /// # Panics
    /// If the range reaches beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset <= self.len && into.len() <= self.len - offset,
            "{} bytes at {offset} of {}",
            into.len(),
            self.len
        );
        // SAFETY: within the mapping, as has been asserted; it is mapped readable as long as `self` lives, and `into` is elsewhere.
        unsafe {
            self.as_ptr()
                .add(offset)
                .copy_to(into.as_mut_ptr(), into.len())
        }
    }

    /// Copies bytes in, waiting for the pages that they fall into. Who reads the same bytes meanwhile sees some of each.
    ///
    /// # Panics
    /// If the range reaches beyond the end.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset <= self.len && from.len() <= self.len - offset,
            "{} bytes at {offset} of {}",
            from.len(),
            self.len
        );
        // SAFETY: as in `read`.
        unsafe {
            self.as_ptr()
                .add(offset)
                .copy_from(from.as_ptr(), from.len())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has it any longer.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Forbids all access: who touches it, or waits in it and is woken, gets SIGSEGV.
///
/// # Safety
/// The memory is the caller's to make inaccessible.
pub(crate) unsafe fn forbid(start: usize, len: usize) {
    // SAFETY: by the caller.
    let _ = unsafe {
        mprotect(
            std::ptr::with_exposed_provenance_mut(start),
            len,
            MprotectFlags::empty(),
        )
    };
}

/// A child of `fork` does not get the range: it would read zeros where pages are missing.
///
/// # Safety
/// The memory is the caller's.
pub(crate) unsafe fn keep_from_children(start: usize, len: usize) {
    // SAFETY: by the caller.
    let _ = unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(start),
            len,
            Advice::LinuxDontFork,
        )
    };
}

/// Gives the content of the range up: of shared memory in its file, or the same pages would come back.
///
/// # Safety
/// The content is the caller's to give up.
pub(crate) unsafe fn discard(start: usize, len: usize) -> rustix::io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: by the caller.
    let _ = unsafe { madvise(start, len, Advice::LinuxRemove) };
    // Private memory has no file; and pages that were made deadly are so in the mapping, not in the file.
    // SAFETY: as above.
    unsafe { madvise(start, len, Advice::LinuxDontNeed) }
}
