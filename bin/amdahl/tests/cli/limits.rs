//! Limits of open files: the tool takes what it may have, the program keeps its own. And of memory.

use std::collections::HashMap;
use std::process::Command;

use crate::tool::{Place, alone, bpf, skipped, until_it_watches};

/// Runs the tool where `soft` files may be open and more are possible, with a program that writes down both limits.
fn limits(soft: u32, args: &[&str]) -> (String, String) {
    let place = Place::new();
    let script = "read -r _ _ _ tool _ < /proc/$PPID/stat; ulimit -S -n > its; \
                  grep 'Max open files' /proc/$tool/limits > ours";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("ulimit -S -n {soft}; exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_amdahl"))
        .args(args)
        .args(["--", "sh", "-c", script]);
    place.run(place.here(shell)).ends_with(0);
    let of_tool = place.read("ours");
    (of_tool, place.read("its").trim().to_owned())
}

/// A recording takes several descriptors for each CPU: with the usual limit there was none where there are more than some 300.
#[test]
fn the_tool_may_open_as_many_files_as_the_hard_limit_allows_and_the_program_keeps_its_own() {
    let _alone = alone();
    for args in [
        &["mem", "--probe", "proc", "--json"][..],
        &[
            "scale", "--probe", "proc", "--cpus", "1", "--runs", "1", "--json",
        ],
    ] {
        let (ours, its) = limits(300, args);
        let words: Vec<&str> = ours.split_whitespace().collect();
        // Max open files, soft, hard, unit.
        assert_eq!(words[3], words[4], "{args:?}: {ours}");
        assert_ne!(words[3], "300", "{args:?}: {ours}");
        assert_eq!(its, "300", "{args:?}");
    }
}

/// Elements times their size of each array of BPF that a process has, the largest first.
fn arrays_of(pid: u32) -> Vec<u64> {
    const ARRAY: u64 = 2;
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("it runs");
    let texts = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
    let size = |text: String| {
        let fields = text.lines().filter_map(|line| line.split_once(":\t"));
        let fields: HashMap<&str, u64> = fields
            .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
            .collect();
        let of = |name| fields.get(name).copied();
        (of("map_type")? == ARRAY).then_some(of("max_entries")? * of("value_size")?)
    };
    let mut sizes: Vec<u64> = texts.filter_map(size).collect();
    sizes.sort_by_key(|&size| std::cmp::Reverse(size));
    sizes
}

/// Rings for events had 256 MiB, as far as there were CPUs for it, whatever was allowed.
#[test]
fn what_the_kernel_keeps_for_a_recording_is_bounded_by_what_is_allowed() {
    let _alone = alone();
    if let Err(why) = bpf() {
        return skipped(why);
    }
    let place = Place::new();
    for view in ["locks", "mem"] {
        let largest = |memory: &str| {
            let args = [
                "--memory", memory, "--system", "--json", "--quiet", "--for", "1h",
            ];
            let mut tool = place.tool([view]);
            tool.args(args);
            let tool = place.start(tool);
            until_it_watches(&tool);
            arrays_of(tool.pid())[0]
        };
        let (small, usual) = (largest("16"), largest("256"));
        assert!(small <= 16 << 20, "{view}: {small}");
        assert!(small < usual, "{view}: {small} {usual}");
    }
}
