//! `amdahl doctor`: what is missing is named with how to get it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tool::{Place, Ran, alone, has, is_root, skipped};

const CHECKS: [&str; 17] = [
    "topology",
    "several CPUs",
    "no CPU quota",
    "kernel type information (BTF)",
    "BPF recorder",
    "tracepoints of kernel locks",
    "perf events of all threads",
    "perf events of own programs",
    "hardware counters",
    "kernel symbol names",
    "cpuset control groups",
    "steal time",
    "preload library",
    "system calls and stacks of other processes",
    "processes of other users",
    "open files",
    "locked memory",
];

fn assert_complete(text: &Ran, json: &Ran) {
    let checks = json.json();
    let checks = checks.as_array().expect("a list");
    let names: Vec<&str> = checks
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    for name in CHECKS {
        assert!(names.contains(&name), "{name}");
    }
    let mut missing = 0;
    for check in checks {
        let field = |name: &str| check[name].as_str().expect("text");
        let ok = check["ok"].as_bool().expect("yes or no");
        assert!(!field("found").is_empty(), "{check}");
        // With nothing lost there is nothing to do, and the other way round.
        assert_eq!(
            (field("lost").is_empty(), field("remedy").is_empty()),
            (ok, ok),
            "{check}"
        );
        let mark = if ok { "ok     " } else { "MISSING" };
        let line = format!("{mark}  {}: {}\n", field("name"), field("found"));
        assert!(text.out.contains(&line), "no {line:?} in\n{}", text.out);
        missing += usize::from(!ok);
    }
    let end = text.out.trim_end().lines().last().expect("a line");
    if missing == 0 {
        assert_eq!(end, "Everything can be measured here.");
    } else {
        assert!(
            end.starts_with(&format!("{missing} of {} are missing", checks.len())),
            "{end}"
        );
        // Not so: amdahl locks cannot watch the whole machine without BPF.
        assert!(!end.contains("every command works"), "{end}");
    }
}

#[test]
fn doctor_tells_the_same_as_text_and_as_json() {
    let place = Place::new();
    let text = place.amdahl(["doctor"]).ends_with(0);
    assert_complete(&text, &place.amdahl(["doctor", "--json"]).ends_with(0));
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn doctor_works_without_any_rights() {
    let place = Place::new();
    let run = |args: &[&str]| {
        place
            .amdahl_as_ordinary_user(args)
            .map(|ran| ran.ends_with(0))
    };
    let (Some(text), Some(json)) = (run(&["doctor"]), run(&["doctor", "--json"])) else {
        return;
    };
    assert_complete(&text, &json);
}

/// What is missing, by name.
fn missing(ran: &Ran) -> Vec<(String, String)> {
    let checks = ran.json();
    let checks = checks.as_array().expect("a list").iter();
    let field = |check: &Value, name: &str| check[name].as_str().expect("text").to_owned();
    checks
        .filter(|check| check["ok"] == false)
        .map(|check| (field(check, "name"), field(check, "remedy")))
        .collect()
}

#[test]
fn a_library_that_is_not_there_and_a_low_limit_are_found() {
    let place = Place::new();
    let tool = env!("CARGO_BIN_EXE_amdahl");
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -n 100 && exec "$0" doctor --json"#, tool]);
    let mut command = place.here(command);
    command.env("AMDAHL_PRELOAD", "/nowhere");
    let found = missing(&place.run(command).ends_with(0));
    for (name, remedy) in [
        ("preload library", "AMDAHL_PRELOAD"),
        ("open files", "ulimit -n"),
    ] {
        let check = found.iter().find(|(found, _)| found == name);
        let (_, what_to_do) = check.unwrap_or_else(|| panic!("{name}: {found:?}"));
        assert!(what_to_do.contains(remedy), "{what_to_do}");
    }
}

/// The machine's own answers, read another way.
#[test]
fn what_the_kernel_says_of_itself_is_what_doctor_says() {
    let place = Place::new();
    let found = missing(&place.amdahl(["doctor", "--json"]).ends_with(0));
    let is_missing = |name: &str| found.iter().any(|(found, _)| found == name);
    let tracepoint = Path::new("/sys/kernel/tracing/events/lock/contention_begin");
    if tracepoint
        .parent()
        .and_then(Path::parent)
        .is_some_and(|events| events.is_dir())
    {
        assert_eq!(
            is_missing("tracepoints of kernel locks"),
            !tracepoint.exists()
        );
    } else {
        skipped("tracefs is not mounted, or not for this user");
    }
    if is_root() && !Path::new("/proc/sys/kernel/yama").exists() {
        assert!(!is_missing("system calls and stacks of other processes"));
    }
}

/// Kernels without BTF, as those of some small systems, are told what to do; and there is a result.
#[test]
fn a_kernel_without_btf_is_measured_without_bpf() {
    let _alone = alone();
    if !is_root() || !has("unshare") {
        return skipped("BTF is hidden by a mount: needs root and unshare (util-linux)");
    }
    let place = Place::new();
    let without_btf = |args: &[&str]| {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command.arg(env!("CARGO_BIN_EXE_amdahl")).args(args);
        place.run(place.here(command))
    };
    let measure = ["--cpus", "1", "--runs", "1", "--no-output", "--json", "--"];
    let counting = "i=0; while test $i -lt 100000; do i=$((i + 1)); done";
    let program = ["sh", "-c", counting];

    let scale = [&["scale"], &measure[..], &program[..]].concat();
    let result = without_btf(&scale).ends_with(0).result();
    let told = |source: &&amdahl_report::schema::Source| source.missing.contains("BTF");
    let source = result
        .sources
        .iter()
        .find(told)
        .expect("a source that says why");
    assert!(source.remedy.contains("newer kernel"), "{source:?}");

    let asked = [&["scale", "--probe", "bpf"], &measure[..], &program[..]].concat();
    let refused = without_btf(&asked).ends_with(6);
    assert!(refused.err.contains("BTF"), "{}", refused.err);
    assert!(refused.err.contains("newer kernel"), "{}", refused.err);

    let checks = without_btf(&["doctor", "--json"]).ends_with(0).json();
    let checks = checks.as_array().expect("a list").iter();
    let mut recorder = checks.filter(|check| check["name"] == "BPF recorder");
    let recorder = recorder.next().expect("the check");
    assert_eq!(recorder["ok"], false, "{recorder}");
}
