//! A pager that serves.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::engine::crew::Crew;
use crate::event::Event;
use crate::inner::Shard;
use crate::plan::pages::State;
use crate::plan::space::Region;
use crate::sys::clock::now_ns;
use crate::sys::signal::Registered;
use crate::{Builder, Engine, Error, Mapping, PAGE, Stats, WorkingSet};

/// Serves the missing pages of memory until it is dropped.
///
/// Dropping it ends serving: pages that are still missing become deadly to touch (SIGBUS) rather than zero. [`finish`](Self::finish)
/// fetches them before. Neither waits longer than some timeouts for a source that says nothing: a thread of the pager that it keeps is
/// left behind then, touches the memory no more, and ends when the source lets it go. The source lives until then.
///
/// Memory that was handed over is unregistered at the end.
pub struct Pager {
    pub(crate) crew: Arc<Crew>,
    engine: Engine,
    pub(crate) handler: Option<Registered>,
    /// Unmapped after all else has ended.
    _kept: Vec<Arc<Mapping>>,
}

impl Pager {
    /// A new one, to be put together.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(crew: Arc<Crew>, engine: Engine, kept: Vec<Arc<Mapping>>) -> Pager {
        Pager {
            crew,
            engine,
            handler: None,
            _kept: kept,
        }
    }

    /// The engine that serves: never [`Engine::Auto`].
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Pages of 4 KiB, of all regions.
    pub fn pages(&self) -> usize {
        self.crew.inner.pages.count()
    }

    /// Pages that nobody has fetched yet. O(pages / 32).
    pub fn missing_pages(&self) -> usize {
        self.crew.inner.pages.count_of(State::Missing)
    }

    /// Whether nothing is missing or on its way. Waits for nobody. O(pages / 32).
    pub fn is_filled(&self) -> bool {
        let pages = &self.crew.inner.pages;
        pages.next_unsettled(0, pages.count()).is_none()
    }

    /// What was done since the start.
    pub fn stats(&self) -> Stats {
        self.crew.inner.tally.stats()
    }

    /// Whether there are lost pages that are not deadly to touch: see [`Event::Unstopped`]. After [`stop`](Self::stop) their memory is registered still,
    /// and must stay so: unregistered, it would be zero.
    pub fn has_unstopped(&self) -> bool {
        self.crew.inner.has_unstopped()
    }

    /// The next event, waiting for it at most so long. Events that nobody takes are kept, up to 1024 of them.
    pub fn next_event(&self, at_most: Duration) -> Option<Event> {
        self.crew.inner.events.next(at_most)
    }

    /// Events that there was no room for.
    pub fn events_dropped(&self) -> u64 {
        self.crew.inner.events.dropped()
    }

    /// The pages that were touched since the start; `None` unless that is [recorded](Builder::record).
    pub fn working_set(&self) -> Option<WorkingSet> {
        Some(self.crew.inner.record.as_ref()?.working_set())
    }

    /// Fetches a working set, before whoever will touch it starts. Returns when it is there. How many of its pages are not, because
    /// the source failed (an event says why) or because they are beyond the last page. As fast as it goes: who waits for it to start is not kept
    /// waiting by a [budget](Builder::budget).
    pub fn prefetch(&self, set: &WorkingSet) -> u64 {
        let (pieces, beyond) = self.pieces(set);
        beyond + self.crew.fetch_all(pieces)
    }

    /// The same while who will touch it runs already: within the [budget](Builder::budget) for what nobody waits for, in the order of the pages. `is_over` is
    /// asked before each block is granted, and every 50 ms while the budget is used up, not while what was granted is fetched: when it says so, or serving ends, the
    /// rest is left.
    pub fn replay(&self, set: &WorkingSet, is_over: impl Fn() -> bool) -> u64 {
        const LOOK: Duration = Duration::from_millis(50);
        let inner = &self.crew.inner;
        let (pieces, mut missing) = self.pieces(set);
        // As much as is granted at once is fetched at once, by several threads.
        let mut granted: Vec<Range<usize>> = Vec::new();
        for piece in pieces {
            loop {
                if is_over() || inner.stop.load(Ordering::SeqCst) {
                    missing += inner.pages.missing(&piece) as u64;
                    break;
                }
                let bytes = (inner.pages.missing(&piece) * PAGE) as u64;
                match inner.take_budget(bytes, now_ns()) {
                    Ok(()) => {
                        granted.push(piece);
                        break;
                    }
                    Err(_) if !granted.is_empty() => {
                        missing += self.crew.fetch_all(std::mem::take(&mut granted));
                    }
                    Err(wait) => std::thread::sleep(wait.min(LOOK)),
                }
            }
        }
        missing + self.crew.fetch_all(granted)
    }

    /// What of a set lies in each block, and how many pages of it are beyond the last one.
    fn pieces(&self, set: &WorkingSet) -> (Vec<Range<usize>>, u64) {
        let count = self.pages() as u64;
        let space = &self.crew.inner.space;
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for run in set.runs() {
            let (mut at, end) = (run.start.min(count) as usize, run.end.min(count) as usize);
            while at < end {
                let piece = at..space.block(space.block_of(at)).end.min(end);
                at = piece.end;
                pieces.push(piece);
            }
        }
        let beyond = set
            .runs()
            .iter()
            .map(|run| run.end - run.start.max(count).min(run.end))
            .sum();
        (pieces, beyond)
    }

    /// Fetches all that is missing now. Returns when nothing is missing nor on its way, or the source has said nothing for about two
    /// timeouts. How many pages could not be had. Pages that the source kept back for longer than the timeout are lost instead.
    pub fn fill(&self) -> u64 {
        let space = &self.crew.inner.space;
        let all = (0..space.blocks()).map(|block| space.block(block));
        self.crew.let_background_fill();
        self.crew.fetch_all(all.collect())
    }

    /// Turns the background on, or has it try again what failed. It is off when all is there, and when it has tried for long [in vain](Event::Unfilled).
    pub fn start_background(&self) {
        let mut background = self
            .crew
            .inner
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        background.start();
        drop(background);
        self.crew.handed.call();
    }

    /// Gives the content of pages up, of memory of this process: they read as zero from now on. Waits for those that are on
    /// their way.
    ///
    /// The owner of memory that was handed over tells by `madvise` instead, and so may the owner of this process's, but then
    /// pages that are fetched at that moment may keep their content.
    ///
    /// # Safety
    /// Nobody needs the content, and nobody has references to it.
    ///
    /// # Errors
    /// [`Error::Config`] for pages beyond the last, parts of huge pages of hugetlb, or memory that is not this process's; [`Error::System`].
    pub unsafe fn discard(&self, pages: Range<usize>) -> Result<(), Error> {
        if pages.start > pages.end || pages.end > self.pages() {
            return Err(Error::Config("there are no such pages"));
        }
        if self
            .crew
            .inner
            .space
            .regions()
            .iter()
            .any(|(_, region)| !region.own)
        {
            return Err(Error::Config(
                "memory of another process can only be given up there",
            ));
        }
        let is_cut = |(first, region): &(usize, Region)| {
            let (low, high) = (pages.start.max(*first), pages.end.min(first + region.pages));
            let is_whole = |page: usize| (page - first).is_multiple_of(region.granule);
            low < high && !(is_whole(low) && is_whole(high))
        };
        if self.crew.inner.space.regions().iter().any(is_cut) {
            return Err(Error::Config("huge pages can only be given up whole"));
        }
        // SAFETY: by the caller.
        unsafe { self.crew.inner.discard(pages) }
    }

    /// Ends serving, as dropping does: missing pages are deadly to touch from now on, and the memory is the kernel's again. Statistics and
    /// events do not change afterwards, so that none is missed that came at the last moment. Takes no longer than some timeouts.
    pub fn stop(&mut self) {
        if !self.crew.inner.stop.load(Ordering::SeqCst) {
            self.end();
        }
    }

    /// Ends serving and leaves the memory that was handed over as it is, for another pager with the same [ledger](Builder::ledger): here or in
    /// another process. Who touches what is missing waits until then. Does not wait for the source. Statistics and events do not change
    /// afterwards, but for a thread that is kept by the source.
    ///
    /// # Errors
    /// Serving goes on: there is no ledger, or [`Error::Busy`]: memory that was moved or copied by `fork` is not dealt with yet.
    pub fn leave(&self) -> Result<(), Error> {
        let inner = &self.crew.inner;
        if inner.ledger.is_none() {
            return Err(Error::Config("there is no ledger to go on with"));
        }
        let is_doomed = |shard: &Shard| {
            let dooms = shard.dooms.lock().unwrap_or_else(PoisonError::into_inner);
            !dooms.is_empty()
        };
        if inner.shards.iter().any(is_doomed) {
            return Err(Error::Busy);
        }
        if !inner.stop.load(Ordering::SeqCst) {
            self.crew.leave();
        }
        Ok(())
    }

    /// Fetches all that is missing, then ends serving. What was done; how many pages could not be had, which are deadly to touch.
    /// Takes no longer than some timeouts if the source says nothing.
    pub fn finish(mut self) -> (Stats, u64) {
        let missing = self.fill();
        // All has been counted when all threads have ended.
        self.end();
        (self.stats(), missing)
    }

    fn end(&mut self) {
        self.crew.stop();
        // After the memory is the kernel's again: until then there is somebody for each fault.
        if let Some(handler) = self.handler.take() {
            handler.end(self.crew.inner.timeout);
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stop();
    }
}
