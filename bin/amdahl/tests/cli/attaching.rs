//! `--pid`: a process that runs already is watched and left as it was.

use std::process::Command;

use rustix::process::Signal;

use crate::processes::{is_alive, until_catches};
use crate::tool::{Place, Running, alone, bpf, skipped};

/// A process that waits until the test ends.
fn sleeper(place: &Place) -> Running {
    let mut command = Command::new("sleep");
    command.arg("1000");
    place.start(place.here(command))
}

/// BPF is there, or SKIPPED.
fn can_watch() -> bool {
    bpf().map_err(skipped).is_ok()
}

#[test]
fn a_running_process_is_watched_for_a_time_and_left_alone() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let place = Place::new();
    let process = sleeper(&place);
    let pid = process.pid().to_string();
    let ran = place
        .amdahl(["scale", "--pid", &pid, "--for", "100ms", "--json"])
        .ends_with(0);
    let result = ran.result();
    assert_eq!(result.points.len(), 1);
    let sum: f64 = result.points[0].stack.values().sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    assert!(result.points[0].wall_s.median >= 0.1);
    assert_eq!(result.settings.speedup_of, "none");
    assert!(!result.partial);
    assert!(is_alive(process.pid()));
}

#[test]
fn watching_ends_with_the_process() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let place = Place::new();
    let process = sleeper(&place);
    let pid = process.pid().to_string();
    // The time is beyond that of the test.
    let tool = place.start(place.tool(["scale", "--pid", &pid, "--for", "1h", "--json"]));
    until_catches(tool.pid(), Signal::INT);
    drop(process);
    let ran = tool.ended();
    // It may have gone before the tool came to look at it.
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{ran:?}");
}

#[test]
fn ctrl_c_ends_watching_and_not_the_process() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let place = Place::new();
    let process = sleeper(&place);
    let pid = process.pid().to_string();
    let tool = place.start(place.tool(["scale", "--pid", &pid, "--for", "1h", "--json"]));
    until_catches(tool.pid(), Signal::INT);
    tool.signal(Signal::INT);
    let ran = tool.ended();
    assert!(is_alive(process.pid()));
    assert!(ran.ends_with(5).result().partial);
}

#[test]
fn what_is_no_process_is_refused() {
    let _alone = alone();
    if !can_watch() {
        return;
    }
    let place = Place::new();
    // Numbers of processes end below 2^22. 0 is nobody: to the kernel it is the caller.
    for pid in ["4194304", "4294967295", "0", "-1", "4294967296", "init"] {
        let ran = place.amdahl(["scale", "--pid", pid, "--for", "50ms"]);
        let code = ran.status.code();
        assert!(
            matches!(code, Some(2 | 3)) && !ran.err.contains("panicked"),
            "{ran:?}"
        );
        assert!(ran.err.contains(pid), "{}", ran.err);
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn watching_without_the_right_to_it_ends_with_6() {
    let _alone = alone();
    let place = Place::new();
    let args = ["scale", "--pid", "1", "--no-output"];
    if crate::tool::is_root() {
        let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
            return;
        };
        assert!(ran.ends_with(6).message().contains("amdahl doctor"));
    } else if bpf().is_err() {
        assert!(
            place
                .amdahl(args)
                .ends_with(6)
                .message()
                .contains("amdahl doctor")
        );
    } else {
        skipped("who runs the tests has the right");
    }
}
