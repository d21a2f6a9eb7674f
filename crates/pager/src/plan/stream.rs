//! How much to fetch around a fault: a window that grows while a thread's faults are sequential and shrinks when they are not.
//!
//! A window ends where a multiple of its size ends, so that the largest ones are whole huge pages.

use std::ops::Range;

use super::scatter;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded};

/// How far a window may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Pages of the smallest window, a power of two.
    pub least: u32,
    /// Pages of the largest window, a power of two.
    pub most: u32,
}

/// Pages of a huge page.
const HUGE: u32 = (crate::BLOCK / crate::PAGE) as u32;

/// By how much a window grows with a sequential fault, and shrinks with another.
const FACTOR: u32 = 8;

/// What is remembered of one thread's faults: the last window, whose size steers the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    /// The last window.
    low: u64,
    high: u64,
    /// Its size before it was cut to fit, 0 before the first fault.
    size: u32,
}

impl Stream {
    /// A fault: the window to fetch, which contains the page and no page below 0; what is above the last page the caller cuts
    /// off.
    pub fn fault(&mut self, page: u64, limits: Limits) -> Range<u64> {
        // A fault a little further counts as well: pages in between can be there already.
        let slack = u64::from(self.size.max(1));
        let up = self.size != 0 && (self.high..self.high + slack).contains(&page);
        let down = self.size != 0 && (self.low.saturating_sub(slack)..self.low).contains(&page);
        self.size = match (self.size, up || down) {
            // A thread that begins at the beginning of a huge page most likely goes on; if not, it is one window.
            (0, _) if limits.most == HUGE && page.is_multiple_of(HUGE.into()) => HUGE,
            (0, _) => limits.least,
            (size, true) => (size.saturating_mul(FACTOR)).min(limits.most),
            (size, false) => (size / FACTOR).max(limits.least),
        };
        let size = u64::from(self.size);
        let part = page / size;
        let window = match down {
            true => part * size..page + 1,
            // Before it is known whether it is the beginning of a stream, the least is fetched, wherever it is in its part.
            false => page..(part + 1) * size,
        };
        (self.low, self.high) = (window.start, window.end);
        window
    }
}

/// The streams of all threads, without locks: what two threads write into one place at once makes a window useless, never wrong.
pub(crate) struct Streams {
    slots: Box<[Padded<Slot>]>,
    limits: Limits,
}

#[derive(Default)]
struct Slot {
    thread: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    size: AtomicU32,
}

/// Slots that a thread may use: with so many, threads that share a first choice find another.
const WAYS: usize = 4;

impl Streams {
    /// Room for `threads` at once; more replace each other.
    pub fn new(threads: usize, limits: Limits) -> Streams {
        let slots = threads.max(WAYS).next_power_of_two();
        Streams {
            slots: (0..slots).map(|_| Padded(Slot::default())).collect(),
            limits,
        }
    }

    /// A fault of a thread, by a number that tells it from others and is not 0.
    pub fn fault(&self, thread: u64, page: u64) -> Range<u64> {
        if self.limits.most == 1 {
            return page..page + 1;
        }
        let slot = self.slot(thread);
        let mut stream = Stream {
            low: slot.low.load(Ordering::Relaxed),
            high: slot.high.load(Ordering::Relaxed),
            size: slot.size.load(Ordering::Relaxed),
        };
        let window = stream.fault(page, self.limits);
        slot.low.store(stream.low, Ordering::Relaxed);
        slot.high.store(stream.high, Ordering::Relaxed);
        slot.size.store(stream.size, Ordering::Relaxed);
        window
    }

    fn slot(&self, thread: u64) -> &Slot {
        let first = (scatter(thread) >> 32) as usize;
        let at = |way: usize| &self.slots[(first + way) & (self.slots.len() - 1)].0;
        for way in 0..WAYS {
            let slot = at(way);
            match slot.thread.load(Ordering::Relaxed) {
                owner if owner == thread => return slot,
                0 if slot
                    .thread
                    .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok() =>
                {
                    return slot;
                }
                _ => {}
            }
        }
        let slot = at(thread as usize % WAYS);
        slot.thread.store(thread, Ordering::Relaxed);
        slot.size.store(0, Ordering::Relaxed);
        slot
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        least: 1,
        most: 512,
    };

    #[test]
    fn a_sequence_reaches_whole_huge_pages_in_the_first() {
        let mut stream = Stream::default();
        let mut page = 1025;
        let mut windows = Vec::new();
        while page < 2560 {
            let window = stream.fault(page, LIMITS);
            page = window.end;
            windows.push(window);
        }
        assert_eq!(
            windows,
            [
                1025..1026,
                1026..1032,
                1032..1088,
                1088..1536,
                1536..2048,
                2048..2560
            ]
        );
    }

    #[test]
    fn who_begins_at_a_huge_page_gets_all_of_it() {
        assert_eq!(Stream::default().fault(1024, LIMITS), 1024..1536);
        let small = Limits { least: 1, most: 64 };
        assert_eq!(Stream::default().fault(1024, small), 1024..1025);
    }

    #[test]
    fn a_descending_sequence_grows_downwards() {
        let mut stream = Stream::default();
        let mut page = 1023;
        let mut windows = Vec::new();
        while page >= 512 {
            let window = stream.fault(page, LIMITS);
            page = window.start - 1;
            windows.push(window);
        }
        assert_eq!(windows, [1023..1024, 1016..1023, 960..1016, 512..960]);
    }

    #[test]
    fn random_faults_shrink_to_one_page() {
        let mut stream = Stream::default();
        for page in 0..2048 {
            stream.fault(page, LIMITS);
        }
        for page in [90_000, 50_000, 70_000, 10_000] {
            stream.fault(page, LIMITS);
        }
        assert_eq!(stream.fault(123_456, LIMITS), 123_456..123_457);
    }

    proptest! {
        #[test]
        fn a_window_has_the_page_and_is_bounded(faults in proptest::collection::vec(0u64..5000, 1..60), log in 0u32..10) {
            let limits = Limits { least: 1, most: 1 << log };
            let mut stream = Stream::default();
            for page in faults {
                let window = stream.fault(page, limits);
                prop_assert!(window.contains(&page));
                prop_assert!(window.end - window.start <= u64::from(limits.most));
                let size = u64::from(limits.most);
                prop_assert_eq!(window.start / size, (window.end - 1) / size, "in one part");
            }
        }

        #[test]
        fn threads_have_streams_of_their_own(threads in 2u64..100) {
            let streams = Streams::new(1024, LIMITS);
            let mut next: Vec<u64> = (0..threads).map(|thread| thread << 20).collect();
            for _ in 0..5 {
                for (thread, page) in next.iter_mut().enumerate() {
                    *page = streams.fault(0x7f00_0000_0000 + thread as u64 * 4096, *page).end;
                }
            }
            for (thread, page) in next.into_iter().enumerate() {
                prop_assert_eq!(page, ((thread as u64) << 20) + 5 * 512, "thread {}", thread);
            }
        }
    }
}
