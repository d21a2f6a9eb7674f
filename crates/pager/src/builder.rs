//! How a pager is put together.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::clean::CleanFile;
use crate::engine::crew::{Crew, STAND_INS};
use crate::engine::inline::Inline;
use crate::engine::near::Terms;
use crate::engine::queue::Queue;
use crate::engine::reader::Doorbell;
use crate::engine::watchdog::Leash;
use crate::engine::{Circumstances, Engine, choose};
use crate::event::Events;
use crate::inner::{Background as BackgroundState, Inner, NO_BLOCK, Shard};
use crate::plan::in_flight::InFlight;
use crate::plan::pages::Pages;
use crate::plan::rate::Rate;
use crate::plan::record::Record;
use crate::plan::space::{Region, Space};
use crate::plan::stream::{Limits, Streams};
use crate::plan::waits::{Left, Waits};
use crate::plan::working_set::WorkingSet;
use crate::source::Source;
use crate::staging::Staging;
use crate::stats::Tally;
use crate::succession::Filled;
use crate::succession::ledger::Ledger;
use crate::sync::Padded;
use crate::sys::clock::now_ns;
use crate::sys::huge;
use crate::sys::mapping::{allow, keep_from_children};
use crate::sys::signal;
use crate::sys::support::Support;
use crate::sys::uffd::{Features, Uffd};
use crate::{BLOCK, Backing, CleanPages, Error, Mapping, PAGE, Pager};

/// A piece of memory of another process, whose userfaultfd was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// Address of its first byte in that process.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// Where in the source its content begins.
    pub source_offset: u64,
    /// Bytes of its pages: 4 KiB, or 2 MiB of hugetlbfs.
    pub page_bytes: usize,
}

/// What is done while there are no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// Nothing: what is not touched is not fetched.
    #[default]
    Off,
    /// The rest is fetched, as fast as it goes.
    Unlimited,
    /// The rest is fetched, with so many bytes a second at most: a [budget](Builder::budget) as well.
    BytesPerSecond(u64),
}

/// Puts a [`Pager`] together: what memory, from where, by whom.
#[must_use]
pub struct Builder {
    regions: Vec<Region>,
    kept: Vec<Arc<Mapping>>,
    handed_over: Option<OwnedFd>,
    source: Option<Arc<dyn Source>>,
    clean: Option<CleanFile>,
    engine: Engine,
    only_user_space: bool,
    window_bytes: usize,
    shards: Option<usize>,
    pub(crate) near: Option<Terms>,
    workers: Option<usize>,
    background: Background,
    budget: Option<u64>,
    timeout: Duration,
    record: bool,
    moves: bool,
    staging_bytes: usize,
    present: WorkingSet,
    ledger: Option<Arc<Ledger>>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            regions: Vec::new(),
            kept: Vec::new(),
            handed_over: None,
            source: None,
            clean: None,
            engine: Engine::Auto,
            only_user_space: false,
            window_bytes: BLOCK,
            shards: None,
            near: Some(Terms::default()),
            workers: None,
            background: Background::Off,
            budget: None,
            timeout: Duration::from_secs(30),
            record: false,
            moves: true,
            staging_bytes: 64 * BLOCK,
            present: WorkingSet::from_pages([]),
            ledger: None,
        }
    }
}

impl Builder {
    /// Fills a mapping with the source's content from `source_offset` on. The pager keeps the mapping.
    pub fn mapping(mut self, mapping: &Arc<Mapping>, source_offset: u64) -> Builder {
        self.regions.push(Region {
            start: mapping.as_ptr().expose_provenance(),
            pages: mapping.len() / PAGE,
            source_offset,
            granule: match mapping.backing() {
                Backing::HugeTlb => BLOCK / PAGE,
                _ => 1,
            },
            movable: mapping.backing() == Backing::Huge,
            takes_blocks: mapping.takes_blocks(),
            own: true,
            clean: mapping.backing() == Backing::Clean,
        });
        self.kept.push(Arc::clone(mapping));
        self
    }

    /// Fills memory of another process whose userfaultfd was handed over, registered by its owner. Answers the messages of
    /// changes (balloon, unmapping, moving, fork), if the owner has asked the kernel for them.
    pub fn handed_over(mut self, descriptor: OwnedFd, regions: &[HandedOver]) -> Builder {
        self.regions.extend(regions.iter().map(|region| Region {
            start: region.start,
            // Refused later: what is not of whole pages, or of pages that are neither of 4 KiB nor of 2 MiB.
            pages: match region.page_bytes {
                PAGE | BLOCK if region.len.is_multiple_of(PAGE) => region.len / PAGE,
                _ => 0,
            },
            source_offset: region.source_offset,
            granule: (region.page_bytes / PAGE).max(1),
            movable: false,
            takes_blocks: false,
            own: false,
            clean: false,
        }));
        self.handed_over = Some(descriptor);
        self
    }

    /// Where the content comes from.
    pub fn source(mut self, source: Arc<dyn Source>) -> Builder {
        self.source = Some(source);
        self.clean = None;
        self
    }

    /// The content is that of clean pages, of which there is one copy. Memory that [maps](CleanPages::map) them gets that copy, other memory
    /// of this process one of its own. Memory that is handed over must be a private mapping of their file, at the offset that is said to be
    /// the source's, and registered for missing *and* minor faults ([`hand_over`](crate::handoff::hand_over) does that); for any other, the clean pages are an
    /// ordinary [`source`](Self::source).
    ///
    /// What a mapping of them gives up reads as zero afterwards, as other memory does, if the pager is told (by [`Pager::discard`], or by a message).
    /// If it is not, it reads as what the clean pages have: the kernel unmaps clean pages as well, without a word.
    pub fn clean(mut self, clean: &Arc<CleanPages>) -> Builder {
        let source: Arc<dyn Source> = Arc::<CleanPages>::clone(clean);
        self.source = Some(source);
        self.clean = Some(CleanFile::Ours(Arc::clone(clean)));
        self
    }

    /// The memory, which was handed over, is a private mapping of a file of clean pages that another process had, and registered as for [`clean`](Self::clean). That process is
    /// gone, or fills the file no more for whoever this pager serves. What the file [has](Filled) is mapped, as one copy for all; what it has not comes from `source`, and is this mapping's
    /// alone: nobody can write to that file any more. The source may be this process's own [`CleanPages`], which are another file: then each page is still asked for once.
    ///
    /// What was given up without a word reads as the clean page if that was mapped, as zeros if it was a copy.
    pub fn clean_before(mut self, filled: &Arc<Filled>, source: Arc<dyn Source>) -> Builder {
        self.source = Some(source);
        self.clean = Some(CleanFile::Left(Arc::clone(filled)));
        self
    }

    /// Who serves faults; by default [`Engine::Auto`] chooses.
    pub fn engine(mut self, engine: Engine) -> Builder {
        self.engine = engine;
        self
    }

    /// Promises that nothing but user space touches missing pages: no system call is given a pointer to them, no KVM guest runs in
    /// them. Lets [`Engine::Auto`] choose [`Engine::Inline`].
    pub fn only_user_space(mut self, promised: bool) -> Builder {
        self.only_user_space = promised;
        self
    }

    /// The most that is fetched for one fault, rounded down to a power of two pages: 4 KiB for nothing but the page, by default
    /// 2 MiB, which is the most.
    pub fn window(mut self, bytes: usize) -> Builder {
        self.window_bytes = bytes;
        self
    }

    /// Parts that the memory is divided into, with a descriptor each, for engines that can; by default as many as there are CPUs.
    pub fn shards(mut self, shards: usize) -> Builder {
        self.shards = Some(shards);
        self
    }

    /// Whether readers of [`Engine::Sharded`] run near the threads whose faults they serve: on the CPUs of the last-level cache, or of the node,
    /// where most of those run that faulted lately, as far as they are among the CPUs that the pager's other threads may use at that time. By default
    /// they do. Nothing is done on a machine with one last-level cache, or where fewer than two CPUs would be left; where the threads run is
    /// read from `/proc/self/task`, once in a millisecond at most for each shard. Where it cannot be read, [`Event::NotNear`](crate::Event::NotNear) says so.
    ///
    /// A reader that is bound waits for one of its CPUs where all of them are busy, though others may be idle.
    ///
    /// To be turned off where a filter of system calls forbids `sched_setaffinity`, where readers are bound by others, or where a source starts
    /// threads of its own while it is asked: those would be bound with the reader that asks.
    pub fn near(mut self, near: bool) -> Builder {
        self.near = near.then(Terms::default);
        self
    }

    /// Threads that help readers and fetch in the background; by default as many as there are CPUs, 8 at most, for engines with
    /// readers, and one for `inline` if there is a background. They sleep while there is nothing to do. Of a source that is here (it
    /// [is signal-safe](Source::is_signal_safe)) no more of them fetch in the background than half of the CPUs: the others are the owner's.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = Some(workers);
        self
    }

    /// Whether the rest is fetched while there are no faults. By default it is not.
    pub fn background(mut self, background: Background) -> Builder {
        self.background = background;
        self
    }

    /// Bytes a second, at most, of all that is fetched while nobody waits for it: by the background, by [`replay`](Pager::replay) and along with faults together. A tenth
    /// of a second of it, but 2 MiB at least, may come at once. By default there is no bound. Pages that are touched take nothing of it.
    pub fn budget(mut self, bytes_per_second: u64) -> Builder {
        self.budget = Some(bytes_per_second);
        self
    }

    /// How long the source may take for a page that somebody waits for, with all tries, 30 seconds by default, at least 1 ms. After that the page is
    /// lost, and who waits for it is stopped. What nobody waits for has that time for each answer, and can be fetched again.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Records which pages are touched ([`Pager::working_set`]). Nothing is fetched along meanwhile, so that the record is exact.
    pub fn record(mut self, record: bool) -> Builder {
        self.record = record;
        self
    }

    /// Whether whole huge pages are filled aside and moved into place, those of [shared memory](Backing::SharedHuge) filled in their file and mapped, where the
    /// kernel can do that; by default they are.
    pub fn moves(mut self, moves: bool) -> Builder {
        self.moves = moves;
        self
    }

    /// Memory for content on its way into place, 128 MiB by default; back-pressure: with all of it in use, fetches wait or bring
    /// smaller pieces.
    pub fn staging(mut self, bytes: usize) -> Builder {
        self.staging_bytes = bytes;
        self
    }

    /// Pages whose content is in the memory already, such as those that came before a migration switched over: they are not
    /// fetched. Pages count from the first page of the first region by address.
    ///
    /// Those of them that were never written, or given up, read as zeros. All others have to be empty (`MADV_DONTNEED`, for
    /// shared memory `MADV_REMOVE`) and to stay so until the pager has started, or what is there is taken for their content.
    pub fn present(mut self, pages: &WorkingSet) -> Builder {
        self.present = pages.clone();
        self
    }

    /// Keeps what is known of pages where another process finds it, and begins where the ledger says that the last pager with it was. For memory
    /// that was handed over, by all the regions that the ledger was made for.
    pub fn ledger(mut self, ledger: Arc<Ledger>) -> Builder {
        self.ledger = Some(ledger);
        self
    }

    /// Starts serving.
    ///
    /// # Errors
    /// [`Error`] says what is not possible, why, and what to do. The memory is as it was then.
    pub fn start(mut self) -> Result<Pager, Error> {
        let source = self
            .source
            .take()
            .ok_or(Error::Config("there is no source"))?;
        let is_own = self.handed_over.is_none();
        if self.regions.iter().any(|region| region.own != is_own) {
            return Err(Error::Config(
                "memory of this process and memory that was handed over need a pager each",
            ));
        }
        self.check_clean()?;
        if !is_own && self.clean.is_some() {
            for region in &mut self.regions {
                region.clean = true;
            }
        }
        let support = Support::probe();
        let engine = choose(
            self.engine,
            &support,
            Circumstances {
                is_own,
                only_user_space: self.only_user_space,
                is_source_signal_safe: source.is_signal_safe(),
            },
        )?;
        if !self.moves || !support.features.contain(Features::MOVE) {
            for region in &mut self.regions {
                region.movable = false;
            }
        }
        // Files of /sys are read for who may need them.
        let takes_blocks = self.moves
            && support.can_share()
            && self.regions.iter().any(|region| region.takes_blocks)
            && huge::is_for_shared();
        if !takes_blocks {
            for region in &mut self.regions {
                region.takes_blocks = false;
            }
        }
        let besides = self
            .kept
            .iter()
            .zip(&self.regions)
            .filter(|(_, region)| region.takes_blocks)
            .map(|(mapping, region)| (region.start, Arc::clone(mapping)));
        let mut besides: Vec<(usize, Arc<Mapping>)> = besides.collect();
        besides.sort_by_key(|(start, _)| *start);
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let space = Space::new(std::mem::take(&mut self.regions))?;
        let count = space.pages();
        if self.present.runs().iter().any(|run| run.end > count as u64) {
            return Err(Error::Config(
                "pages that are present are not in the memory",
            ));
        }
        let removable = !is_own;
        let is_clean = space.regions().iter().any(|(_, region)| region.clean);
        if let Some(ledger) = &self.ledger
            && (is_own || ledger.pages() != count)
        {
            return Err(Error::Config("the ledger is not of this memory"));
        }
        if self.ledger.is_some() && !self.present.runs().is_empty() {
            return Err(Error::Config(
                "a ledger says itself which pages are present",
            ));
        }
        let shards = match self.handed_over.take() {
            Some(fd) => vec![shard_handed_over(fd, count)?],
            None => self.own_shards(&space, &support, engine, cpus)?,
        };
        let most = (self.window_bytes / PAGE).clamp(1, BLOCK / PAGE).ilog2();
        let is_on = self.background != Background::Off;
        let of_background = match self.background {
            Background::BytesPerSecond(per_second) => Some(per_second),
            _ => None,
        };
        let per_second = self.budget.into_iter().chain(of_background).min();
        // A tenth of a second at once, but a block at least.
        let rate = per_second.map(|per_second| {
            let burst = (per_second / 10).max(BLOCK as u64);
            Rate::new(per_second, burst, now_ns())
        });
        let workers = self.workers.unwrap_or(match engine {
            Engine::Inline => usize::from(is_on),
            _ => cpus.min(8),
        });
        let workers = workers.max(usize::from(is_on));
        let ahead = match source.is_signal_safe() {
            // It waits for nobody, so whoever fetches keeps a CPU busy.
            true => workers.min((cpus / 2).max(1)),
            false => workers,
        };
        let inner = Arc::new(Inner {
            pages: Pages::new(count, removable),
            waits: Waits::new((cpus * 64).clamp(256, 1 << 16)),
            left: Left::new(count),
            streams: Streams::new(
                (cpus * 64).clamp(1024, 1 << 16),
                Limits {
                    least: 1,
                    most: 1 << most,
                },
            ),
            source,
            shards: shards.into(),
            staging: Staging::new(self.staging_bytes.div_ceil(BLOCK))?,
            tally: Tally::new(),
            events: Events::new(),
            // More than there are threads of ours; those that serve themselves wait for one another where they are more.
            in_flight: InFlight::new((cpus * 16 + STAND_INS).clamp(512, 1 << 16)),
            leash: Leash::default(),
            record: self.record.then(|| Record::new(count)),
            bounds_windows: self.budget.is_some(),
            ahead,
            lost: Record::new(count),
            unmapped: removable.then(|| Record::new(count)),
            given_up: is_clean.then(|| Record::new(count)),
            remapping: AtomicUsize::new(0),
            clean: self.clean.take(),
            besides: besides.into(),
            unmarked: Mutex::default(),
            unmarkable: Mutex::default(),
            recent: (0..64).map(|_| AtomicU64::new(NO_BLOCK)).collect(),
            // Off until the memory is registered.
            background: Mutex::new(BackgroundState::new(space.blocks(), rate)),
            timeout: self.timeout,
            stop: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            ledger: self.ledger.take(),
            fillings: AtomicU64::new(0),
            space,
        });
        for run in self.present.runs() {
            inner.pages.forget(run.start as usize..run.end as usize);
        }
        let bells = match (engine, is_own) {
            (Engine::Inline, _) => Vec::new(),
            (_, true) => inner.shards.iter().map(|_| Doorbell::Page).collect(),
            (_, false) => vec![Doorbell::Event(
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(Error::system("eventfd"))?,
            )],
        };
        inner.resume();
        let near = self.near.filter(|_| engine == Engine::Sharded);
        let crew = Crew::start(Arc::clone(&inner), bells, workers, near)?;
        if inner.ledger.is_some() {
            inner.wake_all();
            inner.leash.stir();
        }
        let mut pager = Pager::new(crew, engine, self.kept);
        if engine == Engine::Inline {
            let server = Arc::new(Inline(Arc::clone(&inner)));
            let registered = signal::register(server).map_err(Error::system("sigaction"))?;
            pager.handler = Some(registered);
        }
        // Last: from now on faults are told, and there is somebody to tell.
        if is_own && let Err(error) = register(&inner) {
            inner.pages.forget(0..count);
            return Err(error);
        }
        if is_on {
            pager.start_background();
        }
        Ok(pager)
    }

    /// A mapping of clean pages gets those, and no others.
    fn check_clean(&self) -> Result<(), Error> {
        let is_fit = |(mapping, region): (&Arc<Mapping>, &Region)| {
            let theirs = mapping.clean().map(Arc::as_ptr);
            let ours = match &self.clean {
                Some(CleanFile::Ours(clean)) => Some(Arc::as_ptr(clean)),
                _ => None,
            };
            mapping.backing() != Backing::Clean
                || theirs.is_some()
                    && theirs == ours
                    && mapping.file_offset() == region.source_offset
        };
        let is_cut = |region: &Region| {
            !region.source_offset.is_multiple_of(PAGE as u64) || !region.own && region.granule != 1
        };
        if !self.kept.iter().zip(&self.regions).all(is_fit) {
            return Err(Error::Config(
                "a mapping of clean pages is filled from those (`Builder::clean`), at the offset that it maps, by the process that has them",
            ));
        }
        if matches!(self.clean, Some(CleanFile::Left(_))) && self.handed_over.is_none() {
            return Err(Error::Config(
                "only memory that was handed over maps the clean pages of a process before",
            ));
        }
        if self.clean.is_some() && self.regions.iter().any(is_cut) {
            return Err(Error::Config(
                "clean pages are mapped by whole pages, of 4 KiB",
            ));
        }
        Ok(())
    }

    /// Descriptors for memory of this process; nothing is registered yet but what wakes the readers.
    fn own_shards(
        &self,
        space: &Space,
        support: &Support,
        engine: Engine,
        cpus: usize,
    ) -> Result<Vec<Shard>, Error> {
        let blocks = space.blocks();
        let count = match engine {
            Engine::Reader => 1,
            _ => self.shards.unwrap_or(cpus).clamp(1, blocks),
        };
        let wanted = Features::THREAD_ID
            .or(Features::POISON)
            .or(Features::MOVE)
            .or(Features::MISSING_SHMEM)
            .or(Features::MISSING_HUGETLBFS)
            .or(Features::MINOR_SHMEM)
            .and(support.features)
            .or(match engine {
                Engine::Inline => Features::SIGBUS,
                _ => Features::NONE,
            });
        let per_shard = blocks.div_ceil(count);
        (0..blocks)
            .step_by(per_shard)
            .map(|first| {
                let last = (first + per_shard).min(blocks) - 1;
                let pages = space.block(first).start..space.block(last).end;
                let uffd = support
                    .open(wanted, false)
                    .map_err(Error::system("userfaultfd"))?;
                let control = match engine {
                    Engine::Inline => None,
                    _ => {
                        let page = Mapping::new(PAGE, Backing::Small)?;
                        let start = page.as_ptr().expose_provenance();
                        // SAFETY: our own page, which nobody reads but to wake the reader.
                        unsafe { uffd.register(start..start + PAGE) }
                            .map_err(Error::system("UFFDIO_REGISTER"))?;
                        Some(page)
                    }
                };
                Ok(shard_of(uffd, pages, None, control))
            })
            .collect()
    }
}

fn shard_of(
    uffd: Uffd,
    pages: Range<usize>,
    gate: Option<RwLock<()>>,
    control: Option<Mapping>,
) -> Shard {
    Shard {
        uffd,
        pages,
        gate,
        control,
        told: Queue::default(),
        serving_ns: Padded(AtomicU64::new(0)),
        dooms: Mutex::default(),
    }
}

/// The only shard of a descriptor that was handed over.
fn shard_handed_over(fd: OwnedFd, count: usize) -> Result<Shard, Error> {
    // Messages of changes must be taken under the closed gate, so reading may not block.
    let flags = fcntl_getfl(&fd).map_err(Error::system("fcntl"))?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(Error::system("fcntl"))?;
    let (uffd, gate) = (Uffd::handed_over(fd), Some(RwLock::new(())));
    Ok(shard_of(uffd, 0..count, gate, None))
}

/// Registers all memory of this process.
fn register(inner: &Inner) -> Result<(), Error> {
    for shard in &inner.shards {
        for pages in inner.space.parts(&shard.pages) {
            let addresses = inner.space.addresses(&pages);
            // SAFETY: the caller of `Builder::mapping` wants just that; the mapping is kept.
            let registered = unsafe {
                keep_from_children(addresses.start, addresses.len());
                let region = inner.space.region(pages.start).1;
                match region.clean || region.takes_blocks {
                    true => shard.uffd.register_minor(addresses),
                    false => shard.uffd.register(addresses),
                }
            };
            registered.map_err(|errno| match errno {
                Errno::BUSY => Error::Config("the memory is served by another userfaultfd already"),
                errno => Error::System {
                    operation: "UFFDIO_REGISTER",
                    errno,
                },
            })?;
        }
    }
    // Clean pages were mapped without access. Not before all is registered: after an error nobody is to read them.
    let is_clean = |region: &&(usize, Region)| region.1.clean;
    for (_, region) in inner.space.regions().iter().filter(is_clean) {
        let len = region.pages * PAGE;
        // SAFETY: what is missing is brought from now on.
        unsafe { allow(region.start, len) }.map_err(Error::system("mprotect"))?;
    }
    Ok(())
}
