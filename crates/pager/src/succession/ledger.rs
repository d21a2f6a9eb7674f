//! What another process must know of a VM's pages when this one is gone from one moment to the next: in memory that both have.
//!
//! It is made so that every moment is a good one to be killed at: see "Succession" in DESIGN.md.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::uffd_msg;
use rustix::io::Errno;
use rustix::mm::mlock;

use super::shared::{Shared, checked, halves};
use crate::sys::uffd::{Message, Told, Uffd};
use crate::{HandedOver, PAGE};

const MAGIC: u64 = u64::from_le_bytes(*b"amdahlVM");
/// Another layout has another number.
const VERSION: u64 = 1;
/// Words of the header: magic, version, pages, checksum of the regions, two of the memory's identity, checksum of those before.
const HEADER: usize = 7;
/// Where the counters are, in bytes.
const COUNTERS_AT: usize = 512;
/// Where messages are read to.
const MESSAGES_AT: usize = PAGE;
/// As many as fit into the page.
const MESSAGES: usize = PAGE / size_of::<uffd_msg>();
/// Where the first bits are.
const BITS_AT: usize = 2 * PAGE;
/// Numbers that are kept for whoever serves next.
pub const COUNTERS: usize = 16;

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// A system call failed.
    #[error("{operation}: {}", std::io::Error::from(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// It is something else.
    #[error("memory that came with it {0}")]
    Wrong(&'static str),
}

pub(super) fn system(operation: &'static str) -> impl FnOnce(Errno) -> LedgerError {
    move |errno| LedgerError::System { operation, errno }
}

/// The pages of a VM in memory that other processes can map: which have arrived, were given up, are lost; and the messages of its
/// userfaultfd that were read and not dealt with.
///
/// Three bits a page, whose memory is taken when it is made. A [`Pager`](crate::Pager) that is [built with it](crate::Builder::ledger) begins
/// where the last one with the same ledger was, however that ended.
#[derive(Debug)]
pub struct Ledger {
    /// Changed by atomic operations; messages by who holds the pager's gate closed.
    memory: Shared,
    pages: usize,
}

/// Which bits.
#[derive(Clone, Copy)]
enum Bits {
    /// It is there, lost, or nothing of it will ever be wanted. Set after it is.
    Settled = 0,
    /// Its content was given up at some time: never again the source's. Set before the message is forgotten, and for ever.
    Removed = 1,
    /// It will never be had. Set before that is told; cleared when it is given up.
    Lost = 2,
}

fn words(pages: usize) -> usize {
    pages.div_ceil(64)
}

fn bits_bytes(pages: usize) -> usize {
    (words(pages) * 8).next_multiple_of(PAGE)
}

/// So that the bits of one VM are not taken for another's.
fn checksum(regions: &[HandedOver]) -> u64 {
    let mut order: Vec<&HandedOver> = regions.iter().collect();
    order.sort_by_key(|region| region.start);
    let mut sum = crc32fast::Hasher::new();
    for region in order {
        for number in [
            region.start as u64,
            region.len as u64,
            region.source_offset,
            region.page_bytes as u64,
        ] {
            sum.update(&number.to_le_bytes());
        }
    }
    sum.finalize().into()
}

fn header(regions: &[HandedOver], identity: [u8; 16], pages: usize) -> [u64; HEADER] {
    let [low, high] = halves(identity);
    checked([
        MAGIC,
        VERSION,
        pages as u64,
        checksum(regions),
        low,
        high,
        0,
    ])
}

fn count(regions: &[HandedOver]) -> usize {
    regions.iter().map(|region| region.len / PAGE).sum()
}

impl Ledger {
    /// A new one, for regions of which nothing has arrived, and a source that is known by these bytes.
    ///
    /// # Errors
    /// [`LedgerError::System`]: there is no memory, or no descriptor.
    pub fn new(regions: &[HandedOver], identity: [u8; 16]) -> Result<Ledger, LedgerError> {
        let pages = count(regions);
        let len = BITS_AT + 3 * bits_bytes(pages);
        let ledger = Ledger::of(Shared::new("amdahl-ledger", len)?, pages);
        for (word, value) in header(regions, identity, pages).into_iter().enumerate() {
            ledger.word(word * 8).store(value, Ordering::Relaxed);
        }
        Ok(ledger)
    }

    /// One that another process has made, for the same regions and the same source.
    ///
    /// # Errors
    /// [`LedgerError`]: it is none, of another version, for something else, or may still change its size.
    pub fn open(
        fd: OwnedFd,
        regions: &[HandedOver],
        identity: [u8; 16],
    ) -> Result<Ledger, LedgerError> {
        let pages = count(regions);
        let len = BITS_AT + 3 * bits_bytes(pages);
        let ledger = Ledger::of(Shared::open(fd, len)?, pages);
        let expected = header(regions, identity, pages);
        let is = |word: usize| ledger.word(word * 8).load(Ordering::Relaxed) == expected[word];
        if !is(0) {
            return Err(LedgerError::Wrong("is none"));
        }
        if !is(1) {
            return Err(LedgerError::Wrong("is of another version"));
        }
        if !(4..6).all(is) {
            return Err(LedgerError::Wrong("is of a VM with another image"));
        }
        if !(2..HEADER).all(is) {
            return Err(LedgerError::Wrong("is of another VM, or damaged"));
        }
        Ok(ledger)
    }

    fn of(memory: Shared, pages: usize) -> Ledger {
        // The kernel writes messages there. A page that is not in memory then could lose one, if we are killed at that moment.
        // SAFETY: it is mapped; nothing of it changes.
        let _ = unsafe { mlock(memory.at(MESSAGES_AT).cast(), PAGE) };
        Ledger { memory, pages }
    }

    /// To be sent to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.descriptor()
    }

    /// How many pages it is about.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Numbers for whoever serves next.
    pub fn counters(&self) -> [u64; COUNTERS] {
        std::array::from_fn(|at| self.word(COUNTERS_AT + at * 8).load(Ordering::Relaxed))
    }

    /// Replaces them.
    pub fn set_counters(&self, counters: &[u64; COUNTERS]) {
        for (at, counter) in counters.iter().enumerate() {
            self.word(COUNTERS_AT + at * 8)
                .store(*counter, Ordering::Relaxed);
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(at)
    }

    fn bits(&self, of: Bits, word: usize) -> &AtomicU64 {
        debug_assert!(word < words(self.pages));
        self.word(BITS_AT + of as usize * bits_bytes(self.pages) + word * 8)
    }

    /// Each word of a range of pages, with the bits of those pages.
    fn each(pages: Range<usize>, mut each: impl FnMut(usize, u64)) {
        let mut at = pages.start;
        while at < pages.end {
            let (word, bit) = (at / 64, at % 64);
            let count = (64 - bit).min(pages.end - at);
            each(word, u64::MAX >> (64 - count) << bit);
            at += count;
        }
    }

    /// AcqRel, here and below: the compiler keeps the order of changes, and a process that is killed has made all before some instruction.
    fn set(&self, of: Bits, pages: Range<usize>) {
        Ledger::each(pages, |word, bits| {
            self.bits(of, word).fetch_or(bits, Ordering::AcqRel);
        });
    }

    /// Pages are in place, or nothing of them is wanted any more.
    pub(crate) fn settled(&self, pages: Range<usize>) {
        self.set(Bits::Settled, pages);
    }

    /// Pages were given up.
    pub(crate) fn removed(&self, pages: Range<usize>) {
        self.set(Bits::Removed, pages.clone());
        Ledger::each(pages, |word, bits| {
            let lost = self.bits(Bits::Lost, word);
            if lost.load(Ordering::Relaxed) & bits != 0 {
                lost.fetch_and(!bits, Ordering::AcqRel);
            }
        });
    }

    /// Pages will never be had.
    pub(crate) fn lost(&self, pages: Range<usize>) {
        self.set(Bits::Lost, pages);
    }

    /// What is known: runs of pages with their standing, those of which nothing is known left out.
    pub(crate) fn standings(&self, mut each: impl FnMut(Range<usize>, Standing)) {
        let mut run: Option<(Range<usize>, Standing)> = None;
        let mut next = |page: usize, standing: Option<Standing>| {
            if let (Some((pages, same)), Some(standing)) = (&mut run, standing)
                && *same == standing
                && pages.end == page
            {
                pages.end += 1;
                return;
            }
            if let Some((pages, standing)) = run.take() {
                each(pages, standing);
            }
            run = standing.map(|standing| (page..page + 1, standing));
        };
        for word in 0..words(self.pages) {
            let read = |of| self.bits(of, word).load(Ordering::Acquire);
            let (settled, removed, lost) =
                (read(Bits::Settled), read(Bits::Removed), read(Bits::Lost));
            if settled | removed | lost == 0 {
                continue;
            }
            for bit in 0..64.min(self.pages - word * 64) {
                let has = |bits: u64| bits >> bit & 1 == 1;
                let standing = match (has(removed), has(lost), has(settled)) {
                    (true, _, _) => Some(Standing::Removed),
                    (_, true, _) => Some(Standing::Lost),
                    (_, _, true) => Some(Standing::Settled),
                    _ => None,
                };
                next(word * 64 + bit, standing);
            }
        }
        next(usize::MAX, None);
    }

    fn message(&self, nth: usize) -> *mut uffd_msg {
        self.memory
            .at(MESSAGES_AT + nth * size_of::<uffd_msg>())
            .cast()
    }

    /// A message has been dealt with.
    fn forget(&self, nth: usize) {
        let at = MESSAGES_AT + nth * size_of::<uffd_msg>();
        // The first word has the kind of the message, which is never 0.
        // SAFETY: aligned and inside of the mapping; all changes are atomic.
        let word = unsafe { AtomicU32::from_ptr(self.memory.at(at).cast()) };
        // Release: what was done about it comes before.
        word.store(0, Ordering::Release);
    }

    /// Reads messages of the VM's descriptor, and has each dealt with before it is forgotten. They are never anywhere else than here: the
    /// kernel has them, or they can be found here. By one thread at a time.
    pub(crate) fn read(
        &self,
        uffd: &Uffd,
        mut each: impl FnMut(Message),
    ) -> rustix::io::Result<()> {
        // SAFETY: as many bytes are inside of the mapping. Another process writes there only if it is not to be trusted; all patterns of
        // bits are valid, and each message is copied before it is looked at.
        let buffer = unsafe {
            std::slice::from_raw_parts_mut(self.message(0).cast::<MaybeUninit<u8>>(), PAGE)
        };
        let count = uffd.read_raw(buffer)?;
        for nth in 0..count {
            // SAFETY: aligned, and inside of the mapping.
            let message = unsafe { self.message(nth).read_volatile() };
            if let Some(message) = Told::of(&message).and_then(Told::ours) {
                each(message);
            }
            self.forget(nth);
        }
        Ok(())
    }

    /// Messages that the process before has read and not dealt with, or not all of it.
    pub(crate) fn left(&self, mut each: impl FnMut(Told)) {
        for nth in 0..MESSAGES {
            // SAFETY: as above.
            let message = unsafe { self.message(nth).read_volatile() };
            if message.event != 0
                && let Some(told) = Told::of(&message)
                && told.is_possible()
            {
                each(told);
            }
            self.forget(nth);
        }
    }
}

/// What a ledger says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is there, or was.
    Settled,
    /// It is zero, unless its owner has written to it since.
    Removed,
    /// It must not be read.
    Lost,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::super::shared::SEALS;
    use super::*;

    fn regions(pages: usize) -> Vec<HandedOver> {
        vec![HandedOver {
            start: 1 << 30,
            len: pages * PAGE,
            source_offset: 0,
            page_bytes: PAGE,
        }]
    }

    fn standings(ledger: &Ledger) -> Vec<(Range<usize>, Standing)> {
        let mut all = Vec::new();
        ledger.standings(|pages, standing| all.push((pages, standing)));
        all
    }

    #[test]
    fn what_was_noted_is_there_in_another_mapping() {
        let regions = regions(1000);
        let ledger = Ledger::new(&regions, [7; 16]).unwrap();
        assert_eq!(standings(&ledger), []);
        ledger.settled(3..200);
        ledger.lost(150..160);
        ledger.removed(155..300);
        ledger.lost(999..1000);
        let mut counters = [0; COUNTERS];
        counters[3] = 9;
        ledger.set_counters(&counters);
        let fd = ledger.descriptor().try_clone_to_owned().unwrap();
        drop(ledger);
        let other = Ledger::open(fd, &regions, [7; 16]).unwrap();
        assert_eq!(
            standings(&other),
            [
                (3..150, Standing::Settled),
                (150..155, Standing::Lost),
                (155..300, Standing::Removed),
                (999..1000, Standing::Lost),
            ]
        );
        assert_eq!(other.counters()[3], 9);
    }

    #[test]
    fn a_page_that_was_given_up_is_zero_whatever_else_is_said_of_it() {
        let ledger = Ledger::new(&regions(64), [0; 16]).unwrap();
        ledger.removed(0..64);
        ledger.settled(0..10);
        ledger.lost(5..6);
        assert_eq!(standings(&ledger), [(0..64, Standing::Removed)]);
    }

    #[test]
    fn another_vms_or_images_ledger_is_refused() {
        let ledger = Ledger::new(&regions(100), [1; 16]).unwrap();
        let open = |regions: &[HandedOver], identity: u8| {
            let fd = ledger.descriptor().try_clone_to_owned().unwrap();
            Ledger::open(fd, regions, [identity; 16])
        };
        assert!(open(&regions(100), 1).is_ok());
        let says = |result: Result<Ledger, LedgerError>| result.unwrap_err().to_string();
        assert!(says(open(&regions(100), 2)).contains("another image"));
        assert!(says(open(&regions(100_000), 1)).contains("another size"));
        let mut moved = regions(100);
        moved[0].start += PAGE;
        assert!(says(open(&moved, 1)).contains("another VM"));
        ledger.word(8).store(2, Ordering::Relaxed);
        assert!(says(open(&regions(100), 1)).contains("another version"));
        ledger.word(0).store(2, Ordering::Relaxed);
        assert!(says(open(&regions(100), 1)).contains("is none"));
    }

    #[test]
    fn what_is_no_sealed_memory_is_refused() {
        let says = |fd: OwnedFd| {
            let opened = Ledger::open(fd, &regions(100), [1; 16]);
            opened.unwrap_err().to_string()
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(says(file.into()).contains("no memory that can be sealed"));
        let sparse = memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let sparse = sparse.unwrap();
        let len = BITS_AT + 3 * bits_bytes(100);
        rustix::fs::ftruncate(&sparse, len as u64).unwrap();
        fcntl_add_seals(&sparse, SEALS).unwrap();
        let twin = sparse.try_clone().unwrap();
        assert!(says(sparse).contains("is none"));
        // All of it is there by then.
        assert_eq!(
            rustix::fs::fstat(&twin).unwrap().st_blocks as usize * 512,
            len
        );
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        assert!(says(loose.unwrap()).contains("is not sealed"));
    }

    /// Killed between reading a message and marking its pages: the message is found.
    #[test]
    fn a_message_that_was_read_and_not_dealt_with_is_found_once() {
        let ledger = Ledger::new(&regions(100), [1; 16]).unwrap();
        let raw = Told::remove_for_tests(4096, 8192);
        // SAFETY: inside of the mapping, aligned, nobody else is there.
        unsafe { ledger.message(3).write(raw) };
        let mut found = Vec::new();
        ledger.left(|told| found.push(format!("{told:?}")));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("Remove"), "{found:?}");
        ledger.left(|told| panic!("{told:?}"));
    }

    #[test]
    fn bits_are_set_as_by_a_naive_reader() {
        for (start, end) in [(0, 1), (63, 65), (0, 128), (64, 128), (5, 5), (127, 300)] {
            let ledger = Ledger::new(&regions(300), [1; 16]).unwrap();
            ledger.settled(start..end);
            let expected: Vec<_> = (start < end)
                .then_some((start..end, Standing::Settled))
                .into_iter()
                .collect();
            assert_eq!(standings(&ledger), expected);
        }
    }
}
