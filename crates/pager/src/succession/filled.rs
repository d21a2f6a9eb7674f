//! What another process must know of a file of clean pages when the one that fills it is gone: in memory that both have.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::ledger::LedgerError;
use super::shared::{Shared, checked, halves};
use crate::PAGE;

const MAGIC: u64 = u64::from_le_bytes(*b"amdahlCP");
/// Another layout has another number.
const VERSION: u64 = 1;
/// Words of the header: magic, version, pages, two of the content's identity, checksum of those before.
const HEADER: usize = 6;
/// Where the bits are, in bytes.
const BITS_AT: usize = PAGE;

/// Which pages of a file of [clean pages](crate::CleanPages) are whole, in memory that other processes can map.
///
/// A bit a page, set [when all of the page is there](crate::CleanPages::noted) and for ever: nobody can take a page out of that file. So at every moment it is true of
/// a page that has its bit, however the process ended that filled the file; a page without may be there in part, and is not to be read. A
/// [`Pager`](crate::Pager) that is [built with it](crate::Builder::clean_before) goes on with mappings of the file.
#[derive(Debug)]
pub struct Filled {
    memory: Shared,
    pages: usize,
}

fn len(pages: usize) -> usize {
    BITS_AT + (pages.div_ceil(64) * 8).next_multiple_of(PAGE)
}

fn header(pages: usize, identity: [u8; 16]) -> [u64; HEADER] {
    let [low, high] = halves(identity);
    checked([MAGIC, VERSION, pages as u64, low, high, 0])
}

impl Filled {
    /// A new one, for a file of which nothing is there, of content of so many bytes that is known by these.
    ///
    /// # Errors
    /// [`LedgerError::System`]: there is no memory, or no descriptor.
    pub fn new(bytes: u64, identity: [u8; 16]) -> Result<Filled, LedgerError> {
        let pages = pages_of(bytes)?;
        let memory = Shared::new("amdahl-filled", len(pages))?;
        for (word, value) in header(pages, identity).into_iter().enumerate() {
            memory.word(word * 8).store(value, Ordering::Relaxed);
        }
        Ok(Filled { memory, pages })
    }

    /// One that another process has made, for a file of the same content.
    ///
    /// # Errors
    /// [`LedgerError`]: it is none, of another version, for something else, or may still change its size.
    pub fn open(fd: OwnedFd, bytes: u64, identity: [u8; 16]) -> Result<Filled, LedgerError> {
        let pages = pages_of(bytes)?;
        let memory = Shared::open(fd, len(pages))?;
        let expected = header(pages, identity);
        let is = |word: usize| memory.word(word * 8).load(Ordering::Relaxed) == expected[word];
        match (is(0) && is(1), (2..HEADER).all(is)) {
            (true, true) => Ok(Filled { memory, pages }),
            (true, false) => Err(LedgerError::Wrong(
                "is of clean pages of another image, or damaged",
            )),
            (false, _) => Err(LedgerError::Wrong(
                "says nothing of clean pages, or is of another version",
            )),
        }
    }

    /// To be sent to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.descriptor()
    }

    /// How many pages it is about.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// How many of them are whole. O(pages / 64).
    pub fn pages_there(&self) -> usize {
        (0..self.pages.div_ceil(64))
            .map(|word| self.word(word).load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        self.memory.word(BITS_AT + word * 8)
    }

    /// All of these is in the file, which is what the caller has just seen to.
    pub(crate) fn note(&self, pages: Range<usize>) {
        debug_assert!(pages.end <= self.pages);
        let mut at = pages.start;
        while at < pages.end {
            let (word, bit) = (at / 64, at % 64);
            let count = (64 - bit).min(pages.end - at);
            let bits = u64::MAX >> (64 - count) << bit;
            // Release: pairs with the Acquire in `has`. What was written to the file is there for whoever sees the bit; the compiler and the CPU keep the
            // order, so it is for one who comes after a kill.
            self.word(word).fetch_or(bits, Ordering::Release);
            at += count;
        }
    }

    /// Whether a page is whole. Async-signal-safe.
    pub(crate) fn has(&self, page: usize) -> bool {
        page < self.pages && self.word(page / 64).load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    /// The first of some pages that are alike: whether they are whole, and how many. Async-signal-safe.
    pub(crate) fn run(&self, mut pages: Range<usize>) -> (bool, usize) {
        let first = pages.start;
        let is_whole = self.has(first);
        let end = pages.find(|page| self.has(*page) != is_whole);
        (is_whole, end.unwrap_or(pages.end) - first)
    }
}

fn pages_of(bytes: u64) -> Result<usize, LedgerError> {
    match usize::try_from(bytes.div_ceil(PAGE as u64)) {
        Ok(pages) if pages > 0 => Ok(pages),
        _ => Err(LedgerError::Wrong("is for no bytes, or too many")),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BYTES: u64 = 300 * PAGE as u64 - 7;

    fn other(of: &Filled) -> OwnedFd {
        of.descriptor().try_clone_to_owned().unwrap()
    }

    #[test]
    fn what_was_noted_is_there_in_another_mapping() {
        let filled = Filled::new(BYTES, [1; 16]).unwrap();
        let twin = Filled::open(other(&filled), BYTES, [1; 16]).unwrap();
        assert_eq!((twin.pages(), twin.pages_there()), (300, 0));
        let mut naive = BTreeSet::new();
        for pages in [0..1, 63..65, 64..128, 5..5, 127..256, 299..300] {
            filled.note(pages.clone());
            naive.extend(pages);
            assert_eq!(twin.pages_there(), naive.len());
            for page in 0..310 {
                assert_eq!(twin.has(page), naive.contains(&page), "{page}");
            }
        }
        let run = |pages: Range<usize>| twin.run(pages);
        assert_eq!(run(0..300), (true, 1));
        assert_eq!(run(1..300), (false, 62));
        assert_eq!(run(63..300), (true, 193));
        assert_eq!(run(63..70), (true, 7));
        assert_eq!(run(256..400), (false, 43));
        // Nothing is beyond the end.
        assert_eq!(run(300..310), (false, 10));
    }

    #[test]
    fn those_of_other_content_are_refused() {
        let filled = Filled::new(BYTES, [1; 16]).unwrap();
        let says = |bytes: u64, identity: u8| {
            let opened = Filled::open(other(&filled), bytes, [identity; 16]);
            opened.unwrap_err().to_string()
        };
        assert!(says(BYTES, 2).contains("another image"));
        // As many bytes of bits, and other pages.
        assert!(says(BYTES + 2 * PAGE as u64, 1).contains("another image"));
        assert!(says(BYTES << 10, 1).contains("another size"));
        filled.memory.word(8).store(2, Ordering::Relaxed);
        assert!(says(BYTES, 1).contains("another version"));
        let ledger = crate::succession::Arbiter::new().unwrap();
        let fd = ledger.descriptor().try_clone_to_owned().unwrap();
        assert!(Filled::open(fd, BYTES, [1; 16]).is_err());
        assert!(Filled::new(0, [1; 16]).is_err());
    }
}
