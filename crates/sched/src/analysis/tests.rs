use proptest::prelude::*;

use super::*;
use crate::columns::Cell;
use crate::timelines::{Spent, Timeline};
use crate::wasted::Reason;

const US: Ns = 1_000;
const MS: Ns = 1_000_000;

fn machine() -> Topology {
    Topology::synthetic("2 node x 1 llc x 2 core x 2 thread").unwrap()
}

fn analysis() -> Analysis {
    Analysis::new(Settings {
        begin: Some(0),
        ..Settings::new(machine())
    })
}

const BLOCKED: Off = Off::Blocked {
    in_iowait: false,
    uninterruptible: false,
};

fn switch(ts: Ns, cpu: CpuId, prev: Tid, off: Off, next: Tid) -> Event {
    Event::Switch {
        ts,
        cpu,
        prev,
        off,
        next,
    }
}

fn waking(ts: Ns, tid: Tid, waker: Waker, last_cpu: CpuId) -> Event {
    Event::Waking {
        ts,
        tid,
        waker,
        cpu: 0,
        last_cpu,
    }
}

fn named(tid: Tid, name: &str) -> Event {
    Event::Thread {
        ts: 0,
        tid,
        pid: 1,
        is_kernel: false,
        name: name.into(),
    }
}

fn run(events: &[Event], end: Ns) -> Outcome {
    let mut analysis = analysis();
    events.iter().for_each(|event| analysis.event(event));
    analysis.outcome(end)
}

fn row(outcome: &Outcome, tid: Tid) -> &ThreadRow {
    outcome.threads.iter().find(|row| row.tid == tid).unwrap()
}

#[test]
fn latencies_and_slices_of_a_wake_up() {
    let outcome = run(
        &[
            named(5, "worker"),
            named(6, "client"),
            switch(MS, 0, 6, Off::Preempted, 9),
            waking(2 * MS, 5, Waker::Thread(9), 1),
            switch(2 * MS + 30 * US, 1, 0, BLOCKED, 5),
            switch(4 * MS, 0, 9, BLOCKED, 6),
            switch(5 * MS, 1, 5, BLOCKED, 0),
        ],
        10 * MS,
    );
    let (five, six) = (row(&outcome, 5), row(&outcome, 6));
    assert_eq!((five.run_ns, five.blocked), (5 * MS - 2 * MS - 30 * US, 1));
    assert_eq!(
        (five.wake_wait.count(), five.wake_wait.max_ns()),
        (1, 30 * US)
    );
    assert_eq!(five.sleep_ns, 5 * MS);
    // It ran from the beginning, was preempted, and runs still.
    assert_eq!((six.run_ns, six.preempted), (MS + 6 * MS, 1));
    assert_eq!(six.preempt_wait.sum_ns(), 3 * MS);
    let cpus: Vec<_> = outcome
        .cpus
        .iter()
        .map(|row| (row.cpu, row.run_ns + row.idle_ns))
        .collect();
    assert_eq!(cpus, [(0, 10 * MS), (1, 10 * MS)]);
    // 6 waited on CPU 0 while CPU 1 was not known, and idle from 5 ms on.
    assert_eq!(outcome.wasted.total_ns(), 0);
}

#[test]
fn idle_while_overloaded_by_affinity() {
    let pinned = |tid| Event::Allowed {
        ts: 0,
        tid,
        cpus: Some("0".parse().unwrap()),
    };
    let outcome = run(
        &[
            pinned(5),
            pinned(6),
            switch(0, 1, 8, BLOCKED, 0),
            switch(MS, 0, 5, Off::Preempted, 6),
            switch(5 * MS, 0, 6, Off::Preempted, 5),
        ],
        10 * MS,
    );
    let wasted = &outcome.wasted;
    assert_eq!(wasted.by_reason[Reason::Affinity as usize], 9 * MS);
    assert_eq!(wasted.total_ns(), 9 * MS);
    assert_eq!((wasted.pairs[0].idle, wasted.pairs[0].busy), (1, 0));
    assert_eq!(outcome.cpus[1].idle_wasted_ns, 9 * MS);
    assert_eq!(row(&outcome, 5).wasted_ns, 4 * MS);
}

#[test]
fn idle_while_overloaded_without_affinity() {
    let events = [
        switch(0, 1, 8, BLOCKED, 0),
        switch(MS, 0, 5, Off::Preempted, 6),
        Event::Migrate {
            ts: 9 * MS,
            tid: 5,
            from: 0,
            to: 1,
        },
        switch(9 * MS + US, 1, 0, BLOCKED, 5),
    ];
    let outcome = run(&events, 10 * MS);
    assert_eq!(outcome.wasted.by_reason[Reason::Balancing as usize], 8 * MS);
    assert_eq!(outcome.wasted.total_ns(), 8 * MS);
    assert_eq!(outcome.migrations, [0, 1, 0, 0, 0]);
}

#[test]
fn a_wake_up_onto_a_busy_queue_is_bad_placement() {
    let outcome = run(
        &[
            switch(0, 1, 8, BLOCKED, 0),
            switch(0, 0, 4, BLOCKED, 6),
            waking(MS, 5, Waker::Interrupt, 0),
            switch(3 * MS, 0, 6, BLOCKED, 5),
        ],
        10 * MS,
    );
    // Counted from the next event on after it was clear that no migration follows.
    assert!(outcome.wasted.total_ns() == 0, "{:?}", outcome.wasted);
    let outcome = run(
        &[
            switch(0, 1, 8, BLOCKED, 0),
            switch(0, 0, 4, BLOCKED, 6),
            waking(MS, 5, Waker::Interrupt, 0),
            switch(MS + 10 * US, 5, 0, BLOCKED, 0),
            switch(3 * MS, 0, 6, BLOCKED, 5),
        ],
        10 * MS,
    );
    assert_eq!(
        outcome.wasted.by_reason[Reason::Placement as usize],
        2 * MS - 10 * US
    );
}

#[test]
fn a_woken_thread_goes_where_the_migration_says() {
    let outcome = run(
        &[
            named(5, "five"),
            named(6, "six"),
            switch(0, 1, 8, BLOCKED, 0),
            switch(0, 0, 4, BLOCKED, 6),
            waking(MS, 5, Waker::Thread(6), 0),
            Event::Migrate {
                ts: MS + US,
                tid: 5,
                from: 0,
                to: 3,
            },
            switch(MS + 20 * US, 3, 0, BLOCKED, 5),
            switch(2 * MS, 3, 5, BLOCKED, 0),
        ],
        10 * MS,
    );
    assert_eq!(outcome.wasted.total_ns(), 0);
    assert_eq!(
        (row(&outcome, 5).migrations_at_wake, outcome.migrations),
        (1, [0, 0, 0, 1, 0])
    );
    let waker = &outcome.wakers[0];
    assert_eq!(
        (&*waker.waker, &*waker.woken, waker.to_other_llc),
        ("six", "five", 1)
    );
    assert_eq!(waker.waited_ns, 20 * US);
}

#[test]
fn chains_lead_from_an_interrupt_to_the_last_woken() {
    let mut events = vec![named(1, "first"), named(2, "second"), named(3, "third")];
    events.extend([
        waking(0, 1, Waker::Timer, 0),
        switch(10 * US, 0, 0, BLOCKED, 1),
        waking(50 * US, 2, Waker::Thread(1), 1),
        switch(60 * US, 1, 0, BLOCKED, 2),
        switch(70 * US, 0, 1, BLOCKED, 0),
        waking(100 * US, 3, Waker::Thread(2), 0),
        switch(110 * US, 0, 0, BLOCKED, 3),
        switch(200 * US, 0, 3, BLOCKED, 0),
    ]);
    let outcome = run(&events, MS);
    let chain = &outcome.chains[0];
    assert_eq!(
        (chain.began_by, chain.ns(), chain.is_cut),
        (Some(Waker::Timer), 200 * US, false)
    );
    let links: Vec<_> = chain
        .links
        .iter()
        .map(|link| (&*link.name, link.waited_ns, link.active_ns))
        .collect();
    let expected = [
        ("first", 10 * US, 40 * US),
        ("second", 10 * US, 40 * US),
        ("third", 10 * US, 90 * US),
    ];
    assert_eq!(links, expected);
    assert_eq!(outcome.chains.len(), 1);
}

#[test]
fn endless_ping_pong_is_cut() {
    let mut analysis = analysis();
    for i in 0..1000u32 {
        let (me, other) = (1 + i % 2, 2 - i % 2);
        let ts = Ns::from(i) * 100;
        analysis.event(&waking(ts, other, Waker::Thread(me), 0));
        analysis.event(&switch(ts + 50, 0, me, BLOCKED, other));
    }
    let outcome = analysis.outcome(MS);
    assert!(outcome.chains.iter().all(|chain| chain.links.len() <= 64));
    assert!(outcome.chains.iter().any(|chain| chain.is_cut));
}

#[test]
fn a_lost_switch_is_mended_and_counted() {
    // 5 came on unseen and leaves.
    let outcome = run(
        &[
            switch(MS, 0, 3, BLOCKED, 4),
            switch(2 * MS, 0, 5, BLOCKED, 0),
        ],
        3 * MS,
    );
    assert_eq!(outcome.totals.mended, 1);
    assert_eq!((row(&outcome, 5).run_ns, row(&outcome, 4).run_ns), (MS, 0));
    assert_eq!(outcome.cpus[0].run_ns + outcome.cpus[0].idle_ns, 3 * MS);
}

#[test]
fn after_lost_events_nobody_is_thought_to_wait() {
    let outcome = run(
        &[
            switch(0, 1, 8, BLOCKED, 0),
            switch(MS, 0, 5, Off::Preempted, 6),
            Event::Lost {
                ts: 2 * MS,
                cpu: 0,
                count: 7,
            },
            switch(9 * MS, 0, 7, BLOCKED, 5),
        ],
        10 * MS,
    );
    assert_eq!((outcome.totals.lost, outcome.cpus[0].lost), (7, 7));
    assert_eq!(outcome.wasted.total_ns(), MS);
    assert_eq!(row(&outcome, 7).run_ns, 0);
}

#[test]
fn threads_that_are_gone_become_rows_by_name() {
    let mut analysis = analysis();
    analysis.event(&named(1, "make"));
    for i in 0..40_000u32 {
        let (child, ts) = (10 + i, Ns::from(i) * 1000);
        analysis.event(&Event::Fork {
            ts,
            parent: 1,
            child,
            pid: child,
            cpu: 0,
        });
        analysis.event(&switch(ts + 100, 0, 0, BLOCKED, child));
        analysis.event(&switch(ts + 600, 0, child, Off::Exited, 0));
    }
    let outcome = analysis.outcome(40_000 * 1000);
    assert!(outcome.threads.len() < 20_000);
    assert_eq!(outcome.totals.exits, 40_000);
    assert_eq!(
        outcome.threads.iter().map(|row| row.run_ns).sum::<Ns>(),
        40_000 * 500
    );
    assert_eq!(
        outcome.threads.iter().map(|row| row.threads).sum::<u64>(),
        40_001
    );
}

const UNINTERRUPTIBLY: Off = Off::Blocked {
    in_iowait: false,
    uninterruptible: true,
};

/// It runs, is blocked, waits, runs, sleeps, waits, runs, and is blocked at the end; half a millisecond or longer each.
fn one_of_each() -> [Event; 7] {
    [
        named(5, "worker"),
        switch(MS, 0, 5, UNINTERRUPTIBLY, 0),
        waking(3 * MS, 5, Waker::Interrupt, 0),
        switch(4 * MS, 0, 0, BLOCKED, 5),
        switch(5 * MS, 0, 5, BLOCKED, 0),
        waking(9 * MS, 5, Waker::Timer, 0),
        switch(9 * MS + 500 * US, 0, 0, BLOCKED, 5),
    ]
}

/// Guests' CPUs that waited for the host's disk were taken for halted ones.
#[test]
fn uninterruptible_sleeps_are_told_from_others() {
    let mut events = one_of_each().to_vec();
    events.push(switch(10 * MS, 0, 5, UNINTERRUPTIBLY, 0));
    let outcome = run(&events, 13 * MS);
    let five = row(&outcome, 5);
    // The last one lasts still.
    let blocked = &five.uninterruptible;
    assert_eq!(
        (blocked.count(), blocked.sum_ns(), blocked.max_ns()),
        (2, 5 * MS, 3 * MS)
    );
    assert_eq!((five.sleep_ns, five.wait_ns()), (9 * MS, MS + 500 * US));
}

/// Time of all columns by what the thread did.
fn spent(line: &Timeline) -> Spent {
    let mut sum = Spent::default();
    for cell in &line.cells {
        sum.merge(cell);
    }
    sum
}

#[test]
fn a_timeline_tells_what_a_thread_did_when() {
    let mut analysis = analysis();
    let mut events = one_of_each().to_vec();
    // A stranger, of whom only the CPU time is known.
    events.push(switch(9 * MS + 900 * US, 1, 8, BLOCKED, 0));
    events.push(switch(10 * MS, 0, 5, UNINTERRUPTIBLY, 0));
    events.iter().for_each(|event| analysis.event(event));
    // Asked twice: what lasts is not added to what was.
    for end in [12 * MS, 13 * MS] {
        let lines = analysis.timelines(end);
        let rows = lines.rows();
        assert_eq!(rows.iter().map(|row| row.tid).collect::<Vec<_>>(), [5]);
        let (outcome, line) = (analysis.outcome(end), &rows[0]);
        let five = row(&outcome, 5);
        let blocked = five.uninterruptible.sum_ns();
        assert_eq!(
            spent(line),
            [
                five.run_ns,
                five.wait_ns(),
                blocked,
                five.sleep_ns - blocked
            ]
        );
        assert_eq!((&*line.name, line.pid), ("worker", 1));
        let at = |ns: Ns| line.cells[(ns / lines.column_ns()) as usize];
        let column = lines.column_ns();
        for (ns, doing) in [
            (500 * US, Doing::Running),
            (2 * MS, Doing::Blocked),
            (3 * MS + 500 * US, Doing::Waiting),
            (4 * MS + 500 * US, Doing::Running),
            (7 * MS, Doing::Asleep),
            (9 * MS + 250 * US, Doing::Waiting),
            (11 * MS, Doing::Blocked),
        ] {
            assert_eq!(at(ns)[doing as usize], column, "{ns} {doing:?}");
        }
    }
}

/// A thread that had a CPU for itself did not leave it, and the CPU looked idle all the time.
#[test]
fn a_picture_shows_who_runs_still() {
    let mut analysis = analysis();
    for event in [
        switch(MS, 0, 0, BLOCKED, 5),
        switch(2 * MS, 1, 0, BLOCKED, 6),
        switch(4 * MS, 1, 6, BLOCKED, 0),
    ] {
        analysis.event(&event);
    }
    // Asked twice: what lasts is not added to what was.
    for end in [10 * MS, 12 * MS] {
        let picture = analysis.picture(end);
        let outcome = analysis.outcome(end);
        let drawn = |cpu| {
            let rows = picture.rows();
            let row = rows.iter().find(|row| row.cpu == cpu).expect("a row");
            let cells = row.cells.iter();
            cells.fold((0, 0), |(ns, _), cell| (ns + cell.busy_ns, cell.tid))
        };
        assert_eq!(drawn(0), (end - MS, 5));
        assert_eq!(drawn(1), (2 * MS, 6));
        let told: Vec<Ns> = outcome.cpus.iter().map(|row| row.run_ns).collect();
        assert_eq!(told, [end - MS, 2 * MS]);
    }
}

#[test]
fn timelines_keep_who_ran_most_in_bounded_memory() {
    let mut analysis = analysis();
    let mut ts = 0;
    let mut turn = |analysis: &mut Analysis, tid, ns| {
        analysis.event(&switch(ts, 0, 0, BLOCKED, tid));
        ts += ns;
        analysis.event(&switch(ts, 0, tid, BLOCKED, 0));
    };
    for tid in 1..=5_000 {
        analysis.event(&named(tid, "many"));
        turn(&mut analysis, tid, 10 * US + Ns::from(tid % 7));
        if tid % 10 == 0 {
            // One that was there from the beginning, and one that comes late.
            turn(&mut analysis, 1, 100 * US);
        }
        if tid > 4_000 && tid % 10 == 5 {
            turn(&mut analysis, 3_999, 50 * US);
        }
    }
    let rows = analysis.timelines(ts).rows();
    assert!(rows.len() <= 600, "{}", rows.len());
    assert_eq!((rows[0].tid, rows[1].tid), (1, 3_999));
    let cells: usize = rows.iter().map(|row| row.cells.len()).sum();
    assert!(cells <= 200_000, "{cells}");
    let outcome = analysis.outcome(ts);
    assert_eq!(spent(&rows[0])[0], row(&outcome, 1).run_ns);
    // What it ran before it was among those that are followed is missing, which is little.
    let late = (spent(&rows[1])[0], row(&outcome, 3_999).run_ns);
    assert!(
        late.0 <= late.1 && late.1 - late.0 <= 10 * US + 7,
        "{late:?}"
    );
}

#[test]
fn a_number_that_comes_again_has_a_timeline_of_its_own() {
    let fork = |ts| Event::Fork {
        ts,
        parent: 4,
        child: 5,
        pid: 5,
        cpu: 0,
    };
    let mut analysis = analysis();
    for event in [
        fork(0),
        named(5, "first"),
        switch(MS, 0, 0, BLOCKED, 5),
        switch(3 * MS, 0, 5, Off::Exited, 0),
        fork(4 * MS),
        named(5, "second"),
        switch(5 * MS, 0, 0, BLOCKED, 5),
        switch(6 * MS, 0, 5, Off::Exited, 0),
    ] {
        analysis.event(&event);
    }
    let rows = analysis.timelines(9 * MS).rows();
    let found: Vec<_> = rows.iter().map(|row| (&*row.name, spent(row))).collect();
    assert_eq!(
        found,
        [("first", [2 * MS, MS, 0, 0]), ("second", [MS, MS, 0, 0])]
    );
}

#[test]
fn where_nobody_looks_there_are_no_timelines() {
    let mut analysis = Analysis::new(Settings {
        picture_cells: 0,
        ..Settings::new(machine())
    });
    one_of_each().iter().for_each(|event| analysis.event(event));
    assert_eq!(analysis.timelines(20 * MS).rows(), []);
}

/// Any events at all: from a hostile file, or with many lost.
fn any_event() -> impl Strategy<Value = (Ns, Event)> {
    let off = prop_oneof![
        Just(Off::Preempted),
        Just(Off::Yielded),
        Just(BLOCKED),
        Just(UNINTERRUPTIBLY),
        Just(Off::Exited)
    ];
    let waker = prop_oneof![
        (0u32..8).prop_map(Waker::Thread),
        Just(Waker::Timer),
        Just(Waker::Interrupt)
    ];
    let sets = prop_oneof![
        Just(None),
        Just(Some("0".parse().unwrap())),
        Just(Some("1-2,9".parse().unwrap()))
    ];
    let (cpu, tid) = (0u32..10, 0u32..8);
    let event = prop_oneof![
        6 => (cpu.clone(), tid.clone(), off, tid.clone())
            .prop_map(|(cpu, prev, off, next)| switch(0, cpu, prev, off, next)),
        4 => (tid.clone(), waker, cpu.clone()).prop_map(|(tid, waker, cpu)| waking(0, tid, waker, cpu)),
        2 => (tid.clone(), cpu.clone(), cpu.clone())
            .prop_map(|(tid, from, to)| Event::Migrate { ts: 0, tid, from, to }),
        1 => (tid.clone(), tid.clone(), cpu.clone())
            .prop_map(|(parent, child, cpu)| Event::Fork { ts: 0, parent, child, pid: child, cpu }),
        1 => (tid.clone(), any::<bool>())
            .prop_map(|(tid, is_kernel)| Event::Thread { ts: 0, tid, pid: 1, is_kernel, name: "x".into() }),
        1 => (tid, sets).prop_map(|(tid, cpus)| Event::Allowed { ts: 0, tid, cpus }),
        1 => cpu.prop_map(|cpu| Event::Lost { ts: 0, cpu, count: 1 }),
    ];
    (0u64..20_000, event)
}

fn set_ts(event: &mut Event, now: Ns) {
    match event {
        Event::Switch { ts, .. }
        | Event::Waking { ts, .. }
        | Event::Migrate { ts, .. }
        | Event::Fork { ts, .. }
        | Event::Thread { ts, .. }
        | Event::Allowed { ts, .. }
        | Event::Lost { ts, .. } => *ts = now,
    }
}

proptest! {
    #[test]
    fn whatever_comes_no_cpu_has_more_time_than_there_is(
        events in prop::collection::vec(any_event(), 1..300),
    ) {
        let mut analysis = analysis();
        let mut now = 0;
        for (gap, mut event) in events {
            now += gap;
            set_ts(&mut event, now);
            analysis.event(&event);
        }
        let outcome = analysis.outcome(now);
        for cpu in &outcome.cpus {
            prop_assert!(cpu.run_ns + cpu.idle_ns <= now);
            prop_assert!(cpu.overloaded_ns <= now);
            prop_assert!(cpu.idle_wasted_ns <= cpu.idle_ns);
        }
        let run: Ns = outcome.threads.iter().map(|row| row.run_ns).sum();
        let on_cpus: Ns = outcome.cpus.iter().map(|row| row.run_ns).sum();
        prop_assert!(run <= on_cpus, "{} {}", run, on_cpus);
        let lines = analysis.timelines(now);
        let running: Ns = lines.rows().iter().map(|line| spent(line)[0]).sum();
        prop_assert!(running <= run, "{} {}", running, run);
        let last = now.div_ceil(lines.column_ns()) as usize;
        prop_assert!(lines.rows().iter().all(|line| line.cells.len() <= last));
        for pair in &outcome.wasted.pairs {
            prop_assert!(pair.idle != pair.busy && pair.longest_ns <= pair.ns);
        }
    }
}
