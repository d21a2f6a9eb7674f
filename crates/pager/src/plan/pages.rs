//! The state of each page: two bits, changed by compare-and-swap of the word that 32 pages share.
//!
//! There is no lock: who claims a page has it until it completes or gives it back.

use std::ops::Range;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its content is the source's and has not arrived.
    Missing = 0b00,
    /// Somebody fetches it.
    Busy = 0b01,
    /// It has arrived.
    Present = 0b10,
    /// Its content was given up: when it is touched again, it is zero.
    Removed = 0b11,
}

/// What came of asking for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// These pages, which all were in state `was`, are the caller's to fetch.
    Taken {
        /// With the page that was asked for.
        pages: Range<usize>,
        /// [`State::Missing`] or [`State::Removed`].
        was: State,
    },
    /// Somebody else fetches it.
    Busy,
    /// It is there.
    Present,
}

/// Pages of a word.
pub(crate) const LANES: usize = 32;
const LOW: u64 = 0x5555_5555_5555_5555;

/// The states of all pages.
pub(crate) struct Pages {
    words: Box<[AtomicU64]>,
    /// Bits of busy pages whose content is given up before it arrives; empty where that cannot happen.
    struck: Box<[AtomicU32]>,
    count: usize,
}

impl Pages {
    /// All missing. With `removable`, pages can be removed by others while they are fetched.
    pub fn new(count: usize, removable: bool) -> Pages {
        let words = count.div_ceil(LANES);
        let struck = if removable { words } else { 0 };
        Pages {
            words: zeroed(words, || AtomicU64::new(0)),
            struck: zeroed(struck, || AtomicU32::new(0)),
            count,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The state of a page, as it was just now.
    pub fn state(&self, page: usize) -> State {
        state(
            self.words[page / LANES].load(Ordering::Acquire),
            page % LANES,
        )
    }

    /// Claims `page`, and of `window` around it all pages that are reached from it through pages in the same state.
    /// O(words of the window).
    pub fn claim(&self, page: usize, window: Range<usize>) -> Claim {
        debug_assert!(window.contains(&page) && window.end <= self.count);
        let (first, lane) = (page / LANES, page % LANES);
        let mut lanes = 0..0;
        let mut was = State::Missing;
        let taken = self.change(first, |word| {
            was = state(word, lane);
            if !matches!(was, State::Missing | State::Removed) {
                return None;
            }
            let same = same(word, was) & within(first, &window);
            lanes = run_around(same, lane);
            Some(set(word, spread(lanes.clone()), State::Busy))
        });
        if !taken {
            return match was {
                State::Busy => Claim::Busy,
                _ => Claim::Present,
            };
        }
        let mut pages = first * LANES + lanes.start..first * LANES + lanes.end;
        while pages.end < window.end && pages.end.is_multiple_of(LANES) {
            let more = self.claim_side(pages.end / LANES, &window, was, run_up);
            pages.end += more;
            if more == 0 {
                break;
            }
        }
        while pages.start > window.start && pages.start.is_multiple_of(LANES) {
            let more = self.claim_side(pages.start / LANES - 1, &window, was, run_down);
            pages.start -= more;
            if more == 0 {
                break;
            }
        }
        Claim::Taken { pages, was }
    }

    /// Claims the pages at one end of a word; how many.
    fn claim_side(
        &self,
        word: usize,
        window: &Range<usize>,
        was: State,
        run: impl Fn(u64) -> Range<usize>,
    ) -> usize {
        let mut lanes = 0..0;
        self.change(word, |old| {
            lanes = run(same(old, was) & within(word, window));
            (!lanes.is_empty()).then(|| set(old, spread(lanes.clone()), State::Busy))
        });
        lanes.len()
    }

    /// What was claimed has arrived.
    pub fn complete(&self, pages: Range<usize>) {
        self.settle(pages, State::Present);
    }

    /// What was claimed is given back, in state `to`.
    pub fn release(&self, pages: Range<usize>, to: State) {
        self.settle(pages, to);
    }

    /// Busy pages of the range become `to`; the others stay, so that nothing is lost when somebody else has settled them.
    fn settle(&self, pages: Range<usize>, to: State) {
        for word in words_of(&pages) {
            self.change(word, |old| {
                let busy = same(old, State::Busy) & within(word, &pages);
                (busy != 0).then(|| set(old, busy, to))
            });
        }
    }

    /// The content of the range is given up: it reads as zero from now on. Pages that are fetched at this moment are struck: who
    /// fetches them looks, under the gate that the caller has closed, and puts zeros into their place.
    pub fn remove(&self, pages: Range<usize>) {
        for word in words_of(&pages) {
            let mut busy = 0;
            self.change(word, |old| {
                let all = within(word, &pages);
                busy = same(old, State::Busy) & all;
                Some(set(old, all & !busy, State::Removed))
            });
            if busy != 0 && !self.struck.is_empty() {
                // Relaxed: the gate orders this before the look of whoever fetches.
                self.struck[word].fetch_or(narrow(busy), Ordering::Relaxed);
            }
        }
    }

    /// The range is no more: nothing of it is to be fetched. Busy pages stay for whoever fetches them to find out.
    pub fn forget(&self, pages: Range<usize>) {
        for word in words_of(&pages) {
            self.change(word, |old| {
                let lanes = same(old, State::Missing) & within(word, &pages);
                (lanes != 0).then(|| set(old, lanes, State::Present))
            });
        }
    }

    /// The first page of a claimed range that was struck. Under the gate.
    pub fn first_struck(&self, pages: Range<usize>) -> Option<usize> {
        if self.struck.is_empty() {
            return None;
        }
        words_of(&pages).find_map(|word| {
            let struck = self.struck[word].load(Ordering::Relaxed) & narrow(within(word, &pages));
            (struck != 0).then(|| word * LANES + struck.trailing_zeros() as usize)
        })
    }

    /// A struck page has been dealt with.
    pub fn forgive(&self, page: usize) {
        self.struck[page / LANES].fetch_and(!(1 << (page % LANES)), Ordering::Relaxed);
    }

    /// The first page at or after `from`, before `end`, that is missing.
    pub fn next_missing(&self, from: usize, end: usize) -> Option<usize> {
        self.next(from..end, |word| same(word, State::Missing))
    }

    /// The first page at or after `from`, before `end`, that is missing or on its way.
    pub fn next_unsettled(&self, from: usize, end: usize) -> Option<usize> {
        self.next(from..end, |word| {
            same(word, State::Missing) | same(word, State::Busy)
        })
    }

    /// The first page at or after `from`, before `end`, that is not present.
    pub fn next_absent(&self, from: usize, end: usize) -> Option<usize> {
        self.next(from..end, |word| LOW & !same(word, State::Present))
    }

    fn next(&self, pages: Range<usize>, lanes: impl Fn(u64) -> u64) -> Option<usize> {
        words_of(&pages).find_map(|word| {
            let found = lanes(self.words[word].load(Ordering::Acquire)) & within(word, &pages);
            (found != 0).then(|| word * LANES + found.trailing_zeros() as usize / 2)
        })
    }

    /// How many pages are in a state. O(pages / 32).
    pub fn count_of(&self, wanted: State) -> usize {
        (0..self.words.len())
            .map(|word| {
                let lanes = same(self.words[word].load(Ordering::Relaxed), wanted)
                    & within(word, &(0..self.count));
                lanes.count_ones() as usize
            })
            .sum()
    }

    /// How many of a range are missing.
    pub fn missing(&self, pages: &Range<usize>) -> usize {
        let missing = |word: usize| {
            let word_of = self.words[word].load(Ordering::Relaxed);
            (same(word_of, State::Missing) & within(word, pages)).count_ones() as usize
        };
        words_of(pages).map(missing).sum()
    }

    /// How many pages are missing, and how many on their way: no page is left out that is one, then the other meanwhile. O(pages / 32).
    pub fn count_unsettled(&self) -> (usize, usize) {
        let (mut missing, mut busy) = (0, 0);
        for (at, word) in self.words.iter().enumerate() {
            let word = word.load(Ordering::Acquire);
            let lanes = within(at, &(0..self.count));
            missing += (same(word, State::Missing) & lanes).count_ones() as usize;
            busy += (same(word, State::Busy) & lanes).count_ones() as usize;
        }
        (missing, busy)
    }

    /// Changes a word as `to` says, until nobody has come between; false if `to` wants no change.
    fn change(&self, word: usize, mut to: impl FnMut(u64) -> Option<u64>) -> bool {
        let word = &self.words[word];
        let mut old = word.load(Ordering::Acquire);
        loop {
            let Some(new) = to(old) else { return false };
            // AcqRel: who claims sees what was done with the page before it was given back, who finds it present what was
            // done to make it so.
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }
}

/// Values that are all zero bits, from memory that the kernel hands out zeroed: pages of it that are never written cost nothing.
#[cfg(not(loom))]
pub(super) fn zeroed<T>(count: usize, _make: impl Fn() -> T) -> Box<[T]> {
    use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

    if count == 0 {
        return Box::default();
    }
    let layout = Layout::array::<T>(count).expect("fewer bytes than there are addresses");
    // SAFETY: of a layout that is not empty; only called with atomics of integers, for which zero bits are a value; a box of a
    // slice is freed with just this layout.
    unsafe {
        let memory = alloc_zeroed(layout).cast::<T>();
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, count))
    }
}

#[cfg(loom)]
pub(super) fn zeroed<T>(count: usize, make: impl Fn() -> T) -> Box<[T]> {
    (0..count).map(|_| make()).collect()
}

fn state(word: u64, lane: usize) -> State {
    match word >> (2 * lane) & 0b11 {
        0b00 => State::Missing,
        0b01 => State::Busy,
        0b10 => State::Present,
        _ => State::Removed,
    }
}

/// Lanes in a state, each as its low bit.
fn same(word: u64, wanted: State) -> u64 {
    let (low, high) = (word, word >> 1);
    LOW & match wanted {
        State::Missing => !(low | high),
        State::Busy => low & !high,
        State::Present => high & !low,
        State::Removed => low & high,
    }
}

/// The word with these lanes in a state.
fn set(word: u64, lanes: u64, to: State) -> u64 {
    (word & !(lanes * 3)) | (lanes * to as u64)
}

/// Lanes as low bits.
fn spread(lanes: Range<usize>) -> u64 {
    let below = |lane: usize| {
        if lane >= LANES {
            LOW
        } else {
            LOW & ((1 << (2 * lane)) - 1)
        }
    };
    below(lanes.end) & !below(lanes.start)
}

/// Low bits as one bit a lane.
fn narrow(lanes: u64) -> u32 {
    let mut narrow = 0;
    let mut left = lanes;
    while left != 0 {
        narrow |= 1 << (left.trailing_zeros() / 2);
        left &= left - 1;
    }
    narrow
}

fn words_of(pages: &Range<usize>) -> Range<usize> {
    if pages.is_empty() {
        return 0..0;
    }
    pages.start / LANES..pages.end.div_ceil(LANES)
}

/// The lanes of a word that are in a range of pages.
fn within(word: usize, pages: &Range<usize>) -> u64 {
    let first = word * LANES;
    let lane = |page: usize| page.saturating_sub(first).min(LANES);
    spread(lane(pages.start)..lane(pages.end).max(lane(pages.start)))
}

/// The run of set lanes around one that is set.
fn run_around(lanes: u64, lane: usize) -> Range<usize> {
    let up = run_up(lanes >> (2 * lane)).end;
    let shifted = lanes << (2 * (LANES - 1 - lane));
    lane + 1 - run_down(shifted).len()..lane + up
}

/// The run of set lanes that begins with the first.
fn run_up(lanes: u64) -> Range<usize> {
    0..((!lanes & LOW).trailing_zeros() as usize / 2).min(LANES)
}

/// The run of set lanes that ends with the last.
fn run_down(lanes: u64) -> Range<usize> {
    let gap = (!lanes & LOW).leading_zeros() as usize / 2;
    LANES - gap.min(LANES)..LANES
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COUNT: usize = 150;

    #[derive(Clone, Debug)]
    enum Step {
        Claim(usize, usize, usize),
        Complete(usize),
        Release(usize),
        Remove(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..COUNT, 0..80usize, 0..80usize).prop_map(|(p, a, b)| Step::Claim(p, a, b)),
            2 => any::<usize>().prop_map(Step::Complete),
            1 => any::<usize>().prop_map(Step::Release),
            1 => (0..COUNT, 1..70usize).prop_map(|(p, n)| Step::Remove(p, n)),
        ];
        proptest::collection::vec(step, 1..80)
    }

    /// The same with a vector.
    struct Model {
        states: Vec<State>,
        struck: Vec<bool>,
    }

    impl Model {
        fn claim(&mut self, page: usize, window: Range<usize>) -> Claim {
            let was = self.states[page];
            match was {
                State::Busy => return Claim::Busy,
                State::Present => return Claim::Present,
                _ => {}
            }
            let mut start = page;
            while start > window.start && self.states[start - 1] == was {
                start -= 1;
            }
            let mut end = page + 1;
            while end < window.end && self.states[end] == was {
                end += 1;
            }
            self.states[start..end].fill(State::Busy);
            Claim::Taken {
                pages: start..end,
                was,
            }
        }
    }

    proptest! {
        #[test]
        fn words_do_what_a_vector_does(steps in steps()) {
            let pages = Pages::new(COUNT, true);
            let mut model = Model { states: vec![State::Missing; COUNT], struck: vec![false; COUNT] };
            let mut held: Vec<(Range<usize>, State)> = Vec::new();
            for step in steps {
                match step {
                    Step::Claim(page, before, after) => {
                        let window = page.saturating_sub(before)..(page + 1 + after).min(COUNT);
                        let claim = pages.claim(page, window.clone());
                        prop_assert_eq!(&claim, &model.claim(page, window));
                        if let Claim::Taken { pages, was } = claim {
                            held.push((pages, was));
                        }
                    }
                    Step::Complete(which) if !held.is_empty() => {
                        let (range, _) = held.swap_remove(which % held.len());
                        for page in range.clone() {
                            if std::mem::take(&mut model.struck[page]) {
                                prop_assert_eq!(pages.first_struck(page..range.end), Some(page));
                                pages.forgive(page);
                            }
                        }
                        prop_assert_eq!(pages.first_struck(range.clone()), None);
                        pages.complete(range.clone());
                        model.states[range].fill(State::Present);
                    }
                    Step::Release(which) if !held.is_empty() => {
                        let (range, was) = held.swap_remove(which % held.len());
                        for page in range.clone() {
                            if std::mem::take(&mut model.struck[page]) {
                                pages.forgive(page);
                            }
                        }
                        pages.release(range.clone(), was);
                        model.states[range].fill(was);
                    }
                    Step::Remove(page, len) => {
                        let range = page..(page + len).min(COUNT);
                        pages.remove(range.clone());
                        for page in range {
                            match model.states[page] {
                                State::Busy => model.struck[page] = true,
                                _ => model.states[page] = State::Removed,
                            }
                        }
                    }
                    _ => {}
                }
                for page in 0..COUNT {
                    prop_assert_eq!(pages.state(page), model.states[page], "page {}", page);
                }
                let missing = model.states.iter().position(|state| *state == State::Missing);
                prop_assert_eq!(pages.next_missing(0, COUNT), missing);
                let absent = model.states.iter().position(|state| *state != State::Present);
                prop_assert_eq!(pages.next_absent(0, COUNT), absent);
                let busy = model.states.iter().filter(|state| **state == State::Busy).count();
                prop_assert_eq!(pages.count_of(State::Busy), busy);
            }
        }
    }

    #[test]
    fn a_window_of_a_huge_page_is_one_claim() {
        let pages = Pages::new(1024, false);
        let claim = pages.claim(700, 512..1024);
        let all = Claim::Taken {
            pages: 512..1024,
            was: State::Missing,
        };
        assert_eq!(claim, all);
        assert_eq!(pages.claim(600, 512..1024), Claim::Busy);
        pages.complete(512..1024);
        assert_eq!(pages.claim(600, 512..1024), Claim::Present);
        assert_eq!(pages.count_of(State::Missing), 512);
    }

    #[test]
    fn what_another_has_settled_stays() {
        let pages = Pages::new(64, false);
        pages.claim(10, 0..64);
        pages.complete(0..32);
        pages.release(0..64, State::Missing);
        assert_eq!(pages.state(31), State::Present);
        assert_eq!(pages.state(32), State::Missing);
    }
}
