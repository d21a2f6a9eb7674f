//! The clock inside every measured run: it must not change how the run ends, and it must tell
//! the truth about it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn time(to: &Path, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amdahl-bench"))
        .args(["time", "--to"])
        .arg(to)
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap()
}

#[test]
fn the_command_ends_as_without_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("times");
    for (script, code) in [("echo out", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let output = time(&to, script);
        assert_eq!(output.status.code(), Some(code), "{script}");
    }
    assert_eq!(time(&to, "echo out").stdout, b"out\n");
    let lines = fs::read_to_string(&to).unwrap();
    assert_eq!(lines.lines().count(), 4, "a line for each: {lines}");
}

#[test]
fn cpu_time_is_that_of_the_command_and_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("times");
    // A loop that is over when its process has used 0.2 s by its own account, in ticks of 1/100 s.
    let child = "while read -r stat </proc/$$/stat; do set -- $stat; \
                 [ $((${14} + ${15})) -lt 20 ] || exit 0; done";
    assert!(time(&to, &format!("sh -c '{child}'")).status.success());
    let times: serde_json::Value = serde_json::from_str(&fs::read_to_string(&to).unwrap()).unwrap();
    let of = |name: &str| times[name].as_f64().unwrap();
    let cpu_s = of("user_s") + of("system_s");
    // One tick is counted before it is over.
    assert!(cpu_s >= 0.18, "{times}");
    assert!(of("wall_s") >= cpu_s - 0.02, "one thread: {times}");
}
