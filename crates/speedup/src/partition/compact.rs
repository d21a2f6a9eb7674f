//! What a long run gathers, in bounded memory.
//!
//! Totals by cause never change here. What is given up is who exactly lost how much: first the
//! threads that are gone become one, then all threads, then single locks and strangers.

use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};

use super::waits::Futex;
use super::{Charge, HYPERVISOR, INTERRUPTS, Partition, QUOTA, State};
use crate::cause::Cause;
use crate::event::Tid;
use crate::wait::Resolved;

/// Entries that each table may keep.
const ENTRIES_MAX: usize = 1 << 17;

impl Partition {
    /// Folds tables that have grown too large. To be called now and then in a long run.
    /// Cost: O(entries).
    pub fn compact(&mut self) {
        self.compact_to(ENTRIES_MAX);
    }

    /// The same with another limit, for tests.
    #[doc(hidden)]
    pub fn compact_to(&mut self, entries: usize) {
        self.threads
            .retain(|_, thread| !matches!(thread.state, State::Gone));
        self.queues.retain(|_, queue| !queue.is_empty());
        self.settle_places(entries);
        let threads = &self.threads;
        let alive = |tid: Tid| threads.contains_key(&tid);
        let out = &mut self.out;
        fold(&mut out.off, entries, |mut key, how| {
            key.tid = how.thread(key.tid, alive);
            let special = [QUOTA, HYPERVISOR, INTERRUPTS].contains(&key.object);
            if how == How::Objects && !special {
                key.object = 0;
            }
            key
        });
        fold(&mut out.on, entries, |(activity, tid, stack), how| {
            (activity, how.thread(tid, alive), stack)
        });
        fold(&mut out.spun, entries, |lock, how| match how {
            How::Objects => 0,
            _ => lock,
        });
        fold(&mut out.spun_at, entries, |(lock, tid, stack), how| {
            let lock = if how == How::Objects { 0 } else { lock };
            (lock, how.thread(tid, alive), stack)
        });
        for weights in [&mut self.serial_weights, &mut self.placement_weights] {
            fold(weights, entries, |(tid, stack), how| {
                (how.thread(tid, alive), stack)
            });
        }
        fold(&mut out.instructions, entries, |(tid, stack), how| {
            (how.thread(tid, alive), stack)
        });
        fold(&mut out.threads, entries, |tid, how| how.thread(tid, alive));
        if self.out.processes.len() > entries {
            let told = self.told();
            self.out.processes.retain(|tid, _| told.contains(tid));
        }
    }

    /// Threads that live or that a table tells of, of the workload and of others. Cost: O(entries).
    pub fn told(&self) -> FxHashSet<Tid> {
        let out = &self.out;
        let mut told: FxHashSet<Tid> = self.threads.keys().copied().collect();
        for key in out.off.keys() {
            told.insert(key.tid);
            // A lock's address is no thread, and does no harm.
            told.extend(Tid::try_from(key.object));
        }
        told.extend(out.on.keys().map(|&(_, tid, _)| tid));
        told.extend(out.spun_at.keys().map(|&(_, tid, _)| tid));
        told.extend(out.instructions.keys().map(|&(tid, _)| tid));
        for weights in [&self.serial_weights, &self.placement_weights] {
            told.extend(weights.keys().map(|&(tid, _)| tid));
        }
        told.extend(out.stretches.iter().map(|stretch| stretch.tid));
        told
    }

    /// Charges finished waits to the stacks of their places, and forgets places and futexes that
    /// nobody waits at.
    fn settle_places(&mut self, entries: usize) {
        let sizes = [self.pending.len(), self.places.len(), self.futexes.len()];
        if sizes.iter().all(|&size| size <= entries) {
            return;
        }
        // Workers without a task are settled with their crew, at the end.
        for (key, charge) in std::mem::take(&mut self.pending) {
            match key.resolved {
                Resolved::Cause(cause) => self.put_wait(&key, cause, charge, 1.0),
                Resolved::Futex => {
                    self.put_wait(&key, self.futex_cause(key.futex), charge, 1.0);
                }
                Resolved::AsOthers => {
                    self.pending.insert(key, charge);
                }
            }
        }
        let (mut places, mut futexes) = (FxHashSet::default(), FxHashSet::default());
        for thread in self.threads.values() {
            if let State::Waiting(waiting)
            | State::Queued {
                ending: Some(waiting),
                ..
            } = thread.state
            {
                places.insert(waiting.place);
                futexes.insert(waiting.futex());
            }
        }
        self.places.retain(|place, _| places.contains(place));
        self.futexes.retain(|futex, _| futexes.contains(futex));
    }

    /// What a futex without a name was used for, as far as it was seen.
    pub(super) fn futex_cause(&self, futex: Futex) -> Cause {
        let used = self.futexes.get(&futex);
        used.map_or(Cause::Partner, |(used, _, _)| used.cause())
    }
}

/// What is given up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// Threads that are gone are one.
    Gone,
    /// All threads are one.
    Threads,
    /// Locks and strangers are one, too.
    Objects,
}

impl How {
    fn thread(self, tid: Tid, alive: impl Fn(Tid) -> bool) -> Tid {
        if self > How::Gone || !alive(tid) {
            0
        } else {
            tid
        }
    }
}

/// What two entries become that are one from now on.
trait Merge: Default {
    fn merge(&mut self, other: Self);
}

impl Merge for Charge {
    fn merge(&mut self, other: Charge) {
        self.ns += other.ns;
        self.count += other.count;
    }
}

impl Merge for f64 {
    fn merge(&mut self, other: f64) {
        *self += other;
    }
}

impl Merge for u64 {
    fn merge(&mut self, other: u64) {
        *self += other;
    }
}

/// Gives up as much as is needed to have room again.
fn fold<K: Eq + Hash + Copy, V: Merge>(
    table: &mut FxHashMap<K, V>,
    entries: usize,
    rename: impl Fn(K, How) -> K,
) {
    if table.len() <= entries {
        return;
    }
    for how in [How::Gone, How::Threads, How::Objects] {
        for (key, value) in std::mem::take(table) {
            table.entry(rename(key, how)).or_default().merge(value);
        }
        if table.len() <= entries / 2 {
            return;
        }
    }
}
