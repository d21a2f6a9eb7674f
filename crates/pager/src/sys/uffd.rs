//! A userfaultfd: registration, the calls that put pages into place, and its messages.
//!
//! The structures are the kernel's, by `linux-raw-sys`. All calls are raw system calls without `errno`, so that they may be made
//! inside of a signal handler.

use std::mem::{MaybeUninit, size_of};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general::{self as raw, uffd_msg};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::PAGE;

const GROUP: u8 = raw::USERFAULTFD_IOC as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
// "Read" though the kernel reads them: so the interface has been since the beginning.
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_UNREGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(GROUP, raw::_UFFDIO_COPY as u8);
const ZEROPAGE: Opcode =
    opcode::read_write::<raw::uffdio_zeropage>(GROUP, raw::_UFFDIO_ZEROPAGE as u8);
const CONTINUE: Opcode =
    opcode::read_write::<raw::uffdio_continue>(GROUP, raw::_UFFDIO_CONTINUE as u8);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(GROUP, raw::_UFFDIO_MOVE as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(GROUP, raw::_UFFDIO_POISON as u8);

/// Features of userfaultfd, as `UFFDIO_API` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Nothing but missing pages of anonymous memory.
    pub const NONE: Features = Features(0);
    /// A child of `fork` gets a descriptor of its own.
    pub const EVENT_FORK: Features = Features(raw::UFFD_FEATURE_EVENT_FORK as u64);
    /// `mremap` is told.
    pub const EVENT_REMAP: Features = Features(raw::UFFD_FEATURE_EVENT_REMAP as u64);
    /// `madvise(MADV_DONTNEED)` and its like are told: a balloon.
    pub const EVENT_REMOVE: Features = Features(raw::UFFD_FEATURE_EVENT_REMOVE as u64);
    /// `munmap` is told.
    pub const EVENT_UNMAP: Features = Features(raw::UFFD_FEATURE_EVENT_UNMAP as u64);
    /// Missing pages of hugetlbfs.
    pub const MISSING_HUGETLBFS: Features = Features(raw::UFFD_FEATURE_MISSING_HUGETLBFS as u64);
    /// Missing pages of shared memory.
    pub const MISSING_SHMEM: Features = Features(raw::UFFD_FEATURE_MISSING_SHMEM as u64);
    /// The faulting thread gets a signal instead of waiting for a message to be answered.
    pub const SIGBUS: Features = Features(raw::UFFD_FEATURE_SIGBUS as u64);
    /// Messages name the faulting thread.
    pub const THREAD_ID: Features = Features(raw::UFFD_FEATURE_THREAD_ID as u64);
    /// Pages of shared memory that exist and are not mapped yet.
    pub const MINOR_SHMEM: Features = Features(raw::UFFD_FEATURE_MINOR_SHMEM as u64);
    /// Pages can be marked as lost (Linux 6.6).
    pub const POISON: Features = Features(raw::UFFD_FEATURE_POISON as u64);
    /// Pages can be moved into place (Linux 6.8).
    pub const MOVE: Features = Features(raw::UFFD_FEATURE_MOVE as u64);

    /// All of `other`?
    pub const fn contain(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// What both have.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// What one of the two has.
    pub const fn or(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

/// What came of putting pages into place: as many bytes, then perhaps an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub bytes: usize,
    pub error: Option<Errno>,
}

impl Placed {
    /// The kernel says how much it did in a field of its own, which holds a negative error where it did nothing.
    fn from(result: rustix::io::Result<()>, len: usize, field: i64) -> Placed {
        match result {
            Ok(()) => Placed {
                bytes: len,
                error: None,
            },
            Err(error) => Placed {
                bytes: usize::try_from(field).unwrap_or(0).min(len),
                error: Some(error),
            },
        }
    }
}

/// Has `put` do something to `range`, which may lie in several mappings: the kernel takes a part of one at a time, and says ENOENT for
/// all of a range that goes beyond one, as it does for what is mapped no longer. Smaller parts are tried then, down to `granule`
/// bytes, for which alone ENOENT means that nothing is there. Less may be done than was asked for, without an error. `part` is
/// how much is tried, and kept by the caller between calls; at first all.
pub(crate) fn in_one_mapping(
    range: Range<usize>,
    granule: usize,
    part: &mut usize,
    put: impl Fn(Range<usize>) -> Placed,
) -> Placed {
    loop {
        let len = range.len().min(*part);
        let placed = put(range.start..range.start + len);
        if placed.bytes == 0 && placed.error == Some(Errno::NOENT) && len > granule {
            *part = (len / 2 / granule * granule).max(granule);
            continue;
        }
        *part = part.saturating_mul(2);
        return placed;
    }
}

/// A userfaultfd whose interface has been agreed on.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: OwnedFd,
    /// Another process has it, too, and may make it block: the flag is the open file's, not the descriptor's.
    is_foreign: bool,
}

/// `UFFDIO_API`: asks for features; gives those that the kernel has.
pub(crate) fn agree(fd: BorrowedFd<'_>, wanted: Features) -> rustix::io::Result<Features> {
    let mut api = raw::uffdio_api {
        api: raw::UFFD_API.into(),
        features: wanted.0,
        ioctls: 0,
    };
    // SAFETY: the opcode takes this structure.
    unsafe { ioctl(fd, Updater::<API, _>::new(&mut api)) }?;
    Ok(Features(api.features))
}

impl Uffd {
    /// Of a new descriptor, with these features.
    pub fn new(fd: OwnedFd, wanted: Features) -> rustix::io::Result<Uffd> {
        agree(fd.as_fd(), wanted)?;
        Ok(Uffd {
            fd,
            is_foreign: false,
        })
    }

    /// Of a descriptor that its owner has set up and registered. What it agreed on cannot be asked: a call that the kernel refuses
    /// is answered by its next best.
    pub fn handed_over(fd: OwnedFd) -> Uffd {
        Uffd {
            fd,
            is_foreign: true,
        }
    }

    /// The descriptor, for another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Keeps the open file for as long as the process lives, whatever becomes of this.
    pub fn keep_open(&self) {
        if let Ok(other) = self.fd.try_clone() {
            std::mem::forget(other);
        }
    }

    /// Registers memory: faults on its missing pages are told.
    ///
    /// # Safety
    /// The memory is the caller's, and whoever reads it expects that missing pages are filled by this descriptor's owner.
    pub unsafe fn register(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let missing = raw::UFFDIO_REGISTER_MODE_MISSING;
        // SAFETY: by the caller.
        unsafe { self.register_as(range, missing.into()) }
    }

    /// Registers memory of a file in shared memory: faults on pages that the file does not have are told, and on those that it has and
    /// that are not mapped.
    ///
    /// # Safety
    /// As [`register`](Uffd::register).
    pub unsafe fn register_minor(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let both = raw::UFFDIO_REGISTER_MODE_MISSING | raw::UFFDIO_REGISTER_MODE_MINOR;
        // SAFETY: by the caller.
        unsafe { self.register_as(range, both.into()) }
    }

    /// # Safety
    /// As [`register`](Uffd::register).
    unsafe fn register_as(&self, range: Range<usize>, mode: u64) -> rustix::io::Result<()> {
        let mut register = raw::uffdio_register {
            range: raw_range(range),
            mode,
            ioctls: 0,
        };
        // SAFETY: the opcode takes this structure; the memory is the caller's.
        unsafe { ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut register)) }
    }

    /// Faults of the range are the kernel's again. Who waits is woken, whatever comes of it.
    pub fn unregister(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let mut raw = raw_range(range.clone());
        // SAFETY: the opcode takes this structure.
        let done = unsafe { ioctl(&self.fd, Updater::<UNREGISTER, _>::new(&mut raw)) };
        // The kernel (6.18) wakes who waits before it locks out those who fault under the lock of their mapping alone: who has begun by then would
        // wait for ever. After the call all of them wait already, or find the memory ordinary.
        let _ = self.wake(range);
        done
    }

    /// Wakes who waits for a page of the range.
    pub fn wake(&self, range: Range<usize>) -> rustix::io::Result<()> {
        let mut range = raw_range(range);
        // SAFETY: the opcode takes this structure.
        unsafe { ioctl(&self.fd, Updater::<WAKE, _>::new(&mut range)) }
    }

    /// Allocates pages at `range`, copies `from` into them, wakes.
    ///
    /// # Safety
    /// From `from` on as many bytes can be read for as long as the call takes.
    pub unsafe fn copy(&self, range: Range<usize>, from: *const u8) -> Placed {
        let mut copy = raw::uffdio_copy {
            dst: range.start as u64,
            src: from.addr() as u64,
            len: range.len() as u64,
            mode: 0,
            copy: 0,
        };
        // SAFETY: the opcode takes this structure; the caller vouches for `from`, and pages of `range` that are there are not
        // overwritten.
        let done = unsafe { ioctl(&self.fd, Updater::<COPY, _>::new(&mut copy)) };
        Placed::from(done, range.len(), copy.copy)
    }

    /// Maps the zero page all over `range`, wakes.
    pub fn zero(&self, range: Range<usize>) -> Placed {
        let len = range.len();
        let mut zero = raw::uffdio_zeropage {
            range: raw_range(range),
            mode: 0,
            zeropage: 0,
        };
        // SAFETY: the opcode takes this structure.
        let done = unsafe { ioctl(&self.fd, Updater::<ZEROPAGE, _>::new(&mut zero)) };
        Placed::from(done, len, zero.zeropage)
    }

    /// Maps the pages that the memory's file has at `range`, wakes. Pages of a private mapping are mapped for reading: who writes gets a
    /// copy. EFAULT for a page that the file does not have.
    pub fn map(&self, range: Range<usize>) -> Placed {
        let len = range.len();
        let mut pages = raw::uffdio_continue {
            range: raw_range(range),
            mode: 0,
            mapped: 0,
        };
        // SAFETY: the opcode takes this structure; pages of `range` that are there are not replaced.
        let done = unsafe { ioctl(&self.fd, Updater::<CONTINUE, _>::new(&mut pages)) };
        Placed::from(done, len, pages.mapped)
    }

    /// Moves pages of this process from `from` to `range`, wakes. Nothing is left at `from`.
    ///
    /// # Safety
    /// From `from` on there are as many bytes of private anonymous memory that nobody else uses.
    pub unsafe fn move_pages(&self, range: Range<usize>, from: *mut u8) -> Placed {
        let mut pages = raw::uffdio_move {
            dst: range.start as u64,
            src: from.addr() as u64,
            len: range.len() as u64,
            mode: 0,
            move_: 0,
        };
        // SAFETY: the opcode takes this structure; the caller vouches for `from`, and pages of `range` that are there are not
        // overwritten.
        let done = unsafe { ioctl(&self.fd, Updater::<MOVE, _>::new(&mut pages)) };
        Placed::from(done, range.len(), pages.move_)
    }

    /// Marks missing pages of `range` as lost: who touches one gets SIGBUS. Wakes.
    pub fn poison(&self, range: Range<usize>) -> Placed {
        let len = range.len();
        let mut poison = raw::uffdio_poison {
            range: raw_range(range),
            mode: 0,
            updated: 0,
        };
        // SAFETY: the opcode takes this structure.
        let done = unsafe { ioctl(&self.fd, Updater::<POISON, _>::new(&mut poison)) };
        Placed::from(done, len, poison.updated)
    }

    /// As [`poison`](Uffd::poison), of a range that may lie in several mappings: see [`in_one_mapping`].
    pub fn poison_part(&self, range: Range<usize>, granule: usize, part: &mut usize) -> Placed {
        in_one_mapping(range, granule, part, |range| self.poison(range))
    }

    /// Reads messages: blocks if the descriptor does. As many as there are, at most as many as the buffer takes.
    pub fn read<'a, const N: usize>(
        &self,
        buffer: &'a mut Messages<N>,
    ) -> rustix::io::Result<impl Iterator<Item = Message> + 'a> {
        let count = self.read_raw(buffer.bytes())?;
        // SAFETY: the kernel has written as many whole messages; all patterns of bits are valid.
        let raw = buffer.0[..count]
            .iter()
            .map(|message| unsafe { message.assume_init_read() });
        Ok(raw.filter_map(|message| Told::of(&message).and_then(Told::ours)))
    }

    /// Reads whole messages to memory that is aligned for them; how many.
    pub fn read_raw(&self, buffer: &mut [MaybeUninit<u8>]) -> rustix::io::Result<usize> {
        if self.is_foreign {
            let flags = fcntl_getfl(&self.fd)?;
            if !flags.contains(OFlags::NONBLOCK) {
                fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?;
            }
        }
        let (filled, _) = rustix::io::read(&self.fd, buffer)?;
        Ok(filled.len() / size_of::<uffd_msg>())
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn raw_range(range: Range<usize>) -> raw::uffdio_range {
    raw::uffdio_range {
        start: range.start as u64,
        len: range.len() as u64,
    }
}

/// Room for messages: so many that a reader that fell behind catches up with few calls.
pub(crate) struct Messages<const N: usize = 64>([MaybeUninit<uffd_msg>; N]);

impl<const N: usize> Messages<N> {
    pub fn new() -> Messages<N> {
        Messages([const { MaybeUninit::uninit() }; N])
    }

    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        let len = size_of_val(&self.0);
        // SAFETY: the same memory, as bytes that need not be initialised.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// What userfaultfd tells.
#[derive(Debug)]
pub(crate) enum Message {
    /// A thread waits for the page at this address.
    Fault {
        /// Of the page.
        address: usize,
        /// The thread, 0 where it is not told.
        thread: u32,
    },
    /// `fork`: a descriptor for the child's copy.
    Fork(OwnedFd),
    /// `mremap`.
    Remap {
        /// Where it was.
        from: usize,
        /// Where it is.
        to: usize,
        /// How much.
        len: usize,
    },
    /// The content of the range is given up; it reads as zero from now on.
    Remove(Range<usize>),
    /// The range is no more.
    Unmap(Range<usize>),
}

/// A message as the kernel wrote it, perhaps for a process that is no more.
#[derive(Debug)]
pub(crate) enum Told {
    /// Of a descriptor by its number, which only the process that read it has.
    Fork(i32),
    Other(Message),
}

impl Told {
    /// `None`: a kind that is not known.
    pub fn of(message: &uffd_msg) -> Option<Told> {
        let arg = message.arg;
        // SAFETY: which part of the union is valid is told by `event`; all parts are plain numbers.
        let message = unsafe {
            match u32::from(message.event) {
                raw::UFFD_EVENT_PAGEFAULT => Message::Fault {
                    address: arg.pagefault.address as usize & !(PAGE - 1),
                    thread: arg.pagefault.feat.ptid,
                },
                raw::UFFD_EVENT_FORK => return Some(Told::Fork(arg.fork.ufd as i32)),
                raw::UFFD_EVENT_REMAP => Message::Remap {
                    from: arg.remap.from as usize,
                    to: arg.remap.to as usize,
                    len: arg.remap.len as usize,
                },
                raw::UFFD_EVENT_REMOVE => {
                    Message::Remove(arg.remove.start as usize..arg.remove.end as usize)
                }
                raw::UFFD_EVENT_UNMAP => {
                    Message::Unmap(arg.remove.start as usize..arg.remove.end as usize)
                }
                _ => return None,
            }
        };
        Some(Told::Other(message))
    }

    /// Whether the kernel could have said it: addresses are of whole pages, in their order, and not beyond the last.
    pub fn is_possible(&self) -> bool {
        const END: usize = 1 << 57;
        let is_range = |start: usize, end: usize| {
            start <= end && end <= END && start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE)
        };
        match self {
            Told::Fork(_) | Told::Other(Message::Fork(_)) => true,
            Told::Other(Message::Fault { address, .. }) => *address < END,
            Told::Other(Message::Remove(range) | Message::Unmap(range)) => {
                is_range(range.start, range.end)
            }
            Told::Other(Message::Remap { from, to, len }) => [from, to].into_iter().all(|start| {
                start
                    .checked_add(*len)
                    .is_some_and(|end| is_range(*start, end))
            }),
        }
    }

    /// Of what this process has just read.
    pub fn ours(self) -> Option<Message> {
        use std::os::fd::FromRawFd;
        Some(match self {
            // SAFETY: the kernel has just made it for us.
            Told::Fork(fd) => Message::Fork(unsafe { OwnedFd::from_raw_fd(fd) }),
            Told::Other(message) => message,
        })
    }

    /// As the kernel would write it.
    #[cfg(test)]
    pub fn remove_for_tests(start: u64, end: u64) -> uffd_msg {
        // SAFETY: plain numbers, for which zero bits are a value.
        let mut message: uffd_msg = unsafe { std::mem::zeroed() };
        message.event = raw::UFFD_EVENT_REMOVE as u8;
        message.arg.remove.start = start;
        message.arg.remove.end = end;
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_the_field_of_progress_is_no_progress() {
        // Whoever takes the field for a size counts 2^64 - 11 bytes here.
        let placed = Placed::from(Err(Errno::AGAIN), 4096, -11);
        assert_eq!(placed.bytes, 0);
        let placed = Placed::from(Err(Errno::AGAIN), 8192, 4096);
        assert_eq!(
            placed,
            Placed {
                bytes: 4096,
                error: Some(Errno::AGAIN)
            }
        );
        assert_eq!(Placed::from(Ok(()), 8192, 0).bytes, 8192);
    }

    /// They waited for ever, in every other round.
    #[test]
    fn who_faults_just_when_memory_is_unregistered_goes_on() {
        use std::sync::Barrier;
        use std::sync::atomic::{AtomicUsize, Ordering};
        use std::time::{Duration, Instant};

        use crate::sys::support::Support;
        use crate::{Backing, Mapping};

        let Ok(uffd) = Support::probe().open(Features(0), true) else {
            return println!("SKIPPED: {}", Support::probe());
        };
        const ROUNDS: usize = 2000;
        static TOUCHED: AtomicUsize = AtomicUsize::new(0);
        let memory = std::sync::Arc::new(Mapping::new(ROUNDS * PAGE, Backing::Small).unwrap());
        let begin = std::sync::Arc::new(Barrier::new(2));
        // Left behind if it waits: a scope would wait along.
        std::thread::spawn({
            let (memory, begin) = (memory.clone(), begin.clone());
            move || {
                for round in 0..ROUNDS {
                    begin.wait();
                    let mut byte = [1];
                    memory.read(round * PAGE, &mut byte);
                    TOUCHED.fetch_add(usize::from(byte == [0]), Ordering::SeqCst);
                }
            }
        });
        for round in 0..ROUNDS {
            let start = memory.as_ptr().addr() + round * PAGE;
            let page = start..start + PAGE;
            // SAFETY: of this test alone, which expects zeros.
            unsafe { uffd.register(page.clone()) }.unwrap();
            begin.wait();
            // Earlier and later than the fault, and at the same time.
            for _ in 0..crate::plan::scatter(round as u64) >> 52 {
                std::hint::spin_loop();
            }
            uffd.unregister(page).unwrap();
            let begun = Instant::now();
            while TOUCHED.load(Ordering::SeqCst) <= round {
                assert!(begun.elapsed() < Duration::from_secs(60), "round {round}");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn opcodes_are_those_of_the_header() {
        // x86_64 and arm64, from <linux/userfaultfd.h>.
        assert_eq!(API as u64, 0xc018_aa3f);
        assert_eq!(REGISTER as u64, 0xc020_aa00);
        assert_eq!(UNREGISTER as u64, 0x8010_aa01);
        assert_eq!(WAKE as u64, 0x8010_aa02);
        assert_eq!(COPY as u64, 0xc028_aa03);
        assert_eq!(ZEROPAGE as u64, 0xc020_aa04);
        assert_eq!(MOVE as u64, 0xc028_aa05);
        assert_eq!(CONTINUE as u64, 0xc020_aa07);
        assert_eq!(POISON as u64, 0xc020_aa08);
    }
}
