//! Ctrl-C, kill -9, and programs that leave something behind: nothing survives the tool.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::processes::{groups_of, has_groups, is_alive, kill, parent_of, pid_in, until_gone};
use crate::tool::{Place, Running, alone, bpf, is_root, notice, path_of, skipped, until};
use crate::workload::runs_of;

/// Ends at once in its first runs; then says its process id and stays.
const STAYS_IN_RUN: &str =
    "echo x >> runs; if test $(wc -l < runs) -ge FROM; then echo $$ > pid; exec sleep 1000; fi";

fn stays_from(run: u32) -> String {
    STAYS_IN_RUN.replace("FROM", &run.to_string())
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_leaves_nothing() {
    let _alone = alone();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        for probe in ["auto", "proc"] {
            let place = Place::new();
            let script = stays_from(4);
            let args = [
                "scale",
                "--cpus",
                "1",
                "--runs",
                "5",
                "--no-warmup",
                "-o",
                "r",
                "--json",
            ];
            let command = ["--probe", probe, "--", "sh", "-c", &script];
            let running = place.start(place.tool(args.iter().chain(&command)));
            let (tool, pid) = (running.pid(), pid_in(&place, "pid"));
            running.signal(signal);
            let ran = running.ended().ends_with(5);
            assert!(!is_alive(pid), "the workload has survived");
            assert_eq!(groups_of(tool), [""; 0].map(std::path::PathBuf::from));

            let result = ran.result();
            assert!(result.partial);
            let point = &result.points[0];
            assert!(!point.wall_s.runs.is_empty());
            let spread = point
                .wall_s
                .runs
                .iter()
                .chain(&point.probed_wall_s.runs)
                .count();
            assert!(
                spread <= 4,
                "the run that was cut short does not count: {point:?}"
            );
            assert!(result.failures.is_empty(), "{:?}", result.failures);
            assert_eq!(
                amdahl_report::load::load(&place.join("r")).expect("written"),
                result
            );
            let text = place.amdahl(["report", "r"]).ends_with(0);
            text.says("Interrupted");
        }
    }
}

#[test]
fn ctrl_c_in_the_first_run_says_that_there_is_nothing() {
    let _alone = alone();
    for warm_up in [true, false] {
        let place = Place::new();
        let script = stays_from(1);
        let mut command = place.tool(["scale", "--cpus", "1"]);
        if !warm_up {
            command.arg("--no-warmup");
        }
        command.args(["--", "sh", "-c", &script]);
        let running = place.start(command);
        let (tool, pid) = (running.pid(), pid_in(&place, "pid"));
        running.signal(Signal::INT);
        let ran = running.ended();
        assert!(!is_alive(pid));
        assert_eq!(groups_of(tool).len(), 0);
        assert_eq!(place.names(), ["pid", "runs"], "no folder of nothing");
        let ran = ran.ends_with(5);
        assert!(ran.message().contains("interrupted before"), "{}", ran.err);
    }
}

#[test]
fn a_workload_that_is_stopped_or_deaf_is_ended_too() {
    let _alone = alone();
    for script in [
        "echo $$ > pid; kill -STOP $$",
        "trap '' TERM INT HUP; echo $$ > pid; while :; do sleep 1000; done",
    ] {
        let place = Place::new();
        let running = place.start(place.tool(["scale", "--cpus", "1", "--", "sh", "-c", script]));
        let pid = pid_in(&place, "pid");
        running.signal(Signal::INT);
        running.ended();
        assert!(!is_alive(pid), "{script}");
    }
}

#[test]
fn a_second_ctrl_c_reports_nothing_and_leaves_nothing() {
    let _alone = alone();
    let place = Place::new();
    // Asked to end, the program interrupts the tool for the second time. A shell that runs nothing else runs its traps
    // at once; one that starts a program just then waits for that first.
    // Its parent is the guard of the run, whose parent is the tool.
    let script = "read -r _ _ _ tool _ < /proc/$PPID/stat; trap 'kill -INT $tool' TERM; echo $$ > pid; \
                  while :; do :; done";
    let command = ["scale", "--cpus", "1", "-o", "r", "--", "sh", "-c", script];
    let running = place.start(place.tool(command));
    let (tool, pid) = (running.pid(), pid_in(&place, "pid"));
    running.signal(Signal::INT);
    let ran = running.ended().ends_with(130);
    assert!(!is_alive(pid), "the workload has survived");
    assert_eq!(groups_of(tool).len(), 0);
    assert!(!place.join("r").exists());
    assert!(ran.err.contains("interrupted twice"), "{}", ran.err);
}

/// What runs with another user's rights, as under sudo, cannot be ended by who started it.
#[test]
fn what_runs_with_the_rights_of_another_user_is_not_waited_for() {
    let _alone = alone();
    let place = Place::new();
    let Some(setpriv) = path_of("setpriv").filter(|_| is_root()) else {
        return skipped("not root, or there is no setpriv");
    };
    let path = place.join("setpriv");
    std::fs::copy(setpriv, &path).expect("a copy");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("chmod");
    let as_root = "./setpriv --ruid 0 sh -c 'echo $$ > pid; exec sleep 1000'";
    // It also writes on and on, whether anybody reads or not.
    const WRITES: &str = "trap \"\" PIPE; while :; do echo on; done >&2";
    let in_background = format!("{} & wait", as_root.replace("exec sleep 1000", WRITES));
    // The program itself; a process of a program that can be ended, which keeps what that wrote to open.
    for (script, code) in [(&*format!("exec {as_root}"), 3), (&in_background, 0)] {
        let args = [
            "scale",
            "--cpus",
            "1",
            "--for",
            "300ms",
            "--probe",
            "proc",
            "--no-warmup",
            "--bare-runs",
            "0",
            "--runs",
            "1",
            "--no-output",
        ];
        let command = ["--", "sh", "-c", script];
        let ran = place
            .amdahl_as_ordinary_user(&[&args[..], &command].concat())
            .expect("there is setpriv");
        let user = std::fs::metadata(place.join("pid"))
            .expect("a program that began")
            .uid();
        if user != 0 {
            return skipped("set-user-id programs get no rights here");
        }
        let pid = pid_in(&place, "pid");
        assert!(is_alive(pid), "{}", ran.err);
        kill(pid);
        until_gone(pid);
        std::fs::remove_file(place.join("pid")).expect("the process id");
        let ran = ran.ends_with(code);
        if code != 0 {
            assert!(
                ran.message().contains("the rights of another user"),
                "{}",
                ran.err
            );
            assert!(
                ran.message().contains(&format!("process {pid}")),
                "{}",
                ran.err
            );
        }
    }
}

/// Says the process ids of itself, a child and a daemon, then waits.
const FAMILY: &str = "sleep 1000 & echo $! > grandchild; setsid sleep 1000 & echo $! > daemon; \
                      echo $$ > pid; wait";

/// Kills a tool that has started [`FAMILY`] in `place` and waits until all of it is gone.
fn kill_with_its_family(folder: &Path, running: Running) {
    let family = ["grandchild", "daemon", "pid"].map(|name| {
        until(name, || {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.strip_suffix('\n')?.parse().ok()
        })
    });
    let guard = parent_of(family[2]);
    assert_eq!(parent_of(guard), running.pid());
    running.signal(Signal::KILL);
    drop(running.ended());
    family.into_iter().chain([guard]).for_each(until_gone);
}

#[test]
fn kill_9_ends_the_workload_and_the_next_start_removes_the_rest() {
    let _alone = alone();
    let place = Place::new();
    let running =
        place.start(place.tool(["scale", "--cpus", "1", "-o", "r", "--", "sh", "-c", FAMILY]));
    let tool = running.pid();
    pid_in(&place, "pid");
    let groups = groups_of(tool);
    kill_with_its_family(place.path(), running);
    if has_groups(&place) {
        assert_eq!(groups.len(), 1, "the run was confined: {groups:?}");
    }
    // A run elsewhere may have cleaned up before us: then there is nothing to tell.
    let still_there = groups.iter().filter(|group| group.exists()).count();
    let args = [
        "scale", "--cpus", "1", "--runs", "1", "-o", "r", "--json", "--", "true",
    ];
    let result = place.amdahl(args).ends_with(0).result();
    if still_there > 0 {
        let text = notice(&result, "cleaned-up");
        assert!(text.contains("control group"), "{text}");
    }
    assert_eq!(groups_of(tool).len(), 0);
    assert_eq!(
        place.names(),
        ["daemon", "grandchild", "pid", "r"],
        "the unfinished folder is gone too"
    );
}

/// Without control groups children and daemons of the workload lived on, and its records lay in the folder for
/// temporary files for ever.
#[test]
fn kill_9_leaves_nothing_of_an_ordinary_user_either() {
    let _alone = alone();
    for view in ["scale", "locks"] {
        let place = Place::new();
        let home = place.folder_of_ordinary_user("home");
        let temporary = place.folder_of_ordinary_user("temporary");
        let start = |script: &str| {
            let script = format!("cd home; {script}");
            let mut args = vec![view, "--probe", "proc"];
            if view == "scale" {
                args.extend(["--cpus", "1", "--runs", "1", "--no-output", "--no-warmup"]);
            }
            args.extend(["--", "sh", "-c", &script]);
            let mut command = place.tool_of_ordinary_user(&args)?;
            command.env("TMPDIR", &temporary);
            Some(place.start(command))
        };
        let Some(running) = start(FAMILY) else {
            return;
        };
        kill_with_its_family(&home, running);
        let folders = crate::tool::names(&temporary);
        assert!(
            matches!(&folders[..], [name] if name.starts_with("amdahl-scratch-")),
            "{view}: {folders:?}"
        );
        let next = start("true").expect("as before");
        next.ended().ends_with(0);
        assert_eq!(crate::tool::names(&temporary), [""; 0], "{view}");
    }
}

/// A virtual machine of Java that has ended before leaves the map that we have asked it for.
#[test]
fn kill_9_leaves_no_maps_of_names() {
    let _alone = alone();
    if let Err(reason) = bpf() {
        return skipped(reason);
    }
    let place = Place::new();
    let script = "sh -c 'echo 7f00 10 Interpreter > /tmp/perf-$$.map; echo $$ > java'; \
                  sh -c 'echo 7f00 10 Somebody > /tmp/perf-$$.map; echo $$ > other'; \
                  echo $$ > pid; exec sleep 1000";
    let args = ["scale", "--no-warmup", "--cpus", "1", "--no-output"];
    let command = ["--", "sh", "-c", script];
    let running = place.start(place.tool(args.iter().chain(&command)));
    let pid = pid_in(&place, "pid");
    let map = |name| format!("/tmp/perf-{}.map", pid_in(&place, name));
    let (java, other) = (map("java"), map("other"));
    assert!(Path::new(&java).exists());
    let guard = parent_of(pid);
    running.signal(Signal::KILL);
    drop(running.ended());
    until_gone(guard);
    let is_kept = Path::new(&other).exists();
    let _ = std::fs::remove_file(other);
    assert!(!Path::new(&java).exists());
    assert!(is_kept, "Java has not written that");
}

#[test]
fn a_guard_that_is_killed_costs_one_run() {
    let _alone = alone();
    let place = Place::new();
    let script = "echo x >> runs; if test $(wc -l < runs) = 1; then setsid sleep 1000 & \
                  echo $! > daemon; kill -9 $PPID; exec sleep 1000; fi";
    let args = ["scale", "--probe", "proc", "--cpus", "1", "--runs", "2"];
    let more = ["--no-warmup", "--json", "--", "sh", "-c", script];
    let ran = place.amdahl(args.iter().chain(&more)).ends_with(4);
    let result = ran.result();
    until_gone(pid_in(&place, "daemon"));
    let whats: Vec<&str> = result
        .failures
        .iter()
        .map(|failure| failure.what.as_str())
        .collect();
    assert!(
        matches!(whats[..], [what] if what.contains("its guard")),
        "{whats:?}"
    );
    let point = &result.points[0];
    assert_eq!(point.wall_s.runs.len() + point.probed_wall_s.runs.len(), 3);
}

/// The daemon leaves the process group and the session, and keeps standard error open.
const DAEMON: &str = "setsid sh -c 'echo $$ > daemon.$0; exec sleep 1000' $$ & \
                      while ! test -s daemon.$$; do :; done";

fn daemons(place: &Place) -> Vec<u32> {
    let names = place
        .names()
        .into_iter()
        .filter(|name| name.starts_with("daemon."));
    names.map(|name| pid_in(place, &name)).collect()
}

#[test]
fn a_daemon_that_is_left_behind_is_ended_and_told() {
    let _alone = alone();
    let place = Place::new();
    if !has_groups(&place) {
        return skipped("no cpuset control groups");
    }
    for probe in ["auto", "proc"] {
        if let (Err(reason), "auto") = (bpf(), probe) {
            skipped(reason);
            continue;
        }
        let args = [
            "scale", "--probe", probe, "--cpus", "1", "--runs", "1", "--json", "--",
        ];
        let result = place
            .amdahl(args.iter().chain(&["sh", "-c", DAEMON]))
            .ends_with(0)
            .result();
        let daemons = daemons(&place);
        assert!(daemons.len() >= 3, "warm-up, with and without the probe");
        daemons.into_iter().for_each(until_gone);
        let text = notice(&result, "left");
        assert!(text.contains("1 processes were still there"), "{text}");
    }
}

/// What it ran was once told as taken away by others.
#[test]
fn the_work_of_a_daemon_that_nobody_waits_for_is_the_programs() {
    const WORKER: &str = "(setsid sh -c 'while :; do :; done' &); sleep 1.5";
    let _alone = alone();
    let place = Place::new();
    for probe in ["bpf", "proc"] {
        if let (Err(reason), "bpf") = (bpf(), probe) {
            skipped(reason);
            continue;
        }
        let how = ["--probe", probe, "--bare-runs", "0"];
        let ran = place.amdahl(runs_of("1", "1", &how, WORKER)).ends_with(0);
        let result = ran.result();
        let point = &result.points[0];
        // Beside others it had less, but no more was taken from it than it did not have.
        let (ran, stolen) = (point.user_s + point.system_s, point.stack["stolen"]);
        assert!(ran > 0.1, "{probe}: {ran}");
        let sum = ran / point.capacity_s + stolen;
        assert!((0.8..1.2).contains(&sum), "{probe}: {ran} s, {stolen}");
    }
}

/// Without control groups the daemon is nobody's child and held the pipe that the tool reads: it
/// waited for as long as the daemon lived.
#[test]
fn a_daemon_without_control_groups_is_ended_too() {
    let _alone = alone();
    let place = Place::new();
    place.folder_of_ordinary_user("home");
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--no-output",
        "--",
        "sh",
        "-c",
    ];
    let script = format!("cd home; {DAEMON}");
    let Some(command) = place.tool_of_ordinary_user(&[&args[..], &[&script]].concat()) else {
        return;
    };
    let running = place.start(command);
    let home = place.join("home");
    let daemon = until("the daemon", || {
        let name = crate::tool::names(&home)
            .into_iter()
            .find(|name| name.starts_with("daemon."))?;
        std::fs::read_to_string(home.join(name))
            .ok()?
            .strip_suffix('\n')?
            .parse()
            .ok()
    });
    // Nothing but the tool ends it.
    until_gone(daemon);
    running.ended().ends_with(0);
}

#[test]
fn a_program_that_replaces_itself_or_forks_is_followed() {
    let _alone = alone();
    let place = Place::new();
    let script = "for i in 1 2 3; do sh -c 'exec true' & done; wait; exec sh -c 'exit 0'";
    let args = [
        "scale", "--cpus", "1", "--runs", "1", "--json", "--", "sh", "-c", script,
    ];
    let result = place.amdahl(args).ends_with(0).result();
    assert!(
        crate::tool::has_notice(&result, "left").is_none(),
        "{:?}",
        result.warnings
    );
}

/// A shell that becomes the tool leaves it what it has started, which is nobody's to end: once, the end of each run ended it.
#[test]
fn what_a_shell_had_started_is_left_alone() {
    let _alone = alone();
    let place = Place::new();
    let script = "sleep 1000 & echo $! > pid; exec \"$0\" scale --cpus 1 --runs 1 --no-warmup -q --no-output \
         -- true";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_amdahl")]);
    place.run(place.here(command)).ends_with(0);
    let pid = pid_in(&place, "pid");
    assert!(is_alive(pid));
    kill(pid);
}
