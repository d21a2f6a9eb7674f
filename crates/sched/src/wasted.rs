//! CPU time wasted: a CPU idles while a thread waits in the queue of another.
//!
//! Idle CPUs and waiting threads are paired, and the time of a pair is wasted time. A pair is *allowed* if
//! the thread may run on the CPU; otherwise its affinity is what keeps the two apart. The pairing is kept
//! maximal while events come: no idle CPU and no waiting thread that fit each other are both without an allowed
//! partner. So the time of allowed pairs is exact where every thread may run anywhere (it is then that of
//! min(idle CPUs, waiting threads)), and otherwise at least half of what the best pairing would give.
//!
//! Each event changes a few sets that are ordered by place or by time: O(log CPUs + log threads), amortised, and
//! no loop over CPUs.

mod seeking;

use std::collections::BTreeSet;

use amdahl_topology::CpuSet;
use rustc_hash::FxHashMap;

use crate::event::{CpuId, Ns, Tid};
use seeking::Seeking;

/// A CPU in an order in which neighbours share caches: node, LLC, core, number.
pub(crate) type Place = (u32, u32, u32, CpuId);

/// Steps of a search among idle CPUs or affinities.
const SEARCH: usize = 16;
/// Pairs of CPUs that are kept apart; the smallest are added up when there are more.
const PAIRS_MAX: usize = 16_384;
/// A CPU that idles for less while somebody waits elsewhere is hardly worth a move: for so long after it ran Linux takes a thread
/// for one that has its data in the caches still, and leaves it (`sched_migration_cost_ns`, kernel/sched/fair.c).
pub const BRIEF_NS: Ns = 500_000;
/// Different affinities that are told apart.
const CLASSES_MAX: usize = 4_096;

/// Why a thread waited although a CPU idled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// It may not run on any CPU that idled.
    Affinity,
    /// It was woken, or made, onto a busy queue while the other CPU was idle already.
    Placement,
    /// The CPU went idle later, and nobody moved the thread there for more than a tick.
    Balancing,
    /// The same for less than a tick: the kernel's balancing looks no more often.
    Transient,
}

/// All reasons.
pub const REASONS: [Reason; 4] = [
    Reason::Affinity,
    Reason::Placement,
    Reason::Balancing,
    Reason::Transient,
];

impl Reason {
    /// Stable word for files.
    pub fn id(self) -> &'static str {
        match self {
            Reason::Affinity => "affinity",
            Reason::Placement => "placement",
            Reason::Balancing => "balancing",
            Reason::Transient => "transient",
        }
    }
}

/// Wasted time between two CPUs for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRow {
    /// The CPU that idled.
    pub idle: CpuId,
    /// The CPU in whose queue the thread waited.
    pub busy: CpuId,
    /// Why.
    pub reason: Reason,
    /// For how long.
    pub ns: Ns,
    /// In how many stretches.
    pub stretches: u64,
    /// The longest of them.
    pub longest_ns: Ns,
}

/// All wasted time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WastedTable {
    /// CPU time wasted per reason, as in [`REASONS`].
    pub by_reason: [Ns; 4],
    /// Of all this what came in turns of less than [`BRIEF_NS`]: in which the CPU idled, while always
    /// somebody waited, be it one thread after another.
    pub brief_ns: Ns,
    /// Pairs of CPUs, largest first.
    pub pairs: Vec<PairRow>,
    /// Time of pairs that were too many to be kept apart.
    pub other_pairs_ns: Ns,
}

impl WastedTable {
    /// Over all reasons.
    pub fn total_ns(&self) -> Ns {
        self.by_reason.iter().sum()
    }
}

/// An affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Class(u32);

impl Class {
    /// May run everywhere.
    pub const ANY: Class = Class(0);
    /// Not told apart any more: never paired.
    pub const UNKNOWN: Class = Class(u32::MAX);
}

#[derive(Clone, Copy, Debug)]
struct Mate {
    tid: Tid,
    began: Ns,
    is_allowed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Idle {
    since: Ns,
    /// Since when it has always had a mate.
    wanted_since: Option<Ns>,
    /// What was wasted since then, but for the pair that lasts.
    wanted_ns: Ns,
    mate: Option<Mate>,
}

impl Idle {
    /// Nobody wants it any more. What was wasted, if the time was brief.
    fn unwanted(&mut self, now: Ns) -> Ns {
        let wasted = std::mem::take(&mut self.wanted_ns);
        let since = self.wanted_since.take();
        match since {
            Some(since) if now.saturating_sub(since) < BRIEF_NS => wasted,
            _ => 0,
        }
    }
}

/// A thread that waits in the queue of `place`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub queued_at: Ns,
    pub place: Place,
    pub class: Class,
    /// It came into the queue by a wake-up or as a new thread.
    pub is_woken: bool,
    mate: Option<Place>,
}

impl Waiter {
    pub fn new(queued_at: Ns, place: Place, class: Class, is_woken: bool) -> Waiter {
        let mate = None;
        Waiter {
            queued_at,
            place,
            class,
            is_woken,
            mate,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ns: Ns,
    stretches: u64,
    longest_ns: Ns,
}

impl Sum {
    fn add(&mut self, ns: Ns) {
        self.ns += ns;
        self.stretches += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }
}

type Key = (CpuId, CpuId, Reason);

#[derive(Debug)]
pub(crate) struct Wasted {
    tick_ns: Ns,
    sets: Vec<CpuSet>,
    classes: FxHashMap<CpuSet, Class>,
    places: FxHashMap<CpuId, Place>,
    idle: FxHashMap<Place, Idle>,
    waiters: FxHashMap<Tid, Waiter>,
    /// Without an allowed mate.
    idle_open: BTreeSet<Place>,
    /// Without any mate.
    idle_alone: BTreeSet<Place>,
    seeking: Seeking,
    pairs: FxHashMap<Key, Sum>,
    by_reason: [Ns; 4],
    brief_ns: Ns,
    other_pairs_ns: Ns,
    /// Stretches since last asked: thread, for how long.
    settled: Vec<(Tid, Ns)>,
}

impl Wasted {
    pub fn new(tick_ns: Ns) -> Wasted {
        Wasted {
            tick_ns,
            sets: vec![CpuSet::new()],
            classes: FxHashMap::default(),
            places: FxHashMap::default(),
            idle: FxHashMap::default(),
            waiters: FxHashMap::default(),
            idle_open: BTreeSet::new(),
            idle_alone: BTreeSet::new(),
            seeking: Seeking::default(),
            pairs: FxHashMap::default(),
            by_reason: [0; 4],
            brief_ns: 0,
            other_pairs_ns: 0,
            settled: Vec::new(),
        }
    }

    /// The class of an affinity.
    pub fn class(&mut self, cpus: &CpuSet) -> Class {
        if let Some(&class) = self.classes.get(cpus) {
            return class;
        }
        if self.sets.len() >= CLASSES_MAX || cpus.is_empty() {
            return Class::UNKNOWN;
        }
        let class = Class(self.sets.len() as u32);
        self.sets.push(cpus.clone());
        self.classes.insert(cpus.clone(), class);
        class
    }

    /// Whether the class has but one CPU.
    pub fn is_pinned(&self, class: Class) -> bool {
        let set = self.sets.get(class.0 as usize);
        class != Class::ANY && set.is_some_and(|set| set.first() == set.last())
    }

    /// It is where alone it may run.
    fn is_stuck(&self, waiter: &Waiter) -> bool {
        self.is_pinned(waiter.class) && self.allows(waiter.class, waiter.place.3)
    }

    fn allows(&self, class: Class, cpu: CpuId) -> bool {
        class == Class::ANY
            || self
                .sets
                .get(class.0 as usize)
                .is_some_and(|set| set.contains(cpu))
    }

    /// The CPU has nobody to run.
    pub fn cpu_idle(&mut self, now: Ns, place: Place) {
        if self.idle.contains_key(&place) {
            return;
        }
        self.places.insert(place.3, place);
        self.order_waiters();
        let idle = Idle {
            since: now,
            wanted_since: None,
            wanted_ns: 0,
            mate: None,
        };
        self.idle.insert(place, idle);
        self.idle_open.insert(place);
        self.idle_alone.insert(place);
        self.pair_idle(now, place);
    }

    /// The CPU runs somebody, or will at once.
    pub fn cpu_busy(&mut self, now: Ns, place: Place) {
        if !self.idle.contains_key(&place) {
            return;
        }
        let mate = self.part(now, place);
        if let Some(mut idle) = self.idle.remove(&place) {
            self.brief_ns += idle.unwanted(now);
        }
        self.idle_open.remove(&place);
        self.idle_alone.remove(&place);
        if let Some(tid) = mate {
            self.pair_waiter(now, tid);
        }
    }

    /// The thread waits behind another.
    pub fn wait(&mut self, now: Ns, tid: Tid, waiter: Waiter) {
        self.wait_no_more(now, tid);
        if waiter.class == Class::UNKNOWN {
            return;
        }
        self.waiters.insert(tid, waiter);
        self.open_waiter(tid);
        self.seeking.alone(waiter.queued_at, tid);
        self.pair_waiter(now, tid);
    }

    /// The thread runs, or will at once, or is gone.
    pub fn wait_no_more(&mut self, now: Ns, tid: Tid) {
        let Some(&waiter) = self.waiters.get(&tid) else {
            return;
        };
        if let Some(place) = waiter.mate {
            self.part(now, place);
        }
        self.close_waiter(tid);
        self.seeking.not_alone(waiter.queued_at, tid);
        self.waiters.remove(&tid);
        if self.idle.is_empty() {
            self.seeking.not_needed(self.waiters.len());
        }
        if let Some(place) = waiter.mate {
            self.pair_idle(now, place);
        }
    }

    /// Stretches that ended since the last call: whose, and for how long.
    pub fn take_settled(&mut self) -> std::vec::Drain<'_, (Tid, Ns)> {
        self.settled.drain(..)
    }

    /// What was wasted until `now`, stretches that last included.
    pub fn table(&self, now: Ns) -> WastedTable {
        let (mut pairs, mut by_reason) = (self.pairs.clone(), self.by_reason);
        let mut brief_ns = self.brief_ns;
        for (&place, idle) in &self.idle {
            let mut until_now = *idle;
            if let Some((key, ns)) = self.stretch(now, place, idle) {
                pairs.entry(key).or_default().add(ns);
                by_reason[key.2 as usize] += ns;
                until_now.wanted_ns += ns;
            }
            brief_ns += until_now.unwanted(now);
        }
        let mut pairs: Vec<PairRow> = pairs
            .into_iter()
            .map(|((idle, busy, reason), sum)| PairRow {
                idle,
                busy,
                reason,
                ns: sum.ns,
                stretches: sum.stretches,
                longest_ns: sum.longest_ns,
            })
            .collect();
        pairs.sort_unstable_by_key(|row| {
            (std::cmp::Reverse(row.ns), row.idle, row.busy, row.reason)
        });
        WastedTable {
            by_reason,
            brief_ns,
            pairs,
            other_pairs_ns: self.other_pairs_ns,
        }
    }

    fn pair_idle(&mut self, now: Ns, place: Place) {
        if let Some(tid) = self.waiter_for(place.3) {
            let left = self.waiters[&tid].mate.inspect(|&mate| {
                self.part(now, mate);
            });
            self.join(now, place, tid, true);
            if let Some(left) = left {
                self.pair_idle_anyhow(now, left);
            }
        } else {
            self.pair_idle_anyhow(now, place);
        }
    }

    fn pair_idle_anyhow(&mut self, now: Ns, place: Place) {
        if let Some(tid) = self.seeking.first_alone() {
            self.join(now, place, tid, false);
        } else if let Some(idle) = self.idle.get_mut(&place) {
            self.brief_ns += idle.unwanted(now);
        }
    }

    fn pair_waiter(&mut self, now: Ns, tid: Tid) {
        let Some(&waiter) = self.waiters.get(&tid) else {
            return;
        };
        if let Some(place) = self.idle_for(&waiter) {
            let left = self.part(now, place);
            self.join(now, place, tid, true);
            if let Some(left) = left {
                self.pair_waiter_anyhow(now, left);
            }
        } else {
            self.pair_waiter_anyhow(now, tid);
        }
    }

    fn pair_waiter_anyhow(&mut self, now: Ns, tid: Tid) {
        if let Some(&place) = self.idle_alone.first() {
            self.join(now, place, tid, false);
        }
    }

    /// Threads that may run on few CPUs come first: the others find another more easily.
    fn waiter_for(&self, cpu: CpuId) -> Option<Tid> {
        let mut restricted = self.seeking.restricted().take(SEARCH);
        restricted
            .find(|&(class, _)| self.allows(class, cpu))
            .map(|(_, tid)| tid)
            .or_else(|| self.seeking.anywhere())
    }

    /// The nearest idle CPU, as far as it is found in a few steps.
    fn idle_for(&self, waiter: &Waiter) -> Option<Place> {
        if self.idle_open.is_empty() || self.is_stuck(waiter) {
            return None;
        }
        if waiter.class != Class::ANY {
            let set = &self.sets[waiter.class.0 as usize];
            if set.len() <= SEARCH {
                let places = set.iter().filter_map(|cpu| self.places.get(&cpu));
                return places.copied().find(|place| self.idle_open.contains(place));
            }
        }
        let is_fit = |place: &&Place| self.allows(waiter.class, place.3);
        let up = self
            .idle_open
            .range(waiter.place..)
            .take(SEARCH)
            .find(is_fit);
        let down = self
            .idle_open
            .range(..waiter.place)
            .rev()
            .take(SEARCH)
            .find(is_fit);
        match (up, down) {
            (Some(&up), Some(&down)) => {
                Some(if shared(down, waiter.place) > shared(up, waiter.place) {
                    down
                } else {
                    up
                })
            }
            (found, None) | (None, found) => found.copied(),
        }
    }

    fn join(&mut self, now: Ns, place: Place, tid: Tid, is_allowed: bool) {
        let idle = self
            .idle
            .get_mut(&place)
            .expect("only idle CPUs are paired");
        idle.mate = Some(Mate {
            tid,
            began: now,
            is_allowed,
        });
        idle.wanted_since.get_or_insert(now);
        self.idle_alone.remove(&place);
        let waiter = self
            .waiters
            .get_mut(&tid)
            .expect("only waiting threads are paired");
        waiter.mate = Some(place);
        let queued_at = waiter.queued_at;
        self.seeking.not_alone(queued_at, tid);
        if is_allowed {
            self.idle_open.remove(&place);
            self.close_waiter(tid);
        }
    }

    /// Ends a pair. Both are without a mate afterwards; the thread is given back.
    fn part(&mut self, now: Ns, place: Place) -> Option<Tid> {
        let idle = *self.idle.get(&place)?;
        let mate = idle.mate?;
        let stretch = self.stretch(now, place, &idle);
        if let Some((key, ns)) = stretch {
            self.by_reason[key.2 as usize] += ns;
            self.settled.push((mate.tid, ns));
            self.pairs.entry(key).or_default().add(ns);
            if self.pairs.len() > PAIRS_MAX {
                self.fold_pairs();
            }
        }
        if let Some(idle) = self.idle.get_mut(&place) {
            idle.mate = None;
            idle.wanted_ns += stretch.map_or(0, |(_, ns)| ns);
        }
        self.idle_alone.insert(place);
        self.idle_open.insert(place);
        let waiter = self.waiters.get_mut(&mate.tid).expect("a mate waits");
        waiter.mate = None;
        let queued_at = waiter.queued_at;
        self.seeking.alone(queued_at, mate.tid);
        self.open_waiter(mate.tid);
        Some(mate.tid)
    }

    fn stretch(&self, now: Ns, place: Place, idle: &Idle) -> Option<(Key, Ns)> {
        let mate = idle.mate?;
        let ns = now.saturating_sub(mate.began);
        let waiter = self.waiters.get(&mate.tid)?;
        let wanted_ns = now.saturating_sub(idle.wanted_since.unwrap_or(mate.began));
        let reason = if !mate.is_allowed {
            Reason::Affinity
        } else if waiter.is_woken && idle.since <= waiter.queued_at {
            Reason::Placement
        } else if wanted_ns > self.tick_ns {
            Reason::Balancing
        } else {
            Reason::Transient
        };
        (ns > 0).then_some(((place.3, waiter.place.3, reason), ns))
    }

    fn open_waiter(&mut self, tid: Tid) {
        let waiter = self.waiters[&tid];
        if !self.is_stuck(&waiter) {
            let Waiter {
                class, queued_at, ..
            } = waiter;
            self.seeking.open(class, queued_at, tid);
        }
    }

    fn close_waiter(&mut self, tid: Tid) {
        let Waiter {
            class, queued_at, ..
        } = self.waiters[&tid];
        self.seeking.close(class, queued_at, tid);
    }

    /// Before a CPU idles.
    fn order_waiters(&mut self) {
        let mut seeking = std::mem::take(&mut self.seeking);
        let waiters = self.waiters.iter();
        seeking.needed(waiters.map(|(&tid, waiter)| {
            let class = (!self.is_stuck(waiter)).then_some(waiter.class);
            (class, waiter.queued_at, tid)
        }));
        self.seeking = seeking;
    }

    /// Keeps the larger half of the pairs.
    fn fold_pairs(&mut self) {
        let mut sizes: Vec<Ns> = self.pairs.values().map(|sum| sum.ns).collect();
        let middle = sizes.len() / 2;
        let limit = *sizes.select_nth_unstable(middle).1;
        let other = &mut self.other_pairs_ns;
        self.pairs.retain(|_, sum| {
            let is_kept = sum.ns > limit;
            *other += if is_kept { 0 } else { sum.ns };
            is_kept
        });
    }
}

/// How many levels two CPUs share, from the node inwards.
fn shared(a: Place, b: Place) -> u32 {
    match (a.0 == b.0, a.1 == b.1, a.2 == b.2) {
        (true, true, true) => 3,
        (true, true, false) => 2,
        (true, ..) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
