//! Where ready tasks wait: a list for each thread of a team, and the board that says whose list is worth a look.
//!
//! A thread takes its own newest task; others take its oldest. A list may also be searched for a task that somebody
//! waits for: a thread in `taskwait` may not run just any.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ptr;

use super::Task;
use super::memory::Blocks;
use super::unfinished::Unfinished;
use crate::gate::Gate;
use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Line, Mutex, Ordering, fetch_to_write,
};

/// Ready tasks that one thread of a team has made, and what it waits at for tasks. Never freed.
pub struct Queue {
    list: Mutex<List>,
    /// Length of the list: written under its lock.
    len: AtomicU32,
    /// The board's part for this queue, and the bit there; set before anybody uses the queue.
    chunk: AtomicPtr<Chunk>,
    bit: AtomicU32,
    /// Tasks of the owner that have not ended.
    pub(super) unfinished: Unfinished,
    /// The owner waits here for tasks.
    pub(super) gate: Gate,
    /// Since the owner looked everywhere the last time, a task became ready that it may wait for.
    is_nudged: AtomicBool,
    pub(super) blocks: Line<Blocks>,
    pub(super) own: Line<Own>,
}

/// What is the owner's alone, away from what thieves write.
pub(super) struct Own {
    /// Number of the next task that the owner puts in.
    next_number: Cell<u64>,
    /// Waits of the owner for tasks, one within the other.
    waits: Cell<u32>,
    /// A task that was made here to run at once, and has ended.
    pub(super) spare: Cell<*mut Task>,
}

// SAFETY: the plain cells are the owner's alone; the tasks in the list are nobody else's.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

/// The first number of a task: a thread that runs nothing but its implicit task may take all from there on.
pub(super) const FIRST_NUMBER: u64 = 1;

/// So many tasks a thread takes from another one at once, if they are worth it: what both write for that is written once for all of them. Few, for whoever searches
/// looks at all.
pub(super) const HAUL: u32 = 8;
/// Fewer are taken one by one.
const FEW: u32 = 2;

/// Links of the tasks themselves. Newer tasks of the owner have greater numbers; what others put in has number 0 and
/// stands before all.
struct List {
    oldest: *mut Task,
    newest: *mut Task,
    /// What the owner has taken from others and does not run yet, the oldest first, linked by `newer`: at most `HAUL - 1`. Whoever searches looks at all of them.
    haul: *mut Task,
    /// The bit on the board is set.
    is_listed: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            list: Mutex::new(List {
                oldest: ptr::null_mut(),
                newest: ptr::null_mut(),
                haul: ptr::null_mut(),
                is_listed: false,
            }),
            len: AtomicU32::new(0),
            chunk: AtomicPtr::new(ptr::null_mut()),
            bit: AtomicU32::new(0),
            unfinished: Unfinished::default(),
            gate: Gate::new(),
            is_nudged: AtomicBool::new(false),
            blocks: Line::default(),
            own: Line(Own {
                next_number: Cell::new(FIRST_NUMBER),
                waits: Cell::new(0),
                spare: Cell::new(ptr::null_mut()),
            }),
        }
    }
}

impl List {
    /// # Safety
    /// `task` is in no list and the caller's.
    unsafe fn insert(&mut self, task: *mut Task, as_oldest: bool) {
        // SAFETY: tasks in the list are valid, and changed under its lock only.
        unsafe {
            let (older, newer) = if as_oldest {
                (ptr::null_mut(), self.oldest)
            } else {
                (self.newest, ptr::null_mut())
            };
            (*task).older = older;
            (*task).newer = newer;
            if older.is_null() {
                self.oldest = task;
            } else {
                (*older).newer = task;
            }
            if newer.is_null() {
                self.newest = task;
            } else {
                (*newer).older = task;
            }
        }
    }

    /// Takes the first of the haul that `may` allows.
    ///
    /// # Safety
    /// `may` only looks at the task.
    unsafe fn take_of_haul(&mut self, may: impl Fn(*mut Task) -> bool) -> *mut Task {
        let mut at = &raw mut self.haul;
        // SAFETY: tasks in the list are valid, and changed under its lock only.
        unsafe {
            while !(*at).is_null() && !may(*at) {
                at = &raw mut (**at).newer;
            }
            let task = *at;
            if !task.is_null() {
                *at = (*task).newer;
            }
            task
        }
    }

    /// # Safety
    /// `task` is in this list, and not in the haul.
    unsafe fn remove(&mut self, task: *mut Task) {
        // SAFETY: as above.
        unsafe {
            let (older, newer) = ((*task).older, (*task).newer);
            if older.is_null() {
                self.oldest = newer;
            } else {
                (*older).newer = newer;
            }
            if newer.is_null() {
                self.newest = older;
            } else {
                (*newer).older = older;
            }
        }
    }
}

/// What a thread that searches may take.
pub(super) enum Search<'a> {
    /// Anything, if the predicate, asked with the lock held, says that the thread still belongs to the region.
    Any(&'a mut dyn FnMut() -> bool),
    /// What the predicate allows, among the `usize` oldest of a list.
    Some(&'a dyn Fn(*mut Task) -> bool, usize),
}

impl Queue {
    /// Ready tasks, as of a moment ago.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Number of the next task of the owner.
    ///
    /// # Safety
    /// Called by the owner.
    #[inline]
    pub(super) unsafe fn next_number(&self) -> u64 {
        self.own.next_number.get()
    }

    /// Puts a ready task in as the newest.
    ///
    /// # Safety
    /// Called by the owner; `task` is in no list and the caller's.
    #[inline]
    pub(super) unsafe fn push(&self, task: *mut Task) {
        // SAFETY: the caller's promise.
        unsafe {
            let number = self.own.next_number.get();
            (*task).number = number;
            self.own.next_number.set(number + 1);
            self.insert(task, false);
        }
    }

    /// Puts a ready task in as the oldest. The owner has no right to it that others do not have.
    ///
    /// # Safety
    /// `task` is in no list and the caller's.
    pub(super) unsafe fn push_oldest(&self, task: *mut Task) {
        // SAFETY: the caller's promise.
        unsafe {
            (*task).number = 0;
            self.insert(task, true);
        }
    }

    unsafe fn insert(&self, task: *mut Task, as_oldest: bool) {
        // SAFETY: the caller's promise; the chunk is never freed.
        unsafe {
            let mut list = lock(&self.list);
            list.insert(task, as_oldest);
            self.len.store(self.len() + 1, Ordering::Relaxed);
            self.enter(&mut list);
        }
    }

    /// The list is worth a look.
    #[inline(always)]
    unsafe fn enter(&self, list: &mut List) {
        if !list.is_listed {
            list.is_listed = true;
            // SAFETY: the chunk is never freed.
            let chunk = unsafe { &*self.chunk.load(Ordering::Relaxed) };
            // SeqCst: then who made the task reads `hungry`; who is about to sleep wrote that and reads this.
            chunk
                .bits
                .fetch_or(1 << self.bit.load(Ordering::Relaxed), Ordering::SeqCst);
        }
    }

    /// Takes the owner's newest task, if its number is at least `from` and `is_mine`, asked with the lock held, says
    /// so. From 0 on: first what it has taken from others.
    #[inline]
    pub(super) fn take_newest(&self, from: u64, is_mine: impl FnOnce() -> bool) -> *mut Task {
        // What the owner put in it sees.
        if self.len() == 0 {
            return ptr::null_mut();
        }
        let mut list = lock(&self.list);
        let mut task = list.newest;
        // SAFETY: a task in the list, whose lock is held.
        unsafe {
            let is_hauled = from == 0 && !list.haul.is_null();
            if !is_hauled && (task.is_null() || (*task).number < from) || !is_mine() {
                return ptr::null_mut();
            }
            if is_hauled {
                task = list.take_of_haul(|_| true);
            } else {
                list.remove(task);
            }
        }
        self.len.store(self.len() - 1, Ordering::Relaxed);
        task
    }

    /// Takes the oldest task that `search` allows. `None`: somebody else holds the lock and `patient` is not set.
    fn take(&self, search: &mut Search<'_>, patient: bool) -> Option<*mut Task> {
        let mut list = if patient {
            lock(&self.list)
        } else {
            try_lock(&self.list)?
        };
        let mut task = list.oldest;
        // SAFETY: tasks in the list, whose lock is held; the chunk is never freed.
        unsafe {
            if task.is_null() && list.haul.is_null() {
                if list.is_listed {
                    list.is_listed = false;
                    let chunk = &*self.chunk.load(Ordering::Relaxed);
                    chunk
                        .bits
                        .fetch_and(!(1 << self.bit.load(Ordering::Relaxed)), Ordering::SeqCst);
                }
                return Some(task);
            }
            match search {
                Search::Any(is_mine) => {
                    if !is_mine() {
                        return Some(ptr::null_mut());
                    }
                    if task.is_null() {
                        task = list.take_of_haul(|_| true);
                        self.len.store(self.len() - 1, Ordering::Relaxed);
                        return Some(task);
                    }
                }
                Search::Some(may, count) => {
                    let hauled = list.take_of_haul(*may);
                    if !hauled.is_null() {
                        self.len.store(self.len() - 1, Ordering::Relaxed);
                        return Some(hauled);
                    }
                    let mut left = *count;
                    while !task.is_null() && !may(task) {
                        left -= 1;
                        task = if left == 0 {
                            ptr::null_mut()
                        } else {
                            (*task).newer
                        };
                    }
                    if task.is_null() {
                        return Some(task);
                    }
                }
            }
            list.remove(task);
        }
        self.len.store(self.len() - 1, Ordering::Relaxed);
        Some(task)
    }

    /// Takes the oldest tasks, `HAUL` of them but not more than half, linked by `newer`. Null: there are too few, or somebody else holds the lock.
    fn take_haul(&self, is_mine: &mut dyn FnMut() -> bool) -> *mut Task {
        if self.len() < 2 * FEW {
            return ptr::null_mut();
        }
        let Some(mut list) = try_lock(&self.list) else {
            return ptr::null_mut();
        };
        let first = list.oldest;
        // Of a haul only the owner, or one at a time, takes something.
        let most = (self.len() / 2).min(HAUL);
        if most < FEW || first.is_null() || !is_mine() {
            return ptr::null_mut();
        }
        // SAFETY: tasks in the list, whose lock is held.
        unsafe {
            let (mut last, mut many) = (first, 1);
            while many < most && !(*last).newer.is_null() {
                last = (*last).newer;
                fetch_ahead(last);
                many += 1;
            }
            let rest = (*last).newer;
            (*last).newer = ptr::null_mut();
            list.oldest = rest;
            if rest.is_null() {
                list.newest = ptr::null_mut();
            } else {
                (*rest).older = ptr::null_mut();
            }
            self.len.store(self.len() - many, Ordering::Relaxed);
        }
        first
    }

    /// The owner keeps what it has taken from others until it runs it, or somebody takes it from there.
    ///
    /// # Safety
    /// Called by the owner, who has no haul; the tasks, linked by `newer`, are in no list and the caller's.
    pub(super) unsafe fn keep(&self, haul: *mut Task) {
        // SAFETY: the caller's promise.
        unsafe {
            let (mut task, mut many) = (haul, 0);
            while !task.is_null() {
                many += 1;
                task = (*task).newer;
            }
            let mut list = lock(&self.list);
            list.haul = haul;
            self.len.store(self.len() + many, Ordering::Relaxed);
            self.enter(&mut list);
        }
    }

    /// Takes the oldest task that `may` allows.
    pub(super) fn take_oldest(&self, may: &dyn Fn(*mut Task) -> bool) -> *mut Task {
        let task = self.take(&mut Search::Some(may, usize::MAX), true);
        task.unwrap_or(ptr::null_mut())
    }

    /// The owner is to look everywhere again: for what it waits for has come.
    pub(super) fn nudge(&self) {
        self.will_look();
        self.gate.ring(1);
    }

    /// The same of the owner itself, which is awake.
    pub(super) fn will_look(&self) {
        self.is_nudged.store(true, Ordering::SeqCst);
    }

    /// Whether it was nudged since the last call.
    pub(super) fn was_nudged(&self) -> bool {
        self.is_nudged.load(Ordering::SeqCst) && self.is_nudged.swap(false, Ordering::SeqCst)
    }
}

impl Queue {
    /// The owner begins to wait for tasks.
    ///
    /// # Safety
    /// Called by the owner.
    pub(super) unsafe fn begin_wait(&self) {
        self.own.waits.set(self.own.waits.get() + 1);
    }

    /// It has waited. `was_nudged`: it was nudged meanwhile; that may have been for a wait around this one.
    ///
    /// # Safety
    /// Called by the owner.
    pub(super) unsafe fn end_wait(&self, was_nudged: bool) {
        let around = self.own.waits.get() - 1;
        self.own.waits.set(around);
        if was_nudged && around != 0 {
            self.is_nudged.store(true, Ordering::SeqCst);
        }
    }
}

/// What the caller will write soon comes meanwhile.
#[inline(always)]
fn fetch_ahead(task: *const Task) {
    const LINE: usize = 64;
    let mut at = task.cast::<u8>().wrapping_sub(super::memory::HEAD);
    let end = task.wrapping_add(1).cast::<u8>();
    while at < end {
        fetch_to_write(at);
        at = at.wrapping_add(LINE);
    }
}

#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(loom))]
fn try_lock<T>(mutex: &Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    mutex.try_lock().ok()
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

#[cfg(loom)]
fn try_lock<T>(mutex: &Mutex<T>) -> Option<loom::sync::MutexGuard<'_, T>> {
    mutex.try_lock().ok()
}

/// Between two operations of which both are SeqCst: loom takes these for AcqRel, and knows the order of fences only.
#[inline(always)]
fn in_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Which of 64 queues may have tasks. Chunks are only ever added, so that a thread that comes late still looks at
/// memory that is there.
pub(super) struct Chunk {
    bits: Line<AtomicU64>,
    queues: [AtomicPtr<Queue>; 64],
    next: AtomicPtr<Chunk>,
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk {
            bits: Line(AtomicU64::new(0)),
            queues: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// Nobody is known to sleep.
const FED: u32 = 0;
/// Somebody who could run tasks may be asleep or about to be.
const HUNGRY: u32 = 1;
/// One was woken, and has not found a task yet.
const WAKING: u32 = 2;

/// What is known of all tasks of a team.
pub struct Board {
    /// Threads with tasks of theirs that have not ended.
    pub(super) unfinished: Line<AtomicU32>,
    /// Whether to wake somebody for a new task.
    hunger: Line<AtomicU32>,
    chunks: Box<Chunk>,
    /// Tasks with a priority: they are few, and their order is one of the whole team.
    urgent: Mutex<Urgent>,
    urgent_len: Line<AtomicU32>,
}

/// By priority, the oldest first.
#[derive(Default)]
struct Urgent {
    tasks: BTreeMap<i32, VecDeque<*mut Task>>,
    len: u32,
}

impl Urgent {
    /// Takes the most urgent of the first `count` tasks that `may` allows.
    fn take(&mut self, may: impl Fn(*mut Task) -> bool, count: usize) -> Option<*mut Task> {
        let mut left = count;
        let (priority, at) = 'found: {
            for (&priority, tasks) in self.tasks.iter().rev() {
                for (at, &task) in tasks.iter().take(left).enumerate() {
                    if may(task) {
                        break 'found (priority, at);
                    }
                }
                left = left.saturating_sub(tasks.len());
                if left == 0 {
                    break;
                }
            }
            return None;
        };
        let tasks = self.tasks.get_mut(&priority)?;
        let task = tasks.remove(at);
        if tasks.is_empty() {
            self.tasks.remove(&priority);
        }
        self.len -= 1;
        task
    }
}

// SAFETY: the tasks on it are nobody else's, and are touched under the lock.
unsafe impl Sync for Board {}
// SAFETY: as above.
unsafe impl Send for Board {}

impl Default for Board {
    fn default() -> Board {
        Board {
            unfinished: Line::default(),
            hunger: Line(AtomicU32::new(FED)),
            chunks: Box::default(),
            urgent: Mutex::new(Urgent::default()),
            urgent_len: Line::default(),
        }
    }
}

impl Board {
    /// Not 0 as long as there are tasks that have not ended: how many threads have made them.
    #[inline]
    pub fn unfinished(&self) -> u32 {
        self.unfinished.load(Ordering::SeqCst)
    }

    /// Whether a thread at a barrier may find a task. If not, a thread that makes one later sees that somebody may be
    /// asleep.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.seems_ready() || self.found_nothing()
    }

    #[inline]
    pub(super) fn seems_ready(&self) -> bool {
        self.urgent_len.load(Ordering::SeqCst) != 0
            || self.chunks().any(|c| c.bits.load(Ordering::SeqCst) != 0)
    }

    #[inline]
    fn set_hungry(&self) {
        in_order();
        if self.hunger.load(Ordering::SeqCst) != HUNGRY {
            self.hunger.store(HUNGRY, Ordering::SeqCst);
        }
    }

    #[inline]
    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        // SAFETY: chunks are never freed.
        std::iter::successors(Some(&*self.chunks), |chunk| unsafe {
            chunk.next.load(Ordering::Acquire).as_ref()
        })
    }

    /// The queue of member `id` is one of the team's from now on. Members are enlisted in their order, by one thread
    /// at a time.
    pub fn enlist(&self, id: usize, queue: &Queue) {
        let mut chunk = &*self.chunks;
        for _ in 0..id / 64 {
            let mut next = chunk.next.load(Ordering::Acquire);
            if next.is_null() {
                next = Box::into_raw(Box::default());
                // Release: pairs with the Acquire in `chunks`.
                chunk.next.store(next, Ordering::Release);
            }
            // SAFETY: chunks are never freed.
            chunk = unsafe { &*next };
        }
        queue.bit.store((id % 64) as u32, Ordering::Relaxed);
        queue
            .chunk
            .store(ptr::from_ref(chunk).cast_mut(), Ordering::Relaxed);
        chunk.queues[id % 64].store(ptr::from_ref(queue).cast_mut(), Ordering::Release);
    }

    /// The queue of member `id`, which was enlisted.
    pub(super) fn queue(&self, id: usize) -> *const Queue {
        self.chunks().nth(id / 64).map_or(ptr::null(), |chunk| {
            chunk.queues[id % 64].load(Ordering::Acquire)
        })
    }

    /// A task was made ready. `wake` wakes a sleeping thread of the team and says whether there was one.
    #[inline]
    pub(super) fn call(&self, wake: impl FnOnce() -> bool) {
        in_order();
        if self.hunger.load(Ordering::SeqCst) == HUNGRY {
            self.call_one(wake);
        }
    }

    #[cold]
    fn call_one(&self, wake: impl FnOnce() -> bool) {
        let (ok, seen) = (Ordering::SeqCst, Ordering::Relaxed);
        if self
            .hunger
            .compare_exchange(HUNGRY, WAKING, ok, seen)
            .is_ok()
            && !wake()
        {
            let _ = self.hunger.compare_exchange(WAKING, FED, ok, seen);
        }
    }

    /// A thread at a barrier has found a task. If it was woken for that, others may be asleep still: one is woken for
    /// the next task.
    #[inline]
    pub(super) fn found(&self, wake: impl FnOnce() -> bool) {
        let (ok, seen) = (Ordering::SeqCst, Ordering::Relaxed);
        if self.hunger.load(Ordering::SeqCst) == WAKING
            && self
                .hunger
                .compare_exchange(WAKING, HUNGRY, ok, seen)
                .is_ok()
            && self.seems_ready()
        {
            self.call(wake);
        }
    }

    /// A thread at a barrier has found nothing. True: it is to look again before it sleeps.
    pub(super) fn found_nothing(&self) -> bool {
        self.set_hungry();
        in_order();
        self.seems_ready()
    }

    /// Whether tasks with a priority may be ready.
    #[inline]
    pub(super) fn has_urgent(&self) -> bool {
        self.urgent_len.load(Ordering::Relaxed) != 0
    }

    /// Puts in a task with a priority.
    ///
    /// # Safety
    /// `task` is in no list and the caller's.
    pub(super) unsafe fn push_urgent(&self, task: *mut Task, priority: i32) {
        let mut urgent = lock(&self.urgent);
        urgent.tasks.entry(priority).or_default().push_back(task);
        urgent.len += 1;
        self.urgent_len.store(urgent.len, Ordering::SeqCst);
    }

    /// Takes the most urgent task that `search` allows.
    #[inline]
    pub(super) fn take_urgent(&self, search: &mut Search<'_>) -> *mut Task {
        if !self.has_urgent() {
            return ptr::null_mut();
        }
        let mut urgent = lock(&self.urgent);
        let task = match search {
            Search::Any(is_mine) => {
                if urgent.len == 0 || !is_mine() {
                    return ptr::null_mut();
                }
                urgent.take(|_| true, 1)
            }
            Search::Some(may, count) => urgent.take(*may, *count),
        };
        self.urgent_len.store(urgent.len, Ordering::SeqCst);
        task.unwrap_or(ptr::null_mut())
    }

    /// Takes the oldest task that `search` allows from the queue of a member, those after `id` first.
    pub(super) fn steal(&self, id: usize, search: &mut Search<'_>) -> *mut Task {
        // Who holds a lock is busy with its queue: first those of others.
        for patient in [false, true] {
            let mut is_any_locked = false;
            for queue in self.listed(id) {
                match queue.take(search, patient) {
                    None => is_any_locked = true,
                    Some(task) if !task.is_null() => return task,
                    Some(_) => {}
                }
            }
            if !is_any_locked {
                break;
            }
        }
        ptr::null_mut()
    }

    /// Takes some of the oldest tasks of a member, linked by `newer`; null if nobody has many.
    pub(super) fn steal_haul(&self, id: usize, is_mine: &mut dyn FnMut() -> bool) -> *mut Task {
        let mut hauls = self.listed(id).map(|queue| queue.take_haul(is_mine));
        hauls
            .find(|haul| !haul.is_null())
            .unwrap_or(ptr::null_mut())
    }

    /// The queues that may have tasks, those of the members after `id` first.
    fn listed(&self, id: usize) -> impl Iterator<Item = &Queue> {
        self.chunks_from(id / 64).flat_map(move |chunk| {
            let mut bits = chunk
                .bits
                .load(Ordering::SeqCst)
                .rotate_right(id as u32 % 64);
            std::iter::from_fn(move || {
                (bits != 0).then(|| {
                    let bit = (bits.trailing_zeros() as usize + id) % 64;
                    bits &= bits - 1;
                    // SAFETY: queues are never freed.
                    unsafe { chunk.queues[bit].load(Ordering::Acquire).as_ref() }
                })
            })
            .flatten()
        })
    }

    /// All chunks, beginning with the one of this number.
    fn chunks_from(&self, number: usize) -> impl Iterator<Item = &Chunk> {
        let (first, rest) = (self.chunks().skip(number), self.chunks().take(number));
        first.chain(rest)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
