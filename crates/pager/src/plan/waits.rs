//! Where threads wait for pages that others fetch: words, hashed by page. Used where the kernel does not keep them asleep.

use std::ops::Range;
use std::time::Duration;

use super::pages::{LANES, Pages, State};
use super::record::Record;
use crate::sync::{Ordering, Padded, Word, fence};

/// Busy pages for which threads were left waiting: a bit each, since the kernel wakes by pages. It stays with a page that
/// was not what a fetch was begun for when that was given up: who fetches ahead knows then that it is waited for.
pub(crate) struct Left(Record);

impl Left {
    /// For so many pages: nobody.
    pub fn new(pages: usize) -> Left {
        Left(Record::new(pages))
    }

    /// Leaves somebody waiting for `page`: whoever changes its state afterwards [hears](Left::take) of it. False: it is busy no longer.
    #[must_use]
    pub fn leave(&self, pages: &Pages, page: usize) -> bool {
        self.0.note(page);
        // Pairs with the fence in `take`: either we see the new state, or the other one sees the bit.
        fence(Ordering::SeqCst);
        pages.state(page) == State::Busy
    }

    /// The first of some pages for which somebody may have been left waiting. Who is left afterwards hears of them as well.
    pub fn first(&self, pages: Range<usize>) -> Option<usize> {
        self.0.first(pages)
    }

    /// The states of these pages have changed: whether somebody may have been left waiting.
    #[must_use]
    pub fn take(&self, pages: Range<usize>) -> bool {
        // Pairs with the fence in `leave`.
        fence(Ordering::SeqCst);
        self.0.clear(pages)
    }
}

/// The words. An odd one has somebody waiting, perhaps.
pub(crate) struct Waits {
    words: Box<[Padded<Word>]>,
}

impl Waits {
    /// At least `words` of them, all even.
    pub fn new(words: usize) -> Waits {
        let words = words.next_power_of_two();
        Waits {
            words: (0..words).map(|_| Padded(Word::new())).collect(),
        }
    }

    /// Pages that share a word of states share a word here, so that completing a window touches few.
    fn word(&self, page: usize) -> &Word {
        let spread = (page / LANES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        &self.words[spread & (self.words.len() - 1)].0
    }

    /// Sleeps until `page` may be no longer busy, or for `at_most`.
    pub fn wait(&self, pages: &Pages, page: usize, at_most: Duration) {
        let word = self.word(page);
        let seen = word.value().fetch_or(1, Ordering::SeqCst) | 1;
        // Pairs with the fence in `wake`: either we see the new state, or the other one sees that the word is odd.
        fence(Ordering::SeqCst);
        if pages.state(page) == State::Busy {
            word.sleep(seen, at_most);
        }
    }

    /// The states of these pages have changed.
    pub fn wake(&self, pages: Range<usize>) {
        // Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        let mut page = pages.start;
        while page < pages.end {
            let word = self.word(page);
            let seen = word.value().load(Ordering::SeqCst);
            // Whoever comes between has made it even itself, or waits for a later change.
            if seen & 1 == 1
                && word
                    .value()
                    .compare_exchange(
                        seen,
                        seen.wrapping_add(1),
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                word.wake_all();
            }
            page = (page / LANES + 1) * LANES;
        }
    }
}
