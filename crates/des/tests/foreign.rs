//! Workloads of rt-app, and recorded ones.

mod common;

use std::collections::BTreeMap;

use amdahl_des::program::Workload;
use amdahl_des::workload::{Replay, rt_app};
use amdahl_des::{Costs, RunResult};
use common::{Run, check};

fn read(text: &str) -> Workload {
    rt_app(text, &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}"))
}

fn run(workload: &Workload) -> RunResult {
    let result = Run {
        costs: Costs::free(),
        ..Run::default()
    }
    .of(workload);
    check(&result);
    result
}

#[test]
fn a_periodic_thread_keeps_its_period() {
    let result = run(&read(
        r#"{ /* a comment */
            "tasks": { "a": { "loop": 10, "run": 5000, "timer": { "ref": "unique", "period": 20000 }, }, },
            "global": { "duration": -1, "calibration": "CPU0", }
        }"#,
    ));
    assert_eq!(
        (result.end.as_str(), result.makespan_ns),
        ("done", 10 * 20_000_000)
    );
}

#[test]
fn phases_repeat_and_threads_meet() {
    let result = run(&read(
        r#"{ "tasks": {
            "first": { "instance": 2, "loop": 3, "phases": {
                "p1": { "loop": 2, "run": 100 },
                "p2": { "sleep": 50, "barrier": "meet" } } },
            "last": { "loop": 3, "run0": 1000, "run1": 1000, "barrier": "meet" },
            "waiter": { "loop": 1, "lock": "m", "wait": { "ref": "c", "mutex": "m" }, "unlock": "m" },
            "signaller": { "loop": 1, "sleep": 5000, "lock": "m", "signal": "c", "unlock": "m" },
            "sleeper": { "loop": 1, "suspend": "sleeper", "run": 10 },
            "alarm": { "loop": 1, "sleep": 100, "resume": "sleeper", "fork": "made" },
            "made": { "instance": 0, "loop": 1, "cpus": [1, 2], "mem": 2048, "iorun": 1000, "yield": "" }
        } }"#,
    ));
    assert_eq!(result.end, "done", "{:?}", result.why);
    // Six thousand microseconds of `last` lead every round.
    assert_eq!(result.makespan_ns, 6_000_000);
    let ran = |name: &str| {
        result
            .tasks
            .iter()
            .find(|task| task.name == name)
            .unwrap()
            .ran_ns
    };
    assert_eq!(
        (ran("first"), ran("last"), ran("made")),
        (2 * 600_000, 6_000_000, 120)
    );
}

#[test]
fn what_never_ends_needs_a_duration() {
    let text = r#"{ "tasks": {
        "a": { "run": 10, "sleep": 20 } } }"#;
    let error = rt_app(text, &BTreeMap::new()).unwrap_err();
    assert_eq!(error.line, Some(2));
    assert!(error.message.contains("duration"), "{error}");
    let set = BTreeMap::from([("duration".to_owned(), "3ms".to_owned())]);
    let result = run(&rt_app(text, &set).unwrap());
    assert_eq!(
        (result.end.as_str(), result.makespan_ns),
        ("duration", 3_000_000)
    );
}

#[test]
fn damaged_files_are_told_with_the_line() {
    for (text, line, part) in [
        ("", 1, "a value"),
        ("{\n\"tasks\": {\n", 3, "`}`"),
        (
            "{ \"tasks\": { \"a\": {\n\"run\": -5 } } }",
            2,
            "whole number",
        ),
        ("{ \"tasks\": { \"a\": {\n\n\"jump\": 5 } } }", 3, "`jump`"),
        (
            "{ \"tasks\": { \"a\": {\n\"fork\": \"b\", \"loop\": 1 } } }",
            2,
            "no task `b`",
        ),
        (
            "{ \"tasks\": { \"a\": {\n\"timer\": 4 } } }",
            2,
            "`ref` and `period`",
        ),
        ("{}", 1, "no object `tasks`"),
        ("{ /* \n", 1, "does not end"),
    ] {
        let error = rt_app(text, &BTreeMap::new()).expect_err(text);
        assert_eq!(error.line, Some(line), "{error}\n{text}");
        assert!(error.message.contains(part), "{error}\n{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(
        rt_app(&deep, &BTreeMap::new())
            .unwrap_err()
            .message
            .contains("too deep")
    );
}

/// A maker forks a child, computes, wakes it, and a timer wakes the maker.
#[test]
fn a_replay_keeps_computing_and_dependencies() {
    let mut replay = Replay::new();
    replay.name(1, "maker", 0);
    replay.on(1, 0);
    replay.forked(1, 2, 1_000);
    replay.name(2, "child", 1_000);
    replay.on(2, 2_000);
    replay.off(2, 3_000, true, false);
    replay.woken(2, Some(1), 10_000);
    replay.off(1, 11_000, true, false);
    replay.on(2, 12_000);
    replay.off(2, 20_000, false, true);
    replay.woken(1, None, 31_000);
    replay.on(1, 31_000);
    replay.off(1, 33_000, false, true);
    let (workload, is_cut) = replay.finish("recorded", 33_000).unwrap();
    assert!(!is_cut);
    let result = run(&workload);
    assert_eq!(result.end, "done", "{:?}", result.why);
    let ran: Vec<u64> = result.tasks.iter().map(|task| task.ran_ns).collect();
    assert_eq!(ran, [11_000 + 2_000, 1_000 + 8_000]);
    // As recorded, for nothing costs anything: 11 us of computing, 20 us of sleep, 2 us of computing.
    assert_eq!(result.makespan_ns, 33_000);
    assert!(Replay::new().finish("empty", 0).is_none());
}
