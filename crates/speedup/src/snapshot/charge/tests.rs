//! Polls of simulated runs against a naive division of every microsecond.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::event::{Blocked, StackId};
use crate::partition::{Activity, ChargeKey, RunPartition};
use crate::snapshot::user_wait::Objects;
use crate::snapshot::{ProcessWaits, Reach, UserWait, WaitKind, WaitTotal, Waiting};

const MS: Ns = 1_000_000;
const STEP: Ns = 20_000;
const POLL: Ns = 5 * MS;
/// The kernel brings the CPU time of a running thread up to date so often.
const TICK: Ns = 4 * MS;
const BLANK: StackId = StackId(0);

#[derive(Clone, Debug)]
enum Does {
    Run,
    /// Runnable, somebody else has the CPU.
    Queue,
    /// Runnable, a quota holds the CPU back.
    Throttled,
    Wait(Waiting),
}

fn futex(address: u64, operation: u64, value: u64) -> Waiting {
    let args = [address, operation, value, 0];
    Waiting {
        blocked: Blocked {
            syscall: Some(libc::SYS_futex as u32),
            args,
            ..Blocked::default()
        },
        is_readable: true,
        wchan: Arc::default(),
        reach: Reach::Unknown,
    }
}

fn mutex() -> Waiting {
    futex(0x1000, 0x80, 2)
}

fn sleep() -> Waiting {
    let mut sleep = futex(0, 0, 0);
    sleep.blocked.syscall = Some(libc::SYS_clock_nanosleep as u32);
    sleep
}

fn pipe() -> Waiting {
    let mut pipe = futex(3, 0, 0);
    pipe.blocked.syscall = Some(libc::SYS_read as u32);
    pipe.reach = Reach::Workload;
    pipe
}

fn join(tid: Tid) -> Waiting {
    futex(0x7000, 0x109, u64::from(tid))
}

/// What a thread does one after the other, over and over.
struct Script {
    cpu: CpuId,
    steps: Vec<(Does, Ns)>,
}

/// Plays the scripts for `length` on CPUs 0..`cpus` and charges the polls.
fn play(cpus: u32, scripts: &[Script], length: Ns, busy: &[CpuTimes]) -> Charger {
    let mut charger = Charger::new(&(0..cpus).collect::<Vec<_>>(), 0).keep_stretches(10_000);
    let mut threads: Vec<ThreadState> = scripts
        .iter()
        .zip(100..)
        .map(|(script, tid)| ThreadState {
            tid,
            pid: 100,
            state: State::Runnable,
            cpu: script.cpu,
            cpu_ns: 0,
            queued_ns: 0,
            turns: 0,
            user_ns: 0,
            system_ns: 0,
        })
        .collect();
    let mut idle = vec![0; cpus as usize];
    let mut queued = vec![0; scripts.len()];
    let mut ran = vec![0; scripts.len()];
    let (mut held, mut throttled_ns) = (vec![0; scripts.len()], 0);
    let mut was_running = vec![false; scripts.len()];
    for now in (0..=length).step_by(STEP as usize) {
        let mut is_busy = vec![false; cpus as usize];
        for (script, thread) in scripts.iter().zip(&mut threads) {
            let does = does(script, now);
            let this = thread.tid as usize - 100;
            match does {
                Does::Run => {
                    ran[this] += STEP;
                    thread.queued_ns += std::mem::take(&mut queued[this]);
                    is_busy[script.cpu as usize] = true;
                }
                Does::Queue => queued[this] += STEP,
                Does::Throttled => {
                    queued[this] += STEP;
                    held[this] += STEP;
                }
                Does::Wait(_) => {}
            }
            if !matches!(does, Does::Throttled) {
                throttled_ns += std::mem::take(&mut held[this]);
            }
            let runs = matches!(does, Does::Run);
            if now % TICK == 0 || !runs {
                thread.cpu_ns = ran[this];
            }
            thread.turns += u64::from(runs && !was_running[this]);
            was_running[this] = runs;
            thread.state = match does {
                Does::Run | Does::Queue | Does::Throttled => State::Runnable,
                Does::Wait(waiting) => State::Waiting(waiting.clone()),
            };
        }
        for (idle, is_busy) in idle.iter_mut().zip(is_busy) {
            *idle += if is_busy { 0 } else { STEP };
        }
        // Not in step with scripts whose length divides that of the polls.
        if now % (POLL + 7 * STEP) == 0 {
            let times = (0..cpus).map(|cpu| {
                let other = busy
                    .iter()
                    .find(|times| times.cpu == cpu)
                    .copied()
                    .unwrap_or_default();
                CpuTimes {
                    cpu,
                    idle_ns: idle[cpu as usize].saturating_sub(other.user_ns * now / length),
                    user_ns: now.saturating_sub(idle[cpu as usize]) + other.user_ns * now / length,
                    ..CpuTimes::default()
                }
            });
            let snapshot = Snapshot {
                ts: now,
                threads: threads.clone(),
                cpus: times.collect(),
                throttled_ns,
            };
            charger.feed(&snapshot, &StackTable::new());
        }
    }
    charger
}

fn does(script: &Script, now: Ns) -> &Does {
    let all: Ns = script.steps.iter().map(|(_, ns)| ns).sum();
    let mut at = now % all;
    for (does, ns) in &script.steps {
        if at < *ns {
            return does;
        }
        at -= ns;
    }
    &script.steps[0].0
}

/// Fractions of the capacity by cause.
fn fractions(run: &RunPartition) -> BTreeMap<Cause, f64> {
    let mut sums = BTreeMap::new();
    for (key, charge) in &run.off {
        *sums.entry(key.cause).or_default() += charge.ns / run.capacity_ns();
    }
    sums
}

/// The division of [`crate::partition`], step by step.
fn naive(
    cpus: u32,
    scripts: &[Script],
    length: Ns,
    cause: impl Fn(&Waiting) -> Cause,
) -> BTreeMap<Cause, f64> {
    let mut sums: BTreeMap<Cause, f64> = BTreeMap::new();
    let steps = (length / STEP) as f64 * f64::from(cpus);
    for now in (0..length).step_by(STEP as usize) {
        let all: Vec<&Does> = scripts.iter().map(|script| does(script, now)).collect();
        let running = all.iter().filter(|does| matches!(does, Does::Run)).count() as f64;
        let queued = all
            .iter()
            .filter(|does| matches!(does, Does::Queue))
            .count() as f64;
        let waits: Vec<Cause> = all
            .iter()
            .filter_map(|does| match does {
                Does::Wait(waiting) => Some(cause(waiting)).filter(|&cause| cause != Cause::Serial),
                Does::Run | Does::Queue | Does::Throttled => None,
            })
            .collect();
        let throttled = all.iter().filter(|does| matches!(does, Does::Throttled));
        let throttled = throttled.count() as f64;
        *sums.entry(Cause::Stolen).or_default() += throttled / steps;
        let idle = f64::from(cpus) - running - throttled;
        let placement = queued.min(idle);
        *sums.entry(Cause::Placement).or_default() += placement / steps;
        let rest = idle - placement;
        let active = waits.len() as f64;
        let claimed = if running + queued + throttled == 0.0 && active > 0.0 {
            rest
        } else {
            active.min(rest)
        };
        for &cause in &waits {
            *sums.entry(cause).or_default() += claimed / active / steps;
        }
        *sums.entry(Cause::Serial).or_default() += (rest - claimed) / steps;
    }
    sums
}

fn told(waiting: &Waiting) -> Cause {
    match waiting.blocked.syscall.map(i64::from) {
        Some(libc::SYS_futex) if waiting.blocked.args[2] == 2 => Cause::LockWait,
        Some(libc::SYS_futex) => Cause::Serial,
        Some(libc::SYS_read) => Cause::Partner,
        _ => Cause::Sleep,
    }
}

fn assert_close(cpus: u32, scripts: &[Script], within: f64) {
    const LENGTH: Ns = 4000 * MS;
    let run = play(cpus, scripts, LENGTH, &[]).finish(LENGTH, None, &[], |_, _| None, BLANK);
    let found = fractions(&run);
    let expected = naive(cpus, scripts, LENGTH, told);
    for cause in Cause::ALL {
        let [found, expected] =
            [&found, &expected].map(|sums| sums.get(&cause).copied().unwrap_or(0.0));
        assert!(
            (found - expected).abs() < within,
            "{cause}: {found:.3}, not {expected:.3}"
        );
    }
}

#[test]
fn waits_longer_than_polls_are_divided_as_events_would() {
    let script = |cpu, steps| Script { cpu, steps };
    assert_close(
        4,
        &[
            script(
                0,
                vec![(Does::Run, 31 * MS), (Does::Wait(mutex()), 17 * MS)],
            ),
            script(
                1,
                vec![(Does::Run, 23 * MS), (Does::Wait(sleep()), 29 * MS)],
            ),
            script(2, vec![(Does::Wait(pipe()), 37 * MS), (Does::Run, 11 * MS)]),
            script(3, vec![(Does::Wait(join(101)), 1000 * MS)]),
        ],
        0.03,
    );
}

/// What the trace shows of a thread at a time: the CPU, the cause, or nothing.
fn shown(run: &RunPartition, tid: Tid, at: Ns) -> Option<(Option<CpuId>, Option<Cause>)> {
    let mut stretches = run.stretches.iter();
    let found =
        stretches.find(|stretch| stretch.tid == tid && (stretch.from..stretch.to).contains(&at));
    found.map(|stretch| (stretch.cpu, stretch.cause))
}

#[test]
fn a_trace_shows_what_lasts_longer_than_polls_at_its_time() {
    const LENGTH: Ns = 2000 * MS;
    let script = |cpu, steps| Script { cpu, steps };
    let scripts = [
        script(
            0,
            vec![(Does::Run, 61 * MS), (Does::Wait(mutex()), 47 * MS)],
        ),
        script(
            1,
            vec![(Does::Wait(sleep()), 59 * MS), (Does::Run, 53 * MS)],
        ),
        script(2, vec![(Does::Queue, 43 * MS), (Does::Run, 71 * MS)]),
        script(3, vec![(Does::Wait(join(101)), 1000 * MS)]),
    ];
    let run = play(4, &scripts, LENGTH, &[]).finish(LENGTH, None, &[], |_, _| None, BLANK);
    assert_eq!(run.stretches_until, None);
    for (script, tid) in scripts.iter().zip(100..) {
        let (mut times, mut right) = (0, 0);
        for at in (20 * MS..LENGTH - 20 * MS).step_by(STEP as usize) {
            let expected = match does(script, at) {
                Does::Run => Some((Some(script.cpu), None)),
                // On the CPU or in its queue, the kernel does not tell, and nobody else ran there.
                Does::Queue | Does::Throttled => continue,
                Does::Wait(waiting) => Some((None, Some(told(waiting)))),
            };
            times += 1;
            right += u32::from(shown(&run, tid, at) == expected);
        }
        // Each change is found half a poll too early or too late.
        assert!(right * 100 > times * 92, "{tid}: {right} of {times}");
    }
}

#[test]
fn waits_shorter_than_polls_are_divided_too() {
    let script = |cpu, steps| Script { cpu, steps };
    assert_close(
        2,
        &[
            script(
                0,
                vec![(Does::Run, 310_000), (Does::Wait(mutex()), 170_000)],
            ),
            script(
                1,
                vec![(Does::Wait(mutex()), 230_000), (Does::Run, 570_000)],
            ),
        ],
        0.04,
    );
}

#[test]
fn while_nobody_runs_the_waits_get_all_of_it() {
    // One thread that sleeps half of its time, on four CPUs: half of all is sleep.
    let script = Script {
        cpu: 0,
        steps: vec![(Does::Run, 13 * MS), (Does::Wait(sleep()), 13 * MS)],
    };
    assert_close(4, &[script], 0.03);
}

#[test]
fn what_a_quota_holds_back_is_stolen() {
    let script = |cpu, steps| Script { cpu, steps };
    let limited = |cpu| script(cpu, vec![(Does::Run, 20 * MS), (Does::Throttled, 80 * MS)]);
    assert_close(2, &[limited(0), limited(1)], 0.03);
    // Neither the lock that others wait for meanwhile nor a wait just over is blamed for it.
    let steps = vec![
        (Does::Wait(sleep()), 30 * MS),
        (Does::Throttled, 60 * MS),
        (Does::Run, 20 * MS),
    ];
    let waiting = script(0, vec![(Does::Wait(mutex()), 1000 * MS)]);
    assert_close(4, &[waiting, limited(1), script(2, steps)], 0.03);
}

#[test]
fn queues_beside_idle_cpus_are_placement() {
    let script = |steps| Script { cpu: 0, steps };
    assert_close(
        2,
        &[
            script(vec![(Does::Run, 4 * MS), (Does::Queue, 4 * MS)]),
            script(vec![(Does::Queue, 4 * MS), (Does::Run, 4 * MS)]),
        ],
        0.05,
    );
}

#[test]
fn short_queues_are_the_ends_of_waits() {
    let script = Script {
        cpu: 0,
        steps: vec![
            (Does::Run, 400_000),
            (Does::Wait(sleep()), 560_000),
            (Does::Queue, 40_000),
        ],
    };
    let length = 4000 * MS;
    let run = play(2, &[script], length, &[]).finish(length, None, &[], |_, _| None, BLANK);
    let found = fractions(&run);
    let of = |cause| found.get(&cause).copied().unwrap_or(0.0);
    assert!(of(Cause::Placement) < 0.01, "{found:?}");
    assert!((of(Cause::Sleep) - 0.6).abs() < 0.03, "{found:?}");
}

/// Time in a queue is told in one sum when it ends, which may be more than fits into one interval:
/// what did not fit was once forgotten, and two thirds of the placement were called serial.
#[test]
fn queues_longer_than_polls_are_placement_too() {
    let script = |steps| Script { cpu: 0, steps };
    assert_close(
        2,
        &[
            script(vec![(Does::Run, 21 * MS), (Does::Queue, 21 * MS)]),
            script(vec![(Does::Queue, 21 * MS), (Does::Run, 21 * MS)]),
        ],
        0.05,
    );
}

#[test]
fn what_others_take_is_stolen_and_not_idle() {
    const LENGTH: Ns = 1000 * MS;
    let script = Script {
        cpu: 0,
        steps: vec![(Does::Run, 13 * MS), (Does::Wait(sleep()), 13 * MS)],
    };
    let others = CpuTimes {
        cpu: 1,
        user_ns: LENGTH,
        ..CpuTimes::default()
    };
    let run = play(2, &[script], LENGTH, &[others]).finish(LENGTH, None, &[], |_, _| None, BLANK);
    let found = fractions(&run);
    assert!((found[&Cause::Stolen] - 0.5).abs() < 0.02, "{found:?}");
    assert!((found[&Cause::Sleep] - 0.25).abs() < 0.04, "{found:?}");
}

#[test]
fn records_of_the_process_name_its_futexes() {
    const LENGTH: Ns = 500 * MS;
    // By its use this would be a lock.
    let steps = vec![(Does::Run, 13 * MS), (Does::Wait(mutex()), 13 * MS)];
    let scripts = [Script { cpu: 0, steps }];
    let total = |kind, object, caller, ns| WaitTotal {
        kind,
        object,
        caller,
        count: 1,
        ns,
        max_ns: ns,
    };
    let records = [ProcessWaits {
        pid: 100,
        totals: vec![
            total(WaitKind::Barrier, 0x0ff0, 0x4001, 3 * MS),
            total(WaitKind::Barrier, 0x0ff0, 0x4002, MS),
        ],
        by_kind: vec![(WaitKind::Spin, 1, 25 * MS)],
        ..ProcessWaits::default()
    }];
    let site = |pid: Tid, caller: u64| (pid == 100).then_some(StackId(caller as u32));
    let usage = CpuUsage {
        user_ns: 200 * MS,
        system_ns: 50 * MS,
        faults_ns: None,
    };
    let run = play(1, &scripts, LENGTH, &[]).finish(LENGTH, Some(usage), &records, site, BLANK);
    let found = fractions(&run);
    assert_eq!(found.get(&Cause::LockWait), None);
    let of = |caller| {
        let key = ChargeKey {
            cause: Cause::Barrier,
            tid: 100,
            stack: Some(StackId(caller)),
            object: 0x0ff0,
        };
        run.off[&key].ns
    };
    assert!((of(0x4001) / of(0x4002) - 3.0).abs() < 1e-6);
    let spins = run
        .on
        .iter()
        .filter(|((activity, ..), _)| *activity == Activity::UserSpin);
    let spun: f64 = spins.map(|(_, charge)| charge.ns).sum();
    assert!((spun / run.on_cpu_ns - 0.1).abs() < 1e-6, "{spun}");
}

/// Its CPU time is in no account that `wait` gives.
#[test]
fn what_a_process_that_nobody_waits_for_ran_is_the_programs() {
    const LENGTH: Ns = 500 * MS;
    let script = Script {
        cpu: 0,
        steps: vec![(Does::Run, LENGTH)],
    };
    let usage = CpuUsage {
        user_ns: MS,
        system_ns: MS,
        faults_ns: None,
    };
    let run = play(1, &[script], LENGTH, &[]).finish(LENGTH, Some(usage), &[], |_, _| None, BLANK);
    assert!(run.on_cpu_ns > 0.9 * LENGTH as f64, "{}", run.on_cpu_ns);
    assert!(
        fractions(&run)
            .get(&Cause::Stolen)
            .is_none_or(|&stolen| stolen < 0.1)
    );
}

#[test]
fn a_wait_cut_off_by_the_end_names_its_futex_too() {
    let wait = UserWait {
        tid: 100,
        kind: WaitKind::Join,
        object: 0x1000,
        caller: 1,
        start: 0,
        end: None,
    };
    let records = [ProcessWaits {
        pid: 100,
        waits: vec![wait],
        ..ProcessWaits::default()
    }];
    let found = Objects::new(&records).holding(100, 0x12d0);
    assert_eq!(found.map(|(kind, _)| kind), Some(WaitKind::Join));
}

#[test]
fn without_polls_the_idle_time_is_unexplained() {
    let run = Charger::new(&[0, 1], 0).finish(10 * MS, None, &[], |_, _| None, BLANK);
    assert_eq!(fractions(&run), BTreeMap::from([(Cause::Unexplained, 1.0)]));
}

fn any_state() -> impl Strategy<Value = State> {
    let waiting = (
        any::<Option<u16>>(),
        any::<[u64; 4]>(),
        any::<[bool; 2]>(),
        "[a-z_]{0,20}",
    )
        .prop_map(|(syscall, args, [uninterruptible, is_readable], wchan)| {
            let syscall = syscall.map(|number| u32::from(number % 460));
            State::Waiting(Waiting {
                blocked: Blocked {
                    syscall,
                    args,
                    uninterruptible,
                    ..Blocked::default()
                },
                is_readable,
                wchan: wchan.as_str().into(),
                reach: Reach::Unknown,
            })
        });
    prop_oneof![3 => Just(State::Runnable), 1 => Just(State::Stopped), 4 => waiting]
}

fn any_thread() -> impl Strategy<Value = ThreadState> {
    (
        0_u32..9,
        any_state(),
        0_u32..5,
        any::<[u32; 3]>(),
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(tid, state, cpu, [cpu_ns, queued_ns, turns], [huge, few])| ThreadState {
                tid,
                pid: tid / 3,
                state,
                cpu,
                cpu_ns: if huge { u64::MAX } else { u64::from(cpu_ns) },
                queued_ns: u64::from(queued_ns),
                turns: if few { 0 } else { u64::from(turns) },
                user_ns: u64::from(cpu_ns / 2),
                system_ns: u64::from(cpu_ns / 3),
            },
        )
}

fn any_cpu() -> impl Strategy<Value = CpuTimes> {
    (0_u32..5, any::<[u32; 6]>()).prop_map(|(cpu, times)| {
        let [user_ns, system_ns, idle_ns, iowait_ns, irq_ns, steal_ns] = times.map(u64::from);
        CpuTimes {
            cpu,
            user_ns,
            system_ns,
            idle_ns,
            iowait_ns,
            irq_ns,
            steal_ns,
        }
    })
}

proptest! {
    /// Whatever the polls say, the parts add up to the capacity and none is negative.
    #[test]
    fn the_parts_add_up(
        polls in proptest::collection::vec(
            (0_u64..40_000_000, proptest::collection::vec(any_thread(), 0..9),
             proptest::collection::vec(any_cpu(), 0..6), any::<u32>()),
            0..40,
        ),
        usage in proptest::option::of(any::<[u32; 2]>()),
        to in 1_u64..2_000_000_000,
    ) {
        let mut charger = Charger::new(&[0, 1, 2], 0).keep_stretches(50);
        let mut ts = 0;
        for (after, mut threads, cpus, throttled) in polls {
            ts += after;
            threads.dedup_by_key(|thread| thread.tid);
            let throttled_ns = u64::from(throttled);
            charger.feed(&Snapshot { ts, threads, cpus, throttled_ns }, &StackTable::new());
        }
        let usage = usage.map(|[user_ns, system_ns]| CpuUsage {
            user_ns: u64::from(user_ns),
            system_ns: u64::from(system_ns),
            faults_ns: None,
        });
        let run = charger.finish(to, usage, &[], |_, _| None, BLANK);
        let capacity = run.capacity_ns();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * capacity.max(1.0);
        prop_assert!(close(run.on_cpu_ns + run.other_ns + run.idle_ns, capacity));
        prop_assert!(run.off.values().all(|charge| charge.ns >= 0.0));
        prop_assert!(run.on.values().all(|charge| charge.ns >= 0.0));
        let off: f64 = run.off.values().map(|charge| charge.ns).sum();
        prop_assert!(close(off, run.idle_ns + run.other_ns), "{off} of {} + {}", run.idle_ns, run.other_ns);
        let on: f64 = run.on.values().map(|charge| charge.ns).sum();
        prop_assert!(close(on, run.on_cpu_ns), "{on} of {}", run.on_cpu_ns);
        prop_assert!(run.stretches.len() <= 50);
        prop_assert!(run.stretches.iter().all(|one| run.from <= one.from && one.from < one.to && one.to <= run.to));
        // A CPU has one thread at a time, and a thread does one thing.
        for (at, later) in run.stretches.iter().enumerate() {
            for earlier in &run.stretches[..at] {
                let same_cpu = later.cpu.is_some() && later.cpu == earlier.cpu;
                let disjoint = earlier.to <= later.from;
                prop_assert!(disjoint || !(same_cpu || later.tid == earlier.tid), "{earlier:?} {later:?}");
            }
        }
    }
}
