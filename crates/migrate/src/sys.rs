//! The thin edge: which pages are written, by asynchronous write protection, and giving pages up.

use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use amdahl_pager::{Backing, Mapping, PAGE, Support, Way};
use linux_raw_sys::general::{self as raw, page_region, pm_scan_arg};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{Advice, UserfaultfdFlags, madvise, userfaultfd};

use crate::Error;
use crate::set::PageSet;

const GROUP: u8 = raw::USERFAULTFD_IOC as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_UNREGISTER as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(GROUP, raw::_UFFDIO_WRITEPROTECT as u8);
/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);

/// `UFFDIO_WRITEPROTECT_MODE_WP`: protect, instead of giving back.
const PROTECT: u64 = 1;

/// What the kernel has to offer: write protection that a write lifts by itself, of pages that are not there yet and of shared memory.
const FEATURES: u64 = raw::UFFD_FEATURE_WP_ASYNC as u64
    | raw::UFFD_FEATURE_WP_UNPOPULATED as u64
    | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64
    | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;

/// Runs that one call to the kernel can tell.
const RUNS: usize = 1024;

/// Knows which pages of a memory were written since it last looked. Writes go on meanwhile, and cost a fault each time the first after a look.
#[derive(Debug)]
pub(crate) struct Tracker {
    fd: OwnedFd,
    pagemap: OwnedFd,
    memory: Arc<Mapping>,
}

fn system(operation: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { operation, errno }
}

/// Why writes cannot be followed here, and what to do; `None` if they can.
pub fn missing() -> Option<String> {
    let support = Support::probe();
    match support.way {
        None => return support.missing().first().cloned(),
        // Writes by system calls and by guests of KVM would not be allowed at all.
        Some(Way::UserModeOnly) => {
            return Some(
                "following writes needs a userfaultfd that serves the kernel, too: run as root, `setfacl -m u:USER:rw /dev/userfaultfd`, or `sysctl vm.unprivileged_userfaultfd=1`".to_owned(),
            );
        }
        Some(_) => {}
    }
    if support.features.0 & FEATURES != FEATURES {
        return Some("following writes needs Linux 6.7 or later, built with CONFIG_PTE_MARKER_UFFD_WP: this kernel has no asynchronous write protection (UFFD_FEATURE_WP_ASYNC)".to_owned());
    }
    None
}

/// A descriptor in that way; the pager's own are not for others.
fn userfault(way: Way) -> Result<OwnedFd, Errno> {
    match way {
        Way::Device => {
            const NEW: Opcode = opcode::none(GROUP, 0);
            let device = open(
                "/dev/userfaultfd",
                OFlags::RDWR | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            // SAFETY: the opcode takes the flags as a number and gives a new descriptor.
            unsafe { ioctl(device, NewDescriptor::<NEW>) }
        }
        // SAFETY: gives a new descriptor and does nothing else.
        _ => unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) },
    }
}

struct NewDescriptor<const OPCODE: Opcode>;

// SAFETY: the kernel takes the flags in the place of the pointer, and returns a descriptor that is nobody's yet.
unsafe impl<const OPCODE: Opcode> rustix::ioctl::Ioctl for NewDescriptor<OPCODE> {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(UserfaultfdFlags::CLOEXEC.bits() as usize)
    }

    unsafe fn output_from_ptr(
        output: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: as above.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

impl Tracker {
    /// Begins to follow: all that is written from now on is told by [`written`](Tracker::written).
    pub fn new(memory: &Arc<Mapping>) -> Result<Tracker, Error> {
        if let Some(why) = missing() {
            return Err(Error::Unavailable(why));
        }
        if memory.backing() == Backing::HugeTlb {
            return Err(Error::Config(
                "memory of reserved huge pages cannot be migrated: only pages of 4 KiB are followed",
            ));
        }
        let way = Support::probe().way.unwrap_or(Way::Call);
        let fd = userfault(way).map_err(system("userfaultfd"))?;
        let mut api = raw::uffdio_api {
            api: raw::UFFD_API.into(),
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: the opcode takes this structure.
        unsafe { ioctl(&fd, Updater::<API, _>::new(&mut api)) }.map_err(system("UFFDIO_API"))?;
        let tracker = Tracker {
            fd,
            pagemap: pagemap()?,
            memory: memory.clone(),
        };
        let mut register = raw::uffdio_register {
            range: tracker.range(),
            mode: raw::UFFDIO_REGISTER_MODE_WP.into(),
            ioctls: 0,
        };
        // SAFETY: the opcode takes this structure; the memory is mapped, and writes to it go on as before.
        unsafe { ioctl(&tracker.fd, Updater::<REGISTER, _>::new(&mut register)) }.map_err(
            |errno| match errno {
                Errno::BUSY => Error::Config(
                    "this memory has a userfaultfd already: a pager has to be finished before its memory can be migrated",
                ),
                errno => system("UFFDIO_REGISTER")(errno),
            },
        )?;
        let mut protect = raw::uffdio_writeprotect {
            range: tracker.range(),
            mode: PROTECT,
        };
        // SAFETY: as above; who writes to a protected page goes on by itself.
        unsafe { ioctl(&tracker.fd, Updater::<WRITEPROTECT, _>::new(&mut protect)) }
            .map_err(system("UFFDIO_WRITEPROTECT"))?;
        Ok(tracker)
    }

    fn range(&self) -> raw::uffdio_range {
        raw::uffdio_range {
            start: self.start(),
            len: self.memory.len() as u64,
        }
    }

    fn start(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }

    /// Adds to `set` the pages that were written since the last look, and looks at them anew: a write is told by this call or by the next.
    pub fn written(&self, set: &mut PageSet) -> Result<(), Error> {
        let flags = (raw::PM_SCAN_WP_MATCHING | raw::PM_SCAN_CHECK_WPASYNC).into();
        let written = raw::PAGE_IS_WRITTEN.into();
        walk(&self.pagemap, &self.memory, flags, (written, 0), set)
    }

    /// Pages whose content may be other than zeros. All others are zeros, or will be told by the next look as written.
    ///
    /// Pages of private memory that were never touched may be among them: their protection is a mark that looks like a page
    /// that was swapped out. To read those takes no memory.
    pub fn there(&self) -> Result<PageSet, Error> {
        there(&self.memory, &self.pagemap)
    }
}

/// The pages of `memory` that hold anything: for shared memory those that its file has, for private memory those that are present
/// or swapped out.
fn there(memory: &Mapping, pagemap: &OwnedFd) -> Result<PageSet, Error> {
    let mut set = PageSet::new((memory.len() / PAGE) as u64);
    match memory.file() {
        None => {
            let any = (raw::PAGE_IS_PRESENT | raw::PAGE_IS_SWAPPED).into();
            walk(pagemap, memory, 0, (0, any), &mut set)?;
        }
        Some(file) => {
            let len = memory.len() as u64;
            let mut at = 0;
            while at < len {
                let data = match seek(file, SeekFrom::Data(at)) {
                    // Nothing up to the end.
                    Err(Errno::NXIO) => break,
                    data => data.map_err(system("lseek"))?.min(len),
                };
                at = seek(file, SeekFrom::Hole(data))
                    .map_err(system("lseek"))?
                    .next_multiple_of(PAGE as u64)
                    .min(len);
                set.insert(data / PAGE as u64..at / PAGE as u64);
            }
        }
    }
    Ok(set)
}

/// The first page of a set that holds anything.
pub(crate) fn first_there(memory: &Mapping, of: &PageSet) -> Result<Option<u64>, Error> {
    let there = match there(memory, &pagemap()?) {
        // Before Linux 6.7 private memory cannot be asked.
        Err(Error::System {
            errno: Errno::NOTTY,
            ..
        }) => return Ok(None),
        there => there?,
    };
    let mut both = PageSet::all(of.room());
    of.runs().for_each(|run| both.remove(run));
    let mut found = PageSet::new(of.room());
    found.insert_difference(&there, &both);
    Ok(found.runs().next().map(|run| run.start))
}

fn pagemap() -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    open("/proc/self/pagemap", flags, Mode::empty()).map_err(system("/proc/self/pagemap"))
}

/// Adds to `set` the pages that are of all of the first categories and of one of the second, where there are any.
fn walk(
    pagemap: &OwnedFd,
    memory: &Mapping,
    flags: u64,
    (all, any): (u64, u64),
    set: &mut PageSet,
) -> Result<(), Error> {
    let start = memory.as_ptr().addr() as u64;
    let end = start + memory.len() as u64;
    let empty = page_region {
        start: 0,
        end: 0,
        categories: 0,
    };
    let mut found = [empty; RUNS];
    let mut at = start;
    while at < end {
        let mut ask = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags,
            start: at,
            end,
            walk_end: 0,
            vec: found.as_mut_ptr().expose_provenance() as u64,
            vec_len: RUNS as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: all,
            category_anyof_mask: any,
            return_mask: all | any,
        };
        let count = scan(pagemap.as_fd(), &mut ask)?;
        for region in &found[..count.min(RUNS)] {
            let page = |address: u64| (address.clamp(at, end) - start) / PAGE as u64;
            set.insert(page(region.start)..page(region.end));
        }
        if ask.walk_end <= at {
            return Err(Error::System {
                operation: "PAGEMAP_SCAN, which does not go on",
                errno: Errno::IO,
            });
        }
        at = ask.walk_end;
    }
    Ok(())
}

/// How many regions were found.
fn scan(pagemap: BorrowedFd<'_>, ask: &mut pm_scan_arg) -> Result<usize, Error> {
    struct Scan<'a>(&'a mut pm_scan_arg);
    // SAFETY: the kernel takes this structure, and writes at most `vec_len` regions to `vec`, which outlives the call.
    unsafe impl rustix::ioctl::Ioctl for Scan<'_> {
        type Output = usize;
        const IS_MUTATING: bool = true;

        fn opcode(&self) -> Opcode {
            PAGEMAP_SCAN
        }

        fn as_ptr(&mut self) -> *mut std::ffi::c_void {
            std::ptr::from_mut(self.0).cast()
        }

        unsafe fn output_from_ptr(
            output: rustix::ioctl::IoctlOutput,
            _: *mut std::ffi::c_void,
        ) -> rustix::io::Result<usize> {
            Ok(output as usize)
        }
    }
    loop {
        // SAFETY: as above.
        match unsafe { ioctl(pagemap, Scan(ask)) } {
            Err(Errno::INTR) => {}
            result => return result.map_err(system("PAGEMAP_SCAN")),
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let mut range = self.range();
        // SAFETY: the opcode takes this structure. All protection goes with the registration.
        let _ = unsafe { ioctl(&self.fd, Updater::<UNREGISTER, _>::new(&mut range)) };
    }
}

/// Gives the content of pages up, so that they are missing.
///
/// # Safety
/// Nobody needs the content, and nobody has references to it.
pub(crate) unsafe fn give_up(memory: &Mapping, pages: Range<u64>) -> Result<(), Error> {
    let start = memory
        .as_ptr()
        .wrapping_add(pages.start as usize * PAGE)
        .cast();
    let len = (pages.end - pages.start) as usize * PAGE;
    let advice = match memory.backing().is_shared() {
        true => Advice::LinuxRemove,
        false => Advice::LinuxDontNeed,
    };
    // SAFETY: by the caller.
    unsafe { madvise(start, len, advice) }.map_err(system("madvise"))
}

/// Has the kernel put no huge page where small ones are missing, and end doing so before this returns.
pub(crate) fn keep_small(memory: &Mapping) {
    let start = memory.as_ptr().cast();
    // SAFETY: says what pages to take; changes no content. A kernel without huge pages refuses, which does no harm.
    let _ = unsafe { madvise(start, memory.len(), Advice::LinuxNoHugepage) };
}

/// Ends what [`keep_small`] has begun, for memory that is to be of huge pages.
pub(crate) fn allow_huge(memory: &Mapping) {
    if matches!(memory.backing(), Backing::Huge | Backing::SharedHuge) {
        let start = memory.as_ptr().cast();
        // SAFETY: as in `keep_small`.
        let _ = unsafe { madvise(start, memory.len(), Advice::LinuxHugepage) };
    }
}

/// A number that nobody guesses.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    use io::Read;
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Error::System {
            operation: "/dev/urandom",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use amdahl_pager::BLOCK;

    use super::*;

    #[test]
    fn what_is_there_is_told() {
        if let Some(why) = missing() {
            println!("SKIPPED what_is_there_is_told: {why}");
            return;
        }
        for backing in [Backing::Small, Backing::Shared] {
            let memory = Mapping::new(2 * BLOCK, backing).unwrap();
            keep_small(&memory);
            for page in [3, 700, 1023] {
                memory.write(page * PAGE, &[1]);
            }
            let mut odd = PageSet::new(1024);
            for page in [2, 700, 900] {
                odd.insert(page..page + 1);
            }
            assert_eq!(first_there(&memory, &odd), Ok(Some(700)), "{backing:?}");
            // SAFETY: nobody needs it.
            unsafe { give_up(&memory, 600..800) }.unwrap();
            assert_eq!(first_there(&memory, &odd), Ok(None), "{backing:?}");
            assert_eq!(first_there(&memory, &PageSet::all(1024)), Ok(Some(3)));
        }
    }

    fn written(tracker: &Tracker, pages: u64) -> Vec<Range<u64>> {
        let mut set = PageSet::new(pages);
        tracker.written(&mut set).unwrap();
        set.runs().collect()
    }

    #[test]
    fn what_is_written_is_told_once_whatever_the_memory_is() {
        if let Some(why) = missing() {
            println!("SKIPPED what_is_written_is_told_once: {why}");
            return;
        }
        for backing in [Backing::Small, Backing::Huge, Backing::Shared] {
            let memory = Arc::new(Mapping::new(3 * BLOCK, backing).unwrap());
            let pages = (memory.len() / PAGE) as u64;
            // One block is there before, one is not.
            memory.write(0, &vec![1; BLOCK]);
            let tracker = Tracker::new(&memory).unwrap();
            assert_eq!(written(&tracker, pages), [], "{backing:?}");
            let mut bytes = [0; 9];
            memory.read(BLOCK + PAGE, &mut bytes);
            assert_eq!(
                written(&tracker, pages),
                [],
                "{backing:?}: reading is no writing"
            );
            for page in [0, 3, 4, 511, 513, 700, 1535] {
                memory.write(page * PAGE + 17, &[2]);
            }
            let mut found = PageSet::new(pages);
            tracker.written(&mut found).unwrap();
            for page in [0, 3, 4, 511, 513, 700, 1535] {
                assert!(found.contains(page), "{backing:?}: {page}");
            }
            if backing != Backing::Huge {
                assert_eq!(found.len(), 7, "{backing:?}");
            }
            assert_eq!(written(&tracker, pages), [], "{backing:?}");
            memory.write(3 * PAGE, &[3]);
            assert!(written(&tracker, pages).iter().any(|run| run.contains(&3)));
            // More runs than one call can tell.
            let many = Arc::new(Mapping::new(8 * RUNS * PAGE, backing).unwrap());
            let tracker = Tracker::new(&many).unwrap();
            for page in (0..many.len() / PAGE).step_by(2) {
                many.write(page * PAGE, &[1]);
            }
            let mut found = PageSet::new(8 * RUNS as u64);
            tracker.written(&mut found).unwrap();
            assert!(
                (0..8 * RUNS as u64)
                    .step_by(2)
                    .all(|page| found.contains(page))
            );
            // The same memory can be followed again.
            drop(tracker);
            Tracker::new(&many).unwrap();
        }
    }
}
