//! Parallel ranges: one call that takes as many threads as pay, and no more.
//!
//! After ktask (D. Jordan, "ktask: multithread CPU-intensive kernel work", linux-kernel, 2018).

mod crew;
mod offers;
mod parts;
mod share;
mod worth;

use std::fmt;
use std::ops::Range;
use std::panic::{Location, resume_unwind};
use std::time::Duration;

pub(crate) use offers::{Offers, Ticket};
use parts::Piece;
use share::{Ended, Region};
pub(crate) use worth::Sites;

use crate::cancel::CancelToken;
use crate::pool::Pool;
use crate::sys;

type Undo<'a> = &'a mut dyn FnMut(Range<usize>);
pub(crate) type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A range to work through in parallel, and how: made by [`Pool::ranges`].
///
/// ```
/// # let pool = amdahl_pool::Pool::new()?;
/// let outcome = pool.ranges(0..1_000_000).chunk_min(1000).run(|part| match part.contains(&777_777) {
///     true => Err("found it"),
///     false => Ok(()),
/// });
/// let stopped = outcome.unwrap_err();
/// assert_eq!(stopped.cause, amdahl_pool::Cause::Failed("found it"));
/// assert!(stopped.part.contains(&777_777));
/// assert!(stopped.done.iter().all(|part| !part.contains(&777_777)));
/// # Ok::<(), amdahl_pool::Error>(())
/// ```
pub struct Ranges<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) range: Range<usize>,
    pub(crate) chunk_min: usize,
    pub(crate) threads_max: u32,
    pub(crate) threads_per_node_max: u32,
    pub(crate) undo: Option<Undo<'a>>,
    pub(crate) progress: Option<(Duration, Progress<'a>)>,
    pub(crate) token: Option<CancelToken>,
    pub(crate) lowers: bool,
    pub(crate) pieces: Option<Vec<Piece>>,
}

/// Why a range was not worked through.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause<E> {
    /// A part failed, the first that did.
    Failed(E),
    /// The token was cancelled before all was done.
    Cancelled,
}

/// A range that was not worked through, and what of it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped<E> {
    /// Why.
    pub cause: Cause<E>,
    /// The part that failed; empty if it was cancelled. Nothing is known of what happened within it.
    pub part: Range<usize>,
    /// The parts that were done, all of them, in rising order; neighbours are joined.
    pub done: Vec<Range<usize>>,
    /// Whether the undo function was called for each of `done`.
    pub is_undone: bool,
}

impl<E: fmt::Display> fmt::Display for Stopped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done: usize = self.done.iter().map(ExactSizeIterator::len).sum();
        match &self.cause {
            Cause::Failed(error) => {
                write!(f, "{error}, at {}..{}", self.part.start, self.part.end)?
            }
            Cause::Cancelled => write!(f, "cancelled")?,
        }
        let undone = if self.is_undone { ", and undone" } else { "" };
        write!(f, "; {done} done before it{undone}")
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Stopped<E> {}

impl<'a> Ranges<'a> {
    /// No chunk but the last of a node's part, or of a piece of it, is smaller; 0 counts as 1, which is the default. Chunks grow from
    /// there until one takes about 100 us.
    pub fn chunk_min(mut self, chunk_min: usize) -> Self {
        self.chunk_min = chunk_min.max(1);
        self
    }
    /// At most so many threads, the caller included.
    pub fn threads_max(mut self, threads: u32) -> Self {
        self.threads_max = threads.max(1);
        self
    }
    /// At most so many helpers on one node.
    pub fn threads_per_node_max(mut self, threads: u32) -> Self {
        self.threads_per_node_max = threads;
        self
    }
    /// Helpers run at the lowest priority where the process may raise it again (the default), or at their own. One is
    /// lowered after 300 us: shorter help takes nothing from others that a change of priority would not.
    pub fn lowers_priority(mut self, lowers: bool) -> Self {
        self.lowers = lowers;
        self
    }
    /// If the range is not worked through, this is called for each part that was done, last part first, on
    /// this thread; also before a panic goes on.
    pub fn undo(mut self, undo: &'a mut dyn FnMut(Range<usize>)) -> Self {
        self.undo = Some(undo);
        self
    }
    /// Calls `progress(done, total)` at most once in `every`, and at the end if all is done; from whichever
    /// thread, never from two at a time, with rising `done`.
    pub fn progress(mut self, every: Duration, progress: Progress<'a>) -> Self {
        self.progress = Some((every, progress));
        self
    }
    /// Stops when the token is cancelled, if something is left then.
    pub fn token(mut self, token: &CancelToken) -> Self {
        self.token = Some(token.clone());
        self
    }

    /// Pieces of the range, each with the kernel's number of the node where its memory is: threads of that node work on them, others
    /// only when they have nothing else. What is in no piece, or on a node without a CPU of the pool's, is divided by CPUs, as all is without
    /// this. Of pieces that overlap the one that begins first counts. Where there is one node only nothing is divided.
    ///
    /// ```
    /// # let pool = amdahl_pool::Pool::new()?;
    /// let sum = std::sync::atomic::AtomicUsize::new(0);
    /// // Two halves that were filled by threads of two nodes.
    /// let ranges = pool.ranges(0..2000).chunk_min(10).nodes(&[(0..1000, 0), (1000..2000, 1)]);
    /// ranges.run(|part| {
    ///     sum.fetch_add(part.sum(), std::sync::atomic::Ordering::Relaxed);
    ///     Ok::<(), ()>(())
    /// }).unwrap();
    /// assert_eq!(sum.into_inner(), 1_999_000);
    /// # Ok::<(), amdahl_pool::Error>(())
    /// ```
    pub fn nodes(mut self, pieces: &[(Range<usize>, u32)]) -> Self {
        let registry = &self.pool.registry;
        let place =
            |(piece, node): &(Range<usize>, u32)| (piece.clone(), registry.node_of_kernel(*node));
        self.pieces = Some(pieces.iter().map(place).collect());
        self
    }

    /// The range goes over `memory` from its one end to the other: the kernel is asked where that is, and the range divided as by
    /// [`nodes`](Self::nodes). On machines of several nodes, of 4 MiB and more: at 16 to 1024 places at equal distances, by one system
    /// call (`move_pages`, which moves nothing then). What has no memory yet is divided by CPUs; so is all where the kernel does not tell.
    pub fn memory<T>(mut self, memory: &[T]) -> Self {
        /// Below this the memory is through before the answer has paid.
        const BYTES_MIN: usize = 4 << 20;
        const BYTES_EACH: usize = 256 << 10;
        const SAMPLES_MAX: usize = 1024;
        let registry = &self.pool.registry;
        let bytes = size_of_val(memory);
        if registry.machine.nodes() < 2 || !registry.settings.binds || bytes < BYTES_MIN {
            return self;
        }
        let samples = (bytes / BYTES_EACH)
            .min(SAMPLES_MAX)
            .min(self.range.len().max(1));
        let base = memory.as_ptr().addr();
        let at = |sample: usize| base + (bytes as u128 * sample as u128 / samples as u128) as usize;
        let places: Vec<usize> = (0..samples).map(at).collect();
        let nodes = sys::nodes_of(&places);
        self.pieces = nodes.map(|nodes| {
            let node = |kernel: &Option<u32>| kernel.and_then(|node| registry.node_of_kernel(node));
            let nodes: Vec<Option<u32>> = nodes.iter().map(node).collect();
            parts::sampled(self.range.clone(), &nodes)
        });
        self
    }

    /// What tells ranges apart whose times are remembered: where they begin, what is done, and about how much of it.
    #[track_caller]
    fn site<F>(&self, _: &F) -> u64 {
        let place = std::ptr::from_ref(Location::caller()).addr() as u64;
        let work = std::any::type_name::<F>().as_ptr().addr() as u64;
        let chunks = self.range.len().div_ceil(self.chunk_min) as u64;
        place ^ work.rotate_left(24) ^ u64::from(chunks.ilog2()) << 56
    }

    /// Works through the range: `work` is called for parts that do not overlap and together are all of it, on this
    /// thread and on helpers. Returns when nobody works on it any more.
    ///
    /// This thread takes chunks as the helpers do. Helpers come once the range has turned out to take longer
    /// than waking one does, or many in a row have, or where one is awake; but of ranges of less than 20 us that begin at this place in the program, with about
    /// as many chunks, only if those took less time with helpers, which is tried now and then. Chunks are taken by a compare-and-swap, from the node's own
    /// part first.
    ///
    /// # Errors
    /// [`Stopped`]: the first error of a part, or the token was cancelled before all was done. Chunks that others had begun are
    /// finished and among those done.
    ///
    /// # Panics
    /// If `work` does: with the first panic, after what is done was undone.
    #[track_caller]
    pub fn run<E: Send>(
        mut self,
        work: impl Fn(Range<usize>) -> Result<(), E> + Sync,
    ) -> Result<(), Stopped<E>> {
        if self.range.is_empty() {
            return Ok(());
        }
        let pool = self.pool;
        let site = self.site(&work);
        // Only what is `Sync` goes to another thread if this one finds no place; `undo` and `work` stay its own.
        let (mut undo, work) = (self.undo.take(), &work);
        let ranges = &self;
        let (ended, done) =
            pool.run_here(move |worker| Region::new(ranges, worker, work).run(worker, site));
        let Some(ended) = ended else { return Ok(()) };
        let done = parts::joined(done);
        let is_undone = undo.is_some();
        if let Some(undo) = &mut undo {
            done.iter().rev().for_each(|part| undo(part.clone()));
        }
        let (cause, part) = match ended {
            Ended::Failed(error, part) => (Cause::Failed(error), part),
            Ended::Cancelled => (Cause::Cancelled, self.range.end..self.range.end),
            Ended::Panicked(payload) => resume_unwind(payload),
        };
        Err(Stopped {
            cause,
            part,
            done,
            is_undone,
        })
    }
}
