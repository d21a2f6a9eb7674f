//! Work shares: what the threads of a team divide among themselves, one construct after another.

use std::ffi::c_void;
use std::ptr;

use crate::chain::{Chain, Link, Value};
use crate::doacross::Doacross;
use crate::ordered::Turns;
use crate::schedule::{self, Iterations};
use crate::sync::{AtomicPtr, AtomicU64, Line, Ordering};
use crate::team;
use crate::thread::Thread;

/// How the threads get their iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Plan {
    /// There are none.
    #[default]
    Nothing,
    /// By their numbers.
    Static,
    /// From one counter, which cannot overflow.
    Dynamic,
    /// From one counter, which could.
    DynamicCareful,
    /// From one counter for each group of threads, then from others.
    Parts,
    /// From one counter, fewer and fewer.
    Guided,
    /// From a block of their own, then from those of others.
    Blocks,
}

/// A schedule as a loop begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// By numbers of threads; chunks of 0: one block each.
    Static {
        /// Iterations of a chunk.
        chunk: u64,
    },
    /// First come, first served.
    Dynamic {
        /// Iterations of a chunk; 0 counts as 1.
        chunk: u64,
        /// Each thread gets increasing numbers.
        is_monotonic: bool,
    },
    /// The same with chunks that shrink.
    Guided {
        /// Fewest iterations of a chunk; 0 counts as 1.
        chunk: u64,
    },
    /// A block for each thread, of which who is done takes what others have not begun.
    Auto,
}

/// Threads that take from one counter.
const PART_THREADS: u64 = 8;

/// Bytes that a share keeps for the next construct. What is larger is given back when the share is used again.
pub(crate) const KEPT_BYTES: usize = 1 << 16;

/// Memory of a share, aligned for everything.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block(#[expect(dead_code, reason = "the program's")] [u8; 64]);

/// Fewest iterations of a block that is worth a counter of its own.
const BLOCK_MIN: u64 = 8;

/// One counter of several, and where it begins and ends.
struct Part {
    next: AtomicU64,
    first: u64,
    end: u64,
}

impl Part {
    fn new((first, end): schedule::Range) -> Line<Part> {
        Line(Part {
            next: AtomicU64::new(first),
            first,
            end,
        })
    }
}

/// One work share. Its plain fields are written by its maker, before others see it.
// In this order, so that what each turn of a loop reads is on one line, and not on that which all write.
#[repr(C)]
pub struct Share {
    /// Number of the first iteration that nobody has; where the plan is `Blocks`, blocks of which nothing is left.
    taken: Line<AtomicU64>,
    pub(crate) plan: Plan,
    pub(crate) iterations: Iterations,
    pub(crate) chunk: u64,
    threads: u64,
    parts: Vec<Line<Part>>,
    pub(crate) turns: Turns,
    pub(crate) doacross: Doacross,
    /// The reductions over tasks, as its maker gave them.
    pub(crate) reductions: *mut usize,
    memory: Vec<Block>,
    /// What `single copyprivate` hands to all.
    pub(crate) copied: AtomicPtr<c_void>,
}

impl Default for Share {
    fn default() -> Share {
        Share {
            taken: Line(AtomicU64::new(0)),
            plan: Plan::Nothing,
            iterations: Iterations::default(),
            chunk: 0,
            threads: 1,
            parts: Vec::new(),
            turns: Turns::default(),
            doacross: Doacross::default(),
            reductions: ptr::null_mut(),
            memory: Vec::new(),
            copied: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl Share {
    /// A loop begins.
    #[inline]
    pub fn deal(&mut self, iterations: Iterations, deal: Deal, threads: u32) {
        let (count, threads) = (iterations.count(), u64::from(threads));
        self.iterations = iterations;
        self.threads = threads;
        self.taken.store(0, Ordering::Relaxed);
        match deal {
            Deal::Static { chunk } => {
                // One thread may as well have all at once.
                self.chunk = if threads == 1 { 0 } else { chunk };
                self.plan = Plan::Static;
            }
            Deal::Dynamic {
                chunk,
                is_monotonic,
            } => {
                self.chunk = chunk.clamp(1, count.max(1));
                self.plan = if !schedule::is_countable(count, self.chunk, threads) {
                    Plan::DynamicCareful
                } else if !is_monotonic && threads > PART_THREADS {
                    self.divide()
                } else {
                    Plan::Dynamic
                };
            }
            Deal::Guided { chunk } => {
                self.chunk = chunk.max(1);
                self.plan = Plan::Guided;
            }
            Deal::Auto => {
                self.chunk = 0;
                self.plan = if threads > 1 && count / threads >= BLOCK_MIN {
                    self.divide_into_blocks()
                } else {
                    Plan::Static
                };
            }
        }
    }

    /// A block for each thread, without the last iteration of all: whoever takes that gets nothing afterwards, see
    /// `take_of_parts`. `taken` counts blocks of which nothing is left.
    #[cold]
    fn divide_into_blocks(&mut self) -> Plan {
        let count = self.iterations.count() - 1;
        let block = |id| Part::new(schedule::block(count, self.threads, id));
        self.parts.clear();
        self.parts.extend((0..self.threads).map(block));
        Plan::Blocks
    }

    #[cold]
    fn divide(&mut self) -> Plan {
        let count = self.iterations.count();
        let parts = schedule::parts(count, self.chunk, self.threads, PART_THREADS);
        if parts == 1 {
            return Plan::Dynamic;
        }
        self.parts.clear();
        self.parts.extend(
            (0..parts).map(|index| Part::new(schedule::part(count, self.chunk, parts, index))),
        );
        Plan::Parts
    }

    /// The next iterations of a thread, where the plan is `Dynamic`.
    #[inline(always)]
    pub(crate) fn take_dynamic(&self) -> Option<schedule::Range> {
        let first = self.taken.fetch_add(self.chunk, Ordering::Relaxed);
        let count = self.iterations.count();
        (first < count).then(|| (first, (first + self.chunk).min(count)))
    }

    /// The next iterations of thread `id`, which has this speed. `trip` is the thread's own, 0 when it begins.
    pub(crate) fn take(&self, id: u32, trip: &mut u64, speed: u32) -> Option<schedule::Range> {
        let count = self.iterations.count();
        match self.plan {
            Plan::Nothing => None,
            Plan::Dynamic => self.take_dynamic(),
            Plan::Static => {
                let range = schedule::fixed(count, self.chunk, self.threads, id.into(), *trip);
                *trip += u64::from(range.is_some());
                range
            }
            Plan::DynamicCareful => self.take_sized(|left| self.chunk.min(left)),
            Plan::Guided => {
                self.take_sized(|left| schedule::guided(left, self.chunk, self.threads, speed))
            }
            Plan::Parts => self.take_of_parts(id, trip),
            Plan::Blocks => self.take_of_blocks(id, trip),
        }
    }

    fn take_sized(&self, size: impl Fn(u64) -> u64) -> Option<schedule::Range> {
        take_up_to(&self.taken, self.iterations.count(), size)
    }

    /// `trip`: blocks in which nothing is left; beyond their number: all is taken.
    fn take_of_blocks(&self, id: u32, trip: &mut u64) -> Option<schedule::Range> {
        let blocks = self.threads;
        while *trip < blocks {
            // Nobody looks at all blocks of a large team where nothing is left in them.
            if *trip > 0 && self.taken.load(Ordering::Relaxed) >= blocks {
                *trip = blocks;
                break;
            }
            let part = &self.parts[((u64::from(id) + *trip) % blocks) as usize];
            let (block, is_own) = (part.end - part.first, *trip == 0);
            let size = |left| schedule::of_block(left, block, is_own);
            if let Some(range) = take_up_to(&part.next, part.end, size) {
                if range.1 == part.end {
                    self.taken.fetch_add(1, Ordering::Relaxed);
                }
                return Some(range);
            }
            *trip += 1;
        }
        if *trip > blocks {
            return None;
        }
        *trip = blocks + 1;
        // Only one moves it from there on.
        let (count, relaxed) = (self.iterations.count(), Ordering::Relaxed);
        let moved = self
            .taken
            .compare_exchange(blocks, blocks + 1, relaxed, relaxed);
        moved.is_ok().then_some((count - 1, count))
    }

    /// `trip`: parts in which nothing is left.
    fn take_of_parts(&self, id: u32, trip: &mut u64) -> Option<schedule::Range> {
        let own = u64::from(id) / PART_THREADS;
        let parts = self.parts.len() as u64;
        while *trip < parts {
            let part = &self.parts[((own + *trip) % parts) as usize];
            let first = part.next.fetch_add(self.chunk, Ordering::Relaxed);
            if first < part.end {
                let end = (first + self.chunk).min(part.end);
                // Programs tell the sequentially last iteration, whose values `lastprivate` keeps, by the last one that a thread
                // has had: who has it gets nothing more.
                if end == self.iterations.count() {
                    *trip = parts;
                }
                return Some((first, end));
            }
            *trip += 1;
        }
        None
    }

    /// Memory of zeros for all threads, as long as they are in this share. For its maker.
    pub(crate) fn clear_memory(&mut self, bytes: usize) {
        self.memory.clear();
        self.memory
            .resize(bytes.div_ceil(size_of::<Block>()), Block([0; 64]));
    }

    pub(crate) fn memory(&self) -> *mut c_void {
        // Threads write to it by agreements of their own; nobody makes a reference.
        self.memory.as_ptr().cast::<c_void>().cast_mut()
    }
}

impl Value for Share {
    #[inline]
    fn renew(&mut self) {
        self.plan = Plan::Nothing;
        self.reductions = ptr::null_mut();
        self.turns.clear();
        self.doacross.clear();
        if size_of_val(&self.memory[..]) > KEPT_BYTES {
            self.memory = Vec::new();
        }
    }
}

/// Takes `size` of what is left before `end`, which is not 0 and not more than is left.
fn take_up_to(next: &AtomicU64, end: u64, size: impl Fn(u64) -> u64) -> Option<schedule::Range> {
    let mut first = next.load(Ordering::Relaxed);
    loop {
        let left = end - first;
        if left == 0 {
            return None;
        }
        let until = first + size(left);
        match next.compare_exchange_weak(first, until, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some((first, until)),
            Err(now) => first = now,
        }
    }
}

/// Work shares of a team.
pub type Shares = Chain<Share>;

/// The calling thread comes to a work share, which `make` makes if it is the first one of `threads`. Returns the share
/// and whether it was. Outside of all regions a thread is always the first one.
///
/// # Safety
/// `thread` is the calling thread's. The share stays as it is until the thread comes to the next one.
#[inline]
pub unsafe fn enter<'a>(
    thread: *mut Thread,
    make: impl FnOnce(&mut Share, u32),
) -> (&'a Share, bool) {
    // SAFETY: the team is the thread's.
    unsafe {
        (*thread).at.trip = 0;
        if (*thread).at.team.is_null() {
            return (enter_alone(thread, make), true);
        }
        let (from, id) = ((*thread).at.share, (*thread).at.id);
        let team = &*(*thread).at.team;
        let (link, is_first) = team.shares.advance(from, id, || team::manner(thread), make);
        (*thread).at.share = link;
        (&*link, is_first)
    }
}

#[cold]
unsafe fn enter_alone<'a>(thread: *mut Thread, make: impl FnOnce(&mut Share, u32)) -> &'a Share {
    // SAFETY: the share is the thread's own.
    unsafe {
        if (*thread).at.share.is_null() {
            (*thread).at.share = Link::alone();
        }
        let link = (*thread).at.share;
        make((*link).renewed(), 1);
        &*link
    }
}

/// The share that the calling thread is in.
///
/// # Safety
/// `thread` is the calling thread's. The share stays as it is until the thread comes to the next one.
#[inline(always)]
pub(crate) unsafe fn current<'a>(thread: *mut Thread) -> Option<&'a Share> {
    // SAFETY: the caller's promise.
    Some(unsafe { (*thread).at.share.as_ref() }?)
}

/// Gives back the share of a thread that is in no team.
///
/// # Safety
/// `share` is null or from [`enter`]; nobody is in it.
pub(crate) unsafe fn give_back(share: *mut Link<Share>) {
    if !share.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(share) });
    }
}
