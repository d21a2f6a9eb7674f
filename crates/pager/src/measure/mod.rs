//! Measuring: threads that touch memory which arrives on demand, by each engine, by the usual plain handler, and by what cannot be
//! beaten. What `amdahl pager bench` and the benchmarks of the repository run.

mod floor;
mod handed;
mod many;
mod plain;
mod reserve;
mod restore;
mod rounds;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, RwLock};
use std::thread::{self, Thread};

use crate::sys::clock::{cpu_ns, now_ns};
use crate::sys::huge::is_for_shared;
use crate::{BLOCK, Backing, Engine, Error, Mapping, MemorySource, PAGE, Pager};

pub use many::{Copies, be_vm, share};
pub use reserve::{Reserved, SharedHugePages};
pub use restore::{Image, Restore};
pub use rounds::{Cell, Findings, Plan, measure, median};

/// How memory gets its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The usual handler, as simple as it can be: one descriptor, one thread that reads a message at a time and copies a page of
    /// 4 KiB.
    Plain,
    /// [`Engine::Reader`].
    Reader,
    /// [`Engine::Reader`] without moving huge pages into place: memory of another process is served so.
    ReaderCopy,
    /// Memory as a VMM hands it over: registered by its owner, with messages of changes, its descriptor sent through a socket.
    HandedOver,
    /// [`Engine::Sharded`].
    Sharded,
    /// [`Engine::Inline`].
    Inline,
    /// [`Engine::Inline`] without moving huge pages into place.
    InlineCopy,
    /// [`Engine::Sharded`] that fills reserved huge pages.
    HugeTlb,
    /// [`Engine::Sharded`] that fills shared memory with pages of 4 KiB.
    Shared,
    /// [`Engine::Sharded`] that fills shared memory with transparent huge pages, where the system gives it those.
    SharedHuge,
    /// The floor of a fault that is served by its own thread: a handler of SIGBUS that copies a page of 4 KiB, and nothing else.
    Floor,
    /// The kernel's own first touch of pages of 4 KiB: zeros, no content.
    FirstTouch,
    /// First touch of huge pages and a copy of the content into them, by the touching thread: what content costs at least.
    CopyHuge,
    /// A copy of the content into memory that is there.
    Memcpy,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 14] = [
        Mode::Plain,
        Mode::Reader,
        Mode::ReaderCopy,
        Mode::HandedOver,
        Mode::Sharded,
        Mode::Inline,
        Mode::InlineCopy,
        Mode::HugeTlb,
        Mode::Shared,
        Mode::SharedHuge,
        Mode::Floor,
        Mode::FirstTouch,
        Mode::CopyHuge,
        Mode::Memcpy,
    ];

    /// Its name, as it is parsed.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Reader => "reader",
            Mode::ReaderCopy => "reader-copy",
            Mode::HandedOver => "handed-over",
            Mode::Sharded => "sharded",
            Mode::Inline => "inline",
            Mode::InlineCopy => "inline-copy",
            Mode::HugeTlb => "hugetlb",
            Mode::Shared => "shared",
            Mode::SharedHuge => "shared-huge",
            Mode::Floor => "floor",
            Mode::FirstTouch => "first-touch",
            Mode::CopyHuge => "copy-huge",
            Mode::Memcpy => "memcpy",
        }
    }

    /// What it is, in some words.
    pub fn meaning(self) -> &'static str {
        match self {
            Mode::Plain => "one descriptor, one reader, 4 KiB copies: the usual handler",
            Mode::Reader => "one descriptor, one reader, windows",
            Mode::ReaderCopy => {
                "the same without moving huge pages: copies, as into memory of others"
            }
            Mode::HandedOver => "a VMM's descriptor, handed over by a socket: what the daemon does",
            Mode::Sharded => "a descriptor and a reader for each CPU, windows",
            Mode::Inline => "the faulting thread serves itself (SIGBUS), windows",
            Mode::InlineCopy => "the same without moving huge pages into place",
            Mode::HugeTlb => "sharded, into reserved huge pages",
            Mode::Shared => "sharded, into shared memory (a memfd), 4 KiB pages",
            Mode::SharedHuge => "the same with transparent huge pages: filled in the file, mapped",
            Mode::Floor => "a bare SIGBUS handler, 4 KiB copies",
            Mode::FirstTouch => "the kernel's first touch of 4 KiB pages, no content",
            Mode::CopyHuge => "first touch of 2 MiB pages and memcpy",
            Mode::Memcpy => "memcpy into memory that is there",
        }
    }

    fn engine(self) -> Option<Engine> {
        match self {
            Mode::Reader | Mode::ReaderCopy => Some(Engine::Reader),
            Mode::Sharded | Mode::HugeTlb | Mode::Shared | Mode::SharedHuge => {
                Some(Engine::Sharded)
            }
            Mode::Inline | Mode::InlineCopy => Some(Engine::Inline),
            _ => None,
        }
    }

    fn backing(self) -> Backing {
        match self {
            Mode::HugeTlb => Backing::HugeTlb,
            Mode::Shared => Backing::Shared,
            Mode::SharedHuge => Backing::SharedHuge,
            Mode::Plain | Mode::Floor | Mode::FirstTouch => Backing::Small,
            _ => Backing::Huge,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| {
                let names = Mode::ALL.map(Mode::name).join(", ");
                format!("no mode is called {text:?}: {names}")
            })
    }
}

/// In which order a thread touches the pages of its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other.
    Sequential,
    /// Shuffled, the same way in each run.
    Random,
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Bytes made present.
    pub bytes: u64,
    /// From when all threads began until the last had touched all.
    pub wall_ns: u64,
    /// CPU time of the process meanwhile, user and system.
    pub cpu_ns: u64,
    /// How long each fault took, in rising order: each touch of a page that was not there, by the word of the kernel just before.
    /// Empty unless it was asked for.
    pub faults_ns: Vec<u64>,
}

impl Sample {
    /// Megabytes (10^6) a second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.wall_ns.max(1) as f64
    }

    /// Megabytes (10^6) for each second of CPU time.
    pub fn mb_per_cpu_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.cpu_ns.max(1) as f64
    }

    /// A fault that a share `q` of all did not exceed.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let last = self.faults_ns.len().checked_sub(1)?;
        let rank = (q * self.faults_ns.len() as f64).ceil() as usize;
        Some(self.faults_ns[rank.saturating_sub(1).min(last)])
    }
}

/// The memory that content comes from; made once, as it takes time.
pub struct Content {
    memory: Arc<Mapping>,
}

impl Content {
    /// So many bytes, all present, none zero.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Content, Error> {
        let memory = Arc::new(Mapping::new(bytes, Backing::Huge)?);
        let words = memory.as_ptr().cast::<u64>();
        for at in 0..memory.len() / 8 {
            // SAFETY: within the mapping, which nobody else has.
            unsafe { words.add(at).write(word_at(at * 8)) };
        }
        Ok(Content { memory })
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    fn source(&self) -> MemorySource {
        // SAFETY: nobody writes to the content any more.
        unsafe { MemorySource::of_mapping(Arc::clone(&self.memory)) }
    }
}

/// The eight bytes of the content at an offset.
fn word_at(offset: usize) -> u64 {
    (offset / 8) as u64 | 1 << 63
}

/// Has `threads` threads touch each page of their part of `bytes` bytes once. Each part is of whole huge pages, at least one; `bytes`
/// is rounded accordingly. With `is_timed` each fault is timed, and before each touch the kernel is asked whether it is one: for memory
/// and CPU time other runs are needed.
///
/// # Errors
/// What the mode needs is not there: says what.
///
/// # Panics
/// If a page does not hold its content.
pub fn run(
    mode: Mode,
    order: Order,
    threads: usize,
    bytes: usize,
    content: &Content,
    is_timed: bool,
) -> Result<Sample, Error> {
    let part = (bytes / threads.max(1) / BLOCK).max(1) * BLOCK;
    let len = part * threads.max(1);
    if len > content.memory.len() {
        return Err(Error::Config("there is less content than memory to fill"));
    }
    if mode == Mode::SharedHuge && !is_for_shared() {
        return Err(Error::Unavailable(
            "the system gives shared memory no huge pages (/sys/kernel/mm/transparent_hugepage/shmem_enabled)".to_owned(),
        ));
    }
    warm_up(len)?;
    let memory = Arc::new(Mapping::new(len, mode.backing())?);
    let from = content.memory.as_ptr();
    let serving: Box<dyn std::any::Any> = match mode {
        Mode::Plain => Box::new(plain::Plain::start(&memory, from)?),
        Mode::Floor => Box::new(floor::Floor::start(&memory, from)?),
        Mode::FirstTouch | Mode::CopyHuge => Box::new(()),
        Mode::HandedOver => {
            let start = memory.as_ptr().expose_provenance();
            Box::new(handed::Handed::start(start, len, content.source())?)
        }
        Mode::Memcpy => {
            for at in (0..len).step_by(PAGE) {
                memory.write(at, &[1]);
            }
            Box::new(())
        }
        _ => {
            let builder = Pager::builder()
                .mapping(&memory, 0)
                .source(Arc::new(content.source()))
                .engine(mode.engine().unwrap_or_default())
                .moves(!matches!(mode, Mode::InlineCopy | Mode::ReaderCopy));
            Box::new(builder.start()?)
        }
    };
    let copies = matches!(mode, Mode::CopyHuge | Mode::Memcpy);
    let has_content = mode != Mode::FirstTouch;
    // Threads are there before the clock begins, and wake without waiting for each other: with many of them either takes as long as the
    // memory. Who waits to begin reads a lock that is held here.
    let (are_there, begin) = (Barrier::new(threads.max(1) + 1), RwLock::new(()));
    let (touching_still, measuring) = (AtomicUsize::new(threads.max(1)), thread::current());
    let to_begin = begin.write();
    let (wall_ns, cpu_ns, touches) = thread::scope(|scope| {
        let touching: Vec<_> = (0..threads.max(1))
            .map(|number| {
                let (memory, are_there, begin) = (&memory, &are_there, &begin);
                let done = Done(&touching_still, &measuring);
                let part = number * part..(number + 1) * part;
                let content = &content.memory;
                scope.spawn(move || {
                    let pages = pages_of(part.clone(), order, number);
                    let mut timed = Vec::with_capacity(if is_timed { pages.len() } else { 0 });
                    // Not to be touched for the first time while it counts.
                    timed.resize(timed.capacity(), 1);
                    timed.clear();
                    are_there.wait();
                    drop(begin.read());
                    let copy = copies.then_some(&**content);
                    touch(memory, &pages, copy, has_content, is_timed, &mut timed);
                    drop(done);
                    timed
                })
            })
            .collect();
        are_there.wait();
        let (begun_ns, used_ns) = (now_ns(), cpu_ns());
        drop(to_begin);
        while touching_still.load(Ordering::Acquire) > 0 {
            thread::park();
        }
        let (wall_ns, cpu_ns) = (now_ns() - begun_ns, cpu_ns() - used_ns);
        let touches: Vec<u64> = touching
            .into_iter()
            .flat_map(|thread| thread.join().expect("a page holds what it should"))
            .collect();
        (wall_ns, cpu_ns, touches)
    });
    let mut sample = Sample {
        bytes: len as u64,
        wall_ns,
        cpu_ns,
        faults_ns: touches,
    };
    drop(serving);
    sample.faults_ns.sort_unstable();
    Ok(sample)
}

/// A thread that touches memory until this is dropped, also by a panic. The last one wakes who measures.
struct Done<'a>(&'a AtomicUsize, &'a Thread);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if self.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.1.unpark();
        }
    }
}

/// Takes as much memory as a run needs and gives it back. A virtual machine may have returned free memory to its host, which gives it
/// back page by page, at a cost that is not the run's: so all runs begin with memory that was in use a moment ago.
fn warm_up(len: usize) -> Result<(), Error> {
    let memory = Mapping::new(len, Backing::Huge)?;
    for at in (0..len).step_by(PAGE) {
        memory.write(at, &[1]);
    }
    Ok(())
}

/// Offsets of the pages of a part, in the order in which they are touched.
fn pages_of(part: Range<usize>, order: Order, seed: usize) -> Vec<usize> {
    let mut pages: Vec<usize> = part.step_by(PAGE).collect();
    if order == Order::Random {
        let mut state = seed as u64 * 2 + 1;
        for last in (1..pages.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            pages.swap(last, (state >> 33) as usize % (last + 1));
        }
    }
    pages
}

fn touch(
    memory: &Mapping,
    pages: &[usize],
    copy: Option<&Mapping>,
    has_content: bool,
    is_timed: bool,
    timed: &mut Vec<u64>,
) {
    for &at in pages {
        if let Some(from) = copy
            && at.is_multiple_of(BLOCK)
        {
            // SAFETY: both mappings are as long, and this thread's part of `memory` nobody else writes to.
            unsafe {
                memory
                    .as_ptr()
                    .add(at)
                    .copy_from_nonoverlapping(from.as_ptr().add(at), BLOCK);
            }
        }
        let begun_ns = (is_timed && !memory.is_there(at)).then(now_ns);
        // SAFETY: within the mapping.
        let found = unsafe { memory.as_ptr().add(at).cast::<u64>().read_volatile() };
        if let Some(begun_ns) = begun_ns {
            timed.push(now_ns() - begun_ns);
        }
        assert!(
            !has_content || found == word_at(at),
            "page at {at}: {found:#x}"
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_mode_fills_all_in_every_order() {
        let content = Content::new(8 << 20).unwrap();
        for mode in Mode::ALL {
            for order in [Order::Sequential, Order::Random] {
                if order == Order::Random && matches!(mode, Mode::CopyHuge | Mode::Memcpy) {
                    continue;
                }
                match run(mode, order, 3, 8 << 20, &content, true) {
                    Ok(sample) => {
                        assert_eq!(sample.bytes, 6 << 20);
                        let faults = sample.faults_ns.len();
                        match mode {
                            // Each brings a page, or a huge one.
                            Mode::Plain | Mode::Floor | Mode::FirstTouch => {
                                assert_eq!(faults, (6 << 20) / PAGE, "{mode}");
                            }
                            Mode::HugeTlb => assert_eq!(faults, 3, "{mode}"),
                            // All is there when the copy is made.
                            Mode::CopyHuge | Mode::Memcpy => assert_eq!(faults, 0, "{mode}"),
                            _ => assert!((3..=(6 << 20) / PAGE).contains(&faults), "{mode}"),
                        }
                        assert!(sample.quantile_ns(0.5) <= sample.quantile_ns(0.99));
                    }
                    Err(error) => println!("SKIPPED: {mode}: {error}"),
                }
            }
        }
    }

    #[test]
    fn quantiles_are_those_of_the_list() {
        let sample = Sample {
            bytes: 1,
            wall_ns: 1,
            cpu_ns: 1,
            faults_ns: (1..=100).collect(),
        };
        assert_eq!(sample.quantile_ns(0.5), Some(50));
        assert_eq!(sample.quantile_ns(0.99), Some(99));
        assert_eq!(sample.quantile_ns(1.0), Some(100));
    }
}
