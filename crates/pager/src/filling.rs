//! Fetching much at once, for somebody who waits until it is there: by a few threads of their own, since the source may keep any of
//! them for ever, and it must not keep who waits.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::SourceError;
use crate::engine::crew::{Crew, FILLING};
use crate::inner::{Inner, Trouble};
use crate::plan::pages::State;
use crate::sys::clock::now_ns;

/// A source is slow rather than a CPU.
pub(crate) const THREADS: usize = 4;
/// With so many fetches given up one after the other, and nothing done meanwhile, the source is taken for dead.
const SILENT: usize = 2 * THREADS;
/// How often threads are looked after. Who is done tells it.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Filling {
    work: Mutex<Work>,
    change: Condvar,
}

#[derive(Default)]
struct Work {
    left: Shares,
    /// What each thread has before it.
    doing: Vec<(u64, Piece)>,
    silent: usize,
    /// Something could not be had, or not in time.
    has_failed: bool,
}

/// Pages to be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    pages: Range<usize>,
    /// What stands first was given up once.
    is_again: bool,
}

impl Piece {
    /// What is to be done of it after `given_up`, of its pages, was given up: that is tried once more, then left. With nothing known, all of it.
    fn after(&self, given_up: Option<Range<usize>>) -> Option<Piece> {
        let is_of_it = |given_up: &Range<usize>| {
            given_up.start < self.pages.end && self.pages.start < given_up.end
        };
        let given_up = given_up.filter(is_of_it).unwrap_or(self.pages.clone());
        let (from, is_again) = match self.is_again {
            false => (given_up.start.max(self.pages.start), true),
            true => (given_up.end, false),
        };
        let pages = from..self.pages.end;
        (!pages.is_empty()).then_some(Piece { pages, is_again })
    }
}

/// What is to be done, divided among threads so that neighbours do not fill the same page table: each wants its lock for every page.
#[derive(Debug, Default)]
struct Shares(Vec<VecDeque<Piece>>);

impl Shares {
    fn new(pieces: Vec<Piece>, threads: usize) -> Shares {
        let each = pieces.len().div_ceil(threads.max(1)).max(1);
        Shares(
            pieces
                .chunks(each)
                .map(|part| part.iter().cloned().collect())
                .collect(),
        )
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// The next of a share; once that is done, the last of the longest one.
    fn next(&mut self, share: usize) -> Option<Piece> {
        let own = self.0.get_mut(share).and_then(VecDeque::pop_front);
        own.or_else(|| {
            self.0
                .iter_mut()
                .max_by_key(|share| share.len())?
                .pop_back()
        })
    }

    fn add(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        if self.0.is_empty() {
            self.0.push(VecDeque::new());
        }
        self.0[0].extend(pieces);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Filling {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn run(&self, crew: &Crew, me: u64, share: usize) {
        let mut work = self.work();
        while let Some(piece) = work.left.next(share) {
            work.doing.push((me, piece.clone()));
            drop(work);
            let done = prefetch(&crew.inner, piece.pages.clone(), me);
            work = self.work();
            let before = work.doing.len();
            work.doing.retain(|(thread, _)| *thread != me);
            if work.doing.len() == before {
                // Held up for so long that somebody else has it now.
                return;
            }
            work.silent = match done {
                Err(Trouble::Source(SourceError::Late) | Trouble::GivenUp) => work.silent + 1,
                _ => 0,
            };
            work.has_failed |= done.is_err();
            if matches!(done, Err(Trouble::GivenUp)) {
                let given_up = crew.held_up(me);
                work.left.add(piece.after(given_up));
            }
            if work.silent >= SILENT {
                work.left.clear();
            }
            if work.left.is_empty() && work.doing.is_empty() {
                self.change.notify_all();
            }
        }
    }
}

/// While the memory is about to change the reader has to read the message first.
fn prefetch(inner: &Inner, piece: Range<usize>, me: u64) -> Result<(), Trouble> {
    let until_ns = inner.end_of_patience_ns();
    loop {
        match inner.prefetch(piece.clone(), me) {
            Err(Trouble::Changing) if now_ns() < until_ns => {
                thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

impl Crew {
    /// Waits while the background fetches by as many threads as would be started here: beside them they would take the owner's CPUs. Not for
    /// long while nothing comes: then the source waits after all, or the memory is about to change.
    pub fn let_background_fill(&self) {
        let inner = &self.inner;
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        if !inner.source.is_signal_safe() || inner.ahead < THREADS.min(cpus / 2).max(1) {
            return;
        }
        let (mut before, mut since_ns) = (None, 0);
        while inner.is_filling() && !inner.stop.load(Ordering::SeqCst) {
            let (there, now_ns) = (
                inner.tally.pages.read() + inner.tally.zero_pages.read(),
                now_ns(),
            );
            if before != Some(there) {
                (before, since_ns) = (Some(there), now_ns);
            } else if now_ns.saturating_sub(since_ns) > LOOK.as_nanos() as u64 {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Fetches what is missing of some pieces; how many pages are missing afterwards. Takes as long as the source needs, but not much
    /// longer than two timeouts if it says nothing.
    pub fn fetch_all(self: &Arc<Crew>, pieces: Vec<Range<usize>>) -> u64 {
        let until_ns = self.inner.end_of_patience_ns();
        loop {
            let (missing, has_failed) = self.fetch_once(&pieces);
            // What nobody failed to fetch is missing where another had it in hand, and gave it back because the memory was about to change.
            if missing == 0 || has_failed || now_ns() >= until_ns {
                return missing;
            }
        }
    }

    /// The same, of what is missing when it comes to it. Also whether something could not be had.
    fn fetch_once(self: &Arc<Crew>, pieces: &[Range<usize>]) -> (u64, bool) {
        let inner = &self.inner;
        let is_wanted = |piece: &&Range<usize>| {
            let page = inner.pages.next_missing(piece.start, piece.end);
            page.is_some()
        };
        let filling = Arc::new(Filling::default());
        let wanted = pieces.iter().filter(is_wanted).cloned();
        let wanted: Vec<_> = wanted
            .map(|pages| Piece {
                pages,
                is_again: false,
            })
            .collect();
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let threads = cpus.min(THREADS).min(wanted.len());
        filling.work().left = Shares::new(wanted, threads);
        let start = |share: usize| {
            let me = FILLING + inner.next_filling();
            let theirs = Arc::clone(&filling);
            let run = move |crew: &Arc<Crew>| theirs.run(crew, me, share);
            self.spawn("pager-fill".to_owned(), run).is_ok()
        };
        let mut running = (0..threads).filter(|share| start(*share)).count();
        let mut work = filling.work();
        let is_left = || inner.is_left.load(Ordering::SeqCst);
        while running > 0 && !(work.left.is_empty() && work.doing.is_empty()) && !is_left() {
            (work, _) = filling
                .change
                .wait_timeout(work, LOOK.min(inner.timeout))
                .unwrap_or_else(PoisonError::into_inner);
            let mut again = Vec::new();
            let before = work.doing.len();
            work.doing
                .retain(|(thread, piece)| match self.held_up(*thread) {
                    Some(given_up) => {
                        again.extend(piece.after(Some(given_up)));
                        false
                    }
                    None => true,
                });
            let held_up = before - work.doing.len();
            work.silent += held_up;
            work.has_failed |= held_up > 0;
            running -= held_up;
            work.left.add(again);
            if work.silent >= SILENT {
                break;
            }
            drop(work);
            running += (0..held_up).filter(|share| start(*share)).count();
            work = filling.work();
            if work.doing.is_empty() && !work.left.is_empty() {
                // Those that had nothing to do have ended, and what another was held up with came back after that.
                drop(work);
                if !start(0) {
                    work = filling.work();
                    break;
                }
                running += 1;
                work = filling.work();
            }
        }
        let has_failed = work.has_failed || !(work.left.is_empty() && work.doing.is_empty());
        // Who comes back finds nothing to do.
        work.left.clear();
        drop(work);
        let missing = pieces.iter().map(|piece| self.not_there(piece));
        (missing.sum(), has_failed || is_left())
    }

    /// Waits for pages that are on their way; how many of the others are missing.
    fn not_there(&self, piece: &Range<usize>) -> u64 {
        let inner = &self.inner;
        let until_ns = inner.end_of_patience_ns();
        let (mut at, mut missing) = (piece.start, 0);
        while let Some(page) = inner.pages.next_unsettled(at, piece.end) {
            if inner.pages.state(page) == State::Busy && now_ns() < until_ns {
                inner.waits.wait(&inner.pages, page, inner.timeout);
                at = page;
                continue;
            }
            let is_there = matches!(inner.pages.state(page), State::Present | State::Removed);
            missing += u64::from(!is_there);
            at = page + 1;
        }
        missing
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_share_and_then_the_end_of_anothers() {
        let piece = |first: usize| Piece {
            pages: first..first + 1,
            is_again: false,
        };
        let mut shares = Shares::new((0..7).map(piece).collect(), 2);
        let mut next = |share| shares.next(share).map(|piece| piece.pages.start);
        assert_eq!([next(1), next(0), next(1), next(1)], [4, 0, 5, 6].map(Some));
        assert_eq!([next(1), next(0), next(5)], [3, 1, 2].map(Some));
        assert_eq!(next(0), None);
        shares.add([piece(9)]);
        assert!(!shares.is_empty());
        assert_eq!(shares.next(1), Some(piece(9)));
        assert!(Shares::new(Vec::new(), 0).is_empty());
    }

    #[test]
    fn what_was_given_up_is_tried_once_more_and_the_rest_in_any_case() {
        let piece = Piece {
            pages: 0..9,
            is_again: false,
        };
        let again = piece.after(Some(2..5)).unwrap();
        assert_eq!((again.pages.clone(), again.is_again), (2..9, true));
        let rest = again.after(Some(2..5)).unwrap();
        assert_eq!((rest.pages.clone(), rest.is_again), (5..9, false));
        assert_eq!(again.after(None), None);
        assert_eq!(again.after(Some(2..9)), None);
        assert_eq!(piece.after(None).unwrap().pages, 0..9);
        assert_eq!(piece.after(Some(9..12)).unwrap().pages, 0..9);
    }
}
