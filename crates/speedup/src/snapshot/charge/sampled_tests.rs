//! CPU time divided by samples.

use std::sync::Arc;

use super::*;
use crate::event::{CallStack, Frame, Sample, SampledBy, StackId};
use crate::partition::{Activity, RunPartition};

const MS: Ns = 1_000_000;
const BLANK: StackId = StackId(0);
const CODE: StackId = StackId(1);
const SPIN: StackId = StackId(2);
const CALL: StackId = StackId(3);
const KERNEL: StackId = StackId(4);

fn stacks() -> StackTable {
    let named = |symbol: &str| CallStack {
        user: vec![Frame {
            symbol: symbol.to_owned(),
            ..Frame::default()
        }],
        ..CallStack::default()
    };
    let mut all = ["", "code", "spin", "call", "kernel"].map(named);
    all[2].in_spin_loop = true;
    all[3].after_system_call = true;
    all[4].kernel = all[4].user.clone();
    all.map(Arc::new).into()
}

fn sample(tid: Tid, stack: StackId, by: SampledBy) -> Sample {
    Sample {
        ts: 0,
        cpu: 0,
        tid,
        by,
        user_mode: stack != KERNEL,
        stack,
    }
}

/// One thread that runs on one CPU all the time.
fn run(samples: &[(StackId, u32)], faults: u64, usage: CpuUsage) -> RunPartition {
    let mut charger = Charger::new(&[0], 0);
    for &(stack, count) in samples {
        for _ in 0..count {
            charger.sample(&sample(7, stack, SampledBy::Time(MS)), &stacks());
        }
    }
    for _ in 0..faults {
        charger.sample(&sample(7, CODE, SampledBy::PageFaults(100)), &stacks());
    }
    charger.finish(100 * MS, Some(usage), &[], |_, _| None, BLANK)
}

fn of(run: &RunPartition, activity: Activity, stack: StackId) -> f64 {
    let charges = run
        .on
        .iter()
        .filter(|((a, _, s), _)| (*a, *s) == (activity, stack));
    charges.map(|(_, charge)| charge.ns / MS as f64).sum()
}

fn usage(user: Ns, system: Ns, faults: Option<Ns>) -> CpuUsage {
    CpuUsage {
        user_ns: user * MS,
        system_ns: system * MS,
        faults_ns: faults.map(|ns| ns * MS),
    }
}

#[track_caller]
fn assert_is(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
}

#[test]
fn samples_of_the_kernel_divide_all_cpu_time() {
    let run = run(&[(CODE, 5), (SPIN, 2), (KERNEL, 3)], 0, usage(60, 40, None));
    assert_is(of(&run, Activity::User, CODE), 50.0);
    assert_is(of(&run, Activity::UserSpin, SPIN), 20.0);
    assert_is(of(&run, Activity::Kernel, KERNEL), 30.0);
    assert_eq!(run.samples, 10);
}

#[test]
fn system_time_without_samples_goes_to_faults_and_callers() {
    let run = run(
        &[(CODE, 4), (SPIN, 4), (CALL, 2)],
        3,
        usage(60, 40, Some(30)),
    );
    assert_is(of(&run, Activity::User, CODE), 24.0);
    assert_is(of(&run, Activity::UserSpin, SPIN), 24.0);
    assert_is(of(&run, Activity::User, CALL), 12.0);
    assert_is(of(&run, Activity::PageFault, CODE), 30.0);
    assert_is(of(&run, Activity::Kernel, CALL), 10.0);
}

#[test]
fn faults_take_no_more_than_there_is() {
    let run = run(&[], 0, usage(60, 20, Some(30)));
    assert_is(of(&run, Activity::User, BLANK), 60.0);
    assert_is(of(&run, Activity::PageFault, BLANK), 20.0);
    assert_is(of(&run, Activity::Kernel, BLANK), 0.0);
}

#[test]
fn serial_time_is_named_by_what_ran_meanwhile() {
    let mut charger = Charger::new(&[0, 1], 0);
    for poll in 0..=20 {
        let thread = ThreadState {
            tid: 7,
            pid: 7,
            state: State::Runnable,
            cpu: 0,
            cpu_ns: poll * 5 * MS,
            queued_ns: 0,
            turns: 1,
            user_ns: poll * 5 * MS,
            system_ns: 0,
        };
        // Now and then no sample falls between two polls.
        let stack = if poll < 10 { CODE } else { CALL };
        if poll % 3 > 0 {
            charger.sample(&sample(7, stack, SampledBy::Time(MS)), &stacks());
        }
        charger.feed(
            &Snapshot {
                ts: poll * 5 * MS,
                threads: vec![thread],
                ..Snapshot::default()
            },
            &stacks(),
        );
    }
    let run = charger.finish(100 * MS, None, &[], |_, _| None, BLANK);
    let serial = |stack| {
        let charges = run
            .off
            .iter()
            .filter(|(key, _)| (key.cause, key.stack) == (Cause::Serial, stack));
        charges.map(|(_, charge)| charge.ns).sum::<f64>() / run.idle_ns
    };
    assert_is(serial(None), 0.0);
    assert_is(serial(Some(CODE)) + serial(Some(CALL)), 1.0);
    assert!((serial(Some(CODE)) - 0.5).abs() < 0.1);
}
