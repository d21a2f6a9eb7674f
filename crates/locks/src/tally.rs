//! Waits added up, in bounded memory.

use std::hash::Hash;

use amdahl_speedup::event::{Ns, Tid};
use amdahl_speedup::wait::FutexUse;
use rustc_hash::FxHashMap;

use crate::chains::LinkId;
use crate::event::{Kind, LockId, Place, Wait, Waker};
use crate::histogram::Histogram;
use crate::rounds::Rounds;

/// How much is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Combinations of place, lock and thread, as many for waits and for holds. Beyond them the smallest half is folded: first
    /// threads and locks are forgotten, then places.
    pub cells: usize,
    /// What these may take together, in bytes: one with many owners, chains and lengths takes fifteen hundred, one with a single wait
    /// a fourth of it. Beyond it they are folded as well.
    pub bytes: usize,
    /// Threads whose last waits are remembered (for chains of waits), some 600 bytes each.
    pub threads: usize,
}

impl Limits {
    /// What fits into `bytes`, half of which is for waits and holds. Threads and what else is kept of each wait take a quarter, and
    /// so may a table that is made of it.
    pub fn within(bytes: usize) -> Limits {
        Limits {
            cells: (bytes / 2048).max(16),
            bytes: bytes / 2,
            threads: (bytes / 8 / 1024).max(16),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::within(128 << 20)
    }
}

/// What is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellKey {
    /// Kind of lock.
    pub kind: Kind,
    /// Where it was waited for; unknown if folded.
    pub place: Place,
    /// The lock; unknown if folded.
    pub lock: LockId,
    /// The process; 0 if folded.
    pub pid: Tid,
    /// The thread; 0 if folded.
    pub tid: Tid,
}

impl CellKey {
    /// What `wait` is counted under.
    pub fn of(wait: &Wait) -> CellKey {
        CellKey {
            kind: wait.kind,
            place: wait.place,
            lock: wait.lock,
            pid: wait.pid,
            tid: wait.tid,
        }
    }

    /// The same without who and which lock.
    fn without_thread(self) -> CellKey {
        CellKey {
            lock: LockId::default(),
            pid: 0,
            tid: 0,
            ..self
        }
    }

    fn without_place(self) -> CellKey {
        CellKey {
            place: Place::default(),
            ..self.without_thread()
        }
    }
}

/// A count and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How often.
    pub count: u64,
    /// How long together.
    pub ns: Ns,
}

impl Share {
    pub(crate) fn add(&mut self, other: Share) {
        self.count = self.count.saturating_add(other.count);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// The largest shares by what they belong to, and the rest in one sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares<K> {
    /// Largest ones, in no order.
    pub of: Vec<(K, Share)>,
    /// What had no room.
    pub others: Share,
}

/// Different ones that are kept apart for each cell: of owners some threads at some lines each.
const SHARES: usize = 16;

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Shares {
            of: Vec::new(),
            others: Share::default(),
        }
    }
}

impl<K: Copy + Eq> Shares<K> {
    /// Adds to the share of `key`; the smallest one gives way if there is no room.
    pub fn add(&mut self, key: K, share: Share) {
        if let Some((_, mine)) = self.of.iter_mut().find(|(other, _)| *other == key) {
            return mine.add(share);
        }
        // Most cells have one; room for four would be most of their memory.
        if self.of.is_empty() {
            self.of.reserve_exact(1);
        }
        if self.of.len() >= SHARES {
            let least = (0..self.of.len()).min_by_key(|&at| self.of[at].1.ns);
            let (_, gone) = self.of.swap_remove(least.unwrap_or(0));
            self.others.add(gone);
        }
        self.of.push((key, share));
    }

    fn heap_bytes(&self) -> usize {
        self.of.capacity() * size_of::<(K, Share)>()
    }

    fn merge(&mut self, other: Shares<K>) {
        for (key, share) in other.of {
            self.add(key, share);
        }
        self.others.add(other.others);
    }

    /// All shares together.
    pub fn total(&self) -> Share {
        let mut sum = self.others;
        self.of.iter().for_each(|(_, share)| sum.add(*share));
        sum
    }
}

/// Who ended waits: the thread and where it was.
pub type Owner = (Tid, Place);

/// Waits of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Waits: calls that had to wait.
    pub times: u64,
    /// Sleeps or spins in them; more than waits where a woken thread found the lock taken again.
    pub sleeps: u64,
    /// Of `times`, those that had not ended.
    pub open: u64,
    /// Of `times`, those that had begun before the recording did: they were longer.
    pub before: u64,
    /// Of `times`, those that were only polled: there may have been more, and shorter ones.
    pub polled: u64,
    /// Their length together.
    pub total_ns: Ns,
    /// The longest.
    pub max_ns: Ns,
    /// Lengths, as far as single waits are known.
    pub lengths: Histogram,
    /// Who ended the sleeps.
    pub owners: Shares<Owner>,
    /// What their holders waited for themselves meanwhile.
    pub nested: Shares<LinkId>,
}

impl Cell {
    /// Counts one wait.
    pub(crate) fn add(&mut self, wait: &Wait) {
        let ns = wait.end.saturating_sub(wait.begin);
        self.times += 1;
        self.sleeps += 1;
        self.open += u64::from(wait.is_open);
        self.before += u64::from(wait.began_before);
        self.polled += u64::from(wait.is_polled);
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        self.lengths.add(ns);
        self.ended_by(wait.waker, ns);
    }

    /// Makes the wait of length `before` one of length `now`: it went on. False if it is not here.
    pub(crate) fn prolong(&mut self, before: Ns, now: Ns, wait: &Wait) -> bool {
        if !self.lengths.remove(before) {
            return false;
        }
        self.sleeps += 1;
        self.open += u64::from(wait.is_open);
        self.total_ns = self.total_ns.saturating_add(now.saturating_sub(before));
        self.max_ns = self.max_ns.max(now);
        self.lengths.add(now);
        self.ended_by(wait.waker, wait.end.saturating_sub(wait.begin));
        true
    }

    /// Bytes beside its own.
    fn heap_bytes(&self) -> usize {
        self.lengths.heap_bytes() + self.owners.heap_bytes() + self.nested.heap_bytes()
    }

    fn ended_by(&mut self, waker: Option<Waker>, ns: Ns) {
        if let Some(waker) = waker {
            self.owners
                .add((waker.tid, waker.place), Share { count: 1, ns });
        }
    }

    pub(crate) fn merge(&mut self, other: Cell) {
        self.add_waits(&other);
        self.lengths.merge(&other.lengths);
        self.owners.merge(other.owners);
        self.nested.merge(other.nested);
    }

    /// Adds counts and times of `other`, but neither lengths, nor who ended them, nor what holders waited for.
    pub(crate) fn add_waits(&mut self, other: &Cell) {
        self.times = self.times.saturating_add(other.times);
        self.sleeps = self.sleeps.saturating_add(other.sleeps);
        self.open = self.open.saturating_add(other.open);
        self.before = self.before.saturating_add(other.before);
        self.polled = self.polled.saturating_add(other.polled);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// How a futex without a name is used, to tell what it is ([`FutexUse`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// As far as is known.
    pub of_futex: FutexUse,
    /// Hashes of those who waited, as a set of 64 bits.
    waiters: u64,
    /// The last wake-up.
    woken: Option<(Tid, Ns)>,
    rounds: Rounds,
}

/// Two waits that one thread ended within this time ended together.
const TOGETHER_NS: Ns = 50_000;

fn bit(tid: Tid) -> u64 {
    1 << (tid.wrapping_mul(0x9e37_79b1) >> 26)
}

impl Use {
    fn add(&mut self, wait: &Wait) {
        let of = &mut self.of_futex;
        if of.waits == 0 {
            of.first_value = wait.expected;
        }
        of.values_differ |= wait.expected != of.first_value;
        of.waits += 1;
        self.rounds.add(wait);
        self.waiters |= bit(wait.tid);
        if let Some(waker) = wait.waker {
            of.woken_by_waiters += u64::from(self.waiters & bit(waker.tid) != 0);
            let together = self
                .woken
                .is_some_and(|(tid, ts)| tid == waker.tid && waker.ts.abs_diff(ts) < TOGETHER_NS);
            // The first of several counts as well.
            of.woken_together += if together { 1 } else { 0 };
            self.woken = Some((waker.tid, waker.ts));
        }
    }

    /// It does what a barrier does. [`FutexUse::cause`] says so of conditions too.
    pub(crate) fn is_of_a_barrier(&self) -> bool {
        self.rounds.are_of_a_barrier()
    }
}

/// Holds of one lock acquired at one place.
pub type HoldKey = (Kind, Place, LockId);

/// What was folded to stay within [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Cells whose thread and lock are forgotten.
    pub threads: u64,
    /// Cells whose place is forgotten as well.
    pub places: u64,
    /// Stacks of places that are told of, which there was no room for.
    pub stacks: u64,
    /// Waits of holders that lengthened others' waits and were not kept: too many different chains.
    pub chains: u64,
}

/// Waits and holds added up. Sums and counts stay exact whatever is folded.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Waits.
    pub cells: FxHashMap<CellKey, Cell>,
    /// Holds.
    pub holds: FxHashMap<HoldKey, Cell>,
    /// How futexes are used, for those without a name.
    pub uses: FxHashMap<LockId, Use>,
    /// Events that were lost.
    pub lost: u64,
    /// What was folded.
    pub folded: Folded,
    /// Bytes of all cells beside their own.
    heap_bytes: usize,
}

impl Tally {
    /// Changes the cell of waits under `key`, which begins empty.
    pub(crate) fn wait<R>(&mut self, key: CellKey, change: impl FnOnce(&mut Cell) -> R) -> R {
        let cell = self.cells.entry(key).or_default();
        changed(&mut self.heap_bytes, cell, change)
    }

    /// Changes the cell of waits under `key`, if there is one.
    pub(crate) fn known_wait<R>(
        &mut self,
        key: &CellKey,
        change: impl FnOnce(&mut Cell) -> R,
    ) -> Option<R> {
        let cell = self.cells.get_mut(key)?;
        Some(changed(&mut self.heap_bytes, cell, change))
    }

    /// Changes the cell of holds under `key`, which begins empty.
    pub(crate) fn hold(&mut self, key: HoldKey, change: impl FnOnce(&mut Cell)) {
        let cell = self.holds.entry(key).or_default();
        changed(&mut self.heap_bytes, cell, change);
    }

    /// About the memory that it takes.
    pub fn bytes(&self) -> usize {
        table_bytes(&self.cells)
            + table_bytes(&self.holds)
            + table_bytes(&self.uses)
            + self.heap_bytes
    }

    /// The same as `heap_bytes`, counted again. Cost: O(cells).
    fn heap_of_all(&self) -> usize {
        let all = self.cells.values().chain(self.holds.values());
        all.map(Cell::heap_bytes).sum()
    }

    /// Adds waits of which only sums are known, and of some of them the lengths.
    pub(crate) fn add_sum(&mut self, key: CellKey, share: Share, max_ns: Ns, lengths: &Histogram) {
        self.wait(key, |cell| {
            cell.lengths.merge(lengths);
            cell.times = cell.times.saturating_add(share.count);
            cell.sleeps = cell.sleeps.saturating_add(share.count);
            cell.total_ns = cell.total_ns.saturating_add(share.ns);
            cell.max_ns = cell.max_ns.max(max_ns);
        });
    }

    pub(crate) fn learn_use(&mut self, wait: &Wait) {
        if wait.kind == Kind::Futex {
            self.uses.entry(wait.lock).or_default().add(wait);
        }
    }

    /// All waits together.
    pub fn total(&self) -> Share {
        let mut sum = Share::default();
        for cell in self.cells.values() {
            let (count, ns) = (cell.times, cell.total_ns);
            sum.add(Share { count, ns });
        }
        sum
    }

    /// Keeps within `limits`. Amortised constant per event: it frees half whenever it acts.
    pub(crate) fn fold(&mut self, limits: Limits) {
        if self.uses.len() > limits.cells {
            let mut waits: Vec<u64> = self.uses.values().map(|u| u.of_futex.waits).collect();
            let middle = waits.len() / 2;
            let median = *waits.select_nth_unstable(middle).1;
            self.uses.retain(|_, u| u.of_futex.waits > median);
        }
        let is_over = self.bytes() > limits.bytes;
        if !is_over && self.cells.len().max(self.holds.len()) <= limits.cells {
            return;
        }
        debug_assert_eq!(self.heap_bytes, self.heap_of_all());
        let of_waits = fold_table(
            &mut self.cells,
            limits.cells,
            is_over,
            CellKey::without_thread,
            CellKey::without_place,
        );
        let (no_place, no_lock) = (Place::default(), LockId::default());
        let of_holds = fold_table(
            &mut self.holds,
            limits.cells,
            is_over,
            |(kind, at, _)| (kind, at, no_lock),
            |(kind, ..)| (kind, no_place, no_lock),
        );
        for (threads, places) in [of_waits, of_holds] {
            self.folded.threads += threads;
            self.folded.places += places;
        }
        if is_over {
            self.uses.shrink_to_fit();
        }
        self.heap_bytes = self.heap_of_all();
    }
}

/// About the memory of a hash table beside what its values point to: an eighth of it stays empty, and each place has a byte of hash.
fn table_bytes<K, V>(table: &FxHashMap<K, V>) -> usize {
    table.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
}

fn changed<R>(heap_bytes: &mut usize, cell: &mut Cell, change: impl FnOnce(&mut Cell) -> R) -> R {
    *heap_bytes -= cell.heap_bytes();
    let made = change(cell);
    *heap_bytes += cell.heap_bytes();
    made
}

/// Halves a table of more than `cells` cells, or any if memory `is_over`: by keys without threads, and if that is not enough without
/// places. How many changed theirs by the one and by the other.
fn fold_table<K: Copy + Eq + Hash + Ord>(
    table: &mut FxHashMap<K, Cell>,
    cells: usize,
    is_over: bool,
    without_thread: impl Fn(K) -> K,
    without_place: impl Fn(K) -> K,
) -> (u64, u64) {
    if table.len() <= cells && !is_over {
        return (0, 0);
    }
    let before = table.len().min(cells);
    let threads = fold(table, before / 2, without_thread);
    let places = if table.len() > before / 4 * 3 {
        fold(table, before / 2, without_place)
    } else {
        0
    };
    if is_over {
        table.shrink_to_fit();
    }
    (threads, places)
}

/// Gives all but the `keep` cells with the longest waits a coarser key; how many changed theirs.
fn fold<K: Copy + Eq + Hash + Ord>(
    cells: &mut FxHashMap<K, Cell>,
    keep: usize,
    coarser: impl Fn(K) -> K,
) -> u64 {
    if cells.len() <= keep {
        return 0;
    }
    let mut by_time: Vec<(Ns, K)> = cells.iter().map(|(&k, c)| (c.total_ns, k)).collect();
    // By key among equals: the same events give the same table. The map has no seed either.
    let falling = |a: &(Ns, K), b: &(Ns, K)| b.0.cmp(&a.0).then(a.1.cmp(&b.1));
    by_time.select_nth_unstable_by(keep, falling);
    let mut folded = 0;
    for (_, key) in by_time.drain(keep..) {
        let to = coarser(key);
        if to != key
            && let Some(cell) = cells.remove(&key)
        {
            cells.entry(to).or_default().merge(cell);
            folded += 1;
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of six threads with two lines each those that came drove out each other, and half of the waits had no owner.
    #[test]
    fn threads_that_take_turns_at_two_lines_are_all_kept() {
        let mut owners = Shares::<Owner>::default();
        for _ in 0..10 {
            for (tid, place) in (1..=6).flat_map(|tid| [(tid, Place(1)), (tid, Place(2))]) {
                owners.add((tid, place), Share { count: 1, ns: 1 });
            }
        }
        assert_eq!((owners.of.len(), owners.others.count), (12, 0));
    }
}
