//! `ordered(n)`: iterations that wait for others by their numbers (`depend(sink)`, `depend(source)`).
//!
//! Who runs an iteration posts that it has been reached. What is posted last by one thread (static loops), in one chunk
//! (dynamic) or in one iteration of the outermost loop (guided) has an entry, and comes in increasing order: who waits
//! for an iteration looks whether its entry has come that far. The numbers of an iteration in all loops of the nest
//! are one word, if their bits fit into it, and else a word each.

use std::sync::atomic::fence;

use crate::gate::Gate;
use crate::message;
use crate::schedule;
use crate::share::{self, KEPT_BYTES, Plan, Share};
use crate::sync::{AtomicU64, Ordering};
use crate::team;
use crate::thread::Thread;

/// Words of a line.
const LINE: usize = 8;
/// Entries have lines of their own until they are so many bytes together.
const SPREAD_BYTES: usize = 1 << 22;

/// What is posted in one loop nest.
#[derive(Default)]
pub(crate) struct Doacross {
    /// Numbers of the outermost loop that one entry stands for; see `Entries`.
    entries: Entries,
    /// Words from entry to entry.
    stride: usize,
    posted: Vec<AtomicU64>,
    /// Where the bits of each loop's number begin; empty: a word each.
    shifts: Vec<u32>,
    depth: usize,
    gates: Vec<Gate>,
}

#[derive(Clone, Copy, Default)]
enum Entries {
    /// Nobody waits for anything.
    #[default]
    None,
    /// One for each thread.
    Owner {
        count: u64,
        chunk: u64,
        threads: u64,
    },
    /// One for so many iterations.
    Chunk(u64),
}

/// Bits of the numbers below `count`.
fn bits(count: u64) -> u32 {
    (u64::BITS - (count - 1).leading_zeros()).max(1)
}

/// Where the bits of each number begin, the first one's uppermost, if a number plus 1 fits into a word.
fn shifts(counts: &[u64], shifts: &mut Vec<u32>) -> bool {
    shifts.clear();
    let mut total = 0;
    for &count in counts.iter().rev() {
        shifts.push(total);
        total += bits(count);
        if total > u64::BITS {
            shifts.clear();
            return false;
        }
    }
    shifts.reverse();
    // The number of the last iteration of all may be all ones, and is to have a successor.
    if total == u64::BITS && counts.iter().all(|count| count.is_power_of_two()) {
        shifts.clear();
        return false;
    }
    true
}

impl Doacross {
    pub(crate) fn clear(&mut self) {
        self.entries = Entries::None;
        if self.posted.len() * size_of::<u64>() > KEPT_BYTES {
            self.posted = Vec::new();
        }
    }

    /// Loops of so many iterations, the outermost one first, which is dealt out by `plan`.
    fn begin(&mut self, counts: &[u64], plan: Plan, chunk: u64, threads: u64) {
        if threads == 1 || counts.is_empty() || counts.contains(&0) {
            return;
        }
        let outer = counts[0];
        let (entries, number) = match plan {
            Plan::Static => (
                Entries::Owner {
                    count: outer,
                    chunk,
                    threads,
                },
                threads,
            ),
            Plan::Guided => (Entries::Chunk(1), outer),
            _ => (Entries::Chunk(chunk), outer.div_ceil(chunk)),
        };
        self.depth = counts.len();
        let words = if shifts(counts, &mut self.shifts) {
            1
        } else {
            self.depth
        };
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        self.stride = words.next_multiple_of(LINE);
        if number.saturating_mul(self.stride) > SPREAD_BYTES / size_of::<u64>() {
            self.stride = words;
        }
        let words = number.saturating_mul(self.stride);
        self.posted.clear();
        if self.posted.try_reserve_exact(words).is_err() {
            message::out_of_memory(words.saturating_mul(size_of::<u64>()));
        }
        self.posted.resize_with(words, AtomicU64::default);
        let gates = (threads as usize).next_power_of_two();
        if self.gates.len() < gates {
            self.gates.resize_with(gates, Gate::default);
        }
        self.entries = entries;
    }

    /// The entry of an iteration of the outermost loop: which one, and its words.
    fn entry(&self, outer: u64) -> Option<(usize, &[AtomicU64])> {
        let index = match self.entries {
            Entries::None => return None,
            Entries::Owner {
                count,
                chunk,
                threads,
            } => schedule::fixed_owner(count, chunk, threads, outer),
            Entries::Chunk(size) => outer / size,
        };
        let index = usize::try_from(index).ok()?;
        let words = if self.shifts.is_empty() {
            self.depth
        } else {
            1
        };
        let begin = index.checked_mul(self.stride)?;
        // Iterations that there are not are nobody's.
        Some((index, self.posted.get(begin..begin + words)?))
    }

    fn gate(&self, index: usize) -> &Gate {
        &self.gates[index & (self.gates.len() - 1)]
    }

    fn joined(&self, number: impl Fn(usize) -> u64) -> u64 {
        self.shifts
            .iter()
            .enumerate()
            .fold(0, |all, (i, &shift)| all | number(i) << shift)
    }

    fn post(&self, number: impl Fn(usize) -> u64) {
        let Some((index, words)) = self.entry(number(0)) else {
            return;
        };
        if let [word] = words
            && !self.shifts.is_empty()
        {
            // Release: what the iteration did; pairs with the Acquire in `is_posted`.
            word.store(self.joined(number).wrapping_add(1), Ordering::Release);
        } else {
            // The innermost first: who sees the new number of a loop sees those of the loops in it. What was written
            // in between is never beyond the iteration that is posted.
            for (i, word) in words.iter().enumerate().rev() {
                word.store(number(i).wrapping_add(1), Ordering::Release);
            }
        }
        self.gate(index).ring(u32::MAX);
    }

    fn is_posted(&self, words: &[AtomicU64], number: &impl Fn(usize) -> u64) -> bool {
        if let [word] = words
            && !self.shifts.is_empty()
        {
            return self.joined(number) < word.load(Ordering::Acquire);
        }
        for (i, word) in words.iter().enumerate() {
            let posted = word.load(Ordering::Acquire);
            let wanted = number(i).wrapping_add(1);
            if wanted != posted {
                return wanted < posted;
            }
        }
        true
    }
}

impl Share {
    /// The loop is the outermost one of a nest with so many iterations each. For the share's maker, after `deal`.
    pub fn cross(&mut self, counts: &[u64], threads: u32) {
        self.doacross
            .begin(counts, self.plan, self.chunk, threads.into());
    }
}

/// The calling thread has come to the source of the iteration whose number in loop `i` of the nest is `number(i)`.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn post(thread: *mut Thread, number: impl Fn(usize) -> u64) {
    // SAFETY: a thread's share stays as it is while the thread is in it.
    match unsafe { share::current(thread) } {
        Some(share) => share.doacross.post(number),
        None => fence(Ordering::SeqCst),
    }
}

/// Waits until that of another iteration has been reached, which is before the calling thread's.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn wait(thread: *mut Thread, number: impl Fn(usize) -> u64) {
    // SAFETY: as above.
    let Some(share) = (unsafe { share::current(thread) }) else {
        return fence(Ordering::SeqCst);
    };
    let doacross = &share.doacross;
    let Some((index, words)) = doacross.entry(number(0)) else {
        return;
    };
    let is_posted = || doacross.is_posted(words, &number);
    if !is_posted() {
        // SAFETY: the caller's promise.
        let mut manner = unsafe { team::manner(thread) };
        doacross.gate(index).wait(&mut manner, is_posted, |_| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Numbers of a nest that share a word are in the order of the iterations, and the last one has a successor.
        #[test]
        fn words_are_in_order(
            loops in prop::collection::vec((prop_oneof![1u64..9, any::<u64>()], any::<u64>(), any::<u64>()), 1..9),
        ) {
            let counts: Vec<u64> = loops.iter().map(|&(count, ..)| count.max(1)).collect();
            let mut doacross = Doacross::default();
            let total: u32 = counts.iter().map(|&count| bits(count)).sum();
            if !shifts(&counts, &mut doacross.shifts) {
                prop_assert!(doacross.shifts.is_empty() && total >= u64::BITS);
                return Ok(());
            }
            prop_assert!(total <= u64::BITS);
            let below = |number: u64, i: usize| number % counts[i];
            let one: Vec<u64> = loops.iter().enumerate().map(|(i, l)| below(l.1, i)).collect();
            let other: Vec<u64> = loops.iter().enumerate().map(|(i, l)| below(l.2, i)).collect();
            let joined = [&one, &other].map(|numbers| doacross.joined(|i| numbers[i]));
            prop_assert_eq!(one.cmp(&other), joined[0].cmp(&joined[1]));
            let last = doacross.joined(|i| counts[i] - 1);
            prop_assert!(joined[0] <= last && last < u64::MAX);
        }
    }
}
