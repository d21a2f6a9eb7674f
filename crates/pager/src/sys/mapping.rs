//! Memory of this process that a pager fills.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use super::uffd::Uffd;
use crate::{BLOCK, CleanPages, Error, HandedOver, PAGE};

/// The addresses of a mapping as `/proc/PID/maps` and `smaps` begin its line: `7f00-7f10`.
pub(crate) fn addresses_of(word: &str) -> Option<std::ops::Range<u64>> {
    let (start, end) = word.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(hex(start)?..hex(end)?)
}

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
    /// A private mapping of the file of [`CleanPages`]: what is only read is the one copy of all mappings, what is written to is this
    /// mapping's own from then on, a page of 4 KiB at a time. Whoever touches it before it is served gets SIGSEGV. Made by [`CleanPages::map`] or [`Mapping::of_clean`].
    Clean,
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
    /// Where in its file it begins.
    file_offset: u64,
    /// Whose file it is, if they are of this process.
    clean: Option<Arc<CleanPages>>,
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
            Backing::Clean => {
                return Err(Error::Config(
                    "memory of clean pages is a mapping of their file: use `CleanPages::map`",
                ));
            }
            _ => PAGE,
        };
        let len = whole(len, unit)?;
        let file = match backing {
            Backing::Shared => Some(memory_file("amdahl-pager", len, MemfdFlags::empty())?),
            _ => None,
        };
        let of_file = file.as_ref().map(|file| (file.as_fd(), 0));
        let mut mapping = Mapping::map(len, backing, of_file)?;
        mapping.file = file;
        Ok(mapping)
    }

    /// A private mapping of the file of another process's [`CleanPages`], from `offset` on, which is of whole pages. To be
    /// [handed over](crate::handoff::hand_over) to that process before anything touches it: until then whoever touches it gets SIGSEGV, since what
    /// has not arrived is not zero, it is anything.
    ///
    /// # Errors
    /// [`Error::Config`]: the file ends before, or others can still write to it; [`Error::System`].
    pub fn of_clean(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Mapping, Error> {
        let len = whole(len, PAGE)?;
        let file_len = fstat(file).map_err(Error::system("fstat"))?.st_size as u64;
        let end = offset.checked_add(len as u64);
        if !offset.is_multiple_of(PAGE as u64) || end.is_none_or(|end| end > file_len) {
            return Err(Error::Config(
                "a file of clean pages is mapped by whole pages, and not behind its end",
            ));
        }
        let seals = fcntl_get_seals(file).map_err(Error::system("F_GET_SEALS"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE) {
            return Err(Error::Config(
                "this is no file of clean pages: it is not sealed, so others could change or cut it",
            ));
        }
        Mapping::map(len, Backing::Clean, Some((file, offset)))
    }

    /// The same, whose pages are of this process.
    pub(crate) fn of_own_clean(
        clean: &Arc<CleanPages>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Mapping, Error> {
        let mut mapping = Mapping::of_clean(file, offset, len)?;
        mapping.clean = Some(Arc::clone(clean));
        Ok(mapping)
    }

    /// Shared memory that nobody but who has this mapping can write to, whatever they do with its file.
    pub(crate) fn sealed(len: usize) -> Result<Mapping, Error> {
        let len = whole(len, PAGE)?;
        let file = memory_file("amdahl-clean", len, MemfdFlags::ALLOW_SEALING)?;
        let mut mapping = Mapping::map(len, Backing::Shared, Some((file.as_fd(), 0)))?;
        // After the mapping, which goes on to be writable.
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(Error::system("F_ADD_SEALS (Linux 5.1)"))?;
        // A huge page would be mapped as a whole, with what has not arrived.
        let start = mapping.as_ptr().expose_provenance();
        // SAFETY: changes no content; the memory is ours.
        unsafe {
            let _ = madvise(
                mapping.as_ptr().cast(),
                mapping.len,
                Advice::LinuxNoHugepage,
            );
            keep_from_children(start, mapping.len);
        }
        mapping.file = Some(file);
        Ok(mapping)
    }

    /// `len` bytes, of whole pages; of a file from an offset on.
    fn map(
        len: usize,
        backing: Backing,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<Mapping, Error> {
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
        let protection = match backing {
            // Until it is registered: what has not arrived is not zero, it is anything.
            Backing::Clean => ProtFlags::empty(),
            _ => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: replaces a part of the reservation, which is ours alone.
        let mapped = unsafe {
            match &file {
                Some((fd, offset)) => {
                    let flags = match backing {
                        Backing::Clean => MapFlags::PRIVATE | MapFlags::NORESERVE,
                        _ => MapFlags::SHARED,
                    };
                    mmap(start, len, protection, flags | MapFlags::FIXED, fd, *offset)
                }
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
            file: None,
            file_offset: file.map_or(0, |(_, offset)| offset),
            clean: None,
        };
        let advice = match backing {
            Backing::Huge => Some(Advice::LinuxHugepage),
            Backing::Small | Backing::Clean => Some(Advice::LinuxNoHugepage),
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

    /// Registers it, a mapping of another process's clean pages, with a userfaultfd that a pager of that process will serve.
    pub(crate) fn register_clean(&self, uffd: &Uffd) -> Result<HandedOver, Error> {
        if self.backing != Backing::Clean || self.clean.is_some() {
            return Err(Error::Config(
                "only memory of another process's clean pages is handed over to it",
            ));
        }
        let start = self.as_ptr().expose_provenance();
        // SAFETY: whoever made this mapping knows that nothing is there before it has arrived.
        unsafe {
            keep_from_children(start, self.len);
            uffd.register_minor(start..start + self.len)
        }
        .map_err(Error::system("UFFDIO_REGISTER"))?;
        Ok(HandedOver {
            start,
            len: self.len,
            source_offset: self.file_offset,
            page_bytes: PAGE,
        })
    }

    /// Allows access to what was mapped without, after it is [registered](Self::register_clean).
    pub(crate) fn open_clean(&self) -> Result<(), Error> {
        // SAFETY: ours, and what is missing is somebody's to bring.
        unsafe { allow(self.as_ptr().expose_provenance(), self.len) }
            .map_err(Error::system("mprotect"))
    }

    /// Where in its file it begins.
    pub(crate) fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// Whose file it maps, if they are of this process.
    pub(crate) fn clean(&self) -> Option<&Arc<CleanPages>> {
        self.clean.as_ref()
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

/// Bytes of whole units, at least one.
fn whole(len: usize, unit: usize) -> Result<usize, Error> {
    len.checked_next_multiple_of(unit)
        .filter(|len| *len > 0)
        .ok_or(Error::Config("memory has no bytes, or too many"))
}

/// A file that is memory, of zeros.
fn memory_file(name: &str, len: usize, flags: MemfdFlags) -> Result<OwnedFd, Error> {
    let file =
        memfd_create(name, flags | MemfdFlags::CLOEXEC).map_err(Error::system("memfd_create"))?;
    ftruncate(&file, len as u64).map_err(Error::system("ftruncate"))?;
    Ok(file)
}

/// Allocates the pages of shared memory, so that writing to it cannot fail. A kernel before 5.14 does that when they are written to.
pub(crate) fn populate(start: *mut u8, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the caller's own mapping; nothing of its content changes.
    match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
        Err(rustix::io::Errno::INVAL) => Ok(()),
        done => done,
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

/// Allows access to memory that was mapped without.
///
/// # Safety
/// The memory is the caller's, and what is missing of it is somebody's to bring.
pub(crate) unsafe fn allow(start: usize, len: usize) -> rustix::io::Result<()> {
    // SAFETY: by the caller.
    unsafe {
        mprotect(
            std::ptr::with_exposed_provenance_mut(start),
            len,
            MprotectFlags::READ | MprotectFlags::WRITE,
        )
    }
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
