//! What the table promises, on hand-made and on random waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use amdahl_locks::{
    Class, Event, GroupBy, Hold, Kind, Limits, LockId, Place, RETRY_NS, SEARCH_NS, SortBy, Table,
    ThreadName, Tracker, Wait, Waker, folded_stacks,
};
use amdahl_speedup::event::{CallStack, Frame, Ns, Tid};
use amdahl_speedup::primitive::KernelPrimitive;
use proptest::prelude::*;

fn frame(symbol: &str, module: &str, line: u32) -> Frame {
    Frame {
        symbol: symbol.to_owned(),
        module: module.to_owned(),
        file: (line > 0).then(|| "app.c".to_owned()),
        line: (line > 0).then_some(line),
    }
}

fn mutex_at(function: &str, line: u32) -> Arc<CallStack> {
    Arc::new(CallStack {
        user: vec![
            frame("__lll_lock_wait", "/lib/libc.so.6", 0),
            frame("pthread_mutex_lock", "/lib/libc.so.6", 0),
            frame(function, "/app", line),
            frame("main", "/app", 1),
        ],
        ..CallStack::default()
    })
}

fn wait(tid: Tid, address: u64, place: u64, begin: Ns, end: Ns) -> Wait {
    Wait {
        tid,
        pid: 1,
        lock: LockId { pid: 1, address },
        kind: Kind::Futex,
        begin,
        end,
        place: Place(place),
        waker: None,
        expected: 2,
        is_open: false,
        began_before: false,
        is_polled: false,
    }
}

fn woken(by: Tid, ts: Ns, wait: Wait) -> Wait {
    let place = Place(0);
    Wait {
        waker: Some(Waker { tid: by, ts, place }),
        ..wait
    }
}

fn nobody(_: Tid) -> ThreadName {
    ThreadName::default()
}

fn table(tracker: &Tracker, by: GroupBy) -> Table {
    Table::new(tracker, tracker.tally(), by, &nobody)
}

#[test]
fn one_row_per_line_that_waits_the_costliest_first() {
    let mut tracker = Tracker::default();
    // Two places, one line: reached from two callers.
    tracker.learn(Place(1), &mutex_at("put", 7));
    tracker.learn(Place(2), &mutex_at("put", 7));
    tracker.learn(Place(3), &mutex_at("get", 9));
    for w in [
        wait(10, 0xa0, 1, 0, 1_000),
        wait(11, 0xa0, 2, 0, 3_000),
        wait(12, 0xb0, 3, 0, 5_000),
    ] {
        tracker.feed(&Event::Wait(w));
    }
    let table = table(&tracker, GroupBy::Site);
    let shown: Vec<_> = table
        .rows
        .iter()
        .map(|row| {
            let name = row.what.name.as_str();
            (name, row.site.symbol.as_str(), row.times, row.total_ns)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("pthread mutex", "get", 1, 5_000),
            ("pthread mutex", "put", 2, 4_000)
        ]
    );
    let put = &table.rows[1];
    assert_eq!((put.max_ns, put.mean_ns()), (3_000, 2_000));
    assert_eq!((put.threads, put.locks, put.site.line), (2, 1, 7));
}

/// Each process, and each address of a call, had a row of its own, which looked like the others.
#[test]
fn stacks_that_look_alike_are_one_row() {
    let mut tracker = Tracker::default();
    let mut called_elsewhere = CallStack::clone(&mutex_at("put", 7));
    called_elsewhere.user[3].line = Some(2);
    let mut by_another = CallStack::clone(&mutex_at("put", 7));
    by_another.user[3].symbol = "helper".to_owned();
    tracker.learn(Place(1), &mutex_at("put", 7));
    tracker.learn(Place(2), &Arc::new(called_elsewhere));
    tracker.learn(Place(3), &Arc::new(by_another));
    tracker.learn(Place(4), &mutex_at("put", 8));
    for (place, length) in [(1, 1_000), (2, 2_000), (3, 500), (4, 400)] {
        tracker.feed(&Event::Wait(wait(10, 0xa0, place, 0, length)));
    }
    let rows = table(&tracker, GroupBy::Stack).rows;
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            let stack = row.stack.as_ref().expect("a stack");
            (
                stack.user[3].symbol.as_str(),
                row.site.line,
                row.times,
                row.total_ns,
            )
        })
        .collect();
    let expected = [
        ("main", 7, 2, 3_000),
        ("helper", 7, 1, 500),
        ("main", 8, 1, 400),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn equal_totals_stand_in_the_order_of_their_source_lines() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("late", 30));
    tracker.learn(Place(2), &mutex_at("early", 4));
    tracker.feed(&Event::Wait(wait(1, 0xa0, 1, 0, 500)));
    tracker.feed(&Event::Wait(wait(2, 0xb0, 2, 0, 500)));
    for sort in [
        SortBy::Total,
        SortBy::Times,
        SortBy::Max,
        SortBy::Mean,
        SortBy::P99,
    ] {
        let table = table(&tracker, GroupBy::Site).sorted_by(sort);
        assert_eq!(lines(&table), [4, 30], "{sort:?}");
    }
}

fn lines(table: &Table) -> Vec<u32> {
    table.rows.iter().map(|row| row.site.line).collect()
}

#[test]
fn rows_are_sorted_by_each_of_their_figures() {
    let mut tracker = Tracker::default();
    let often = [&[10; 199][..], &[1_200]].concat();
    for (line, lengths) in [(1, &[900][..]), (2, &often), (3, &[600, 600, 1_000, 1_000])] {
        tracker.learn(Place(line), &mutex_at("put", line as u32));
        for (i, ns) in lengths.iter().enumerate() {
            let begin = i as Ns * 2 * RETRY_NS;
            tracker.feed(&Event::Wait(wait(1, line * 8, line, begin, begin + ns)));
        }
    }
    for (sort, expected) in [
        (SortBy::Total, [3, 2, 1]),
        (SortBy::Times, [2, 3, 1]),
        (SortBy::Max, [2, 3, 1]),
        (SortBy::Mean, [1, 3, 2]),
        (SortBy::P99, [3, 1, 2]),
    ] {
        let table = table(&tracker, GroupBy::Site).sorted_by(sort);
        assert_eq!((lines(&table), table.sort), (expected.to_vec(), sort));
    }
}

/// Means of 2.5 and 2.75 ns: in whole nanoseconds they are equals, of which the earlier line is first.
#[test]
fn means_are_compared_exactly() {
    let mut tracker = Tracker::default();
    for (line, lengths) in [(1, &[2, 3][..]), (2, &[2, 3, 3, 3])] {
        tracker.learn(Place(line), &mutex_at("put", line as u32));
        for (i, ns) in lengths.iter().enumerate() {
            let begin = i as Ns * 2 * RETRY_NS;
            tracker.feed(&Event::Wait(wait(1, line * 8, line, begin, begin + ns)));
        }
    }
    let table = table(&tracker, GroupBy::Site).sorted_by(SortBy::Mean);
    assert_eq!(lines(&table), [2, 1]);
}

#[test]
fn sleeps_of_one_call_are_one_wait() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("put", 7));
    for (begin, end) in [(0, 100_000), (103_000, 200_000), (204_000, 300_000)] {
        tracker.feed(&Event::Wait(wait(5, 0xa0, 1, begin, end)));
    }
    // Long after: the next call.
    let later = 300_000 + RETRY_NS;
    tracker.feed(&Event::Wait(wait(5, 0xa0, 1, later, later + 10)));
    let table = table(&tracker, GroupBy::Site);
    let row = &table.rows[0];
    assert_eq!((row.times, row.sleeps), (2, 4));
    assert_eq!((row.total_ns, row.max_ns), (300_010, 300_000));
}

/// A thread of Go was woken, and slept for 60 µs before it took the goroutine from another's queue:
/// that was missing in each wait for a mutex.
#[test]
fn a_nap_of_a_search_for_work_is_part_of_the_wait_before_it() {
    let stack = |names: &[&str]| {
        Arc::new(CallStack {
            user: names.iter().map(|name| frame(name, "/app", 0)).collect(),
            ..CallStack::default()
        })
    };
    let parked = stack(&[
        "runtime.futex.abi0",
        "runtime.stopm",
        "runtime.findRunnable",
        "runtime.schedule",
        "runtime.mcall",
        "runtime.gopark",
        "sync.(*Mutex).Lock",
        "main.want",
    ]);
    let search = stack(&[
        "runtime.usleep.abi0",
        "runtime.runqgrab",
        "runtime.findRunnable",
        "runtime.schedule",
        "runtime.mcall",
    ]);
    let nap = |place, begin, end| {
        Event::Wait(Wait {
            kind: Kind::Nap,
            ..wait(1, 0, place, begin, end)
        })
    };
    let fed = |events: &[Event]| {
        let mut tracker = Tracker::default();
        tracker.learn(Place(1), &parked);
        tracker.learn(Place(2), &search);
        tracker.learn(Place(3), &mutex_at("unrelated", 3));
        events.iter().for_each(|event| tracker.feed(event));
        let table = table(&tracker, GroupBy::Site);
        let row = |row: &amdahl_locks::Row| (row.what.name.clone(), row.times, row.total_ns);
        table.rows.iter().map(row).collect::<Vec<_>>()
    };
    let slept = Event::Wait(wait(1, 0xa0, 1, 0, 1_000_000));
    let row = |ns| vec![("Go mutex".to_owned(), 1, ns)];
    // Two naps of one search, each soon after the last sleep.
    let naps = [nap(2, 1_002_000, 1_060_000), nap(2, 1_061_000, 1_120_000)];
    assert_eq!(fed(&[slept, naps[0], naps[1]]), row(1_120_000));
    // Long after: another search. Of a program that naps itself: none. Nobody slept: no wait.
    let late = 1_000_000 + SEARCH_NS;
    assert_eq!(fed(&[slept, nap(2, late, late + 60_000)]), row(1_000_000));
    assert_eq!(fed(&[slept, nap(3, 1_002_000, 1_060_000)]), row(1_000_000));
    assert_eq!(fed(&[nap(2, 1_002_000, 1_060_000)]), []);
}

#[test]
fn who_released_the_lock_meanwhile_has_had_it() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("put", 7));
    tracker.feed(&Event::Wait(wait(5, 0xa0, 1, 0, 100_000)));
    // Thread 5 got the lock and gave it to thread 6 before it wanted it again.
    tracker.feed(&Event::Wait(woken(
        5,
        104_000,
        wait(6, 0xa0, 1, 50_000, 105_000),
    )));
    tracker.feed(&Event::Wait(wait(5, 0xa0, 1, 106_000, 200_000)));
    let row = &table(&tracker, GroupBy::Site).rows[0];
    assert_eq!((row.times, row.sleeps), (3, 3));
}

#[test]
fn waits_at_a_barrier_or_for_a_condition_are_never_joined() {
    let mut tracker = Tracker::default();
    let stack = CallStack {
        user: vec![
            frame("pthread_barrier_wait", "/lib/libc.so.6", 0),
            frame("step", "/app", 3),
        ],
        ..CallStack::default()
    };
    tracker.learn(Place(1), &Arc::new(stack));
    tracker.feed(&Event::Wait(wait(5, 0xa0, 1, 0, 100)));
    tracker.feed(&Event::Wait(wait(5, 0xa0, 1, 110, 200)));
    let table = table(&tracker, GroupBy::Site);
    assert_eq!(table.rows[0].times, 2);
    assert_eq!(table.of_class(Class::Barrier).count(), 1);
}

#[test]
fn a_holder_that_waits_itself_is_shown_as_a_chain() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("outer", 1));
    tracker.learn(Place(2), &mutex_at("middle", 2));
    tracker.learn(Place(3), &mutex_at("inner", 3));
    // 30 holds C; 20 holds B and waits for C; 10 holds A and waits for B; 5 waits for A.
    for w in [
        woken(30, 900, wait(20, 0xc0, 3, 300, 910)),
        woken(20, 920, wait(10, 0xb0, 2, 200, 930)),
        woken(10, 950, wait(5, 0xa0, 1, 100, 960)),
    ] {
        tracker.feed(&Event::Wait(w));
    }
    let table = table(&tracker, GroupBy::Site);
    let outer = &table.rows[0];
    assert_eq!(outer.site.symbol, "outer");
    let nested = &outer.nested[0];
    let chain: Vec<_> = nested.chain.iter().map(|(_, site)| &*site.symbol).collect();
    assert_eq!(chain, ["middle", "inner"]);
    // What thread 10 waited while 5 waited for it.
    assert_eq!((nested.share.count, nested.share.ns), (1, 730));
    assert!(table.rows[2].nested.is_empty(), "30 waited for nothing");
}

#[test]
fn what_a_holder_waited_for_before_it_had_the_lock_is_not_nested() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("outer", 1));
    tracker.learn(Place(2), &mutex_at("other", 2));
    for w in [
        // 10 waits for B until 500 and releases A at 900, which 7 had until 600.
        wait(10, 0xb0, 2, 0, 500),
        woken(7, 600, wait(6, 0xa0, 1, 100, 610)),
        woken(10, 900, wait(5, 0xa0, 1, 100, 910)),
    ] {
        tracker.feed(&Event::Wait(w));
    }
    let table = table(&tracker, GroupBy::Site);
    assert!(table.rows.iter().all(|row| row.nested.is_empty()));
}

/// Whose names must be known in the end.
#[test]
fn who_waited_and_who_ended_it_are_told_of() {
    let mut tracker = Tracker::new(Limits::default());
    tracker.feed(&Event::Wait(woken(8, 19, wait(7, 0x10, 5, 10, 20))));
    tracker.feed(&Event::Hold(Hold {
        tid: 9,
        lock: LockId::default(),
        kind: Kind::Kernel(KernelPrimitive::MmapWrite),
        begin: 10,
        end: 60,
        place: Place(0),
    }));
    let mut told: Vec<Tid> = tracker.told().into_iter().collect();
    told.sort_unstable();
    assert_eq!(told, [1, 7, 8, 9]);
}

#[test]
fn nameless_futexes_are_told_by_their_use() {
    let mut tracker = Tracker::default();
    for i in 0..10 {
        let begin = i * 1_000_000;
        // A sequence number on which one thread wakes the others.
        let w = Wait {
            expected: i as u32,
            ..woken(99, begin + 500, wait(1, 0xa0, 1, begin, begin + 510))
        };
        tracker.feed(&Event::Wait(w));
        // A word that is 2 whenever somebody waits, who later releases it.
        let w = woken(
            2 + (i as Tid & 1),
            begin + 500,
            wait(3 - (i as Tid & 1), 0xb0, 2, begin, begin + 510),
        );
        tracker.feed(&Event::Wait(w));
        // A sequence number on which two threads wake each other: a barrier of two, or a condition.
        let (one, other) = (4 + (i as Tid & 1), 5 - (i as Tid & 1));
        let w = Wait {
            expected: i as u32,
            ..woken(other, begin + 500, wait(one, 0xc0, 3, begin, begin + 510))
        };
        tracker.feed(&Event::Wait(w));
        // Three, of whom each in turn is the last one to come.
        let last = 6 + i as Tid % 3;
        for tid in (6..9).filter(|&tid| tid != last) {
            let w = Wait {
                expected: i as u32,
                ..woken(last, begin + 500, wait(tid, 0xd0, 4, begin, begin + 510))
            };
            tracker.feed(&Event::Wait(w));
        }
    }
    let table = table(&tracker, GroupBy::Lock);
    let names: BTreeMap<u64, (&str, Class)> = table
        .rows
        .iter()
        .map(|row| (row.of.lock.address, (&*row.what.name, row.what.class)))
        .collect();
    assert_eq!(names[&0xa0], ("futex (condition)", Class::Partner));
    assert_eq!(names[&0xb0], ("futex", Class::Lock));
    assert_eq!(
        names[&0xc0],
        ("futex (condition or barrier)", Class::Partner)
    );
    assert_eq!(names[&0xd0], ("futex (barrier)", Class::Barrier));
}

#[test]
fn a_deep_sleep_counts_where_its_stack_tells_of_a_grace_period() {
    let mut tracker = Tracker::default();
    let kernel = |names: &[&str]| {
        Arc::new(CallStack {
            kernel: names
                .iter()
                .map(|name| frame(name, "[kernel]", 0))
                .collect(),
            ..CallStack::default()
        })
    };
    let grace = [
        "__schedule",
        "wait_for_completion",
        "__wait_rcu_gp",
        "synchronize_rcu",
        "dissolve",
    ];
    tracker.learn(Place(1), &kernel(&grace));
    // What a child's start is waited for in is no lock.
    tracker.learn(
        Place(2),
        &kernel(&["__schedule", "wait_for_completion", "kernel_clone"]),
    );
    for place in [1, 2, 3] {
        tracker.feed(&Event::Wait(Wait {
            kind: Kind::KernelSleep,
            lock: LockId::default(),
            ..wait(1, 0, place, 0, 700)
        }));
    }
    let table = table(&tracker, GroupBy::Site);
    assert_eq!(table.rows.len(), 1);
    let row = &table.rows[0];
    assert_eq!((&*row.what.name, &*row.site.symbol), ("RCU", "dissolve"));
    assert_eq!((row.times, row.total_ns), (1, 700));
}

#[test]
fn kernel_locks_are_named_by_who_wants_them() {
    let mut tracker = Tracker::default();
    let kernel = ["__mutex_lock.constprop.0", "pipe_write", "vfs_write"];
    let stack = CallStack {
        kernel: kernel.map(|name| frame(name, "[kernel]", 0)).to_vec(),
        user: vec![
            frame("write", "/lib/libc.so.6", 0),
            frame("sender", "/app", 12),
        ],
        ..CallStack::default()
    };
    tracker.learn(Place(1), &Arc::new(stack));
    tracker.feed(&Event::Wait(Wait {
        kind: Kind::Kernel(KernelPrimitive::Mutex),
        lock: LockId {
            pid: 0,
            address: 0xffff_8880_0000_0000,
        },
        ..wait(1, 0, 1, 0, 700)
    }));
    tracker.feed(&Event::Hold(Hold {
        tid: 2,
        lock: LockId::default(),
        kind: Kind::Kernel(KernelPrimitive::MmapWrite),
        begin: 10,
        end: 60,
        place: Place(0),
    }));
    let table = table(&tracker, GroupBy::Site);
    let row = &table.rows[0];
    assert_eq!(
        (&*row.what.name, &*row.site.symbol),
        ("mutex", "pipe_write")
    );
    assert_eq!(row.from.symbol, "sender");
    assert_eq!(table.holds[0].what.name, "mmap_lock (write)");
    assert_eq!(table.holds[0].total_ns, 50);
}

fn waits() -> impl Strategy<Value = Vec<Wait>> {
    let one = (
        0..40_u32,
        0..30_u64,
        0..20_u64,
        0..10_000_u64,
        0..1_u64 << 30,
        0..3_u32,
    );
    proptest::collection::vec(one, 1..300).prop_map(|waits| {
        let one = |(tid, lock, place, begin, ns, waker): (Tid, u64, u64, Ns, Ns, Tid)| {
            let plain = wait(tid, lock * 8, place, begin, begin + ns);
            if waker == 0 {
                plain
            } else {
                woken(waker * 7, begin + ns, plain)
            }
        };
        waits.into_iter().map(one).collect()
    })
}

proptest! {
    #[test]
    fn sums_are_those_of_a_naive_count_however_little_memory_there_is(
        waits in waits(),
        cells in 4_usize..100,
        threads in 1_usize..50,
        bytes in 0_usize..100_000,
    ) {
        let mut tracker = Tracker::new(Limits { cells, bytes, threads });
        for w in &waits {
            tracker.feed(&Event::Wait(*w));
        }
        let total: Ns = waits.iter().map(|w| w.end - w.begin).sum();
        for by in [GroupBy::Site, GroupBy::Thread, GroupBy::Process, GroupBy::Lock, GroupBy::Stack] {
            let table = Table::new(&tracker, tracker.tally(), by, &nobody);
            prop_assert_eq!(table.rows.iter().map(|row| row.total_ns).sum::<Ns>(), total);
            prop_assert_eq!(table.rows.iter().map(|row| row.times).sum::<u64>(), waits.len() as u64);
            let longest = waits.iter().map(|w| w.end - w.begin).max();
            prop_assert_eq!(table.rows.iter().map(|row| row.max_ns).max(), longest);
        }
        let folded = folded_stacks(&tracker, tracker.tally());
        prop_assert_eq!(folded.iter().map(|stack| stack.share.ns).sum::<Ns>(), total);
        prop_assert!(tracker.tally().cells.len() <= cells + 1);
    }

    #[test]
    fn rows_by_thread_are_exact_while_nothing_is_folded(waits in waits()) {
        let mut tracker = Tracker::default();
        let mut naive: BTreeMap<Tid, (u64, Ns)> = BTreeMap::new();
        for w in &waits {
            tracker.feed(&Event::Wait(*w));
            let sum = naive.entry(w.tid).or_default();
            *sum = (sum.0 + 1, sum.1 + w.end - w.begin);
        }
        let mut found: BTreeMap<Tid, (u64, Ns)> = BTreeMap::new();
        for row in table(&tracker, GroupBy::Thread).rows {
            let sum = found.entry(row.of.tid).or_default();
            *sum = (sum.0 + row.times, sum.1 + row.total_ns);
        }
        prop_assert_eq!(found, naive);
    }

    #[test]
    fn no_order_of_events_panics(
        mut waits in waits(),
        swaps in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..30),
    ) {
        let mut tracker = Tracker::new(Limits { cells: 16, threads: 4, ..Limits::default() });
        tracker.learn(Place(1), &mutex_at("f", 1));
        for (at, value) in swaps {
            let at = at.index(waits.len());
            let w = &mut waits[at];
            w.end = value;
            w.begin = value.rotate_left(7);
        }
        for w in &waits {
            tracker.feed(&Event::Wait(*w));
        }
        table(&tracker, GroupBy::Site);
    }
}

/// The first sleep was looked at from outside, which names its place otherwise; who wakes and finds the lock taken again still
/// waits in the same call.
#[test]
fn a_wait_from_before_goes_on_with_the_sleeps_after_it() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("put", 7));
    tracker.learn(Place(2), &mutex_at("put", 7));
    let first = Wait {
        began_before: true,
        ..wait(10, 0xa0, 1, 0, 1_000)
    };
    let second = wait(10, 0xa0, 2, 1_000 + RETRY_NS / 2, 50_000);
    let third = wait(10, 0xa0, 2, 50_000 + RETRY_NS / 2, 90_000);
    let later = wait(10, 0xa0, 2, 90_000 + 2 * RETRY_NS, 140_000);
    let other = wait(10, 0xb0, 2, 140_000 + RETRY_NS / 2, 200_000);
    for w in [first, second, third] {
        tracker.feed(&Event::Wait(w));
    }
    let row = &table(&tracker, GroupBy::Site).rows[0];
    assert_eq!((row.times, row.sleeps, row.before), (1, 3, 1));
    assert_eq!((row.total_ns, row.max_ns), (90_000, 90_000));
    for w in [later, other] {
        tracker.feed(&Event::Wait(w));
    }
    let row = &table(&tracker, GroupBy::Site).rows[0];
    assert_eq!((row.times, row.sleeps, row.before), (3, 5, 1));
}

#[test]
fn waits_that_go_on_are_told_beside_those_that_have_ended() {
    let mut tracker = Tracker::default();
    tracker.learn(Place(1), &mutex_at("put", 7));
    tracker.feed(&Event::Wait(wait(10, 0xa0, 1, 0, 1_000)));
    let open = Wait {
        is_open: true,
        ..wait(11, 0xa0, 1, 500, 3_500)
    };
    // No stack tells that it is a wait for a lock.
    let other = Wait {
        kind: Kind::KernelSleep,
        ..open
    };
    let with_open = Table::with_open(
        &tracker,
        tracker.tally(),
        &[open, other],
        GroupBy::Site,
        &nobody,
    );
    let rows: Vec<_> = with_open.rows.iter().collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].times, rows[0].open, rows[0].total_ns),
        (2, 1, 4_000)
    );
    assert_eq!(table(&tracker, GroupBy::Site).rows[0].times, 1);
}
