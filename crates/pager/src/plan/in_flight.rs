//! Which fetches are going on, and since when. A fetch and the watchdog that gives it up never both act on its pages: whoever changes
//! the fetch's word first has them. A fetch ahead can be overtaken: whoever waits for one of its pages takes that out of it.

use std::ops::Range;

use super::scatter;
use crate::sync::{AtomicU64, Ordering, Padded, pause};

/// The most pages of a fetch of which some can be taken out. Loom counts each word.
const CARVED_MAX: usize = if cfg!(loom) { 64 } else { 512 };
const CARVED_WORDS: usize = CARVED_MAX / 64;

/// A fetch. Its word is a phase in two bits, a bit for who holds it for a moment, and, above them, how often the phase has changed: who has
/// seen a word and replaces it knows that the slot was neither used again nor advanced meanwhile.
struct Slot {
    word: AtomicU64,
    /// Since when its clock runs, in nanoseconds of the monotonic clock.
    since_ns: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    thread: AtomicU64,
    /// The page that somebody waits for, or [`NOBODY`].
    demanded: AtomicU64,
    /// The first page when it was begun, and from there on a bit for each page that was taken out of it. Changed by who holds the word.
    base: AtomicU64,
    carved: [AtomicU64; CARVED_WORDS],
}

/// Pages of a fetch that were taken out of it: they are another fetch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carved {
    base: usize,
    bits: [u64; CARVED_WORDS],
}

impl Carved {
    fn has(&self, page: usize) -> bool {
        let at = page.wrapping_sub(self.base);
        at < CARVED_MAX && self.bits[at / 64] & 1 << (at % 64) != 0
    }

    /// What is left of some pages, as runs.
    pub fn rest(self, pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            if self.bits == [0; CARVED_WORDS] {
                let all = at..pages.end;
                at = pages.end;
                return (!all.is_empty()).then_some(all);
            }
            let start = (at..pages.end).find(|page| !self.has(*page))?;
            let end = (start..pages.end).find(|page| self.has(*page));
            at = end.unwrap_or(pages.end);
            Some(start..at)
        })
    }
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

/// With *reading*: somebody takes a page out of it, or looks whether to give it up. Lasts some instructions, in which nobody else changes the word.
const HELD: u64 = 4;

fn phase(word: u64) -> u64 {
    word & 3
}

fn next(word: u64, phase: u64) -> u64 {
    ((word >> 3) + 1) << 3 | phase
}

/// The fetches. There are more slots than threads; one that is given up is free at once.
pub(crate) struct InFlight {
    slots: Box<[Padded<Slot>]>,
    /// How many of them are ahead: without any, nobody needs to look for one to overtake.
    ahead: Padded<AtomicU64>,
}

/// A fetch that was given up: its pages are whoever's who gave it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub pages: Range<usize>,
    pub thread: u64,
    /// The page that it was begun for, if somebody waits for one; it may have come already.
    pub demanded: Option<usize>,
    carved: Carved,
}

impl GivenUp {
    /// Its pages without those that others have taken out of it.
    pub fn own(&self) -> impl Iterator<Item = Range<usize>> {
        self.carved.rest(self.pages.clone())
    }

    /// Another has taken this page out of it.
    pub fn is_carved(&self, page: usize) -> bool {
        self.carved.has(page)
    }
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
            base: AtomicU64::new(0),
            carved: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let slots = slots.next_power_of_two();
        InFlight {
            slots: (0..slots).map(|_| Padded(slot())).collect(),
            ahead: Padded(AtomicU64::new(0)),
        }
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
        let slots = &self.slots;
        (0..slots.len()).find_map(|way| {
            let slot = &slots[(first + way) & (slots.len() - 1)].0;
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
            slot.base.store(pages.start as u64, Ordering::Release);
            for bits in &slot.carved {
                if bits.load(Ordering::Relaxed) != 0 {
                    bits.store(0, Ordering::Release);
                }
            }
            slot.set(pages, now_ns);
            if demanded.is_none() {
                // SeqCst, and before the word is changed: who is left waiting for a page of it sees it, or is seen.
                self.ahead.0.fetch_add(1, Ordering::SeqCst);
            }
            let word = next(entering, if asks { READING } else { SETTLING });
            // SeqCst: whoever says "all end" before it looks at the slots sees this one, or we see what it said. Release: pairs
            // with the Acquire in `give_up`.
            slot.word.swap(word, Ordering::SeqCst);
            Some(Flight {
                slot,
                ahead: &self.ahead.0,
                word,
                since_ns: now_ns,
                asks,
                is_ahead: demanded.is_none(),
            })
        })
    }

    /// Gives up the fetches whose clock runs since before `before_ns`: they put nothing into place any more.
    pub fn give_up(&self, before_ns: u64) -> impl Iterator<Item = GivenUp> + '_ {
        self.slots.iter().filter_map(move |slot| {
            let slot = &slot.0;
            let is_late = || slot.since_ns.load(Ordering::Acquire) < before_ns;
            let word = slot.hold(is_late)?;
            // Nobody changes it now: what was read before it was held may have been another fetch's.
            if !is_late() {
                slot.word.store(word, Ordering::Release);
                return None;
            }
            let given_up = slot.given_up();
            // Release: pairs with the Acquire of who enters next, and of who has entered and settles.
            slot.word.store(next(word, FREE), Ordering::Release);
            if given_up.demanded.is_none() {
                self.ahead.0.fetch_sub(1, Ordering::SeqCst);
            }
            Some(given_up)
        })
    }

    /// Takes the first of some pages out of a fetch ahead, for whoever waits for them; how many, those that follow each other in it. Their claim is the
    /// caller's from now on, and was one of missing pages. 0: no such fetch asks the source for the first one now. O(slots) while anything is fetched
    /// ahead. Async-signal-safe.
    #[must_use]
    pub fn carve(&self, pages: Range<usize>) -> usize {
        // SeqCst: pairs with `enter`.
        if self.ahead.0.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let mut slots = self.slots.iter();
        slots
            .find_map(|slot| slot.0.carve(pages.clone()))
            .unwrap_or(0)
    }

    /// Nothing goes on.
    pub fn is_quiet(&self) -> bool {
        self.slots
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

    /// Holds the word of a fetch that asks the source, if it looks as is wanted: what it is otherwise. Fields stay as they are until it is stored again.
    fn hold(&self, is_wanted: impl Fn() -> bool) -> Option<u64> {
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if phase(word) != READING || !is_wanted() {
                return None;
            }
            if word & HELD != 0 {
                pause();
                continue;
            }
            // Acquire: fields are written before the word (Release there).
            let held =
                self.word
                    .compare_exchange(word, word | HELD, Ordering::AcqRel, Ordering::Relaxed);
            if held.is_ok() {
                return Some(word);
            }
        }
    }

    fn carve(&self, pages: Range<usize>) -> Option<usize> {
        let at = |field: &AtomicU64| field.load(Ordering::Acquire) as usize;
        let first_of_it = || {
            let is_of_it = self.demanded.load(Ordering::Acquire) == NOBODY
                && (at(&self.start)..at(&self.end)).contains(&pages.start);
            is_of_it.then(|| self.carved().rest(pages.start..at(&self.end)).next())?
        };
        let is_first = || first_of_it().is_some_and(|run| run.start == pages.start);
        let word = self.hold(is_first)?;
        // Again, now that it cannot change.
        let run = first_of_it().filter(|run| run.start == pages.start);
        let base = at(&self.base);
        let end = run.map_or(pages.start, |run| run.end.min(pages.end));
        let end = end.min(base + CARVED_MAX);
        for page in pages.start..end {
            let at = page - base;
            self.carved[at / 64].fetch_or(1 << (at % 64), Ordering::AcqRel);
        }
        // Release: pairs with the Acquire of who settles or gives up.
        self.word.store(word, Ordering::Release);
        (end > pages.start).then(|| end - pages.start)
    }

    fn carved(&self) -> Carved {
        Carved {
            base: self.base.load(Ordering::Acquire) as usize,
            bits: std::array::from_fn(|word| self.carved[word].load(Ordering::Acquire)),
        }
    }

    /// What it is, by who holds it.
    fn given_up(&self) -> GivenUp {
        let at = |field: &AtomicU64| field.load(Ordering::Acquire);
        let demanded = at(&self.demanded);
        GivenUp {
            pages: at(&self.start) as usize..at(&self.end) as usize,
            thread: at(&self.thread),
            demanded: (demanded != NOBODY).then_some(demanded as usize),
            carved: self.carved(),
        }
    }
}

/// A fetch that goes on. Dropped while it is not [settled](Flight::settle), which only a panic does, its pages stay claimed until it is
/// given up.
pub(crate) struct Flight<'a> {
    slot: &'a Slot,
    /// The number of those that are ahead.
    ahead: &'a AtomicU64,
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
        let settled = phase(self.word) == READING
            && loop {
                // Acquire: pairs with the Release of `give_up` and `carve`.
                let settled = self.slot.word.compare_exchange(
                    self.word,
                    word,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                match settled {
                    Ok(_) => break true,
                    Err(now) if now == self.word | HELD => pause(),
                    Err(_) => break false,
                }
            };
        self.word = if settled { word } else { FREE };
        settled
    }

    /// Of its pages, those that nobody has taken out of it, as runs. After `settle`; before that, more may be taken out at any moment.
    pub fn own(&self, pages: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let carved = match self.is_ahead {
            true => self.slot.carved(),
            false => Carved::default(),
        };
        carved.rest(pages)
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
            if self.is_ahead {
                self.ahead.fetch_sub(1, Ordering::SeqCst);
            }
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

    fn runs(pages: impl Iterator<Item = Range<usize>>) -> Vec<(usize, usize)> {
        pages.map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn a_page_of_a_fetch_ahead_is_taken_out_once() {
        let flights = InFlight::new(32);
        let carve = |page: usize| flights.carve(page..page + 1) == 1;
        assert!(!carve(5));
        let mut ahead = flights.enter(&(3..90), None, 1, 100, true).unwrap();
        let demanded = flights.enter(&(100..110), Some(104), 2, 100, true).unwrap();
        // Before it, after it, in a fetch that somebody waits for already.
        assert!(!carve(2) && !carve(90) && !carve(105));
        assert!(carve(5) && carve(70) && carve(3) && carve(4));
        assert!(!carve(5));
        // As many as follow each other in it.
        assert_eq!(flights.carve(66..80), 4);
        assert_eq!(flights.carve(88..200), 2);
        assert!(ahead.settle());
        // What is being put into place waits for nobody.
        assert!(!carve(6));
        assert_eq!(runs(ahead.own(3..90)), [(6, 66), (71, 88)]);
        assert_eq!(runs(ahead.own(3..6)), []);
        ahead.go_on(&(60..88), 200);
        assert!(carve(87) && !carve(70) && !carve(50));
        let given_up: Vec<_> = flights.give_up(300).collect();
        let of_it = given_up.iter().find(|fetch| fetch.thread == 1).unwrap();
        assert_eq!(runs(of_it.own()), [(60, 66), (71, 87)]);
        assert!(of_it.is_carved(70) && !of_it.is_carved(71));
        assert!(!ahead.settle());
        drop((ahead, demanded));
        assert!(!carve(71));
        // Whoever has the slot next begins anew.
        for number in 0..64 {
            let mut other = flights.enter(&(3..90), None, number, 100, true).unwrap();
            assert!(other.settle());
            assert_eq!(runs(other.own(3..90)), [(3, 90)]);
        }
        assert!(flights.is_quiet() && flights.ahead.0.load(Ordering::SeqCst) == 0);
    }

    /// A fetch that has more pages than there are bits for.
    #[test]
    fn what_lies_too_far_behind_is_not_taken_out() {
        let flights = InFlight::new(1);
        let mut ahead = flights.enter(&(10..2000), None, 1, 100, true).unwrap();
        assert_eq!(flights.carve(520..530), 2);
        assert_eq!(flights.carve(522..530), 0);
        assert!(ahead.settle());
        assert_eq!(runs(ahead.own(10..2000)), [(10, 520), (522, 2000)]);
    }

    #[test]
    fn a_fetch_that_panicked_is_given_up() {
        let flights = InFlight::new(1);
        drop(flights.enter(&(4..6), None, 7, 1, true));
        assert_eq!(flights.carve(4..5), 1);
        assert_eq!(given_up(&flights, 2), [(4, 6)]);
        assert_eq!(flights.ahead.0.load(Ordering::SeqCst), 0);
    }
}
