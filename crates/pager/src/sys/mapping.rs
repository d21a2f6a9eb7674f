//! Memory of this process that a pager fills.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use super::uffd::Uffd;
use crate::source::next_content;
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
    /// Shared memory (a memfd, which nobody can cut) with transparent huge pages where whole blocks of 2 MiB arrive, if the system gives those to shared memory
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`, or that of a smaller size: `advise` is enough); pages of 4 KiB elsewhere. Until a
    /// block has arrived no other process may write to it: what it wrote could be overwritten.
    SharedHuge,
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
    /// Another mapping of the same file, where whole blocks get their content.
    beside: Option<Beside>,
}

impl Backing {
    /// Whether its content is in a file, from which other processes get it as well: it is given up there (`MADV_REMOVE`), not in a mapping.
    pub fn is_shared(self) -> bool {
        matches!(self, Backing::Shared | Backing::SharedHuge)
    }
}

/// A mapping of shared memory that nobody serves.
#[derive(Debug)]
struct Beside {
    start: NonNull<u8>,
    len: usize,
    /// Another open file than that which others may have, as it has a place of its own for `lseek`.
    file: File,
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has it any longer.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
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
            Backing::SharedHuge => {
                let file = memory_file("amdahl-pager", len, MemfdFlags::ALLOW_SEALING)?;
                // Cut, it would kill who fills it.
                let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
                fcntl_add_seals(&file, seals).map_err(Error::system("F_ADD_SEALS"))?;
                Some(file)
            }
            _ => None,
        };
        let of_file = file.as_ref().map(|file| (file.as_fd(), 0));
        let mut mapping = Mapping::map(len, backing, of_file)?;
        if backing == Backing::SharedHuge
            && let Some(file) = &file
        {
            // Without it (no /proc) all pages are of 4 KiB.
            mapping.beside = Beside::of(file, len).ok();
        }
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
            beside: None,
        };
        let advice = match backing {
            Backing::Huge | Backing::SharedHuge => Some(Advice::LinuxHugepage),
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

    /// Whether [`put_block`](Self::put_block) is possible.
    pub(crate) fn takes_blocks(&self) -> bool {
        self.beside.is_some()
    }

    /// Gives the file of shared memory the content of a block at `offset`, in as large pages as the system gives. It is not mapped here by that. `false`: the file has
    /// something there, or there is no memory; nothing has changed then. Async-signal-safe.
    ///
    /// # Safety
    /// The block is missing, the caller's alone to fill, and from `from` on as many bytes can be read that nobody changes.
    pub(crate) unsafe fn put_block(&self, offset: usize, from: *const u8) -> bool {
        let Some(beside) = &self.beside else {
            return false;
        };
        assert!(offset.is_multiple_of(BLOCK) && offset + BLOCK <= beside.len);
        let end = (offset + BLOCK) as u64;
        // What is there already is the owner's.
        if next_content(&beside.file, offset as u64).is_some_and(|content| content < end) {
            return false;
        }
        let to = beside.start.as_ptr().wrapping_add(offset);
        if populate(to, BLOCK).is_err() {
            // Of what was allocated before, which is zeros. It cannot fail: the file cannot be sealed against it.
            let all = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = fallocate(&beside.file, all, offset as u64, BLOCK as u64);
            debug_assert_eq!(punched, Ok(()));
            return false;
        }
        // SAFETY: a block of a mapping of ours that is allocated, and cannot be cut; the caller vouches for the rest.
        unsafe {
            to.copy_from_nonoverlapping(from, BLOCK);
            // It is needed here no longer: the process would seem to have it twice.
            let _ = madvise(to.cast(), BLOCK, Advice::LinuxDontNeed);
        }
        true
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

impl Beside {
    fn of(file: &OwnedFd, len: usize) -> Result<Beside, Error> {
        let mapping = Mapping::map(len, Backing::SharedHuge, Some((file.as_fd(), 0)))?;
        let start = mapping.start;
        // What is mapped goes on to be, and is unmapped by what is made of it.
        std::mem::forget(mapping);
        // SAFETY: ours.
        unsafe { keep_from_children(start.as_ptr().expose_provenance(), len) };
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let opened = open(name, flags, Mode::empty()).map(File::from);
        opened
            .map(|file| Beside { start, len, file })
            .map_err(Error::system("open of a memfd by /proc"))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_cannot_be_allocated_leaves_nothing_behind() {
        let memory = Mapping::new(3 * BLOCK, Backing::SharedHuge).unwrap();
        let Some(beside) = &memory.beside else {
            println!("SKIPPED: no /proc");
            return;
        };
        let content = vec![7; BLOCK];
        // SAFETY: nobody else has the memory; the content is as long.
        let put = |at: usize| unsafe { memory.put_block(at * BLOCK, content.as_ptr()) };
        assert!(put(0));
        // The kernel allocates what is mapped, and fails where nothing is.
        let half = beside.start.as_ptr().wrapping_add(BLOCK + BLOCK / 2);
        // SAFETY: ours, and not touched again.
        unsafe { munmap(half.cast(), BLOCK / 2) }.unwrap();
        assert!(!put(1));
        assert_eq!(next_content(&beside.file, BLOCK as u64), None);
        assert!(put(2));
        assert!(!put(2), "what is there is the owner's");
        let mut found = vec![1; 3 * BLOCK];
        memory.read(0, &mut found);
        let expected = [&content[..], &vec![0; BLOCK], &content].concat();
        assert!(found == expected);
    }
}
