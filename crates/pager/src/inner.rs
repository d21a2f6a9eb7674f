//! What all engines share: from a fault to pages in their places.
//!
//! Everything that `serve` reaches is async-signal-safe if the source is: no allocation, and no lock but the gate, which is
//! absent where threads serve themselves.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use rustix::io::Errno;

use crate::clean::CleanFile;
use crate::engine::queue::Queue;
use crate::engine::reader::{Doom, change};
use crate::engine::watchdog::Leash;
use crate::event::{Event, Events, Loss};
use crate::lost::Barred;
use crate::plan::fill::{After, Fill, Passes};
use crate::plan::in_flight::InFlight;
use crate::plan::pages::{Claim, Pages, State};
use crate::plan::rate::Rate;
use crate::plan::record::Record;
use crate::plan::scatter;
use crate::plan::space::Space;
use crate::plan::stream::Streams;
use crate::plan::waits::{Left, Waits};
use crate::source::{Source, SourceError};
use crate::staging::Staging;
use crate::stats::Tally;
use crate::succession::ledger::{Ledger, Standing};
use crate::sync::Padded;
use crate::sys::clock::now_ns;
use crate::sys::mapping::discard;
use crate::sys::uffd::{Told, Uffd};
use crate::{BLOCK, Error, Mapping, PAGE};

/// Pages that one descriptor serves.
pub(crate) struct Shard {
    pub uffd: Uffd,
    pub pages: Range<usize>,
    /// Open for who puts pages into place, closed by the reader while it takes messages that may give content up. Absent where no
    /// such messages come.
    pub gate: Option<RwLock<()>>,
    /// A page of ours: touching it wakes the reader.
    pub control: Option<Mapping>,
    /// Faults that its reader has read and not begun.
    pub told: Queue,
    /// Since when its reader has been serving, 0 while it has not: see [`crate::engine::reader`].
    pub serving_ns: Padded<AtomicU64>,
    /// What the owner has moved or copied, and must not be read there.
    pub dooms: Mutex<Vec<Doom>>,
}

impl Shard {
    /// Opens the gate for as long as the guard lives.
    pub fn open(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let gate = self.gate.as_ref()?;
        Some(gate.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What all threads of a pager share.
pub(crate) struct Inner {
    pub space: Space,
    pub pages: Pages,
    pub waits: Waits,
    pub left: Left,
    pub streams: Streams,
    pub source: Arc<dyn Source>,
    /// What clean regions map.
    pub clean: Option<CleanFile>,
    /// Shared memory whose file takes whole huge pages, by address.
    pub besides: Box<[(usize, Arc<Mapping>)]>,
    pub shards: Box<[Shard]>,
    pub staging: Staging,
    pub tally: Tally,
    pub events: Events,
    pub in_flight: InFlight,
    pub leash: Leash,
    pub record: Option<Record>,
    /// Workers that fetch in the background; the others leave their CPUs to the owner.
    pub ahead: usize,
    /// What is brought along with a fault is within the background's rate as well.
    pub bounds_windows: bool,
    /// Pages that nobody will ever have.
    pub lost: Record,
    /// Pages that are mapped no longer: a fetch that has one finds out by this. Only of descriptors that were handed over.
    pub unmapped: Option<Record>,
    /// Pages whose content was given up once: they never read as the clean ones again. Only where clean pages are mapped.
    pub given_up: Option<Record>,
    /// Threads that map clean pages again at this moment.
    pub remapping: AtomicUsize,
    /// Lost pages that the kernel does not mark at the moment, because the memory is about to change. Only of descriptors that were
    /// handed over, as is the next.
    pub unmarked: Mutex<Vec<Range<usize>>>,
    /// Lost pages that the kernel cannot mark: they must stay registered, or they would be zero.
    pub unmarkable: Mutex<Vec<Range<usize>>>,
    /// Blocks of the latest faults, by thread: what the background goes by. [`NO_BLOCK`] where there is nothing new.
    pub recent: Box<[AtomicU64]>,
    pub background: Mutex<Background>,
    pub timeout: Duration,
    pub stop: AtomicBool,
    /// With `stop`, and set before: another serves the memory from now on. It is left as it is.
    pub is_left: AtomicBool,
    /// What another process is to know of it.
    pub ledger: Option<Arc<Ledger>>,
    /// Threads of [`crate::filling`] until now.
    pub fillings: AtomicU64,
}

/// What the background knows.
pub(crate) struct Background {
    pub fill: Fill,
    pub rate: Option<Rate>,
    pub passes: Passes,
    /// Blocks that could not be had: not tried again in this pass.
    pub failed: BTreeSet<usize>,
    /// Some of them may be had later.
    pub may_pass: bool,
    /// When the next pass begins, if that is later.
    pub again_ns: Option<u64>,
    pub is_on: bool,
}

impl Background {
    /// For so many blocks, off.
    pub fn new(blocks: usize, rate: Option<Rate>) -> Background {
        Background {
            fill: Fill::new(blocks),
            rate,
            passes: Passes::default(),
            failed: BTreeSet::new(),
            may_pass: false,
            again_ns: None,
            is_on: false,
        }
    }

    /// Begins another pass.
    fn pass(&mut self) {
        self.again_ns = None;
        self.failed.clear();
        self.may_pass = false;
        self.fill.restart();
    }

    /// On, from the beginning.
    pub fn start(&mut self) {
        self.passes = Passes::default();
        self.is_on = true;
        self.pass();
    }
}

/// How long until it is tried again to put a page into place for which there was no memory.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

pub(crate) const NO_BLOCK: u64 = u64::MAX;
/// Why pages did not get into their places.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// The memory is about to change: messages must be read first.
    Changing,
    Source(SourceError),
    Kernel(Errno),
    /// The watchdog has given the fetch up: its pages are no longer the caller's.
    GivenUp,
    /// The pager ends.
    Stopped,
}

impl Trouble {
    /// There is no memory now.
    pub fn is_scarce(self) -> bool {
        let nomem = |errno| errno == Errno::NOMEM;
        match self {
            Trouble::Kernel(errno) => nomem(errno),
            Trouble::Source(SourceError::Io { errno, .. }) => nomem(errno),
            _ => false,
        }
    }

    pub fn loss(self) -> Loss {
        match self {
            Trouble::Source(error) => Loss::Source(error),
            Trouble::Kernel(errno) => Loss::Kernel(errno),
            Trouble::GivenUp => Loss::Timeout,
            Trouble::Changing | Trouble::Stopped => Loss::Stopped,
        }
    }
}

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The page is there, or lost.
    Done,
    /// Somebody else fetches it.
    Busy,
    /// It will never be there. Where the kernel does not stop who touches it, the engine must.
    Lost,
    /// The memory is about to change: to be served again after the next messages.
    Later,
}

impl Inner {
    /// A number for another thread that fills.
    pub fn next_filling(&self) -> u64 {
        self.fillings.fetch_add(1, Ordering::Relaxed)
    }

    /// The shard of a page.
    pub fn shard(&self, page: usize) -> &Shard {
        let after = self
            .shards
            .partition_point(|shard| shard.pages.start <= page);
        &self.shards[after - 1]
    }

    /// A fault on a page by a thread, told at that time: fetches it, and what is likely to be touched next.
    pub fn serve(&self, page: usize, thread: u64, since_ns: u64) -> Served {
        self.tally.faults.add(1);
        let slot = (scatter(thread) >> 40) as usize;
        let block = self.space.block_of(page) as u64;
        self.recent[slot % self.recent.len()].store(block, Ordering::Relaxed);
        let window = match &self.record {
            // Exact: what is fetched along would look touched, or hide what is.
            Some(record) => {
                record.note(page);
                page as u64..page as u64 + 1
            }
            None => {
                // Cut where huge pages of the memory end, not where so many pages do.
                let shift = self.space.shift(page) as u64;
                let window = self.streams.fault(thread, page as u64 + shift);
                let window = window.start.saturating_sub(shift)..window.end - shift;
                match self.may_bring_along(window.end - window.start - 1) {
                    true => window,
                    false => page as u64..page as u64 + 1,
                }
            }
        };
        let mut window = self.space.clip(page, window);
        let shard = self.shard(page);
        window.start = window.start.max(shard.pages.start);
        window.end = window.end.min(shard.pages.end);
        loop {
            // A huge page is claimed from its beginning, so that of two who want it one has all.
            let (pages, was) = match self.pages.claim(self.first_of(page), window.clone()) {
                Claim::Taken { pages, was } => (pages, was),
                Claim::Busy if self.overtakes(page) => (page..page + 1, State::Missing),
                // It is busy no longer, and who had it did not know that somebody waits.
                Claim::Busy if !self.left.leave(&self.pages, self.first_of(page)) => continue,
                // Once more: who has claimed it to fetch it ahead, and not begun before, sees that somebody is left.
                Claim::Busy if self.overtakes(page) => (page..page + 1, State::Missing),
                Claim::Busy => {
                    self.tally.waits.add(1);
                    return Served::Busy;
                }
                Claim::Present => return self.refault(shard, page),
            };
            self.tally.windows.add(1);
            return match self.fetch(shard, pages, was, Some(page), thread, since_ns) {
                Err(Trouble::Changing) => Served::Later,
                _ => Served::Done,
            };
        }
    }

    /// Takes a busy page over from who fetches it ahead, together with much else: a fault waits for nothing that nobody waits for. Costs the source that page
    /// once more. A huge page of hugetlb is all that is fetched at once, and as soon there.
    fn overtakes(&self, page: usize) -> bool {
        let is_ours =
            self.space.region(page).1.granule == 1 && self.in_flight.carve(page..page + 1) == 1;
        if is_ours {
            self.tally.overtaken.add(1);
        }
        is_ours
    }

    /// The first page of the huge page that a page is a part of.
    fn first_of(&self, page: usize) -> usize {
        let (first, region) = self.space.region(page);
        page - (page - first) % region.granule
    }

    /// A fault on a page that is there: it was told before the page came, or the owner has given the page up without saying so,
    /// and it is zero now. The kernel knows which.
    fn refault(&self, shard: &Shard, page: usize) -> Served {
        let granule = self.space.region(page).1.granule;
        let first = self.first_of(page);
        let pages = first..first + granule;
        let addresses = self.space.addresses(&pages);
        if self.lost.has(page) {
            return match self.bar_lost(shard, pages.clone()) {
                Barred::All => {
                    let _ = shard.uffd.wake(addresses);
                    Served::Lost
                }
                Barred::Changing(_) => Served::Later,
                // Woken, its thread would only fault again.
                Barred::Refused(_) => Served::Lost,
            };
        }
        if let Some(error) = self.map_again_patiently(shard, page) {
            match Remapped::from(error) {
                Remapped::There => return Served::Done,
                Remapped::Later => return Served::Later,
                Remapped::Again => {
                    let _ = shard.uffd.wake(addresses);
                    return Served::Done;
                }
                Remapped::Scarce if self.stop.load(Ordering::Relaxed) => {
                    let _ = shard.uffd.wake(addresses);
                    return Served::Done;
                }
                Remapped::Lost(_) | Remapped::Scarce => {
                    let errno = error.unwrap_or(Errno::NOMEM);
                    if self.lost.has(page) {
                        // Another, who has tried as long.
                        return self.refault(shard, page);
                    }
                    self.lost.note(page);
                    self.tally.lost_pages.add(1);
                    self.events.tell(Event::Lost {
                        page,
                        pages: 1,
                        why: Loss::Kernel(errno),
                    });
                    return self.refault(shard, page);
                }
                Remapped::Foreign => {}
            }
        }
        // Not zero, but lost.
        if shard.is_doomed(&addresses) {
            return Served::Later;
        }
        let placed = self.put_zeros(shard, addresses.clone(), granule);
        match placed.error {
            None => self.tally.removed_pages.add(granule as i64),
            Some(Errno::AGAIN) if placed.bytes == 0 => return Served::Later,
            Some(_) => self.let_go_on(shard, &pages),
        }
        Served::Done
    }

    /// The same, again and again while there is no memory for the tables of pages, up to the timeout: it is the machine's trouble, and mostly passes.
    /// Who cannot wait for us is served by a stand-in.
    fn map_again_patiently(&self, shard: &Shard, page: usize) -> Option<Option<Errno>> {
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = now_ns().saturating_add(timeout_ns);
        loop {
            let error = self.map_again(shard, page)?;
            if Remapped::from(error) != Remapped::Scarce
                || self.stop.load(Ordering::Relaxed)
                || now_ns() >= until_ns
            {
                return Some(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A page that was there is mapped no longer: maps the clean one again, if it is that; what the kernel said. The kernel unmaps those when it wants
    /// memory, and so does an owner who gives pages up without telling.
    ///
    /// Who gives a page up and tells waits for us: at the gate, or in `discard` for `remapping`.
    fn map_again(&self, shard: &Shard, page: usize) -> Option<Option<Errno>> {
        let (clean, given_up) = (self.clean.as_ref()?, self.given_up.as_ref()?);
        if !self.space.region(page).1.clean || !clean.is_there(self.space.source_offset(page)) {
            return None;
        }
        let _open = shard.open();
        self.remapping.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `discard`: either we see that it is given up, or we are waited for.
        fence(Ordering::SeqCst);
        let error = (!given_up.has(page)).then(|| {
            let page = page..page + 1;
            shard.uffd.map(self.space.addresses(&page)).error
        });
        self.remapping.fetch_sub(1, Ordering::SeqCst);
        error
    }

    /// These pages never read as the clean ones again.
    fn note_given_up(&self, pages: &Range<usize>) {
        if let Some(given_up) = &self.given_up {
            for page in pages.clone() {
                given_up.note(page);
            }
        }
    }

    /// Fetches what is missing of a range, not for a fault. The last error of those that leave pages missing, if there were any; or
    /// [`Trouble::Changing`], and it should be tried later.
    pub fn prefetch(&self, pages: Range<usize>, thread: u64) -> Result<(), Trouble> {
        let mut at = pages.start;
        let mut result = Ok(());
        while let Some(next) = self.pages.next_missing(at, pages.end) {
            let page = self.first_of(next);
            if self.stop.load(Ordering::Relaxed) {
                return Err(Trouble::Stopped);
            }
            let shard = self.shard(page);
            let block = self.space.block(self.space.block_of(page));
            let window = page as u64..block.end.min(pages.end) as u64;
            let mut window = self.space.clip(page, window);
            window.end = window.end.min(shard.pages.end);
            at = next + 1;
            if let Claim::Taken { mut pages, was } = self.pages.claim(page, window) {
                let demanded = self.cut_at_awaited(shard, &mut pages, was);
                at = pages.end.max(at);
                let is_much = pages.len() * PAGE >= BLOCK;
                match self.fetch(shard, pages, was, demanded, thread, now_ns()) {
                    Err(trouble @ (Trouble::Source(_) | Trouble::Kernel(_))) => {
                        result = Err(trouble);
                    }
                    done => done?,
                }
                if is_much {
                    // Whoever waits for this CPU, a reader or the owner, would wait for a whole time slice.
                    std::thread::yield_now();
                }
            }
        }
        result
    }

    /// Of claimed pages those before the first that somebody waits for stay, or, if it is in front, that one alone, which is what was demanded then; the rest
    /// is given back.
    fn cut_at_awaited(&self, shard: &Shard, pages: &mut Range<usize>, was: State) -> Option<usize> {
        let awaited = match was {
            State::Missing => self.left.first(pages.clone())?,
            _ => return None,
        };
        let (first, granule) = (self.first_of(awaited), self.space.region(awaited).1.granule);
        let is_in_front = first <= pages.start;
        let end = if is_in_front { first + granule } else { first };
        let end = end.min(pages.end);
        self.give_back(shard, end..pages.end, was);
        pages.end = end;
        is_in_front.then_some(awaited)
    }

    /// The next block for the background, at most at its rate.
    pub fn next_block(&self, now_ns: u64) -> Next {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !background.is_on {
            return Next::Nothing;
        }
        match background.again_ns {
            Some(again_ns) if now_ns < again_ns => {
                return Next::After(Duration::from_nanos(again_ns - now_ns));
            }
            Some(_) => background.pass(),
            None => {}
        }
        let Background {
            fill, rate, failed, ..
        } = &mut *background;
        for slot in &self.recent {
            let block = slot.swap(NO_BLOCK, Ordering::Relaxed);
            if block != NO_BLOCK {
                fill.fault(block as usize);
            }
        }
        let wanted = |block: usize| {
            let pages = self.space.block(block);
            !failed.contains(&block) && self.pages.next_missing(pages.start, pages.end).is_some()
        };
        let Some(block) = fill.next(wanted) else {
            let (missing, busy) = self.pages.count_unsettled();
            let has_hope = background.failed.is_empty() || background.may_pass;
            return match background.passes.end(missing, busy, has_hope) {
                After::Pass(pause) => {
                    let pause_ns = pause.as_nanos() as u64;
                    background.again_ns = Some(now_ns.saturating_add(pause_ns));
                    Next::After(pause)
                }
                end => {
                    background.is_on = false;
                    if end == After::Unfilled {
                        self.events.tell(Event::Unfilled { pages: missing });
                    }
                    Next::Nothing
                }
            };
        };
        let pages = self.space.block(block);
        if let Some(rate) = rate
            && let Err(wait_ns) = rate.take((pages.len() * PAGE) as u64, now_ns)
        {
            return Next::After(Duration::from_nanos(wait_ns));
        }
        Next::Pages(pages)
    }

    /// The background is on, at no rate, and has not failed with anything.
    pub fn is_filling(&self) -> bool {
        let background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        background.is_on && background.rate.is_none() && background.again_ns.is_none()
    }

    /// Takes bytes of the budget for what is fetched ahead, if there is one.
    ///
    /// # Errors
    /// How long until it is worth another try.
    pub fn take_budget(&self, bytes: u64, now_ns: u64) -> Result<(), Duration> {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let taken = background
            .rate
            .as_mut()
            .map_or(Ok(()), |rate| rate.take(bytes, now_ns));
        taken.map_err(Duration::from_nanos)
    }

    /// Whether so many pages around a fault are within the budget. Async-signal-safe: who finds the budget in another's hands brings the page alone.
    fn may_bring_along(&self, pages: u64) -> bool {
        if !self.bounds_windows || pages == 0 {
            return true;
        }
        let Ok(mut background) = self.background.try_lock() else {
            return false;
        };
        let rate = background.rate.as_mut();
        rate.is_none_or(|rate| rate.take(pages * PAGE as u64, now_ns()).is_ok())
    }

    /// A block could not be had: the background leaves it for this pass.
    pub fn block_failed(&self, pages: &Range<usize>, why: Trouble) {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        background.failed.insert(self.space.block_of(pages.start));
        let nobody_is_left = matches!(
            why,
            Trouble::Source(SourceError::Gone(_)) | Trouble::Kernel(Errno::SRCH)
        );
        background.may_pass |= !nobody_is_left;
    }

    /// The content of pages is given up by the owner, under the closed gate: they are zero when they are touched again, lost or not.
    pub fn remove(&self, shard: &Shard, pages: Range<usize>) {
        self.tally.removed_pages.add(pages.len() as i64);
        self.note_given_up(&pages);
        if let Some(ledger) = &self.ledger {
            ledger.removed(pages.clone());
        }
        self.pages.remove(pages.clone());
        if self.lost.clear(pages.clone()) {
            // Who waits for a page that could not be marked faults again.
            let _ = shard.uffd.wake(self.space.addresses(&pages));
        }
    }

    /// Pages are mapped no longer: nothing of them is to be fetched, under the closed gate.
    pub fn forget(&self, pages: Range<usize>) {
        if let Some(ledger) = &self.ledger {
            ledger.settled(pages.clone());
        }
        if let Some(unmapped) = &self.unmapped {
            unmapped.note_all(pages.clone());
        }
        self.pages.forget(pages);
    }

    /// Goes on where another was, as the ledger has it. Before anybody serves.
    pub fn resume(&self) {
        let (Some(ledger), [shard]) = (&self.ledger, &*self.shards) else {
            return;
        };
        ledger.left(|told| match told {
            Told::Other(message) => change(self, shard, message),
            // Its descriptor went with the process that read of it.
            Told::Fork(_) => self.events.tell(Event::Forked),
        });
        let mut lost = Vec::new();
        ledger.standings(|pages, standing| {
            for part in self.space.parts(&pages) {
                match standing {
                    Standing::Removed => {
                        self.note_given_up(&part);
                        self.pages.remove(part);
                    }
                    Standing::Settled => self.pages.forget(self.space.granules(&part)),
                    Standing::Lost => {
                        let part = self.space.granules(&part);
                        part.clone().for_each(|page| self.lost.note(page));
                        self.pages.forget(part.clone());
                        self.tally.lost_pages.add(part.len() as i64);
                        lost.push(part);
                    }
                }
            }
        });
        // They may not have been marked yet.
        self.unmarked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(lost);
    }

    /// Has all who wait fault again: what was read of them went with the one before.
    pub fn wake_all(&self) {
        for shard in &self.shards {
            // Wherever they wait: on memory that was moved, or that nobody told us of. Where addresses begin and end is the machine's.
            let starts = [1usize << 16, 1 << 20, 1 << 24];
            let ends = [1usize << 56, 1 << 52, 1 << 48, 1 << 47, 1 << 39];
            let is_done = starts.iter().any(|start| {
                let all = |end: &usize| shard.uffd.wake(*start..*end - PAGE).is_ok();
                ends.iter().any(all)
            });
            if is_done {
                continue;
            }
            for part in self.space.parts(&shard.pages) {
                let _ = shard.uffd.wake(self.space.addresses(&part));
            }
        }
    }

    /// Gives the content of own pages up: they read as zero from now on.
    ///
    /// # Safety
    /// The content is the caller's to give up.
    pub unsafe fn discard(&self, pages: Range<usize>) -> Result<(), Error> {
        self.note_given_up(&pages);
        // Pairs with the fence in `map_again`: who did not see that maps a page now, which is given up below.
        fence(Ordering::SeqCst);
        while self.remapping.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let mut at = pages.start;
        while at < pages.end {
            let shard = self.shard(at);
            let (first, region) = self.space.region(at);
            let end = pages.end.min(first + region.pages).min(shard.pages.end);
            // Nobody may fetch them meanwhile: each is claimed, waiting for those who have it now.
            while at < end {
                match self.pages.claim(at, at..end) {
                    Claim::Taken { pages, .. } => {
                        self.pages.release(pages.clone(), State::Removed);
                        self.lost.clear(pages.clone());
                        self.waits.wake(pages.clone());
                        let _ = shard.uffd.wake(self.space.addresses(&pages));
                        at = pages.end;
                    }
                    Claim::Busy => self.waits.wait(&self.pages, at, self.timeout),
                    Claim::Present => {
                        self.pages.remove(at..at + 1);
                        self.lost.clear(at..at + 1);
                        at += 1;
                    }
                }
            }
        }
        self.tally.removed_pages.add(pages.len() as i64);
        for (first, region) in self.space.regions() {
            let (low, high) = (pages.start.max(*first), pages.end.min(first + region.pages));
            if low < high {
                let addresses = self.space.addresses(&(low..high));
                // SAFETY: by the caller.
                unsafe { discard(addresses.start, addresses.len()) }
                    .map_err(Error::system("madvise(MADV_DONTNEED)"))?;
            }
        }
        Ok(())
    }
}

/// What came of mapping a clean page again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remapped {
    There,
    /// The memory is about to change.
    Later,
    /// Somebody else has mapped it, or unmapped all: another touch finds out.
    Again,
    /// There is no memory for it now.
    Scarce,
    /// It cannot be had any more: its memory is broken.
    Lost(Errno),
    /// The owner has mapped something else there, which nobody has content for.
    Foreign,
}

impl From<Option<Errno>> for Remapped {
    fn from(error: Option<Errno>) -> Remapped {
        match error {
            None => Remapped::There,
            Some(Errno::AGAIN) => Remapped::Later,
            Some(Errno::INVAL) => Remapped::Foreign,
            Some(Errno::NOMEM) => Remapped::Scarce,
            Some(errno @ (Errno::FAULT | Errno::IO | Errno::HWPOISON)) => Remapped::Lost(errno),
            Some(_) => Remapped::Again,
        }
    }
}

/// What the background is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Pages(Range<usize>),
    After(Duration),
    Nothing,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_clean_page_that_is_broken_is_lost_and_neither_zero_nor_waited_for() {
        let after = |error| Remapped::from(error);
        assert_eq!(after(None), Remapped::There);
        assert_eq!(after(Some(Errno::AGAIN)), Remapped::Later);
        assert_eq!(after(Some(Errno::IO)), Remapped::Lost(Errno::IO));
        assert_eq!(after(Some(Errno::FAULT)), Remapped::Lost(Errno::FAULT));
        assert_eq!(after(Some(Errno::INVAL)), Remapped::Foreign);
        assert_eq!(after(Some(Errno::NOMEM)), Remapped::Scarce);
        for passing in [Errno::EXIST, Errno::NOENT, Errno::SRCH] {
            assert_eq!(after(Some(passing)), Remapped::Again);
        }
    }
}
