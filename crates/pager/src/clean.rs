//! One copy of a source's content for all who map it.
//!
//! The content is in a file of shared memory. Who needs a page brings it there first, if nobody has, and maps it then; whoever writes gets
//! a copy of the page that is its own. A page is claimed while it is fetched, as in a pager, and written to the file only when all of it
//! has come; so nobody maps a page before it is whole, and who is late writes nothing.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use amdahl_spread::Counter;

use crate::plan::in_flight::InFlight;
use crate::plan::pages::{Claim, Pages, State};
use crate::plan::waits::Waits;
use crate::source::{Extent, Source, SourceError};
use crate::staging::{Block, Staging};
use crate::succession::Filled;
use crate::sys::clock::now_ns;
use crate::sys::mapping::populate;
use crate::sys::support::Support;
use crate::{BLOCK, Backing, Error, Mapping, PAGE, WorkingSet};

/// The most that is fetched at once.
const MOST: usize = BLOCK / PAGE;
/// What is read without a block of staging: little enough for any stack.
const SMALL: usize = 16 << 10;
/// How long a free block of staging is waited for before less is read at once.
const STAGING_WAIT: Duration = Duration::from_millis(200);

/// One copy of a source's content on this host, for any number of mappings in any number of processes. Filled on demand: each page is asked of the
/// source once, zeros never.
///
/// [`map`](Self::map) gives memory of this process for a [`Pager`](crate::Pager). Other processes take [a descriptor](crate::handoff::offer), map it, and
/// [hand over](crate::handoff::hand_over) what they have mapped. What a mapping writes is its own; the copy can be changed by nobody but this
/// object, whatever is done with the descriptor (it is sealed). The copy lives as long as this object or a mapping of it.
///
/// It is a [`Source`] as well, for memory that is no mapping of its file: that is filled by copies, and each page is still asked of the
/// source once.
pub struct CleanPages {
    source: Arc<dyn Source>,
    memory: Mapping,
    len: u64,
    pages: Pages,
    waits: Waits,
    in_flight: InFlight,
    staging: Staging,
    fetched: Counter,
    /// What another process is to know of the file.
    filled: Option<Arc<Filled>>,
    timeout: Duration,
    /// How often in a row an answer came after its fetch was given up: as often the time that a fetch has is doubled. A source that says nothing at all
    /// does not count.
    late: AtomicU32,
}

impl CleanPages {
    /// Of the first `len` bytes of a source, rounded up to whole pages. Takes address space, and memory as pages arrive.
    ///
    /// # Errors
    /// [`Error::Config`]: no bytes; [`Error::System`]: no memory, or a kernel before 5.1.
    pub fn new(source: Arc<dyn Source>, len: u64) -> Result<CleanPages, Error> {
        let bytes = usize::try_from(len).map_err(|_| Error::Config("memory has too many bytes"))?;
        let memory = Mapping::sealed(bytes)?;
        let count = memory.len() / PAGE;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(CleanPages {
            source,
            len,
            pages: Pages::new(count, false),
            waits: Waits::new((cpus * 64).clamp(256, 1 << 16)),
            // Who finds no room waits for some.
            in_flight: InFlight::new((cpus * 16).clamp(512, 1 << 16)),
            staging: Staging::new((2 * cpus).clamp(8, 64))?,
            fetched: Counter::new(),
            filled: None,
            timeout: Duration::from_secs(30),
            late: AtomicU32::new(0),
            memory,
        })
    }

    /// How long the source may take for a fetch before another who needs the page asks it again, 30 seconds by default; twice as long after
    /// each answer that came too late, until one is in time, so that a slow source is not asked for ever. How long each waits is said by its own pager,
    /// and should not be less.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> CleanPages {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Notes which pages the file has where another process finds it, which goes on with [mappings of it](crate::Builder::clean_before) when this one is gone. Nobody else
    /// can ever fill the file: the only mapping that writes to it is this object's. One that is new, for the same bytes.
    ///
    /// # Errors
    /// [`Error::Config`]: it is of another size, or says that something is there.
    pub fn noted(mut self, filled: Arc<Filled>) -> Result<CleanPages, Error> {
        if filled.pages() != self.pages.count() || filled.pages_there() > 0 {
            return Err(Error::Config(
                "what is noted of clean pages must be of as many, and begin with nothing",
            ));
        }
        self.filled = Some(filled);
        Ok(self)
    }

    /// Memory of this process with the content from `offset` on, to be served by a pager with [these pages](crate::Builder::clean).
    /// Where the kernel [cannot share](Support::can_share) it is ordinary memory, to which the pages are copied.
    ///
    /// # Errors
    /// [`Error::Config`]: not of whole pages, or beyond the end; [`Error::System`].
    pub fn map(self: &Arc<CleanPages>, offset: u64, len: usize) -> Result<Mapping, Error> {
        self.map_as(&Support::probe(), offset, len)
    }

    fn map_as(
        self: &Arc<CleanPages>,
        support: &Support,
        offset: u64,
        len: usize,
    ) -> Result<Mapping, Error> {
        match support.can_share() {
            true => Mapping::of_own_clean(self, self.file(), offset, len),
            false => Mapping::new(len, Backing::Huge),
        }
    }

    /// The file, for other processes to map ([`Mapping::of_clean`]). They cannot write to it, nor cut it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file().expect("it was made of a file").as_fd()
    }

    /// Where the file is mapped here.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let start = self.memory.as_ptr().addr();
        start..start + self.memory.len()
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.pages.count()
    }

    /// Pages that have arrived; those that the source says are zero are never among them. O(pages / 32).
    pub fn pages_there(&self) -> usize {
        self.pages.count_of(State::Present)
    }

    /// Pages that the source was asked for, and gave. As many as are there unless one was asked for twice, which happens when an answer comes
    /// after the timeout. What came for a page that another had taken over does not count.
    pub fn pages_fetched(&self) -> u64 {
        self.fetched.read().max(0) as u64
    }

    /// Brings a set of pages, before somebody maps them; zeros are left out. How many could not be had: all that follow as well when the source is
    /// [gone](SourceError::Gone) or has [no answer](SourceError::Late). There is no time limit: it takes as long as the source does, and is for a source that
    /// ends its reads by itself.
    pub fn prefetch(&self, set: &WorkingSet) -> u64 {
        let count = self.pages.count() as u64;
        let (mut missing, mut is_over) = (0, false);
        for run in set.runs() {
            missing += run.end - run.start.max(count).min(run.end);
            let (mut at, end) = (run.start.min(count) as usize, run.end.min(count) as usize);
            while at < end {
                if is_over {
                    missing += (end - at) as u64;
                    break;
                }
                let offset = (at * PAGE) as u64;
                let left = ((end - at) * PAGE) as u64;
                let extent = self.ask(|source| source.extent(offset, left));
                let brought = extent.and_then(|extent| {
                    let pages = usize::try_from(extent.len).unwrap_or(usize::MAX) / PAGE;
                    let pages = pages.clamp(1, end - at);
                    match extent.is_zero {
                        true => Ok(pages),
                        false => self.bring(offset, pages * PAGE, true),
                    }
                });
                match brought {
                    Ok(pages) => at += pages,
                    Err(SourceError::Gone(_) | SourceError::Late) => is_over = true,
                    Err(_) => {
                        missing += 1;
                        at += 1;
                    }
                }
            }
        }
        missing
    }

    /// Whether the page at `offset` is in the file.
    pub(crate) fn is_there(&self, offset: u64) -> bool {
        let page = page_at(offset);
        page < self.pages.count() && self.pages.state(page) == State::Present
    }

    /// Sees to it that the first pages of a range are in the file, by fetching them or by waiting for who does; how many, at least one.
    /// Takes as long as the source does. What others fetch ahead is waited for ahead alone. Async-signal-safe if the source is.
    pub(crate) fn bring(
        &self,
        offset: u64,
        len: usize,
        is_ahead: bool,
    ) -> Result<usize, SourceError> {
        let short = SourceError::Short { end: self.len };
        let first = usize::try_from(offset).map_err(|_| short)? / PAGE;
        let end = first.saturating_add(len / PAGE).min(self.pages.count());
        if first >= end {
            return Err(short);
        }
        loop {
            let there = self.pages.next_absent(first, end).unwrap_or(end) - first;
            if there > 0 {
                return Ok(there);
            }
            match self.pages.state(first) {
                // Who waits for a page does not wait for a fetch for which nobody does: that may be slow, or say nothing.
                State::Busy if !is_ahead && self.overtake(first, end - first)? => {}
                State::Busy => self.wait(first),
                _ => self.fetch(first, end - first, is_ahead)?,
            }
        }
    }

    /// Waits for a page that somebody else fetches. If that takes too long it is given up: whoever needs the page asks once more.
    fn wait(&self, page: usize) {
        let look = (self.timeout / 4).min(Duration::from_millis(100));
        self.waits.wait(&self.pages, page, look);
        if self.pages.state(page) == State::Busy {
            let patience_ns = patience_ns(self.timeout, self.late.load(Ordering::Relaxed));
            for late in self.in_flight.give_up(now_ns().saturating_sub(patience_ns)) {
                late.own().for_each(|pages| self.give_back(pages));
            }
        }
    }

    /// Fetches some pages from `first` on, unless somebody has begun meanwhile.
    fn fetch(&self, first: usize, count: usize, is_ahead: bool) -> Result<(), SourceError> {
        let count = count.min(MOST);
        let offset = (first * PAGE) as u64;
        let memory = self.ask(|source| source.in_memory(offset, count * PAGE))?;
        // Before pages are claimed: who waits for a block keeps nobody waiting.
        let mut block = match memory {
            None if count * PAGE > SMALL => self.staging.take(STAGING_WAIT),
            _ => None,
        };
        let count = match (&block, memory) {
            (None, None) => count.min(SMALL / PAGE),
            _ => count,
        };
        let Claim::Taken { pages, .. } = self.pages.claim(first, first..first + count) else {
            return Ok(());
        };
        self.fetch_claimed(pages, is_ahead, memory, block.as_mut())
    }

    /// Takes the first of some pages out of a fetch ahead, which goes on without them, and fetches them for who waits for them: no more than it would
    /// fetch if they were missing. False: nobody fetches them ahead now.
    fn overtake(&self, first: usize, count: usize) -> Result<bool, SourceError> {
        let count = count.min(MOST);
        let mut block = match count * PAGE > SMALL {
            true => self.staging.try_take(),
            false => None,
        };
        let count = match block {
            Some(_) => count,
            None => count.min(SMALL / PAGE),
        };
        let count = self.in_flight.carve(first..first + count);
        if count == 0 {
            return Ok(false);
        }
        let (pages, offset) = (first..first + count, (first * PAGE) as u64);
        match self.ask(|source| source.in_memory(offset, count * PAGE)) {
            Ok(memory) => self.fetch_claimed(pages, false, memory, block.as_mut())?,
            Err(error) => {
                self.give_back(pages);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Fetches claimed pages, of which as many as there is room for in the block, or else [`SMALL`].
    fn fetch_claimed(
        &self,
        pages: Range<usize>,
        is_ahead: bool,
        memory: Option<*const u8>,
        mut block: Option<&mut Block<'_>>,
    ) -> Result<(), SourceError> {
        let (first, offset) = (pages.start, (pages.start * PAGE) as u64);
        let (number, late) = (first as u64, self.late.load(Ordering::Relaxed));
        let demanded = (!is_ahead).then_some(first);
        let flight = self
            .in_flight
            .enter(&pages, demanded, number, now_ns(), true);
        let Some(mut flight) = flight else {
            self.give_back(pages);
            std::thread::yield_now();
            return Ok(());
        };
        let len = pages.len() * PAGE;
        let mut small = [0; SMALL];
        let (read, from) = match (memory, &mut block) {
            (Some(from), _) => (Ok(()), from),
            (None, Some(block)) => {
                let into = block.bytes(len);
                (self.read(offset, into, is_ahead), into.as_ptr())
            }
            (None, None) => {
                let into = &mut small[..len];
                (self.read(offset, into, is_ahead), into.as_ptr())
            }
        };
        if flight.settle() {
            self.late.store(0, Ordering::Relaxed);
            // Others may have taken some: those are theirs, and not touched here, not even by the same bytes.
            return self.put(flight.own(pages), first, from, read);
        }
        // Given up. What has come late all the same is as good, unless another has begun.
        drop(flight);
        read?;
        // Of many that began together one counts.
        self.late
            .fetch_max(late.saturating_add(1), Ordering::Relaxed);
        match self.pages.claim(first, first..pages.end) {
            Claim::Taken { pages, .. } => self.put(std::iter::once(pages), first, from, Ok(())),
            _ => Ok(()),
        }
    }

    /// What was read for some claimed pages, from the content of page `first` on, goes to the file; or they are given back.
    fn put(
        &self,
        claimed: impl Iterator<Item = Range<usize>>,
        first: usize,
        from: *const u8,
        read: Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let mut result = read;
        for pages in claimed {
            let len = pages.len() * PAGE;
            let to = self.memory.as_ptr().wrapping_add(pages.start * PAGE);
            let from = from.wrapping_add((pages.start - first) * PAGE);
            let room = result.and_then(|()| {
                populate(to, len).map_err(|errno| SourceError::Io {
                    operation: "allocating shared memory",
                    errno,
                })
            });
            match room {
                Ok(()) => {
                    // SAFETY: as many bytes are at `from`, by the source's word or in a buffer of that length, and of the mapping at `to`, of which these
                    // pages are ours alone: nobody maps them before they are complete.
                    unsafe { to.copy_from_nonoverlapping(from, len) };
                    if let Some(filled) = &self.filled {
                        // Before it counts here: who has mapped it goes on with it after us.
                        filled.note(pages.clone());
                    }
                    self.fetched.add(pages.len() as i64);
                    self.pages.complete(pages.clone());
                    self.waits.wake(pages);
                }
                Err(error) => {
                    self.give_back(pages);
                    result = Err(error);
                }
            }
        }
        result
    }

    fn give_back(&self, pages: Range<usize>) {
        self.pages.release(pages.clone(), State::Missing);
        self.waits.wake(pages);
    }

    fn read(&self, offset: u64, into: &mut [u8], is_ahead: bool) -> Result<(), SourceError> {
        self.ask(|source| match is_ahead {
            true => source.read_ahead(offset, into),
            false => source.read(offset, into),
        })?
    }

    /// Asks the source. A panic there is an error here: others wait for what is claimed.
    fn ask<T>(&self, question: impl FnOnce(&dyn Source) -> T) -> Result<T, SourceError> {
        catch_unwind(AssertUnwindSafe(|| question(&*self.source)))
            .map_err(|_| SourceError::Gone("it panicked"))
    }
}

/// The file that some memory maps.
pub(crate) enum CleanFile {
    /// Filled by this process.
    Ours(Arc<CleanPages>),
    /// Another process filled it so far, and nobody will any more.
    Left(Arc<Filled>),
}

impl CleanFile {
    /// Whether the page at `offset` of the content is in it.
    pub fn is_there(&self, offset: u64) -> bool {
        match self {
            CleanFile::Ours(clean) => clean.is_there(offset),
            CleanFile::Left(filled) => filled.has(page_at(offset)),
        }
    }
}

/// The page at `offset`; beyond the last of any where no number has room for it.
pub(crate) fn page_at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX) / PAGE
}

/// The time that a fetch has after so many late answers in a row.
fn patience_ns(timeout: Duration, late: u32) -> u64 {
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    timeout_ns.saturating_mul(1 << late.min(10))
}

impl CleanPages {
    fn copy_out(&self, offset: u64, into: &mut [u8], is_ahead: bool) -> Result<(), SourceError> {
        let (mut at, mut into) = (offset, into);
        while !into.is_empty() {
            let within = (at % PAGE as u64) as usize;
            let wanted = (within + into.len()).next_multiple_of(PAGE);
            let there = self.bring(at - within as u64, wanted, is_ahead)? * PAGE;
            let len = (there - within).min(into.len());
            let (now, rest) = into.split_at_mut(len);
            self.memory.read(at as usize, now);
            (at, into) = (at + len as u64, rest);
        }
        Ok(())
    }
}

impl Source for CleanPages {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.copy_out(offset, into, false)
    }

    fn read_ahead(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.copy_out(offset, into, true)
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.source.extent(offset, len)
    }

    fn in_memory(&self, offset: u64, len: usize) -> Option<*const u8> {
        let first = usize::try_from(offset).ok()?;
        let end = first.checked_add(len)?;
        let is_there = end <= self.memory.len()
            && self
                .pages
                .next_absent(first / PAGE, end.div_ceil(PAGE))
                .is_none();
        is_there.then(|| self.memory.as_ptr().wrapping_add(first).cast_const())
    }

    fn is_signal_safe(&self) -> bool {
        self.source.is_signal_safe()
    }

    fn is_away(&self) -> bool {
        self.source.is_away()
    }
}

impl fmt::Debug for CleanPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CleanPages")
            .field("len", &self.len)
            .field("pages_there", &self.pages_there())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::uffd::Features;
    use crate::{MemorySource, Pager};

    #[test]
    fn each_late_answer_gives_the_next_more_time() {
        let second = Duration::from_secs(1);
        assert_eq!(patience_ns(second, 0), 1_000_000_000);
        assert_eq!(patience_ns(second, 3), 8_000_000_000);
        assert_eq!(patience_ns(second, u32::MAX), 1_000_000_000 << 10);
        assert_eq!(patience_ns(Duration::MAX, 5), u64::MAX);
    }

    /// Takes longer than the timeout of those who wait.
    struct Slow {
        begun: AtomicU32,
    }

    impl Source for Slow {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            let begun = self.begun.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            into.fill(begun as u8 + 1);
            Ok(())
        }
    }

    /// Two who gave each other up in turn never had the page.
    #[test]
    fn a_source_that_is_always_late_is_waited_for_in_the_end() {
        let slow = Arc::new(Slow {
            begun: AtomicU32::new(0),
        });
        let source: Arc<dyn Source> = Arc::<Slow>::clone(&slow);
        let clean = CleanPages::new(source, PAGE as u64).unwrap();
        let clean = clean.timeout(Duration::from_millis(1));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(clean.bring(0, PAGE, false), Ok(1)));
            }
        });
        assert_eq!(clean.pages_fetched(), 1);
        // Whose answer it is does not matter, but it is one of them, whole.
        let mut found = [0; PAGE];
        clean.memory.read(0, &mut found);
        assert!(found[0] > 0 && found == [found[0]; PAGE]);
    }

    /// Has its first pages, and no more.
    struct Ends {
        error: SourceError,
        asked: AtomicU32,
    }

    impl Source for Ends {
        fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if offset >= 4 * PAGE as u64 {
                return Err(self.error);
            }
            into.fill(1);
            Ok(())
        }
    }

    #[test]
    fn a_source_that_is_gone_is_not_asked_for_the_rest_of_a_set() {
        for (error, asked) in [
            (SourceError::Gone("it went"), 2),
            (SourceError::Late, 2),
            (SourceError::Corrupt("a page"), 8),
        ] {
            let source = Arc::new(Ends {
                error,
                asked: AtomicU32::new(0),
            });
            let all: Arc<dyn Source> = Arc::<Ends>::clone(&source);
            let clean = CleanPages::new(all, 16 * PAGE as u64).unwrap();
            let set = WorkingSet::from_pages((0..3).chain(6..10).chain(12..15).chain([20]));
            assert_eq!(clean.prefetch(&set), 8, "{error:?}");
            assert_eq!(clean.pages_there(), 3, "{error:?}");
            let found = source.asked.load(Ordering::Relaxed);
            assert_eq!(found, asked, "{error:?}");
        }
    }

    #[test]
    fn a_kernel_that_cannot_share_gets_copies() {
        let mut support = Support::probe();
        if support.way.is_none() {
            println!("SKIPPED: {support}");
            return;
        }
        let content: Arc<[u8]> = (0..BLOCK).map(|byte| (byte / 7) as u8).collect();
        let source = Arc::new(MemorySource::of_bytes(Arc::clone(&content)));
        let clean = Arc::new(CleanPages::new(source, BLOCK as u64).unwrap());
        support.features = Features::MISSING_SHMEM;
        assert!(!support.can_share());
        let memory = Arc::new(clean.map_as(&support, PAGE as u64, BLOCK - PAGE).unwrap());
        assert_eq!(memory.backing(), Backing::Huge);
        let pager = Pager::builder()
            .mapping(&memory, PAGE as u64)
            .clean(&clean)
            .start()
            .unwrap();
        let mut found = vec![0; BLOCK - PAGE];
        memory.read(0, &mut found);
        assert!(found == content[PAGE..]);
        let (stats, missing) = pager.finish();
        assert_eq!((stats.shared_pages, missing), (0, 0));
        assert_eq!(clean.pages_fetched(), 511);
    }
}
