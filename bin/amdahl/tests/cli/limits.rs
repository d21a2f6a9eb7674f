//! Limits of open files: the tool takes what it may have, the program keeps its own.

use std::process::Command;

use crate::tool::{Place, alone};

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
