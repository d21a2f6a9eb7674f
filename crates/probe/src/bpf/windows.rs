//! Recordings with gaps: between windows in which all hooks are attached there are stretches in which only samples, forks
//! and exits are seen. What is known of the end of a gap is what the window after it tells: whose first event is a
//! wake-up was asleep, who first comes on a CPU was in its queue, who first leaves one had it.

use amdahl_speedup::event::{CpuId, Event, Ns, Occupant, Tid};
use rustc_hash::FxHashMap;

use super::decode::occupant;
use super::wire::{Slot, Stack, flag, kind, stack_kind};

/// A stretch in which not all hooks were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Begin.
    pub from: Ns,
    /// End; `Ns::MAX` while it goes on.
    pub to: Ns,
}

impl Gap {
    fn has(self, ts: Ns) -> bool {
        ts > self.from && ts < self.to
    }
}

/// Hooks that are always attached write these.
fn is_always_told(slot: &Slot) -> bool {
    matches!(slot.kind, kind::FORK | kind::COMM | kind::EXIT)
}

/// Forgets what hooks told that were attached while others were not (any more, or yet).
pub fn forget_gaps(ring: &mut Vec<Slot>, gaps: &[Gap]) {
    if gaps.is_empty() {
        return;
    }
    ring.retain(|slot| {
        let at = gaps.partition_point(|gap| gap.to <= slot.ts);
        is_always_told(slot) || !gaps.get(at).is_some_and(|gap| gap.has(slot.ts))
    });
}

/// Calls `each` with the slots of each window.
pub fn each_window(mut ring: &mut [Slot], gaps: &[Gap], mut each: impl FnMut(&mut [Slot])) {
    for gap in gaps {
        let until = ring.partition_point(|slot| slot.ts <= gap.from);
        let (window, rest) = ring.split_at_mut(until);
        each(window);
        ring = rest;
    }
    each(ring);
}

/// What is first seen of a thread in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// It leaves a CPU, ends, or did not exist before.
    Else,
    /// It comes on this CPU, or moves to its queue.
    Comes(CpuId),
    /// It is woken.
    Wakes,
}

/// What is known of the end of `gap` by the window until `end`. `stacks` are in the order of time.
pub fn found(rings: &[Vec<Slot>], stacks: &[Stack], gap: Gap, end: Ns) -> Vec<Event> {
    let ts = gap.to;
    let mut firsts: FxHashMap<Tid, (Ns, First)> = FxHashMap::default();
    let mut owners: FxHashMap<CpuId, (Ns, Occupant)> = FxHashMap::default();
    let mut first = |tid: Tid, at: Ns, what: First| {
        let known = firsts.entry(tid).or_insert((at, what));
        if at < known.0 {
            *known = (at, what);
        }
    };
    for ring in rings {
        let window = ring.partition_point(|slot| slot.ts < ts);
        for slot in ring[window..].iter().take_while(|slot| slot.ts <= end) {
            let has = |flag: u8| slot.flags & flag != 0;
            match slot.kind {
                kind::SWITCH => {
                    let prev = occupant(slot.tid, has(flag::PREV_WORKLOAD));
                    let owner = owners.entry(slot.cpu).or_insert((slot.ts, prev));
                    if slot.ts < owner.0 {
                        *owner = (slot.ts, prev);
                    }
                    if has(flag::PREV_WORKLOAD) {
                        first(slot.tid, slot.ts, First::Else);
                    }
                    if has(flag::NEXT_WORKLOAD) {
                        first(slot.other, slot.ts, First::Comes(slot.cpu));
                    }
                }
                kind::WAKE => first(slot.tid, slot.ts, First::Wakes),
                kind::MIGRATE => first(slot.tid, slot.ts, First::Comes(slot.cpu)),
                kind::FORK | kind::EXIT => first(slot.tid, slot.ts, First::Else),
                _ => {}
            }
        }
    }
    // Who has a CPU for the whole window leaves no event, but samples.
    let samples = stacks.partition_point(|stack| stack.ts < ts);
    let samples = stacks[samples..].iter().take_while(|stack| stack.ts <= end);
    for sample in samples.filter(|stack| stack.kind == stack_kind::TIME) {
        owners
            .entry(sample.cpu)
            .or_insert((sample.ts, Occupant::Workload(sample.tid)));
    }
    let mut events: Vec<Event> = owners
        .into_iter()
        .map(|(cpu, (_, by))| Event::Occupied { ts, cpu, by })
        .collect();
    events.extend(firsts.into_iter().filter_map(|(tid, (_, what))| {
        Some(match what {
            First::Else => return None,
            First::Comes(cpu) => Event::Runnable { ts, tid, cpu },
            First::Wakes => Event::Asleep { ts, tid },
        })
    }));
    // The same recording gives the same events.
    events.sort_by_key(|event| match *event {
        Event::Occupied { cpu, .. } => (0, cpu),
        Event::Runnable { tid, .. } => (1, tid),
        Event::Asleep { tid, .. } => (2, tid),
        _ => (3, 0),
    });
    events
}

#[cfg(test)]
mod tests {
    use super::super::decode::{Decoded, Decoder};
    use super::super::drain::Part;
    use super::*;

    fn switch(ts: Ns, cpu: CpuId, tid: Tid, other: Tid) -> Slot {
        let ours = |tid: Tid, flag: u8| if (1..100).contains(&tid) { flag } else { 0 };
        Slot {
            kind: kind::SWITCH,
            ts,
            cpu,
            tid,
            other,
            flags: ours(tid, flag::PREV_WORKLOAD) | ours(other, flag::NEXT_WORKLOAD),
            ..Slot::default()
        }
    }

    fn slot(kind: u8, ts: Ns, cpu: CpuId, tid: Tid) -> Slot {
        Slot {
            kind,
            ts,
            cpu,
            tid,
            ..Slot::default()
        }
    }

    const GAP: Gap = Gap { from: 100, to: 200 };

    #[test]
    fn the_first_events_of_a_window_tell_how_it_began() {
        let rings = [
            vec![
                switch(50, 0, 9, 8),
                // Thread 1 had CPU 0, 2 waited for it in the queue, 3 slept.
                switch(210, 0, 1, 2),
                slot(kind::WAKE, 220, 0, 3),
                switch(230, 0, 2, 3),
                // Born in the window.
                slot(kind::FORK, 240, 0, 5),
                switch(250, 0, 3, 5),
                // Of the next window.
                slot(kind::WAKE, 500, 0, 7),
            ],
            vec![
                // A stranger had CPU 1. Thread 4 was pulled to it from another queue.
                slot(kind::MIGRATE, 215, 1, 4),
                switch(225, 1, 1000, 4),
                // Thread 1 was on CPU 0 before that.
                slot(kind::WAKE, 245, 1, 1),
            ],
        ];
        let sample = Stack {
            ts: 260,
            cpu: 2,
            tid: 6,
            kind: stack_kind::TIME,
            ..Stack::default()
        };
        let late = Stack {
            ts: 600,
            cpu: 3,
            ..sample.clone()
        };
        let ts = 200;
        let occupied = |cpu, by| Event::Occupied { ts, cpu, by };
        assert_eq!(
            found(&rings, &[sample, late], GAP, 400),
            [
                occupied(0, Occupant::Workload(1)),
                occupied(1, Occupant::Other(1000)),
                occupied(2, Occupant::Workload(6)),
                Event::Runnable { ts, tid: 2, cpu: 0 },
                Event::Runnable { ts, tid: 4, cpu: 1 },
                Event::Asleep { ts, tid: 3 },
            ]
        );
    }

    #[test]
    fn events_come_with_gaps_and_what_is_known_of_their_ends() {
        let mut part = Part::empty(1, 2_000_000, 1);
        part.slots[0] = vec![
            switch(90, 0, 1, 2),
            slot(kind::WAKE, 100, 0, 1),
            slot(kind::FORK, 150, 0, 3),
            slot(kind::EXIT, 160, 0, 3),
            slot(kind::WAKE, 200, 0, 1),
            switch(210, 0, 2, 1),
        ];
        // A second gap lasts until the end.
        let last = Gap {
            from: 300,
            to: Ns::MAX,
        };
        part.gaps = vec![GAP, last];
        let (mut decoder, mut decoded) = (Decoder::new(), Decoded::default());
        let events = decoder.decode(part, &mut decoded);
        let mut told = Vec::new();
        events.for_each(&decoded, |event| {
            told.push(match *event {
                Event::Switch { ts, .. } => ("switch", ts),
                Event::Wake { ts, .. } => ("wake", ts),
                Event::Fork { ts, .. } => ("fork", ts),
                Event::Exit { ts, .. } => ("exit", ts),
                Event::Gap { ts, until, .. } => {
                    assert!([(100, 200), (300, Ns::MAX)].contains(&(ts, until)));
                    ("gap", ts)
                }
                Event::Occupied { ts, by, .. } => {
                    assert_eq!(by, Occupant::Workload(2));
                    ("occupied", ts)
                }
                Event::Asleep { ts, tid } => {
                    assert_eq!(tid, 1);
                    ("asleep", ts)
                }
                _ => ("other", 0),
            });
        });
        let expected = [
            ("switch", 90),
            ("wake", 100),
            ("gap", 100),
            ("fork", 150),
            ("exit", 160),
            ("occupied", 200),
            ("asleep", 200),
            ("wake", 200),
            ("switch", 210),
            ("gap", 300),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn of_a_gap_only_forks_names_and_exits_are_kept() {
        let mut ring = vec![
            switch(100, 0, 1, 2),
            switch(101, 0, 2, 1),
            slot(kind::FORK, 150, 0, 4),
            slot(kind::EXIT, 160, 0, 4),
            switch(199, 0, 2, 1),
            switch(200, 0, 1, 2),
        ];
        forget_gaps(&mut ring, &[GAP]);
        let left: Vec<Ns> = ring.iter().map(|slot| slot.ts).collect();
        assert_eq!(left, [100, 150, 160, 200]);
        let mut windows = Vec::new();
        each_window(&mut ring, &[GAP], |window| windows.push(window.len()));
        assert_eq!(windows, [1, 3]);
    }
}
