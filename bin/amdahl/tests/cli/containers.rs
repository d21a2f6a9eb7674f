//! What containers take away: thread ids of the kernel, and rights.

use std::process::Command;

use serde_json::Value;

use crate::tool::{Place, alone, bpf, has, is_root, skipped};

/// The sources of a JSON result, as text.
fn sources(found: &Value) -> String {
    let sources = found["sources"].as_array().expect("a result has sources");
    let lines = sources.iter().map(|source| {
        let part = |name: &str| source[name].as_str().unwrap_or_default().to_owned();
        [part("what"), part("how"), part("missing"), part("remedy")].join(" | ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The tool behind another program with its arguments.
fn behind(place: &Place, program: &str, more: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(more)
        .arg(env!("CARGO_BIN_EXE_amdahl"))
        .args(args);
    place.here(command)
}

const OWN_THREADS: [&str; 3] = ["--pid", "--fork", "--mount-proc"];

/// BPF programs know threads by other ids there: nobody was watched, or strangers of the same numbers, and the result said "bpf".
#[test]
fn in_a_pid_namespace_of_its_own_bpf_is_not_used_and_that_is_said() {
    let _alone = alone();
    let may = Command::new("unshare")
        .args(OWN_THREADS)
        .arg("true")
        .status();
    if !may.is_ok_and(|status| status.success()) {
        return skipped("no PID namespace can be made here");
    }
    let place = Place::new();
    for view in [
        &["locks"][..],
        &["sched", "record", "-o", "recording"],
        &["mem"],
        &["scale", "--cpus", "1", "--runs", "1"],
    ] {
        let args = [view, &["--json", "--", "sh", "-c", "sleep 0.2"]].concat();
        let ran = place.run(behind(&place, "unshare", &OWN_THREADS, &args));
        let said = sources(&ran.ends_with(0).json());
        if bpf().is_ok() {
            assert!(
                said.contains("PID namespace") && said.contains("--pid=host"),
                "{view:?}: {said}"
            );
        }
        assert!(!said.contains("| bpf |"), "{view:?}: {said}");
    }
    let args = ["locks", "--probe", "bpf", "--", "true"];
    let refused = place.run(behind(&place, "unshare", &OWN_THREADS, &args));
    if bpf().is_ok() {
        let refused = refused.ends_with(6);
        assert!(refused.err.contains("--pid=host"), "{}", refused.err);
    }
}

/// BPF is allowed, and the kernel hides its names: rows of kernel locks had addresses, some were missing, and nothing said why.
#[test]
fn without_the_right_to_kernel_names_that_is_said() {
    let _alone = alone();
    const LESS: [&str; 2] = ["--bounding-set", "-syslog"];
    if let Err(why) = bpf() {
        return skipped(why);
    }
    if !is_root() || !has("setpriv") {
        return skipped("not root, or there is no setpriv");
    }
    let shown = Command::new("setpriv")
        .args(LESS)
        .args(["head", "-n", "1", "/proc/kallsyms"])
        .output();
    let hides = shown.is_ok_and(|shown| shown.stdout.starts_with(b"0000000000000000 "));
    if !hides {
        return skipped("this kernel shows its names to everybody");
    }
    let place = Place::new();
    for view in ["locks", "mem"] {
        let args = [view, "--probe", "bpf", "--json", "--", "true"];
        let ran = place.run(behind(&place, "setpriv", &LESS, &args));
        let said = sources(&ran.ends_with(0).json());
        assert!(
            said.contains("kernel symbol names | missing | ") && said.contains("CAP_SYSLOG"),
            "{view}: {said}"
        );
        let whole = place.amdahl(args).ends_with(0).json();
        assert!(!sources(&whole).contains("kernel symbol names"), "{view}");
    }
}
