//! The page as words, and the protocol of its two parts.
//!
//! | word | what |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | version; above it the writer's process id |
//! | 2 | number of the source |
//! | 3..8 | 0 |
//! | 8 | sequence: odd while the body is being written |
//! | 9..16 | the body: see [`Snapshot`] |
//! | 16..512 | 0 |

use crate::error::{OpenError, ReadError};
use crate::snapshot::{Snapshot, Source, WORDS};
use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// Bytes of a page, whatever the size of the kernel's pages.
pub const PAGE_BYTES: usize = 4096;

/// How a page begins, as bytes in the order of memory: `AMDAHLPH`.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"AMDAHLPH");

/// Of the layout. Another one is not read.
pub const VERSION: u32 = 1;

/// How often a reader tries to meet no change. A change takes some nanoseconds: whoever meets so many has met a
/// writer that lost its CPU in the middle.
pub const READ_ATTEMPTS: u32 = 8;

/// The beginning of a page, two cache lines of it; the rest is zero.
#[repr(C, align(64))]
pub(crate) struct Page {
    magic: AtomicU64,
    version_and_writer: AtomicU64,
    source: AtomicU64,
    unused: [AtomicU64; 5],
    /// Begins a line: a read touches no other one.
    sequence: AtomicU64,
    body: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = {
    assert!(USED_BYTES == 128);
    assert!(core::mem::offset_of!(Page, sequence) == SEQUENCE_AT);
    assert!(size_of::<Page>() <= PAGE_BYTES);
};

/// Where the sequence number is, in bytes.
pub(crate) const SEQUENCE_AT: usize = 64;

/// Bytes from the beginning that are ever read.
pub(crate) const USED_BYTES: usize = size_of::<Page>();

/// Whether a page of our version begins with these words.
pub(crate) fn check(magic: u64, version_and_writer: u64) -> Result<(), OpenError> {
    if magic != MAGIC {
        return Err(OpenError::NoMagic);
    }
    match version_and_writer as u32 {
        VERSION => Ok(()),
        other => Err(OpenError::Version(other)),
    }
}

impl Page {
    /// The page that begins with `bytes`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Page {
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            AtomicU64::new(u64::from_ne_bytes(word))
        };
        Page {
            magic: word(0),
            version_and_writer: word(1),
            source: word(2),
            unused: core::array::from_fn(|i| word(3 + i)),
            sequence: word(8),
            body: core::array::from_fn(|i| word(9 + i)),
        }
    }

    /// Whether this is a page of our version.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        // Acquire: pairs with the Release in `begin`; what was made ready before the magic word is seen.
        let magic = self.magic.load(Ordering::Acquire);
        check(magic, self.version_and_writer.load(Ordering::Relaxed))
    }

    /// Process id of the writer, as it knows itself.
    pub(crate) fn writer(&self) -> u32 {
        (self.version_and_writer.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Where the figures come from.
    pub(crate) fn source(&self) -> Source {
        Source::of_id(self.source.load(Ordering::Relaxed) as u32)
    }

    /// What was published last.
    #[inline]
    pub(crate) fn read(&self) -> Result<Snapshot, ReadError> {
        for _ in 0..READ_ATTEMPTS {
            // Acquire: pairs with the Release at the end of `publish`; the body is at least that one's.
            let before = self.sequence.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let words = self
                    .body
                    .each_ref()
                    .map(|word| word.load(Ordering::Relaxed));
                // Acquire: pairs with the Release fence in `publish`. If a word came from a later change, then the
                // load below sees that change's odd number at least.
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return Snapshot::from_words(&words);
                }
            }
            spin_loop();
        }
        Err(ReadError::Busy)
    }

    /// Makes it a page of ours, or takes over what another writer has left. One writer at a time.
    #[cfg(any(feature = "std", test, loom))]
    pub(crate) fn begin(&self, writer: u32, source: Source) {
        self.version_and_writer.store(
            u64::from(VERSION) | u64::from(writer) << 32,
            Ordering::Relaxed,
        );
        self.source.store(u64::from(source.id()), Ordering::Relaxed);
        // One that was killed in the middle of a change has left half of it.
        let sequence = self.sequence.load(Ordering::Relaxed);
        if sequence % 2 == 1 {
            for word in &self.body {
                word.store(0, Ordering::Relaxed);
            }
            // Release: pairs with the Acquire in `read`.
            self.sequence
                .store(sequence.wrapping_add(1), Ordering::Release);
        }
        // Release: pairs with the Acquire in `check`.
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Publishes. One writer at a time.
    #[cfg(any(feature = "std", test, loom))]
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        self.change(snapshot.bounded().to_words());
    }

    /// Leaves a page on which nothing was published. One writer at a time.
    #[cfg(any(feature = "std", test, loom))]
    pub(crate) fn withdraw(&self) {
        self.change([0; WORDS]);
    }

    #[cfg(any(feature = "std", test, loom))]
    fn change(&self, words: [u64; WORDS]) {
        // Even, whatever a guest has made of it that may write the page.
        let before = self.sequence.load(Ordering::Relaxed) & !1;
        self.sequence
            .store(before.wrapping_add(1), Ordering::Relaxed);
        // Release: pairs with the Acquire fence in `read`. Whoever sees a word stored below sees the odd number, too.
        fence(Ordering::Release);
        for (word, value) in self.body.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `read`.
        self.sequence
            .store(before.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn empty() -> Page {
        Page::from_bytes(&[0; PAGE_BYTES])
    }

    fn something(ticks: u64) -> Snapshot {
        Snapshot {
            time_ns: 77,
            ticks,
            allowed: 2,
            tick_us: 100_000,
            window_us: 100_000,
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_first_word_is_text() {
        let page = empty();
        page.begin(1, Source::Bpf);
        assert_eq!(
            page.magic.load(Ordering::Relaxed).to_ne_bytes(),
            *b"AMDAHLPH"
        );
    }

    #[test]
    fn what_was_published_is_read() {
        let page = empty();
        assert_eq!(page.check(), Err(OpenError::NoMagic));
        page.begin(4711, Source::Proc);
        assert_eq!(page.check(), Ok(()));
        assert_eq!((page.writer(), page.source()), (4711, Source::Proc));
        assert_eq!(page.read(), Err(ReadError::Empty));
        for ticks in [1, 2] {
            page.publish(something(ticks));
            assert_eq!(page.read(), Ok(something(ticks)));
        }
    }

    #[test]
    fn a_writer_killed_in_the_middle_is_not_waited_for_and_then_replaced() {
        let page = empty();
        page.begin(1, Source::Bpf);
        page.publish(something(1));
        page.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(page.read(), Err(ReadError::Busy));
        page.begin(2, Source::Bpf);
        assert_eq!(page.read(), Err(ReadError::Empty));
        page.publish(something(5));
        assert_eq!(page.read(), Ok(something(5)));
    }

    #[test]
    fn what_is_withdrawn_is_not_read_any_more() {
        let page = empty();
        page.begin(1, Source::Bpf);
        page.publish(something(1));
        page.withdraw();
        assert_eq!(page.read(), Err(ReadError::Empty));
    }

    /// A guest may write a page that is mapped into it.
    #[test]
    fn a_sequence_that_somebody_else_made_odd_is_mended_by_the_next_tick() {
        let page = empty();
        page.begin(1, Source::Bpf);
        page.sequence.store(u64::MAX, Ordering::Relaxed);
        page.publish(something(3));
        assert_eq!(page.read(), Ok(something(3)));
    }

    #[test]
    fn other_versions_are_refused() {
        let page = empty();
        page.begin(1, Source::Bpf);
        page.version_and_writer.store(2, Ordering::Relaxed);
        assert_eq!(page.check(), Err(OpenError::Version(2)));
    }

    /// A reader beside a writer sees each tick whole, and time does not go back.
    #[test]
    fn ticks_are_never_mixed() {
        let page = empty();
        page.begin(1, Source::Bpf);
        let whole = |n: u64| Snapshot {
            time_ns: n,
            runnable: crate::Cpus::from_bits(n as u32),
            running: crate::Cpus::from_bits(n as u32),
            phantom: crate::Cpus::from_bits(n as u32),
            ..something(n)
        };
        page.publish(whole(1));
        const TICKS: u64 = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 2..=TICKS {
                    page.publish(whole(n));
                }
            });
            let mut last = 0;
            while last < TICKS {
                if let Ok(read) = page.read() {
                    assert_eq!(read, whole(read.ticks));
                    assert!(read.ticks >= last);
                    last = read.ticks;
                }
            }
        });
    }
}
