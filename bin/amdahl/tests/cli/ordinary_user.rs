//! Users without any rights get the same commands, and are told what is missing.

use std::process::Command;

use amdahl_report::schema::{ScaleResult, Source};

use crate::tool::{Place, Ran, alone, is_root, skipped};
use crate::workload::{BUSY, SPINNING, WITHOUT_PERF, compiled};

#[test]
fn scale_works_and_says_what_is_missing() {
    let _alone = alone();
    let place = Place::new();
    let home = place.folder_of_ordinary_user("home");
    let Some(program) = compiled(&place, "busy", BUSY, &["-g"]) else {
        return;
    };
    let out = home.join("r");
    let args = [
        "scale",
        "--runs",
        "1",
        "-o",
        out.to_str().expect("UTF-8"),
        "--",
    ];
    let command = [program.to_str().expect("UTF-8"), "{cpus}"];
    let Some(ran) = place.amdahl_as_ordinary_user(&[&args[..], &command].concat()) else {
        return;
    };
    let ran = ran.ends_with(0);
    let result = amdahl_report::load::load(&out).expect("a result");
    for point in &result.points {
        assert_eq!(
            (point.wall_s.runs.len(), point.probed_wall_s.runs.len()),
            (1, 1)
        );
        let sum: f64 = point.stack.values().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{} CPUs: {sum}", point.cpus);
    }
    if !is_root() {
        return skipped("who runs the tests may have some rights");
    }
    let lacking: Vec<_> = result
        .sources
        .iter()
        .filter(|source| !source.missing.is_empty())
        .collect();
    assert!(!lacking.is_empty(), "{:?}", result.sources);
    for source in lacking {
        assert!(!source.remedy.is_empty(), "{source:?}");
    }
    assert_eq!(result.settings.confinement, "affinity");
    ran.says("Missing: scheduling: BPF cannot be used")
        .says("To get it: run as root");
}

#[test]
fn views_work_and_say_what_is_missing() {
    let _alone = alone();
    let place = Place::new();
    for view in [&["locks"][..], &["sched", "record"], &["mem"]] {
        let args = [view, &["--quiet", "--json", "--", "true"]].concat();
        let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
            return;
        };
        let said = ran.ends_with(0).json();
        if !is_root() {
            return skipped("who runs the tests may have some rights");
        }
        let sources: Vec<Source> =
            serde_json::from_value(said["sources"].clone()).expect("sources");
        let lacking = sources.iter().filter(|source| !source.missing.is_empty());
        let lacking: Vec<&Source> = lacking.collect();
        assert!(!lacking.is_empty(), "{view:?}: {sources:?}");
        for source in lacking {
            assert!(!source.remedy.is_empty(), "{view:?}: {source:?}");
        }
    }
}

/// `/proc/pagetypeinfo` is the administrator's: its figure was just not there, without a word.
#[test]
fn mem_says_what_only_the_administrator_sees() {
    let _alone = alone();
    let place = Place::new();
    let args = ["mem", "--quiet", "--probe", "proc", "--", "true"];
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    let ran = ran.ends_with(0);
    if !is_root() {
        return skipped("who runs the tests may have some rights");
    }
    ran.says("Missing: pages of the kernel in the way:")
        .says("/proc/pagetypeinfo");
}

/// How the stacks of running code were taken.
fn stacks(result: &ScaleResult) -> &Source {
    let mut stacks = result
        .sources
        .iter()
        .filter(|source| source.what.ends_with("stacks"));
    stacks.next().expect("a source of stacks")
}

#[test]
fn running_code_is_named_where_perf_events_are_allowed() {
    let _alone = alone();
    let place = Place::new();
    let home = place.folder_of_ordinary_user("home");
    let Some(program) = compiled(&place, "spinning", SPINNING, &["-g"]) else {
        return;
    };
    let (out, program) = (home.join("r"), program.to_str().expect("UTF-8"));
    let result = |ran: Ran| {
        ran.ends_with(0);
        amdahl_report::load::load(&out).expect("a result")
    };
    let args = ["scale", "--probe", "proc", "--cpus", "1", "--runs", "1"];
    let more = ["-o", out.to_str().expect("UTF-8"), "--", program];
    let args = [&args[..], &more].concat();
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    let seen = result(ran);
    if stacks(&seen).how == "missing" {
        return skipped(&stacks(&seen).missing);
    }
    let spin = seen.causes.iter().find(|cause| cause.id == "user-spin");
    let spin = spin.unwrap_or_else(|| panic!("no spinning: {:?}", seen.causes));
    assert_eq!(spin.sites[0].symbol, "await_the_end");

    // The same without the right to it.
    let Some(refusing) = compiled(&place, "refusing", WITHOUT_PERF, &[]) else {
        return;
    };
    let Some(tool) = place.tool_of_ordinary_user(&args) else {
        return;
    };
    let mut command = Command::new(refusing);
    command.arg(tool.get_program()).args(tool.get_args());
    let ran = place.run(place.here(command));
    if ran.status.code() == Some(77) {
        return skipped("system calls cannot be refused here");
    }
    let seen = result(ran);
    let stacks = stacks(&seen);
    assert_eq!(stacks.how, "missing");
    assert!(
        stacks.remedy.contains("kernel.perf_event_paranoid"),
        "{stacks:?}"
    );
    assert!(
        seen.causes.iter().all(|cause| cause.id != "user-spin"),
        "{:?}",
        seen.causes
    );
}

#[test]
fn demanding_bpf_without_the_right_to_it_ends_with_6() {
    let _alone = alone();
    if !is_root() {
        return skipped("who runs the tests may have the right");
    }
    let place = Place::new();
    place.folder_of_ordinary_user("home");
    let args = [
        "scale",
        "--probe",
        "bpf",
        "-o",
        "home/r",
        "--",
        "touch",
        "home/has-run",
    ];
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    let ran = ran.ends_with(6);
    let message = ran.message();
    for word in ["--probe bpf", "CAP_BPF", "amdahl doctor"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(crate::tool::names(&place.join("home")), [""; 0]);
}

#[test]
fn failures_are_told_alike() {
    let _alone = alone();
    let place = Place::new();
    let run = |args: &[&str]| place.amdahl_as_ordinary_user(args);
    let Some(ran) = run(&["scale", "--no-output", "--", "/nonexistent"]) else {
        return;
    };
    assert!(
        ran.ends_with(3)
            .message()
            .contains("cannot run \"/nonexistent\"")
    );
    let Some(ran) = run(&["scale", "--no-output", "--runs", "1", "--", "false"]) else {
        return;
    };
    assert!(ran.ends_with(3).message().contains("exit code 1"));
}
