//! Which fetches are going on, and since when. A fetch and the watchdog that gives it up never both act on its pages: whoever changes
//! the fetch's word first has them.

use std::ops::Range;

use super::scatter;
use crate::sync::{AtomicU64, Ordering, Padded};

/// A fetch. Its word is a phase in two bits and, above them, how often the phase has changed: who has seen a word and replaces it
/// knows that the slot was neither used again nor advanced meanwhile.
struct Slot {
    word: AtomicU64,
    /// Since when its clock runs, in nanoseconds of the monotonic clock.
    since_ns: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    thread: AtomicU64,
    /// The page that somebody waits for, or [`NOBODY`].
    demanded: AtomicU64,
}

/// Nobody waits for any page of a fetch.
const NOBODY: u64 = u64::MAX;

const FREE: u64 = 0;
/// Its fields are being written.
const ENTERING: u64 = 1;
/// The source is asked: it can be given up.
const READING: u64 = 2;
/// Pages are put into place or given back: nobody else may touch them.
const SETTLING: u64 = 3;

fn phase(word: u64) -> u64 {
    word & 3
}

fn next(word: u64, phase: u64) -> u64 {
    ((word >> 2) + 1) << 2 | phase
}

/// The fetches. There are more slots than threads; one that is given up is free at once.
pub(crate) struct InFlight(Box<[Padded<Slot>]>);

/// A fetch that was given up: its pages are whoever's who gave it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub pages: Range<usize>,
    pub thread: u64,
    /// The page that it was begun for, if somebody waits for one; it may have come already.
    pub demanded: Option<usize>,
}

impl InFlight {
    pub fn new(slots: usize) -> InFlight {
        let slot = || Slot {
            word: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            demanded: AtomicU64::new(NOBODY),
        };
        let slots = slots.next_power_of_two();
        InFlight((0..slots).map(|_| Padded(slot())).collect())
    }

    /// A fetch of claimed pages begins, which asks the source or not, for somebody who waits for the page `demanded` or ahead. `None`: there are
    /// too many, which passes. Async-signal-safe.
    pub fn enter(
        &self,
        pages: &Range<usize>,
        demanded: Option<usize>,
        thread: u64,
        now_ns: u64,
        asks: bool,
    ) -> Option<Flight<'_>> {
        let first = (scatter(thread) >> 32) as usize;
        (0..self.0.len()).find_map(|way| {
            let slot = &self.0[(first + way) & (self.0.len() - 1)].0;
            let word = slot.word.load(Ordering::Relaxed);
            if phase(word) != FREE {
                return None;
            }
            let entering = next(word, ENTERING);
            slot.word
                .compare_exchange(word, entering, Ordering::Acquire, Ordering::Relaxed)
                .ok()?;
            slot.thread.store(thread, Ordering::Release);
            let page = demanded.map_or(NOBODY, |page| page as u64);
            slot.demanded.store(page, Ordering::Release);
            slot.set(pages, now_ns);
            let word = next(entering, if asks { READING } else { SETTLING });
            // SeqCst: whoever says "all end" before it looks at the slots sees this one, or we see what it said. Release: pairs
            // with the Acquire in `give_up`.
            slot.word.swap(word, Ordering::SeqCst);
            Some(Flight {
                slot,
                word,
                since_ns: now_ns,
                asks,
                is_ahead: demanded.is_none(),
            })
        })
    }

    /// Gives up the fetches whose clock runs since before `before_ns`: they put nothing into place any more.
    pub fn give_up(&self, before_ns: u64) -> impl Iterator<Item = GivenUp> + '_ {
        self.0.iter().filter_map(move |slot| {
            let slot = &slot.0;
            let word = slot.word.load(Ordering::SeqCst);
            if phase(word) != READING || slot.since_ns.load(Ordering::Acquire) >= before_ns {
                return None;
            }
            let (start, end) = (
                slot.start.load(Ordering::Acquire),
                slot.end.load(Ordering::Acquire),
            );
            let thread = slot.thread.load(Ordering::Acquire);
            let demanded = slot.demanded.load(Ordering::Acquire);
            // Fails if the fetch has gone on, or another has come: what was read of it means nothing then. Fields are written
            // after the word was changed (Release there, Acquire here), so that new fields never go with an old word.
            slot.word
                .compare_exchange(word, next(word, FREE), Ordering::AcqRel, Ordering::Relaxed)
                .ok()?;
            Some(GivenUp {
                pages: start as usize..end as usize,
                thread,
                demanded: (demanded != NOBODY).then_some(demanded as usize),
            })
        })
    }

    /// Nothing goes on.
    pub fn is_quiet(&self) -> bool {
        self.0
            .iter()
            .all(|slot| phase(slot.0.word.load(Ordering::SeqCst)) == FREE)
    }
}

impl Slot {
    fn set(&self, pages: &Range<usize>, now_ns: u64) {
        // Release: pairs with the Acquires in `give_up`.
        self.start.store(pages.start as u64, Ordering::Release);
        self.end.store(pages.end as u64, Ordering::Release);
        self.since_ns.store(now_ns, Ordering::Release);
    }
}

/// A fetch that goes on. Dropped while it is not [settled](Flight::settle), which only a panic does, its pages stay claimed until it is
/// given up.
pub(crate) struct Flight<'a> {
    slot: &'a Slot,
    /// What the slot's word is unless the fetch was given up.
    word: u64,
    /// As in the slot.
    since_ns: u64,
    /// It asks the source. Zeros are never given up.
    asks: bool,
    /// Nobody waits for it yet.
    pub is_ahead: bool,
}

impl Flight<'_> {
    /// From here on the fetch cannot be given up. False: it has been, and its pages are its own no longer.
    #[must_use]
    pub fn settle(&mut self) -> bool {
        if phase(self.word) == SETTLING {
            return true;
        }
        let word = next(self.word, SETTLING);
        // Acquire: pairs with the Release of `give_up`.
        let settled = phase(self.word) == READING
            && self
                .slot
                .word
                .compare_exchange(self.word, word, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        self.word = if settled { word } else { FREE };
        settled
    }

    /// The source is asked again, for these pages; the clock starts anew. After `settle`.
    pub fn go_on(&mut self, pages: &Range<usize>, now_ns: u64) {
        self.since_ns = now_ns;
        self.narrow(pages);
    }

    /// The source is asked again, for these pages, and the clock goes on. After `settle`.
    pub fn narrow(&mut self, pages: &Range<usize>) {
        if phase(self.word) == SETTLING && self.asks {
            self.slot.set(pages, self.since_ns);
            self.word = next(self.word, READING);
            // Release: pairs with the Acquire in `give_up`.
            self.slot.word.store(self.word, Ordering::Release);
        }
    }

    /// So much time is not the source's. False: it was given up.
    #[must_use]
    pub fn put_off(&mut self, by_ns: u64) -> bool {
        let settled = self.settle();
        if settled && self.asks {
            self.since_ns = self.since_ns.saturating_add(by_ns);
            self.slot.since_ns.store(self.since_ns, Ordering::Release);
            self.word = next(self.word, READING);
            // As in `narrow`.
            self.slot.word.store(self.word, Ordering::Release);
        }
        settled
    }

    /// How long its clock has run.
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if phase(self.word) == SETTLING {
            self.slot
                .word
                .store(next(self.word, FREE), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// First pages and ends.
    fn given_up(flights: &InFlight, before_ns: u64) -> Vec<(usize, usize)> {
        let fetches = flights.give_up(before_ns);
        fetches
            .map(|fetch| (fetch.pages.start, fetch.pages.end))
            .collect()
    }

    #[test]
    fn only_what_is_late_is_given_up_and_only_once() {
        let flights = InFlight::new(32);
        let mut slow = flights.enter(&(3..9), None, 1, 100, true).unwrap();
        let mut quick = flights.enter(&(20..21), None, 2, 200, true).unwrap();
        assert_eq!(given_up(&flights, 100), []);
        assert!(slow.settle());
        slow.go_on(&(5..9), 300);
        assert_eq!(given_up(&flights, 250), [(20, 21)]);
        assert!(!quick.settle());
        assert_eq!(given_up(&flights, 250), []);
        drop(quick);
        assert_eq!(given_up(&flights, 400), [(5, 9)]);
        assert!(!slow.settle() && !slow.settle());
        drop(slow);
        assert!(flights.is_quiet());
    }

    #[test]
    fn a_slot_that_is_used_again_is_another_fetch() {
        let flights = InFlight::new(1);
        let mut late = flights.enter(&(0..1), None, 7, 1, true).unwrap();
        assert!(flights.enter(&(1..2), None, 7, 1, true).is_none());
        assert_eq!(given_up(&flights, 2), [(0, 1)]);
        let mut other = flights.enter(&(5..6), None, 7, 10, true).unwrap();
        // The late one comes back, and does the new one no harm.
        late.narrow(&(0..1));
        late.go_on(&(0..1), 50);
        assert!(!late.settle());
        drop(late);
        assert!(!flights.is_quiet());
        assert!(other.settle());
    }

    #[test]
    fn what_is_being_put_into_place_is_nobody_elses() {
        let flights = InFlight::new(1);
        let mut fetch = flights.enter(&(0..1), None, 7, 1, true).unwrap();
        assert!(fetch.settle() && fetch.settle());
        assert_eq!(given_up(&flights, 2), []);
        fetch.narrow(&(0..1));
        assert!(fetch.put_off(8));
        assert_eq!((fetch.age_ns(9), fetch.age_ns(12)), (0, 3));
        assert_eq!(given_up(&flights, 9), []);
        assert_eq!(given_up(&flights, 10), [(0, 1)]);
        assert!(!fetch.put_off(11));
    }

    #[test]
    fn a_fetch_that_panicked_is_given_up() {
        let flights = InFlight::new(1);
        drop(flights.enter(&(4..6), None, 7, 1, true));
        assert_eq!(given_up(&flights, 2), [(4, 6)]);
    }
}
