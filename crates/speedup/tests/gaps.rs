//! A run of which only windows were recorded is divided like one that was recorded in full.

use std::collections::BTreeMap;

use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{Blocked, Event, Ns, Occupant, Off, Tid, Waker};
use amdahl_speedup::partition::{Partition, RunPartition};
use proptest::prelude::*;

const US: Ns = 1_000;
const MS: Ns = 1_000_000;
const WINDOW: Ns = 40 * MS;

fn blocked(call: libc::c_long) -> Off {
    Off::Blocked(Blocked {
        syscall: Some(call as u32),
        place: call as u64,
        ..Blocked::default()
    })
}

fn switch(ts: Ns, cpu: u32, prev: Occupant, off: Off, next: Occupant) -> Event {
    Event::Switch {
        ts,
        cpu,
        prev,
        off,
        next,
    }
}

fn wake(ts: Ns, tid: Tid, waker: Waker) -> Event {
    Event::Wake {
        ts,
        tid,
        waker,
        from: None,
    }
}

fn ours(tid: Tid) -> Occupant {
    Occupant::Workload(tid)
}

/// Two threads on two CPUs hand a message to and fro every `half`, the second one slower; a third one waits for them
/// from the beginning to the end. In `quiet` stretches everybody sleeps in between.
fn ping_pong(half: Ns, to: Ns, quiet: impl Fn(Ns) -> bool) -> Vec<Event> {
    let (read, wait) = (libc::SYS_read, libc::SYS_wait4);
    let mut events = vec![
        switch(0, 0, ours(3), blocked(wait), ours(1)),
        switch(1, 1, ours(2), blocked(read), Occupant::Idle),
    ];
    let mut ts = half;
    let pause = |ts| if quiet(ts) { 5 * MS } else { 0 };
    while ts + 4 * half + pause(ts) < to {
        let pause = pause(ts);
        events.extend([
            wake(ts, 2, Waker::Workload(1)),
            switch(ts + US, 0, ours(1), blocked(read), Occupant::Idle),
            switch(ts + 2 * US, 1, Occupant::Idle, Off::Exited, ours(2)),
            switch(ts + 2 * half, 1, ours(2), blocked(read), Occupant::Idle),
            wake(ts + 2 * half + pause + US, 1, Waker::Workload(2)),
        ]);
        ts += 2 * half + pause;
        events.push(switch(ts + 2 * US, 0, Occupant::Idle, Off::Exited, ours(1)));
        ts += half;
    }
    events
}

/// What is known of an instant, by all events before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Runs,
    Queued(u32),
    Sleeps,
    Gone,
}

fn known_at(events: &[Event], at: Ns, cpus: u32) -> Vec<Event> {
    let mut threads: BTreeMap<Tid, Known> = BTreeMap::new();
    let mut owners: BTreeMap<u32, Occupant> = (0..cpus).map(|cpu| (cpu, Occupant::Idle)).collect();
    for event in events.iter().filter(|event| event.ts() < at) {
        match *event {
            Event::Switch {
                cpu,
                prev,
                off,
                next,
                ..
            } => {
                if let Occupant::Workload(tid) = prev {
                    let now = match off {
                        Off::Blocked(_) => Known::Sleeps,
                        Off::Exited => Known::Gone,
                        _ => Known::Queued(cpu),
                    };
                    threads.insert(tid, now);
                }
                if let Occupant::Workload(tid) = next {
                    threads.insert(tid, Known::Runs);
                }
                owners.insert(cpu, next);
            }
            Event::Wake { tid, .. } => {
                if let Some(known @ Known::Sleeps) = threads.get_mut(&tid) {
                    *known = Known::Queued(0);
                }
            }
            _ => {}
        }
    }
    let ts = at;
    let occupied = owners
        .into_iter()
        .map(|(cpu, by)| Event::Occupied { ts, cpu, by });
    let found = threads.into_iter().filter_map(|(tid, known)| match known {
        Known::Queued(cpu) => Some(Event::Runnable { ts, tid, cpu }),
        Known::Sleeps => Some(Event::Asleep { ts, tid }),
        Known::Runs | Known::Gone => None,
    });
    occupied.chain(found).collect()
}

/// The events of the windows between `gaps`, with what is known of the ends of these.
fn recorded(events: &[Event], gaps: &[(Ns, Ns)], cpus: u32) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    let mut at = 0;
    for &(from, to) in gaps {
        all.extend(
            events
                .iter()
                .filter(|e| (at..from).contains(&e.ts()))
                .copied(),
        );
        let window = WINDOW;
        all.push(Event::Gap {
            ts: from,
            until: to,
            window,
        });
        all.extend(known_at(events, to, cpus));
        at = to;
    }
    all.extend(events.iter().filter(|e| e.ts() >= at).copied());
    all
}

fn run(cpus: u32, to: Ns, events: &[Event]) -> RunPartition {
    let occupants: Vec<_> = (0..cpus).map(|cpu| (cpu, Occupant::Idle)).collect();
    let mut partition = Partition::new(0, &occupants);
    for event in events {
        partition.feed(event);
        partition.compact();
    }
    partition.finish(to)
}

fn share(run: &RunPartition, cause: Cause) -> f64 {
    let of_cause = run.off.iter().filter(|(key, _)| key.cause == cause);
    of_cause.map(|(_, charge)| charge.ns).sum::<f64>() / run.capacity_ns()
}

fn assert_complete(run: &RunPartition) {
    let off: f64 = run.off.values().map(|charge| charge.ns).sum();
    let capacity = run.capacity_ns();
    assert!(
        (off + run.on_cpu_ns - capacity).abs() <= 1e-6 * capacity,
        "{off} + {} of {capacity}",
        run.on_cpu_ns
    );
}

/// Gaps of `gap` after windows of `window`.
fn regular(from: Ns, window: Ns, gap: Ns, to: Ns) -> Vec<(Ns, Ns)> {
    let begins = (0..).map(|n| from + n * (window + gap) + window);
    let gaps = begins.map(|begin| (begin, begin + gap));
    gaps.take_while(|(_, end)| *end < to).collect()
}

#[test]
fn windows_stand_for_the_gaps_before_them() {
    let to = 1000 * MS;
    let events = ping_pong(30 * US, to, |_| false);
    let full = run(2, to, &events);
    let windows = run(
        2,
        to,
        &recorded(&events, &regular(0, WINDOW, 80 * MS, to), 2),
    );
    assert_complete(&full);
    assert_complete(&windows);
    assert!(
        (windows.recorded() - 0.36).abs() < 0.01,
        "{}",
        windows.recorded()
    );
    assert!(windows.accounted() > 0.999, "{}", windows.accounted());
    assert!(share(&full, Cause::Partner) > 0.4);
    for cause in Cause::ALL {
        let (full, windows) = (share(&full, cause), share(&windows, cause));
        assert!(
            (full - windows).abs() < 0.002,
            "{cause:?}: {full} {windows}"
        );
    }
    let on = (full.on_cpu_ns, windows.on_cpu_ns);
    assert!((on.0 - on.1).abs() < 0.005 * on.0, "{on:?}");
    assert!(
        windows.threads[&2] > 1.5 * windows.threads[&1],
        "{windows:?}"
    );
}

#[test]
fn a_phase_that_was_recorded_in_full_stands_for_itself() {
    // Half a second of pauses, recorded in full, then half a second without, recorded one third of the time.
    let to = 1020 * MS;
    let events = ping_pong(30 * US, to, |ts| ts < 500 * MS);
    let full = run(2, to, &events);
    let gaps = regular(500 * MS, WINDOW, 80 * MS, to);
    let windows = run(2, to, &recorded(&events, &gaps, 2));
    assert_complete(&windows);
    let on = (full.on_cpu_ns, windows.on_cpu_ns);
    assert!((on.0 - on.1).abs() < 0.02 * on.0, "{on:?}");
}

#[test]
fn a_gap_at_the_end_is_not_accounted_for() {
    let to = 200 * MS;
    let events = ping_pong(30 * US, to, |_| false);
    let windows = run(2, to, &recorded(&events, &[(100 * MS, to)], 2));
    assert_complete(&windows);
    assert_eq!((windows.accounted(), windows.recorded()), (0.5, 0.5));
}

#[test]
fn threads_come_and_go_in_a_gap() {
    let ts = 50 * MS;
    let fork = |ts, child| Event::Fork {
        ts,
        parent: 1,
        child,
        pid: child,
        cpu: 0,
    };
    let mut partition = Partition::new(0, &[(0, ours(1)), (1, Occupant::Idle)]);
    let events = [
        fork(MS, 4),
        Event::Gap {
            ts: 10 * MS,
            until: ts,
            window: WINDOW,
        },
        // One that sleeps afterwards, one that runs, one that has ended, and one of which nothing is heard.
        fork(20 * MS, 2),
        fork(21 * MS, 3),
        fork(22 * MS, 5),
        fork(23 * MS, 6),
        Event::Exit {
            ts: 30 * MS,
            tid: 4,
        },
        Event::Exit {
            ts: 31 * MS,
            tid: 5,
        },
        Event::Occupied {
            ts,
            cpu: 0,
            by: ours(3),
        },
        Event::Asleep { ts, tid: 1 },
        Event::Asleep { ts, tid: 2 },
        switch(ts + WINDOW, 0, ours(3), Off::Exited, Occupant::Idle),
    ];
    for event in &events {
        partition.feed(event);
    }
    let run = partition.finish(ts + WINDOW);
    assert_complete(&run);
    assert_eq!(run.threads[&1], (10 * MS) as f64);
    // 40 ms of the gap and 40 of the window.
    assert_eq!(run.threads[&3], (80 * MS) as f64);
    // Thread 4 stood in the queue behind thread 1 while CPU 1 was idle; of the others nobody is runnable.
    let placement = share(&run, Cause::Placement) * run.capacity_ns();
    assert!(
        (8.9 * MS as f64..9.0 * MS as f64).contains(&placement),
        "{placement}"
    );
    assert!(share(&run, Cause::Unexplained) > 0.4, "{run:?}");
}

/// A thread is on its way to its last switch when a gap begins, in which it makes that. Once, it was taken to sleep from then
/// on, as it had slept before, and shared in the time of those who did wait.
#[test]
fn a_thread_that_ends_across_the_begin_of_a_gap_is_gone() {
    for blocks_at_its_end in [false, true] {
        let (ts, to) = (50 * MS, 50 * MS + WINDOW);
        let cpus = [(0, ours(1)), (1, ours(2)), (2, Occupant::Idle)];
        let mut partition = Partition::new(0, &cpus);
        let mut events = vec![
            // Both have waited before.
            switch(MS, 0, ours(1), blocked(libc::SYS_read), Occupant::Idle),
            switch(MS, 1, ours(2), blocked(libc::SYS_read), Occupant::Idle),
            wake(2 * MS, 2, Waker::Workload(3)),
            switch(2 * MS, 1, Occupant::Idle, Off::Exited, ours(2)),
            Event::Exit { ts: 9 * MS, tid: 2 },
        ];
        if blocks_at_its_end {
            // For the address space, say.
            events.push(switch(
                9 * MS,
                1,
                ours(2),
                blocked(libc::SYS_exit),
                Occupant::Idle,
            ));
        }
        events.push(Event::Gap {
            ts: 10 * MS,
            until: ts,
            window: WINDOW,
        });
        events.push(Event::Asleep { ts, tid: 1 });
        events.push(wake(to, 1, Waker::Workload(3)));
        for event in &events {
            partition.feed(event);
        }
        let run = partition.finish(to);
        assert_complete(&run);
        let of_gone = run.off.iter().filter(|(key, _)| key.tid == 2);
        let of_gone: f64 = of_gone.map(|(_, charge)| charge.ns).sum();
        // Before the gap at most: a millisecond of waiting, and one on the way out.
        assert!(of_gone <= (3 * MS) as f64, "{of_gone}: {run:?}");
    }
}

/// Who waits for a peer stands back when it has waited for 20 ms, which is looked at then and again after 100 ms. In a gap nobody
/// looks: once, a wait longer than both kept its place before shorter ones for good, if the gap hid both looks.
#[test]
fn a_long_wait_stands_back_after_a_gap_that_hid_it() {
    let (wait, lock) = (libc::SYS_read, libc::SYS_futex);
    let to = 700 * MS;
    let cpus = [(0, ours(1)), (1, ours(2))];
    let mut partition = Partition::new(0, &cpus);
    let mut events = vec![
        switch(9 * MS, 0, ours(1), blocked(wait), ours(3)),
        Event::Gap {
            ts: 10 * MS,
            until: 300 * MS,
            window: WINDOW,
        },
        Event::Occupied {
            ts: 300 * MS,
            cpu: 0,
            by: ours(3),
        },
        Event::Occupied {
            ts: 300 * MS,
            cpu: 1,
            by: ours(2),
        },
        // From here on there is one idle CPU for two who wait.
        switch(300 * MS + WINDOW, 1, ours(2), blocked(lock), Occupant::Idle),
        wake(to - MS, 2, Waker::Workload(3)),
        wake(to - MS, 1, Waker::Workload(3)),
    ];
    events.push(switch(
        to - MS,
        0,
        ours(3),
        Off::Exited,
        Occupant::Other(91),
    ));
    for event in &events {
        partition.feed(event);
    }
    let run = partition.finish(to);
    assert_complete(&run);
    let of = |tid: Tid| {
        let charges = run.off.iter().filter(|(key, _)| key.tid == tid);
        charges.map(|(_, charge)| charge.ns).sum::<f64>()
    };
    let shared = (to - MS - 300 * MS - WINDOW) as f64;
    assert!(of(2) > 0.99 * shared, "{} of {shared}: {run:?}", of(2));
}

/// The same seen from the other side: a gap alone does not make a wait long.
#[test]
fn a_short_wait_does_not_stand_back_because_of_a_gap() {
    let (from, to) = (80 * MS, 90 * MS);
    let cpus = [(0, ours(1)), (1, ours(2))];
    let mut partition = Partition::new(0, &cpus);
    let events = [
        switch(9 * MS, 0, ours(1), blocked(libc::SYS_read), ours(3)),
        Event::Gap {
            ts: 10 * MS,
            until: from,
            window: WINDOW,
        },
        Event::Occupied {
            ts: from,
            cpu: 0,
            by: ours(3),
        },
        Event::Occupied {
            ts: from,
            cpu: 1,
            by: Occupant::Idle,
        },
        // It is woken in the window: it had slept for as long as threads do here, and not since the gap began.
        Event::Asleep { ts: from, tid: 1 },
        Event::Asleep { ts: from, tid: 2 },
        wake(to - MS, 1, Waker::Workload(3)),
        wake(to - MS, 2, Waker::Workload(3)),
    ];
    for event in &events {
        partition.feed(event);
    }
    let run = partition.finish(to);
    assert_complete(&run);
    let of = |tid: Tid| {
        // Not what they stood in a queue after that.
        let waits = run.off.iter();
        let waits = waits.filter(|(key, _)| key.cause != Cause::Placement);
        let charges = waits.filter(|(key, _)| key.tid == tid);
        charges.map(|(_, charge)| charge.ns).sum::<f64>()
    };
    // Of the one idle CPU each has a half.
    assert!(of(1) > 0.0, "{run:?}");
    assert_eq!(of(1), of(2), "{run:?}");
}

/// What is known of the whole run counts as far as the run is accounted for.
#[test]
fn of_a_quota_counts_what_is_accounted_for() {
    let to = 200 * MS;
    let cpus = [(0, ours(1)), (1, ours(2))];
    let mut partition = Partition::new(0, &cpus);
    let events = [
        switch(20 * MS, 0, ours(1), Off::Preempted, Occupant::Idle),
        Event::Gap {
            ts: 100 * MS,
            until: to,
            window: WINDOW,
        },
        Event::Throttled {
            ts: to,
            window: to,
            ns: 60 * MS,
        },
    ];
    for event in &events {
        partition.feed(event);
    }
    let run = partition.finish(to);
    assert_complete(&run);
    assert_eq!(run.accounted(), 0.5);
    let stolen = share(&run, Cause::Stolen) * run.capacity_ns();
    assert!((stolen - (30 * MS) as f64).abs() < 1.0, "{stolen}");
}

fn arbitrary_event() -> impl Strategy<Value = Event> {
    let occupant = prop_oneof![
        Just(Occupant::Idle),
        (1..6u32).prop_map(Occupant::Workload),
        (90..93u32).prop_map(Occupant::Other),
    ];
    let reason = prop_oneof![
        Just(Off::Preempted),
        Just(Off::Exited),
        Just(blocked(libc::SYS_read)),
        Just(blocked(libc::SYS_futex)),
        Just(blocked(libc::SYS_wait4)),
        Just(blocked(99_999)),
    ];
    let waker = prop_oneof![
        (1..6u32).prop_map(Waker::Workload),
        Just(Waker::Timer),
        Just(Waker::Other(90)),
    ];
    let tid = || 1..6u32;
    prop_oneof![
        6 => (0..3u32, occupant.clone(), reason, occupant.clone())
            .prop_map(|(cpu, prev, off, next)| switch(0, cpu, prev, off, next)),
        3 => (tid(), waker).prop_map(|(tid, waker)| wake(0, tid, waker)),
        1 => (tid(), tid(), 0..3u32).prop_map(|(parent, child, cpu)| Event::Fork {
            ts: 0, parent, child, pid: child, cpu
        }),
        2 => (0..200 * MS, 0..50 * MS)
            .prop_map(|(until, window)| Event::Gap { ts: 0, until, window }),
        1 => (0..3u32, occupant).prop_map(|(cpu, by)| Event::Occupied { ts: 0, cpu, by }),
        1 => (tid(), 0..3u32).prop_map(|(tid, cpu)| Event::Runnable { ts: 0, tid, cpu }),
        1 => tid().prop_map(|tid| Event::Asleep { ts: 0, tid }),
        1 => tid().prop_map(|tid| Event::Exit { ts: 0, tid }),
    ]
}

/// The same at `when`; gaps last for their `until`.
fn at(mut event: Event, when: Ns) -> Event {
    if let Event::Gap { ts, until, .. } = &mut event {
        *until += when;
        *ts = when;
    }
    match &mut event {
        Event::Switch { ts, .. }
        | Event::Wake { ts, .. }
        | Event::Fork { ts, .. }
        | Event::Occupied { ts, .. }
        | Event::Runnable { ts, .. }
        | Event::Asleep { ts, .. }
        | Event::Exit { ts, .. } => *ts = when,
        _ => {}
    }
    event
}

proptest! {
    /// Whatever comes, contradictory as it may be, and also within gaps: nothing is charged twice, nothing is negative,
    /// and what is accounted for is charged to somebody.
    #[test]
    fn any_events_with_gaps_are_partitioned_exclusively(
        events in prop::collection::vec((arbitrary_event(), 0..20 * MS), 0..150)
    ) {
        let mut now = 0;
        let events: Vec<Event> = events
            .into_iter()
            .map(|(event, dt)| {
                now += dt;
                at(event, now)
            })
            .collect();
        let run = run(3, now + MS, &events);
        let capacity = run.capacity_ns();
        let off: f64 = run.off.values().map(|charge| charge.ns).sum();
        for (key, charge) in &run.off {
            prop_assert!(charge.ns >= -1e-3, "{key:?} {charge:?}");
        }
        let free = run.idle_ns + run.other_ns;
        prop_assert!((off - free).abs() <= 1e-6 * capacity.max(1.0), "{off} of {free}");
        prop_assert!(free <= capacity * (1.0 + 1e-9) + 1.0, "{free} of {capacity}");
        prop_assert!((0.0..=1.0).contains(&run.accounted()), "{}", run.accounted());
        prop_assert!((0.0..=1.0).contains(&run.recorded()), "{}", run.recorded());
    }

    /// Wherever the gaps are: a run that does the same all the time is divided like the whole.
    #[test]
    fn where_gaps_are_does_not_matter(
        lengths in prop::collection::vec((WINDOW..3 * WINDOW, MS..200 * MS), 1..6),
        half in 20 * US..200 * US,
    ) {
        let mut gaps = Vec::new();
        let mut now = 0;
        for (window, gap) in lengths {
            gaps.push((now + window, now + window + gap));
            now += window + gap;
        }
        let to = now + WINDOW;
        let events = ping_pong(half, to, |_| false);
        let (full, windows) = (run(2, to, &events), run(2, to, &recorded(&events, &gaps, 2)));
        prop_assert!(windows.accounted() > 0.999_999, "{}", windows.accounted());
        for cause in Cause::ALL {
            let (full, windows) = (share(&full, cause), share(&windows, cause));
            prop_assert!((full - windows).abs() < 0.03, "{cause:?}: {full} {windows}");
        }
    }
}
