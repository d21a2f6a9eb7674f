//! `ordered`: what threads do in the order of the iterations, whoever has them.
//!
//! Chunks are named by their first iteration. Each has a slot, the same for few others: there the thread before it
//! writes that it is its turn, and there it is waited for, so that threads that wait do not look at the same line.
//! Two chunks with the same slot do not disturb each other: the turns come in order, and each is passed on by the
//! thread whose turn it is.

use crate::gate::Gate;
use crate::schedule::Range;
use crate::share::{self, Plan, Share};
use crate::sync::{AtomicU64, Ordering};
use crate::thread::Thread;
use crate::{loops, team};

#[derive(Default)]
struct Slot {
    /// Number of the iteration plus 1 whose turn it is, or was.
    turn: AtomicU64,
    gate: Gate,
}

/// Whose turn it is in a loop. Without slots nobody has to wait.
#[derive(Default)]
pub(crate) struct Turns {
    slots: Vec<Slot>,
    /// Slots in use, a power of 2; 0: the loop is not ordered.
    used: usize,
}

impl Turns {
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// An ordered loop begins, with iteration 0; so many chunks are under way at most.
    fn begin(&mut self, chunks: u64) {
        self.used = match chunks {
            // Who is alone waits for nobody.
            0 | 1 => 0,
            _ => (chunks as usize).next_power_of_two(),
        };
        if self.slots.len() < self.used {
            self.slots.resize_with(self.used, Slot::default);
        }
        for slot in &self.slots[..self.used] {
            slot.turn.store(0, Ordering::Relaxed);
        }
        if let Some(slot) = self.slot(0) {
            slot.turn.store(1, Ordering::Relaxed);
        }
    }

    fn slot(&self, first: u64) -> Option<&Slot> {
        // Multiples of a chunk's size spread over the upper bits (Fibonacci hashing).
        let hash = first.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let index = hash as usize & self.used.wrapping_sub(1);
        self.slots[..self.used].get(index)
    }

    /// Waits for the turn of the chunk that begins with `first`.
    fn wait(&self, thread: *mut Thread, first: u64) {
        let Some(slot) = self.slot(first) else { return };
        let is_turn = || slot.turn.load(Ordering::Acquire) == first.wrapping_add(1);
        if !is_turn() {
            // SAFETY: the thread is the calling one.
            let mut manner = unsafe { team::manner(thread) };
            slot.gate.wait(&mut manner, is_turn, |_| false);
        }
    }

    /// It is the turn of the chunk that begins with `first`, whether or not anybody has it yet.
    fn pass(&self, first: u64) {
        if let Some(slot) = self.slot(first) {
            // Release: what was done in the turns until now; pairs with the Acquire in `wait`.
            slot.turn.store(first.wrapping_add(1), Ordering::Release);
            slot.gate.ring(u32::MAX);
        }
    }
}

impl Share {
    /// The loop is ordered. For the share's maker, after `deal`.
    pub fn order(&mut self, threads: u32) {
        let all = match (self.plan, self.chunk) {
            // Each thread has one; the last ones of a guided loop may be of any size.
            (Plan::Guided, _) | (_, 0) => self.iterations.count(),
            (_, chunk) => self.iterations.count().div_ceil(chunk),
        };
        self.turns.begin(all.min(threads.into()));
    }
}

/// The first iterations of the calling thread in an ordered loop.
///
/// # Safety
/// `thread` is the calling thread's, in such a loop.
pub unsafe fn first(thread: *mut Thread) -> Option<Range> {
    // SAFETY: a thread's share stays as it is while the thread is in it.
    unsafe {
        let share = share::current(thread)?;
        let range = loops::take(thread, share);
        (*thread).at.chunk = range;
        let (first, end) = range?;
        Some(share.iterations.values(first, end))
    }
}

/// The calling thread is done with its iterations, and gets more.
///
/// # Safety
/// As [`first`].
pub unsafe fn next(thread: *mut Thread) -> Option<Range> {
    // SAFETY: as above.
    unsafe {
        let share = share::current(thread)?;
        // Taken from the place, so that whoever asks once more passes nothing on again.
        if let Some((begin, end)) = (*thread).at.chunk.take() {
            share.turns.wait(thread, begin);
            share.turns.pass(end);
        }
        first(thread)
    }
}

/// Waits until all iterations before those of the calling thread have been in their ordered regions.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn enter(thread: *mut Thread) {
    // SAFETY: as above.
    unsafe {
        if let (Some(share), Some((begin, _))) = (share::current(thread), (*thread).at.chunk) {
            share.turns.wait(thread, begin);
        }
    }
}
