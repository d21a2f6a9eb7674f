//! The partition of a run's capacity: exclusive, complete, and charged where the rules say.

use std::sync::Arc;

use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{
    Blocked, CallStack, Event, Frame, KernelLock, KernelLockKind, Ns, Occupant, Off, Sample,
    SampledBy, StackId, StackTable, Tid, Waker,
};
use amdahl_speedup::partition::{Partition, RunPartition};
use amdahl_speedup::wait::SYS_FUTEX_WAIT;
use proptest::prelude::*;

const MS: Ns = 1_000_000;

fn stack(symbol: &str) -> Arc<CallStack> {
    let libc = "/lib/libc.so.6".to_owned();
    let frame = Frame {
        symbol: symbol.to_owned(),
        module: libc,
        ..Frame::default()
    };
    Arc::new(CallStack {
        user: vec![frame],
        ..CallStack::default()
    })
}

fn table() -> StackTable {
    vec![
        stack("pthread_mutex_lock"),
        stack("pthread_barrier_wait"),
        stack("pthread_cond_wait"),
    ]
}

const MUTEX: u32 = 0;
const BARRIER: u32 = 1;
const CONDITION: u32 = 2;

fn futex(stack: u32) -> Off {
    Off::Blocked(Blocked {
        syscall: Some(libc::SYS_futex as u32),
        args: [0x1000, 0, 2, 0],
        place: u64::from(stack) + 1,
        stack: Some(StackId(stack)),
        ..Blocked::default()
    })
}

fn call(number: libc::c_long) -> Off {
    Off::Blocked(Blocked {
        syscall: Some(number as u32),
        ..Blocked::default()
    })
}

fn on(ts: Ns, cpu: u32, tid: Tid) -> Event {
    let next = Occupant::Workload(tid);
    Event::Switch {
        ts,
        cpu,
        prev: Occupant::Idle,
        off: Off::Exited,
        next,
    }
}

fn off(ts: Ns, cpu: u32, tid: Tid, off: Off) -> Event {
    let prev = Occupant::Workload(tid);
    Event::Switch {
        ts,
        cpu,
        prev,
        off,
        next: Occupant::Idle,
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

fn run(cpus: u32, to: Ns, events: &[Event]) -> RunPartition {
    let stacks = table();
    let occupants: Vec<_> = (0..cpus).map(|cpu| (cpu, Occupant::Idle)).collect();
    let mut partition = Partition::new(0, &occupants);
    partition.learn(&stacks);
    for event in events {
        partition.feed(event);
    }
    partition.finish(to)
}

/// The same, made as small as possible after every event.
fn run_compacted(cpus: u32, to: Ns, events: &[Event]) -> RunPartition {
    let occupants: Vec<_> = (0..cpus).map(|cpu| (cpu, Occupant::Idle)).collect();
    let mut partition = Partition::new(0, &occupants);
    partition.learn(&table());
    for event in events {
        partition.feed(event);
        partition.compact_to(0);
    }
    let told = partition.told();
    let run = partition.finish(to);
    let off = run.off.keys().map(|key| key.tid);
    let on = run.on.keys().map(|&(_, tid, _)| tid);
    let mut all = off.chain(on).filter(|&tid| tid != 0);
    assert!(all.all(|tid| told.contains(&tid)), "{told:?} {run:?}");
    let of_threads: f64 = run.threads.values().sum();
    assert!((of_threads - run.on_cpu_ns).abs() < 1.0, "{run:?}");
    run
}

#[test]
fn threads_that_have_ended_and_lost_nothing_are_forgotten() {
    let mut partition = Partition::new(0, &[(0, Occupant::Idle)]);
    for tid in 10..1000_u32 {
        let ts = Ns::from(tid) * MS;
        partition.feed(&on(ts, 0, tid));
        partition.feed(&off(ts + MS / 2, 0, tid, Off::Exited));
        partition.compact_to(100);
    }
    let run = partition.finish(1000 * MS);
    assert!(run.threads.len() <= 300, "{}", run.threads.len());
    assert!(run.processes.len() <= 300, "{}", run.processes.len());
    let of_threads: f64 = run.threads.values().sum();
    assert!((of_threads - run.on_cpu_ns).abs() < 1.0, "{run:?}");
}

fn charged(run: &RunPartition, cause: Cause) -> f64 {
    let of_cause = run.off.iter().filter(|(key, _)| key.cause == cause);
    of_cause.map(|(_, charge)| charge.ns).sum::<f64>() / MS as f64
}

fn assert_complete(run: &RunPartition) {
    let off: f64 = run.off.values().map(|charge| charge.ns).sum();
    let capacity = run.capacity_ns();
    assert!(
        (off + run.on_cpu_ns - capacity).abs() <= 1e-6 * capacity.max(1.0),
        "{off} {run:?}"
    );
}

/// Two processes wait in turns at one address: 10 for a lock, whose word is always 2 then, 20 for a counter to change.
fn of_two_processes(call: libc::c_long, operation: u64) -> RunPartition {
    let mut events = Vec::new();
    for turn in 0..8 {
        let (from, tid) = (turn * 10 * MS, if turn % 2 == 0 { 10 } else { 20 });
        let value = if tid == 10 { 2 } else { 40 + turn };
        let args = match call {
            libc::SYS_futex => [0x1000, operation, value, 0],
            _ => [0x1000, value, u64::from(u32::MAX), 0],
        };
        let waits = Off::Blocked(Blocked {
            syscall: Some(call as u32),
            args,
            place: u64::from(tid),
            ..Blocked::default()
        });
        if turn >= 2 {
            events.push(wake(from, tid, Waker::Other(99)));
        }
        events.push(on(from, 0, tid));
        events.push(off(from + MS, 0, tid, waits));
    }
    run(1, 80 * MS, &events)
}

#[test]
fn futexes_of_processes_at_one_address_are_told_apart() {
    let private = libc::FUTEX_PRIVATE_FLAG as u64;
    for run in [
        of_two_processes(libc::SYS_futex, private),
        of_two_processes(SYS_FUTEX_WAIT, 0),
    ] {
        assert_complete(&run);
        // The first 9 ms only one waits, later both.
        let waited = [Cause::LockWait, Cause::Partner].map(|cause| charged(&run, cause));
        assert_eq!(waited, [40.5, 31.5], "{run:?}");
    }
    // One that processes share is one.
    let shared = of_two_processes(libc::SYS_futex, 0);
    assert_eq!(charged(&shared, Cause::LockWait), 0.0, "{shared:?}");
    assert_eq!(charged(&shared, Cause::Partner), 72.0, "{shared:?}");
}

#[test]
fn waiting_for_a_lock_beside_a_running_holder_is_lock_wait() {
    let run = run(
        2,
        10 * MS,
        &[
            on(0, 0, 1),
            on(0, 1, 2),
            off(4 * MS, 1, 2, futex(MUTEX)),
            wake(8 * MS, 2, Waker::Workload(1)),
            on(8 * MS, 1, 2),
        ],
    );
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::LockWait), 4.0);
    assert_eq!(run.on_cpu_ns, 16.0 * MS as f64);
}

#[test]
fn spins_on_kernel_locks_are_counted_where_they_were_seen() {
    let spin = |ts, tid, lock, stack: Option<u32>| Event::KernelSpin {
        ts,
        tid,
        lock: KernelLock {
            address: lock,
            kind: KernelLockKind::Spin,
            is_mmap_lock: false,
        },
        spun: 1000,
        count: 10,
        stack: stack.map(StackId),
    };
    let run = run(
        1,
        10 * MS,
        &[
            on(0, 0, 1),
            spin(MS, 1, 0xa, Some(MUTEX)),
            spin(2 * MS, 1, 0xa, None),
            spin(3 * MS, 1, 0xa, Some(MUTEX)),
            spin(4 * MS, 1, 0xb, None),
        ],
    );
    assert_eq!(run.spun_ns, 4000.0);
    assert_eq!((run.spun[&0xa].ns, run.spun[&0xa].count), (3000.0, 30));
    let seen: Vec<_> = run.spun_at.into_iter().collect();
    assert_eq!(seen, [((0xa, 1, StackId(MUTEX)), 2)]);
}

#[test]
fn fewer_threads_than_cpus_is_serial_whoever_joins() {
    let run = run(
        4,
        10 * MS,
        &[
            on(0, 0, 1),
            off(2 * MS, 0, 1, call(libc::SYS_wait4)),
            on(2 * MS, 1, 2),
        ],
    );
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Serial), 30.0);
}

/// A sample of time of the thread on CPU 0, which stands for `ns`.
fn sample(ts: Ns, ns: Ns, stack: u32) -> Event {
    Event::Sample(Sample {
        ts,
        cpu: 0,
        tid: 1,
        by: SampledBy::Time(ns),
        user_mode: true,
        stack: StackId(stack),
    })
}

#[test]
fn samples_count_as_much_as_the_time_they_stand_for() {
    // One function for 40 ms, sampled every 2 ms, then another for 60 ms, sampled every 10 ms.
    let mut events = vec![on(0, 0, 1)];
    events.extend((1..=20).map(|at| sample(2 * at * MS, 2 * MS, MUTEX)));
    events.extend((1..=6).map(|at| sample((40 + 10 * at) * MS, 10 * MS, BARRIER)));
    let run = run(2, 100 * MS, &events);
    let of = |stack| -> (f64, u64) {
        let charges = run.on.iter().filter(|((.., id), _)| *id == StackId(stack));
        charges.fold((0.0, 0), |(ns, count), (_, charge)| {
            (ns + charge.ns / MS as f64, count + charge.count)
        })
    };
    assert_eq!((of(MUTEX), of(BARRIER)), ((40.0, 20), (60.0, 6)));
    // The other CPU was idle all the time; that is named in the same proportions.
    let serial = |stack| -> f64 {
        let of_stack = run
            .off
            .iter()
            .filter(|(key, _)| key.stack == Some(StackId(stack)));
        of_stack.map(|(_, charge)| charge.ns / MS as f64).sum()
    };
    assert!((serial(MUTEX) - 40.0).abs() < 1e-6 && (serial(BARRIER) - 60.0).abs() < 1e-6);
}

#[test]
fn while_nobody_runs_the_waits_get_every_cpu() {
    let run = run(
        4,
        10 * MS,
        &[
            on(0, 0, 1),
            off(4 * MS, 0, 1, call(libc::SYS_nanosleep)),
            wake(10 * MS, 1, Waker::Timer),
        ],
    );
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Sleep), 24.0);
    assert_eq!(charged(&run, Cause::Serial), 12.0);
}

#[test]
fn a_runnable_thread_behind_a_busy_cpu_beside_an_idle_one_is_placement() {
    let run = run(
        2,
        10 * MS,
        &[
            on(0, 0, 1),
            Event::Fork {
                ts: 0,
                parent: 1,
                child: 2,
                pid: 2,
                cpu: 0,
            },
            Event::Switch {
                ts: 6 * MS,
                cpu: 0,
                prev: Occupant::Workload(1),
                off: Off::Exited,
                next: Occupant::Workload(2),
            },
        ],
    );
    assert_complete(&run);
    // But for the start of the idle CPU.
    assert_eq!(charged(&run, Cause::Placement), 5.95);
    assert_eq!(charged(&run, Cause::Serial), 4.05);
}

#[test]
fn who_goes_to_a_cpu_that_is_not_of_the_run_leaves_the_queues() {
    let fork = Event::Fork {
        ts: 0,
        parent: 1,
        child: 2,
        pid: 2,
        cpu: 0,
    };
    let elsewhere = |ts| Event::Migrate { ts, tid: 2, cpu: 7 };
    let gone = run(2, 10 * MS, &[on(0, 0, 1), fork, elsewhere(MS)]);
    assert_complete(&gone);
    assert_eq!(charged(&gone, Cause::Placement), 0.95);

    // Woken there it is not in a queue either, and the wait has ended.
    let events = [
        on(0, 0, 1),
        on(0, 1, 2),
        off(0, 1, 2, futex(CONDITION)),
        elsewhere(2 * MS),
        wake(2 * MS, 2, Waker::Workload(1)),
    ];
    let woken = run(2, 10 * MS, &events);
    assert_complete(&woken);
    assert_eq!(charged(&woken, Cause::Partner), 2.0);
    assert_eq!(charged(&woken, Cause::Placement), 0.0);

    // Until it is back.
    let events = [
        on(0, 0, 1),
        fork,
        elsewhere(0),
        on(4 * MS, 1, 2),
        off(6 * MS, 1, 2, futex(CONDITION)),
        wake(9 * MS, 2, Waker::Workload(1)),
        on(9 * MS, 1, 2),
    ];
    let back = run(2, 10 * MS, &events);
    assert_complete(&back);
    assert_eq!(charged(&back, Cause::Placement), 0.0);
    assert_eq!(charged(&back, Cause::Partner), 3.0);
}

#[test]
fn a_wake_up_under_way_to_an_idle_cpu_belongs_to_the_wait() {
    let run = run(
        2,
        10 * MS,
        &[
            on(0, 0, 1),
            on(0, 1, 2),
            off(2 * MS, 1, 2, futex(CONDITION)),
            wake(5 * MS, 2, Waker::Workload(1)),
            on(6 * MS, 1, 2),
        ],
    );
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Partner), 4.0);
    assert_eq!(charged(&run, Cause::Placement), 0.0);
}

#[test]
fn a_cpu_is_stolen_only_from_somebody_who_wants_it() {
    let taken = |wanted: bool| {
        let mut events = vec![
            on(0, 0, 1),
            Event::Switch {
                ts: 0,
                cpu: 1,
                prev: Occupant::Idle,
                off: Off::Exited,
                next: Occupant::Other(99),
            },
        ];
        if wanted {
            events.push(Event::Fork {
                ts: 0,
                parent: 1,
                child: 2,
                pid: 2,
                cpu: 1,
            });
        }
        run(2, 10 * MS, &events)
    };
    let (wanted, unwanted) = (taken(true), taken(false));
    assert_complete(&wanted);
    assert_complete(&unwanted);
    assert_eq!(charged(&wanted, Cause::Stolen), 10.0);
    assert_eq!(charged(&unwanted, Cause::Stolen), 0.0);
    assert_eq!(charged(&unwanted, Cause::Serial), 10.0);
}

#[test]
fn a_queue_shorter_than_the_start_of_an_idle_cpu_is_no_placement() {
    // pgbench: the woken server runs 30 us later on the CPU of the client, beside an idle CPU that
    // takes longer to start. That is the cost of waiting for each other.
    let mut events = vec![on(0, 0, 1), on(0, 1, 2), off(0, 1, 2, futex(CONDITION))];
    events.push(Event::Migrate {
        ts: 0,
        tid: 2,
        cpu: 0,
    });
    events.push(wake(MS, 2, Waker::Workload(1)));
    let woken = MS + MS * 3 / 100;
    events.push(Event::Switch {
        ts: woken,
        cpu: 0,
        prev: Occupant::Workload(1),
        off: futex(CONDITION),
        next: Occupant::Workload(2),
    });
    let run = run(2, woken, &events);
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Placement), 0.0);
    assert_eq!(charged(&run, Cause::Partner), woken as f64 / MS as f64);
}

#[test]
fn who_yields_is_not_misplaced() {
    // Rayon: a worker that found nothing yields to the main thread and stays in its queue.
    let events = [
        on(0, 0, 2),
        Event::Switch {
            ts: MS,
            cpu: 0,
            prev: Occupant::Workload(2),
            off: Off::Yielded,
            next: Occupant::Workload(1),
        },
    ];
    let run = run(2, 5 * MS, &events);
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Placement), 0.0);
    assert_eq!(charged(&run, Cause::Serial), 5.0);
}

#[test]
fn a_long_wait_for_a_partner_stands_back_behind_short_waits() {
    // A main thread that ran for long waits in a condition variable until all is done. Meanwhile
    // one thread works and another one waits for its lock.
    let mut events = vec![
        on(0, 0, 1),
        on(0, 1, 9),
        off(50 * MS, 1, 9, futex(CONDITION)),
    ];
    for round in 0..50 {
        let begin = (100 + 4 * round) * MS;
        events.push(on(begin, 1, 2));
        events.push(off(begin, 1, 2, futex(MUTEX)));
        events.push(wake(begin + 4 * MS, 2, Waker::Workload(1)));
    }
    let run = run(2, 300 * MS, &events);
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::LockWait), 200.0);
    // Before there is a lock to wait for, and then no more.
    let rest = charged(&run, Cause::Partner) + charged(&run, Cause::Serial);
    assert_eq!(rest, 50.0);
}

#[test]
fn idle_cpus_are_shared_by_all_who_wait() {
    // One CPU is idle; one thread waits at a barrier, one for a lock.
    let run = run(
        2,
        10 * MS,
        &[
            on(0, 0, 1),
            on(0, 1, 2),
            off(0, 1, 2, futex(BARRIER)),
            on(0, 1, 3),
            off(0, 1, 3, futex(MUTEX)),
        ],
    );
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Barrier), 5.0);
    assert_eq!(charged(&run, Cause::LockWait), 5.0);
}

#[test]
fn throttled_cpus_are_stolen_not_misplaced() {
    let run = run(
        1,
        10 * MS,
        &[
            on(0, 0, 1),
            off(4 * MS, 0, 1, Off::Preempted),
            on(9 * MS, 0, 1),
            Event::Throttled {
                ts: 10 * MS,
                window: 10 * MS,
                ns: 5 * MS,
            },
        ],
    );
    assert_complete(&run);
    assert_eq!(charged(&run, Cause::Stolen), 5.0);
    assert_eq!(charged(&run, Cause::Placement), 0.0);
}

#[test]
fn a_thread_that_hardly_ever_runs_does_not_hide_a_serial_phase() {
    // Thread 2 waits for a condition all its life; thread 1 works alone.
    let mut events = vec![
        on(0, 0, 1),
        on(0, 1, 2),
        off(MS / 100, 1, 2, futex(CONDITION)),
    ];
    events.push(Event::Migrate {
        ts: 1000 * MS,
        tid: 1,
        cpu: 0,
    });
    let run = run(2, 1000 * MS, &events);
    assert_complete(&run);
    assert!(charged(&run, Cause::Serial) > 850.0, "{run:?}");
}

#[test]
fn folding_keeps_causes_and_code_and_forgets_who() {
    let mut events = Vec::new();
    for tid in 1..=50 {
        let begin = Ns::from(tid) * 20 * MS;
        events.extend([
            on(begin, 0, tid),
            on(begin, 1, 1000),
            off(begin + MS, 0, tid, futex(MUTEX)),
            wake(begin + 3 * MS, tid, Waker::Workload(1000)),
            on(begin + 3 * MS, 0, tid),
            off(begin + 4 * MS, 0, tid, Off::Exited),
            off(begin + 10 * MS, 1, 1000, call(libc::SYS_read)),
            wake(begin + 20 * MS, 1000, Waker::Interrupt),
        ]);
    }
    let (full, small) = (
        run(2, 1020 * MS, &events),
        run_compacted(2, 1020 * MS, &events),
    );
    assert_complete(&small);
    for cause in Cause::ALL {
        let (full, small) = (charged(&full, cause), charged(&small, cause));
        assert!((full - small).abs() < 1e-6, "{cause:?}: {full} {small}");
    }
    assert_eq!(charged(&small, Cause::LockWait), 100.0);
    assert!(full.off.len() > 50 && small.off.len() < 10, "{small:?}");
    let locks = small.off.keys().filter(|key| key.cause == Cause::LockWait);
    assert_eq!(
        locks.map(|key| key.stack).collect::<Vec<_>>(),
        [Some(StackId(MUTEX))]
    );
}

/// Stretches beyond the limit were left out without a word.
#[test]
fn a_trace_that_has_no_more_room_tells_until_when_it_is_complete() {
    let kept = |max| {
        let mut partition = Partition::new(0, &[(0, Occupant::Idle)]).keep_stretches(max);
        partition.learn(&table());
        for event in [
            on(2 * MS, 0, 7),
            off(5 * MS, 0, 7, futex(MUTEX)),
            on(9 * MS, 0, 7),
        ] {
            partition.feed(&event);
        }
        partition.finish(10 * MS)
    };
    let all = kept(9);
    // Idle, the run, idle, the wait, the run.
    assert_eq!((all.stretches.len(), all.stretches_until), (5, None));
    for (max, until) in [(4, 10 * MS), (2, 9 * MS), (1, 5 * MS)] {
        let cut = kept(max);
        assert_eq!(
            (cut.stretches.len(), cut.stretches_until),
            (max, Some(until))
        );
        assert_eq!(cut.stretches, all.stretches[..max]);
    }
    let not_asked = kept(0);
    assert_eq!(
        (not_asked.stretches.len(), not_asked.stretches_until),
        (0, None)
    );
}

/// One of another CPU's ring, behind its time: its thread was drawn running and waiting at once.
#[test]
fn a_straggler_does_not_make_stretches_overlap() {
    let occupants = [(0, Occupant::Idle), (1, Occupant::Idle)];
    let mut partition = Partition::new(0, &occupants).keep_stretches(9);
    partition.learn(&table());
    for event in [
        on(MS, 0, 7),
        on(5 * MS, 1, 8),
        off(4 * MS, 0, 7, futex(MUTEX)),
        on(6 * MS, 0, 7),
    ] {
        partition.feed(&event);
    }
    let run = partition.finish(10 * MS);
    let of_seven = run.stretches.iter().filter(|stretch| stretch.tid == 7);
    let times: Vec<[Ns; 2]> = of_seven.map(|stretch| [stretch.from, stretch.to]).collect();
    assert_eq!(times, [[MS, 5 * MS], [5 * MS, 6 * MS], [6 * MS, 10 * MS]]);
}

fn arbitrary_event() -> impl Strategy<Value = Event> {
    let tid = 1..6u32;
    let occupant = prop_oneof![
        Just(Occupant::Idle),
        (1..6u32).prop_map(Occupant::Workload),
        (90..93u32).prop_map(Occupant::Other),
    ];
    let reason = prop_oneof![
        Just(Off::Preempted),
        Just(Off::Exited),
        (0..3u32).prop_map(futex),
        Just(call(libc::SYS_read)),
        Just(call(libc::SYS_nanosleep)),
        Just(call(libc::SYS_wait4)),
        Just(call(99_999)),
    ];
    let waker = prop_oneof![
        (1..6u32).prop_map(Waker::Workload),
        Just(Waker::Timer),
        Just(Waker::Interrupt),
        Just(Waker::Other(90)),
    ];
    prop_oneof![
        4 => (0..3u32, occupant.clone(), reason, occupant)
            .prop_map(|(cpu, prev, off, next)| Event::Switch { ts: 0, cpu, prev, off, next }),
        2 => (tid.clone(), waker).prop_map(|(tid, waker)| wake(0, tid, waker)),
        1 => (tid.clone(), 0..3u32).prop_map(|(tid, cpu)| Event::Migrate { ts: 0, tid, cpu }),
        1 => (tid.clone(), tid, 0..3u32)
            .prop_map(|(parent, child, cpu)| Event::Fork { ts: 0, parent, child, pid: child, cpu }),
        1 => (0..50 * MS).prop_map(|ns| Event::Throttled { ts: 0, window: MS, ns }),
    ]
}

fn at(event: Event, when: Ns) -> Event {
    let mut event = event;
    match &mut event {
        Event::Switch { ts, .. }
        | Event::Wake { ts, .. }
        | Event::Migrate { ts, .. }
        | Event::Fork { ts, .. }
        | Event::Throttled { ts, .. } => *ts = when,
        _ => {}
    }
    event
}

proptest! {
    /// Whatever comes, contradictory and incomplete as it may be: nothing is charged twice,
    /// nothing is negative, and what CPUs did not run for the workload is charged to somebody.
    #[test]
    fn any_events_are_partitioned_exclusively(
        events in prop::collection::vec((arbitrary_event(), 0..5 * MS), 0..200)
    ) {
        let mut now = 0;
        let events: Vec<Event> = events
            .into_iter()
            .map(|(event, dt)| {
                now += dt;
                at(event, now)
            })
            .collect();
        for run in [run(3, now + MS, &events), run_compacted(3, now + MS, &events)] {
            let off: f64 = run.off.values().map(|charge| charge.ns).sum();
            for (key, charge) in &run.off {
                prop_assert!(charge.ns >= -1e-3, "{key:?} {charge:?}");
            }
            let free = run.idle_ns + run.other_ns;
            prop_assert!((off - free).abs() <= 1e-6 * run.capacity_ns(), "{off} of {free}");
            prop_assert!(free <= run.capacity_ns() * (1.0 + 1e-9));
        }
    }
}
