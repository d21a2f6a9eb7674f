//! From a claim to pages in their places, or to the end of all hope for them ([`lost`](crate::lost)).
//!
//! Pages that are claimed belong to one fetch, which is known to the watchdog ([`InFlight`](crate::plan::in_flight::InFlight)).
//! Whoever wants to change their state, the fetch or who gives it up, settles it first; the other finds its claim gone. Of a fetch ahead others may take
//! pages: what it has is what is left of it when it is settled.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use amdahl_spread::Counter;
use rustix::io::Errno;

use crate::clean::{CleanFile, page_at};
use crate::event::{Event, Loss};
use crate::inner::{Inner, PAUSE, Shard, Trouble};
use crate::lost::Barred;
use crate::placing::put_content;
use crate::plan::in_flight::{Flight, GivenUp};
use crate::plan::pages::{Claim, State};
use crate::source::{Source, SourceError};
use crate::sys::clock::now_ns;
use crate::sys::uffd::{Placed, in_one_mapping};
use crate::{BLOCK, PAGE};

pub(crate) const BLOCK_PAGES: usize = BLOCK / PAGE;
/// Tries of a fetch after errors that may pass.
const RETRIES: u32 = 3;
/// By how much less is asked for at once after an error in the background, and more after a success.
const STEP: usize = 8;
/// What is read without a block of staging: little enough for any stack.
const SMALL: usize = 16 << 10;
/// How long a free block of staging is waited for before pages are brought in smaller pieces.
pub(crate) const STAGING_WAIT: Duration = Duration::from_millis(200);

/// Pages that were not fetched, until it is told.
struct Failed<'a> {
    inner: &'a Inner,
    pages: Range<usize>,
    why: Loss,
}

impl Failed<'_> {
    fn add(&mut self, pages: Range<usize>, why: Loss) {
        if self.pages.end == pages.start && self.why == why {
            self.pages.end = pages.end;
        } else {
            self.tell();
            (self.pages, self.why) = (pages, why);
        }
    }

    fn tell(&mut self) {
        if !self.pages.is_empty() {
            self.inner.events.tell(Event::NotFetched {
                page: self.pages.start,
                pages: self.pages.len(),
                why: self.why,
            });
        }
    }
}

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

/// What came of putting pages into place.
pub(crate) struct Progress {
    /// So many are done with, those included that are another's.
    pub on: usize,
    /// So many of them were put into place.
    pub pages: usize,
}

impl Inner {
    /// Fetches what was claimed. With an error nothing stays claimed. `demanded` is the page that somebody waits for: it is tried
    /// alone when a window fails, and lost if that fails as well, or if it is not there when the timeout is over that began at `since_ns`. Without one,
    /// ever smaller pieces are tried, and each page that fails is left, with an event. While there is no memory for what somebody waits for it is tried
    /// again and again: that mostly passes.
    pub fn fetch(
        &self,
        shard: &Shard,
        pages: Range<usize>,
        was: State,
        demanded: Option<usize>,
        thread: u64,
        since_ns: u64,
    ) -> Result<(), Trouble> {
        if !self.is_whole(&pages) {
            // Somebody else has the rest of a huge page, and gives it back as well.
            self.give_back(shard, pages, was);
            return Err(Trouble::Changing);
        }
        let asks = was == State::Missing;
        let flight = self
            .in_flight
            .enter(&pages, demanded, thread, since_ns, asks);
        let Some(mut flight) = flight else {
            self.give_back(shard, pages, was);
            return Err(Trouble::Changing);
        };
        self.leash.stir();
        // SeqCst, as is `enter`: who ends the pager sees this fetch, or we see that it ends.
        if self.stop.load(Ordering::SeqCst) {
            if flight.settle() {
                self.stopped(shard, &flight, pages, was);
            }
            return Err(Trouble::Stopped);
        }
        if demanded.is_none() && asks {
            // Pairs with the fence in `leave`: who came to wait between the claim and now has overtaken this fetch, or is seen here.
            fence(Ordering::SeqCst);
            if self.left.first(pages.clone()).is_some() {
                if flight.settle() {
                    self.give_back_own(shard, &flight, pages, was);
                }
                return Err(Trouble::Changing);
            }
        }
        let region = self.space.region(pages.start);
        let (first, granule) = (region.0, region.1.granule);
        let (mut at, mut end) = (pages.start, pages.end);
        let (mut piece, mut tries) = (pages.len(), 0u32);
        let mut failed = Failed {
            inner: self,
            pages: 0..0,
            why: Loss::Stopped,
        };
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut result = Ok(());
        while at < end {
            let until = end.min(at.saturating_add(piece));
            let trouble = match self.install(shard, &mut flight, at..until, was) {
                Ok(done) => {
                    at += done;
                    tries = 0;
                    piece = piece.saturating_mul(STEP);
                    // What others have taken is not asked for.
                    at = flight.own(at..end).next().map_or(end, |run| run.start);
                    if at < end {
                        self.go_on(&mut flight, at..end, demanded);
                    }
                    continue;
                }
                Err(trouble) => trouble,
            };
            // Another page of the window may be had, but not if there is nobody left to ask.
            let (again, is_final) = match trouble {
                Trouble::Changing => (false, true),
                Trouble::GivenUp | Trouble::Stopped => return Err(trouble),
                Trouble::Source(error) => (
                    error.may_pass(),
                    match error {
                        SourceError::Gone(_) | SourceError::Late => true,
                        SourceError::Short { end } => self.space.source_offset(at) >= end,
                        _ => false,
                    },
                ),
                Trouble::Kernel(errno) => (errno != Errno::SRCH, errno == Errno::SRCH),
            };
            if !flight.settle() {
                return Err(Trouble::GivenUp);
            }
            // Half of the time is for the page alone.
            let is_alone = end - at <= granule;
            let time_ns = if is_alone { timeout_ns } else { timeout_ns / 2 };
            let has_time = || demanded.is_none() || flight.age_ns(now_ns()) < time_ns;
            let is_wanted = demanded.is_some_and(|page| (at..end).contains(&page));
            let is_patient = is_wanted && trouble.is_scarce();
            if again && (tries < RETRIES || is_patient && is_alone) && has_time() {
                if is_patient {
                    std::thread::sleep(PAUSE);
                    // Nobody can give it up meanwhile, so it must notice by itself that the pager ends.
                    if self.stop.load(Ordering::SeqCst) {
                        self.stopped(shard, &flight, at..end, was);
                        return Err(Trouble::Stopped);
                    }
                }
                tries = tries.saturating_add(1);
                self.tally.retries.add(1);
                self.go_on(&mut flight, at..end, demanded);
                continue;
            }
            if matches!(trouble, Trouble::Changing) {
                self.give_back_own(shard, &flight, at..end, was);
                return Err(trouble);
            }
            // Only what is waited for can be lost; the rest of a window was our idea.
            match demanded {
                Some(page) if (at..end).contains(&page) && end - at > granule => {
                    let alone = first + (page - first) / granule * granule;
                    self.give_back(shard, at..alone, was);
                    self.give_back(shard, alone + granule..end, was);
                    (at, end) = (alone, alone + granule);
                    if matches!(trouble, Trouble::Source(SourceError::Late)) {
                        self.lose(shard, at..end, Some(trouble.loss()));
                        return Err(trouble);
                    }
                    tries = 0;
                    self.go_on(&mut flight, at..end, demanded);
                }
                Some(page) if (at..end).contains(&page) => {
                    self.lose(shard, at..end, Some(trouble.loss()));
                    return Err(trouble);
                }
                Some(_) => {
                    self.give_back(shard, at..end, was);
                    return Err(trouble);
                }
                None if until - at > granule && !is_final => {
                    let less = (until - at) / STEP / granule * granule;
                    piece = less.max(granule);
                    tries = 0;
                    self.go_on(&mut flight, at..end, demanded);
                }
                None => {
                    let left = if is_final { end } else { at + granule };
                    for run in flight.own(at..left) {
                        failed.add(run, trouble.loss());
                    }
                    result = Err(trouble);
                    self.give_back_own(shard, &flight, at..left, was);
                    (at, piece, tries) = (left, granule, 0);
                    if at < end {
                        self.go_on(&mut flight, at..end, demanded);
                    }
                }
            }
        }
        result
    }

    /// Claimed pages are not fetched any more, for the pager ends.
    fn stopped(&self, shard: &Shard, flight: &Flight<'_>, pages: Range<usize>, was: State) {
        match was {
            State::Missing if !self.is_left.load(Ordering::SeqCst) => {
                for run in flight.own(pages) {
                    self.lose(shard, run, None);
                }
            }
            _ => self.give_back_own(shard, flight, pages, was),
        }
    }

    /// The same as [`give_back`](Self::give_back) without what others have taken out of the fetch. After it was settled.
    fn give_back_own(&self, shard: &Shard, flight: &Flight<'_>, pages: Range<usize>, was: State) {
        for run in flight.own(pages) {
            self.give_back(shard, run, was);
        }
    }

    /// The source has answered, and is asked for the rest. Who waits for a page of that waits no longer than the timeout in all, however often the source
    /// answers: the clock starts anew only while nobody does.
    fn go_on(&self, flight: &mut Flight<'_>, rest: Range<usize>, demanded: Option<usize>) {
        let is_awaited = demanded.is_some_and(|page| rest.contains(&page))
            || self.left.first(rest.clone()).is_some();
        match is_awaited {
            true => flight.narrow(&rest),
            false => flight.go_on(&rest, now_ns()),
        }
    }

    /// Pages are whole granules of their region: a huge page comes at once or not at all.
    pub(crate) fn is_whole(&self, pages: &Range<usize>) -> bool {
        let (first, region) = self.space.region(pages.start);
        let is_edge = |page: usize| (page - first).is_multiple_of(region.granule);
        is_edge(pages.start) && is_edge(pages.end)
    }

    /// Puts the first of some claimed pages into place; how many. With success the flight is settled.
    fn install(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        pages: Range<usize>,
        was: State,
    ) -> Result<usize, Trouble> {
        let (_, region) = self.space.region(pages.start);
        let granule = region.granule;
        if was == State::Removed {
            let placed = self.place(shard, flight, pages, granule, |to, _| {
                self.put_zeros_again(shard, to, granule)
            });
            return Ok(placed?.on);
        }
        let offset = self.space.source_offset(pages.start);
        let extent = self.ask(|source| source.extent(offset, (pages.len() * PAGE) as u64))?;
        let whole = usize::try_from(extent.len).unwrap_or(usize::MAX) / PAGE / granule * granule;
        let pages = pages.start..pages.start + whole.clamp(granule, pages.len());
        if extent.is_zero && whole > 0 {
            let count = pages.len();
            let placed = self.place(shard, flight, pages, granule, |to, _| {
                self.put_zeros(shard, to, granule)
            })?;
            self.count(flight, &self.tally.zero_pages, placed.pages.min(count));
            return Ok(placed.on);
        }
        let pages = match &self.clean {
            Some(clean) if region.clean => {
                let (pages, is_in_file) = self.in_file(flight, clean, pages, offset)?;
                if is_in_file {
                    return self.map_clean(shard, flight, pages);
                }
                pages
            }
            _ => pages,
        };
        let to = self.space.addresses(&pages);
        if region.movable || region.takes_blocks {
            let into_block = to.start % BLOCK;
            if into_block == 0 && to.len() >= BLOCK {
                let block = pages.start..pages.start + BLOCK_PAGES;
                if let Some(done) = self.whole_block(shard, flight, block, offset)? {
                    return Ok(done);
                }
            } else if into_block + to.len() > 2 * BLOCK {
                // Up to the first whole block.
                let edge = pages.start..pages.start + (BLOCK - into_block) / PAGE;
                return self.copy(shard, flight, edge, offset, granule);
            }
        }
        self.copy(shard, flight, pages, offset, granule)
    }

    /// Sees to it that the file of clean pages has some, if anybody can: the first of them, and whether they are in it.
    fn in_file(
        &self,
        flight: &Flight<'_>,
        clean: &CleanFile,
        mut pages: Range<usize>,
        offset: u64,
    ) -> Result<(Range<usize>, bool), Trouble> {
        let (count, is_in_file) = match clean {
            CleanFile::Ours(clean) => {
                let there = clean.bring(offset, pages.len() * PAGE, flight.is_ahead);
                (there.map_err(Trouble::Source)?, true)
            }
            CleanFile::Left(filled) => {
                let first = page_at(offset);
                let (is_whole, count) = filled.run(first..first.saturating_add(pages.len()));
                (count, is_whole)
            }
        };
        pages.end = pages.start + count.min(pages.len());
        Ok((pages, is_in_file))
    }

    /// Maps pages that the file of clean pages has into place.
    fn map_clean(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        pages: Range<usize>,
    ) -> Result<usize, Trouble> {
        let placed = self.place(shard, flight, pages, 1, |to, _| shard.uffd.map(to))?;
        self.count(flight, &self.tally.pages, placed.pages);
        self.tally.shared_pages.add(placed.pages as i64);
        Ok(placed.on)
    }

    /// Pages were put into their places.
    fn count(&self, flight: &Flight<'_>, counter: &Counter, pages: usize) {
        counter.add(pages as i64);
        if flight.is_ahead {
            self.tally.background_pages.add(pages as i64);
        }
    }

    /// The same, with content, of which so many turned out to be zeros.
    pub(crate) fn count_content(&self, flight: &Flight<'_>, pages: usize, zeros: usize) {
        let zeros = zeros.min(pages);
        self.count(flight, &self.tally.zero_pages, zeros);
        self.count(flight, &self.tally.pages, pages - zeros);
    }

    /// Copies pages into place, from the source's memory or through staging.
    fn copy(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        mut pages: Range<usize>,
        offset: u64,
        granule: usize,
    ) -> Result<usize, Trouble> {
        let len = pages.len() * PAGE;
        let mut zeros = 0;
        let placed = if let Some(from) = self.ask(|source| source.in_memory(offset, len))? {
            self.place(shard, flight, pages, granule, |to, at| {
                // SAFETY: the source promises as many bytes, which nobody changes.
                let content = unsafe { slice::from_raw_parts(from.wrapping_add(at), to.len()) };
                put_content(shard, to, content, granule, &mut zeros)
            })
        } else if len <= SMALL {
            let mut buffer = [0; SMALL];
            let buffer = &mut buffer[..len];
            self.read(flight, offset, buffer)?;
            self.place(shard, flight, pages, granule, |to, at| {
                let content = &buffer[at..][..to.len()];
                put_content(shard, to, content, granule, &mut zeros)
            })
        } else if let Some(mut block) = self.block(flight, self.staging_wait(granule))? {
            pages.end = pages.end.min(pages.start + BLOCK_PAGES);
            self.read(flight, offset, block.bytes(pages.len() * PAGE))?;
            self.place(shard, flight, pages, granule, |to, at| {
                let content = &block.bytes(BLOCK)[at..][..to.len()];
                put_content(shard, to, content, granule, &mut zeros)
            })
        } else if granule * PAGE <= SMALL {
            pages.end = pages.start + SMALL / PAGE;
            return self.copy(shard, flight, pages, offset, granule);
        } else {
            return Err(Trouble::Kernel(Errno::NOMEM));
        }?;
        self.count_content(flight, placed.pages, zeros);
        Ok(placed.on)
    }

    /// A huge page cannot be brought in smaller pieces: it waits for as long as for the source.
    fn staging_wait(&self, granule: usize) -> Duration {
        match granule * PAGE <= SMALL {
            true => STAGING_WAIT,
            false => self.timeout,
        }
    }

    /// Asks the source. A panic there is an error here: others wait for what we have claimed.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&dyn Source) -> T) -> Result<T, Trouble> {
        let answer = catch_unwind(AssertUnwindSafe(|| question(&*self.source)));
        answer.map_err(|_| Trouble::Source(SourceError::Gone("it panicked")))
    }

    pub(crate) fn read(
        &self,
        flight: &Flight<'_>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Trouble> {
        let read = |source: &dyn Source| match flight.is_ahead {
            true => source.read_ahead(offset, into),
            false => source.read(offset, into),
        };
        self.ask(read)?.map_err(Trouble::Source)
    }

    /// Puts the first of some claimed pages into place by `call`, which is given where and, in bytes, from where of the content on, and notes what is there
    /// then. With success the flight is settled. Nothing is done if it was given up. What others have taken out of it is passed over.
    pub(crate) fn place(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        pages: Range<usize>,
        granule: usize,
        mut call: impl FnMut(Range<usize>, usize) -> Placed,
    ) -> Result<Progress, Trouble> {
        let _open = shard.open();
        if !flight.settle() {
            return Err(Trouble::GivenUp);
        }
        let mut count = 0;
        let progress = |on: usize, pages: usize| Ok(Progress { on, pages });
        for run in flight.own(pages.clone()) {
            let before = run.start - pages.start;
            let placed = self.place_run(shard, run.clone(), granule, |to| call(to, before * PAGE));
            match placed {
                Ok(done) => {
                    count += done;
                    if done < run.len() {
                        return progress(before + done, count);
                    }
                }
                Err(trouble) if before == 0 => return Err(trouble),
                // Met again when these are asked for.
                Err(_) => return progress(before, count),
            }
        }
        progress(pages.len(), count)
    }

    /// The same of pages that are all the fetch's own, with the gate open; how many.
    fn place_run(
        &self,
        shard: &Shard,
        mut pages: Range<usize>,
        granule: usize,
        call: impl FnOnce(Range<usize>) -> Placed,
    ) -> Result<usize, Trouble> {
        match self.first_unmapped(pages.clone()) {
            Some(gone) if gone == pages.start => {
                // Nobody's any more: as good as there.
                let gone = |page: &usize| self.first_unmapped(*page..page + 1).is_some();
                let count = pages.clone().take_while(gone).count();
                self.placed(shard, pages.start..pages.start + count);
                return Ok(count);
            }
            Some(gone) => pages.end = gone,
            None => {}
        }
        let placed = match self.pages.first_struck(pages.clone()) {
            Some(struck) if struck == pages.start => {
                // Given up while it was on its way.
                pages.end = struck + granule.min(pages.len());
                self.put_zeros(shard, self.space.addresses(&pages), granule)
            }
            Some(struck) => {
                pages.end = struck;
                call(self.space.addresses(&pages))
            }
            None => call(self.space.addresses(&pages)),
        };
        let done = placed.bytes / PAGE;
        if done > 0 {
            self.placed(shard, pages.start..pages.start + done);
            return Ok(done);
        }
        match placed.error {
            // The owner was there first, by another way.
            Some(Errno::EXIST) => {
                let first = pages.start..pages.start + granule.min(pages.len());
                self.let_go_on(shard, &first);
                let count = first.len();
                self.placed(shard, first);
                Ok(count)
            }
            Some(Errno::AGAIN) => Err(Trouble::Changing),
            Some(errno) => Err(Trouble::Kernel(errno)),
            None => Err(Trouble::Kernel(Errno::INVAL)),
        }
    }

    /// Pages that are there without us: who waits goes on. Of shared memory they may be in the file and not mapped, of which faults are told, too, if
    /// the owner has asked for that (MINOR).
    pub fn let_go_on(&self, shard: &Shard, pages: &Range<usize>) {
        let addresses = self.space.addresses(pages);
        // Clean pages are mapped by who knows that they are wanted: what is there may be given up just now.
        let is_clean = self.space.region(pages.start).1.clean;
        if is_clean || shard.uffd.map(addresses.clone()).error.is_some() {
            let _ = shard.uffd.wake(addresses);
        }
    }

    fn placed(&self, shard: &Shard, pages: Range<usize>) {
        while let Some(struck) = self.pages.first_struck(pages.clone()) {
            self.pages.forgive(struck);
        }
        self.settle(shard, pages);
    }

    /// Claimed pages are there, or will never be. The kernel has woken who waited for them; but who has lost a page again since, and was told to wait
    /// because it was still claimed, it has not.
    pub(crate) fn settle(&self, shard: &Shard, pages: Range<usize>) {
        if let Some(ledger) = &self.ledger {
            // Before it counts here: who finds all of it there lets the memory go.
            ledger.settled(pages.clone());
        }
        self.pages.complete(pages.clone());
        self.waits.wake(pages.clone());
        if self.left.take(pages.clone()) {
            let _ = shard.uffd.wake(self.space.addresses(&pages));
        }
    }

    /// Zeros for missing pages, of whole granules.
    pub fn put_zeros(&self, shard: &Shard, to: Range<usize>, granule: usize) -> Placed {
        if granule == 1 {
            return shard.uffd.zero(to);
        }
        // There is no huge zero page to map.
        let to = to.start..to.start + BLOCK;
        // SAFETY: the zeros are as many.
        unsafe { shard.uffd.copy(to, self.staging.zeros()) }
    }

    /// Zeros for pages that their owner has given up. Where such a page is not mapped, or not registered any more because serving ends just now, who
    /// touches it finds zeros without us: it is as good as there, and not lost.
    fn put_zeros_again(&self, shard: &Shard, to: Range<usize>, granule: usize) -> Placed {
        let mut part = usize::MAX;
        let mut placed = in_one_mapping(to, granule * PAGE, &mut part, |to| {
            self.put_zeros(shard, to, granule)
        });
        if placed.bytes == 0 && placed.error == Some(Errno::NOENT) {
            placed.error = Some(Errno::EXIST);
        }
        placed
    }

    /// Claimed pages are not fetched now. Who waits for one faults again, so that no fault is forgotten that was told meanwhile.
    pub fn give_back(&self, shard: &Shard, pages: Range<usize>, was: State) {
        if pages.is_empty() {
            return;
        }
        let _open = shard.open();
        self.by_struck(&pages, |run| self.pages.release(run, was));
        // Whoever was left waiting is woken, and asks for itself.
        let _ = self.left.take(pages.clone());
        self.wake(shard, &pages);
    }

    /// The same of missing pages that were fetched for another or ahead while somebody came to wait for them. That stays noted: who fetches ahead asks for
    /// them as for a fault then, so that they are had or lost.
    fn give_back_awaited(&self, shard: &Shard, pages: Range<usize>) {
        let _open = shard.open();
        self.by_struck(&pages, |run| self.pages.release(run, State::Missing));
        self.wake(shard, &pages);
    }

    /// Has whoever waits for pages look, or fault, again.
    fn wake(&self, shard: &Shard, pages: &Range<usize>) {
        self.waits.wake(pages.clone());
        let _ = shard.uffd.wake(self.space.addresses(pages));
    }

    /// A fetch was given up, and its pages are nobody's: the one that it was begun for is lost. For others that somebody waits for the source was asked only
    /// along with it, or ahead: they are asked for again, for themselves. The rest was an idea of ours, and can be fetched again.
    pub fn give_up(&self, fetch: &GivenUp) {
        #[derive(PartialEq)]
        enum Page {
            Demanded,
            Awaited,
            Idea,
            /// Another's by now.
            Carved,
        }
        let shard = self.shard(fetch.pages.start);
        let granule = self.space.region(fetch.pages.start).1.granule;
        let is_demanded = |page: usize, demanded: usize| (page..page + granule).contains(&demanded);
        let kind = |page: usize| match fetch.demanded {
            _ if fetch.is_carved(page) => Page::Carved,
            Some(demanded) if is_demanded(page, demanded) => Page::Demanded,
            _ if self.left.first(page..page + granule).is_some() => Page::Awaited,
            _ => Page::Idea,
        };
        let mut failed = Failed {
            inner: self,
            pages: 0..0,
            why: Loss::Timeout,
        };
        let mut at = fetch.pages.start;
        while at < fetch.pages.end {
            let (first, mut run) = (kind(at), at..at + granule);
            while run.end < fetch.pages.end && kind(run.end) == first {
                run.end += granule;
            }
            at = run.end;
            match first {
                Page::Demanded => self.lose(shard, run, Some(Loss::Timeout)),
                Page::Awaited => self.give_back_awaited(shard, run),
                Page::Idea => {
                    if fetch.demanded.is_none() {
                        failed.add(run.clone(), Loss::Timeout);
                    }
                    self.give_back(shard, run, State::Missing);
                }
                Page::Carved => {}
            }
        }
    }

    /// The first of some pages that is mapped no longer. With the gate open.
    fn first_unmapped(&self, pages: Range<usize>) -> Option<usize> {
        self.unmapped.as_ref()?.first(pages)
    }

    /// The first of some claimed pages that was struck or is mapped no longer. With the gate open.
    pub(crate) fn first_changed(&self, pages: Range<usize>) -> Option<usize> {
        let unmapped = self.first_unmapped(pages.clone());
        let struck = self.pages.first_struck(pages);
        unmapped.into_iter().chain(struck).min()
    }

    /// Claimed pages without those that were struck, which are removed, and those that are mapped no longer, of which nothing is wanted. With the gate
    /// open.
    pub(crate) fn by_struck(&self, pages: &Range<usize>, mut each: impl FnMut(Range<usize>)) {
        let mut at = pages.start;
        while let Some(changed) = self.first_changed(at..pages.end) {
            self.pages.forgive(changed);
            each(at..changed);
            let to = match self.first_unmapped(changed..changed + 1) {
                Some(_) => State::Present,
                None => State::Removed,
            };
            self.pages.release(changed..changed + 1, to);
            at = changed + 1;
        }
        each(at..pages.end);
    }

    /// Puts zeros where content of clean pages was given up and nobody has touched it since: without us it would be the clean pages. Whether
    /// something is left: the memory is about to change, or somebody else has a page that may be given back.
    pub fn put_removed(&self, shard: &Shard) -> bool {
        let mut is_left = false;
        let is_clean = |part: &Range<usize>| self.space.region(part.start).1.clean;
        for part in self.space.parts(&shard.pages).filter(is_clean) {
            let mut at = part.start;
            while let Some(page) = self.pages.next_absent(at, part.end) {
                at = page + 1;
                if self.pages.state(page) != State::Removed {
                    is_left = true;
                    continue;
                }
                match self.pages.claim(page, page..part.end) {
                    Claim::Taken {
                        pages,
                        was: State::Removed,
                    } => {
                        at = pages.end;
                        is_left |= !self.put_all_zeros(shard, pages);
                    }
                    Claim::Taken { pages, was } => {
                        self.give_back(shard, pages, was);
                        is_left = true;
                    }
                    Claim::Busy => is_left = true,
                    Claim::Present => {}
                }
            }
        }
        is_left
    }

    /// Puts zeros for claimed pages that were removed; gives the rest back, and says false, if the memory is about to change.
    fn put_all_zeros(&self, shard: &Shard, mut pages: Range<usize>) -> bool {
        let open = shard.open();
        let mut part = usize::MAX;
        while !pages.is_empty() {
            let to = self.space.addresses(&pages);
            let placed = in_one_mapping(to, PAGE, &mut part, |to| shard.uffd.zero(to));
            let done = match (placed.bytes / PAGE, placed.error) {
                (0, Some(Errno::AGAIN)) => break,
                (0, Some(Errno::EXIST | Errno::NOENT)) => 1,
                // The process is gone.
                (0, Some(Errno::SRCH)) => pages.len(),
                // It must not be read as the clean page.
                (0, _) => match self.bar(shard, pages.start..pages.start + 1) {
                    Barred::All => 1,
                    _ => break,
                },
                (done, _) => done,
            };
            self.placed(shard, pages.start..pages.start + done);
            pages.start += done;
        }
        drop(open);
        let is_done = pages.is_empty();
        self.give_back(shard, pages, State::Removed);
        is_done
    }

    /// Whether the source is away and may come back. Who panics is not.
    pub fn is_source_away(&self) -> bool {
        matches!(self.ask(|source| source.is_away()), Ok(true))
    }

    /// When nobody waits any longer: all that went on until now has been given up long before.
    pub fn end_of_patience_ns(&self) -> u64 {
        let patience = u64::try_from((self.timeout * 2).as_nanos()).unwrap_or(u64::MAX);
        now_ns().saturating_add(patience)
    }
}
