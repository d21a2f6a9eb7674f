//! Waits that the end of a thread ended.
//!
//! `pthread_join` says by itself what it is. Runtimes build theirs on conditions (Java's
//! `Thread.join`, pools that wait for their last worker, futures): those are told by a waker
//! that ends soon after.

use amdahl_speedup::event::{Ns, Tid};
use rustc_hash::{FxHashMap, FxHashSet};

use super::wire::{Slot, flag, kind};

/// A thread that ends takes this long for it, at most: who it woke may preempt it, and others
/// that end hold locks that it needs.
const ENDING_NS: Ns = 10_000_000;

/// The sleeps in futexes, by thread and begin, whose waker ended right after.
pub(super) fn joins(rings: &[Vec<Slot>]) -> FxHashSet<(Tid, Ns)> {
    let slots = || rings.iter().flatten();
    let has = |slot: &Slot, flag: u8| slot.flags & flag != 0;
    let offs = || slots().filter(|slot| slot.kind == kind::SWITCH);
    let ends: FxHashMap<Tid, Ns> = offs()
        .filter(|slot| has(slot, flag::PREV_EXITED))
        .chain(slots().filter(|slot| slot.kind == kind::EXIT))
        .map(|slot| (slot.tid, slot.ts))
        .collect();
    // The last time that one of them woke somebody.
    let mut last_wakes: FxHashMap<(Tid, Tid), Ns> = FxHashMap::default();
    for slot in slots().filter(|slot| slot.kind == kind::WAKE && has(slot, flag::WAKER_WORKLOAD)) {
        if ends.contains_key(&slot.other) {
            let last = last_wakes.entry((slot.other, slot.tid)).or_default();
            *last = slot.ts.max(*last);
        }
    }
    last_wakes.retain(|(waker, _), wake| wake.saturating_add(ENDING_NS) >= ends[waker]);
    let mut sleeps: FxHashMap<Tid, Vec<(Ns, bool)>> = FxHashMap::default();
    for (_, woken) in last_wakes.keys() {
        sleeps.entry(*woken).or_default();
    }
    for slot in offs() {
        if let Some(sleeps) = sleeps.get_mut(&slot.tid) {
            let in_futex = i64::from(slot.syscall) == libc::SYS_futex;
            sleeps.push((slot.ts, in_futex));
        }
    }
    for sleeps in sleeps.values_mut() {
        sleeps.sort_unstable();
    }
    let joins = last_wakes.into_iter().filter_map(|((_, woken), wake)| {
        let sleeps = &sleeps[&woken];
        let before = sleeps.partition_point(|&(slept, _)| slept < wake);
        let (slept, in_futex) = sleeps[..before].last()?;
        in_futex.then_some((woken, *slept))
    });
    joins.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(kind: u8, ts: Ns, tid: Tid, other: Tid, flags: u8) -> Slot {
        Slot {
            kind,
            ts,
            tid,
            other,
            flags,
            syscall: libc::SYS_futex as i32,
            ..Slot::default()
        }
    }

    #[test]
    fn a_waker_that_ends_was_waited_for() {
        const MS: Ns = 1_000_000;
        let (main, worker, other) = (1, 2, 3);
        let sleep = |ts, tid| slot(kind::SWITCH, ts, tid, 0, flag::PREV_WORKLOAD);
        let wake = |ts, tid, by| slot(kind::WAKE, ts, tid, by, flag::WAKER_WORKLOAD);
        let end = |ts, tid| slot(kind::SWITCH, ts, tid, 0, flag::PREV_EXITED);
        let rings = vec![
            vec![sleep(MS, main), sleep(5 * MS, main), end(20 * MS, worker)],
            vec![
                // Handed something over long before it ended.
                wake(2 * MS, main, worker),
                // Woken by one that lives on.
                sleep(6 * MS, other),
                wake(7 * MS, other, main),
                // Preempted on its way out.
                wake(12 * MS, main, worker),
                slot(kind::SWITCH, 13 * MS, worker, main, flag::PREV_RUNNABLE),
            ],
        ];
        let found: Vec<(Tid, Ns)> = joins(&rings).into_iter().collect();
        assert_eq!(found, [(main, 5 * MS)]);
    }
}
