//! Where results go: places that are read-only, full, or taken.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::tool::{Place, alone, has, is_root, names, skipped};

const QUICK: [&str; 6] = ["scale", "--cpus", "1", "--runs", "1", "--no-warmup"];

fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&QUICK[..], more].concat()
}

#[test]
fn the_folder_is_named_after_the_program() {
    let _alone = alone();
    let place = Place::new();
    place
        .amdahl(quick(&["--", "/bin/true"]))
        .ends_with(0)
        .says("Written to amdahl-true/");
    assert_eq!(place.names(), ["amdahl-true"]);
    let script = place.join("a b$c;");
    fs::write(&script, "#!/bin/sh\n").expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a mode");
    place.amdahl(quick(&["--", "./a b$c;"])).ends_with(0);
    assert_eq!(place.names(), ["a b$c;", "amdahl-a_b_c_", "amdahl-true"]);
}

#[test]
fn no_output_writes_nothing() {
    let _alone = alone();
    let place = Place::new();
    place
        .amdahl(quick(&["--no-output", "--", "true"]))
        .ends_with(0);
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn an_existing_result_is_replaced_and_other_files_stay() {
    let _alone = alone();
    let place = Place::new();
    fs::create_dir(place.join("r")).expect("a folder");
    fs::write(place.join("r/notes.txt"), "mine").expect("a file");
    fs::write(place.join("r/result.json"), "old").expect("a file");
    place.amdahl(quick(&["-o", "r", "--", "true"])).ends_with(0);
    assert_eq!(place.read("r/notes.txt"), "mine");
    let files = [
        "notes.txt",
        "report.html",
        "result.json",
        "samples.parquet",
        "trace.json.gz",
    ];
    assert_eq!(names(&place.join("r")), files);
    amdahl_report::load::load(&place.join("r")).expect("a result");
}

#[test]
fn a_result_that_is_there_survives_a_sweep_that_fails() {
    let _alone = alone();
    let place = Place::new();
    place.amdahl(quick(&["-o", "r", "--", "true"])).ends_with(0);
    let before = place.read("r/result.json");
    place
        .amdahl(quick(&["-o", "r", "--", "false"]))
        .ends_with(3);
    assert_eq!(place.read("r/result.json"), before);
    assert_eq!(
        names(&place.join("r")).len(),
        4,
        "nothing unfinished is left"
    );
}

/// An hour of measuring must not end in "permission denied".
#[test]
fn places_that_cannot_be_written_are_refused_before_anything_runs() {
    let _alone = alone();
    let place = Place::new();
    fs::write(place.join("file"), "").expect("a file");
    let command = ["--", "sh", "-c", "touch has-run"];
    for (folder, reason) in [
        ("file", "Not a directory"),
        ("file/r", "Not a directory"),
        ("missing/r", "No such file"),
        ("/proc/r", "No such file"),
    ] {
        let ran = place
            .amdahl(quick(&[&["-o", folder][..], &command].concat()))
            .ends_with(1);
        let message = ran.message();
        assert!(
            message.contains(reason) && message.contains("--output"),
            "{message}"
        );
        assert_eq!(place.names(), ["file"]);
    }
}

#[test]
fn a_folder_of_somebody_else_is_refused_before_anything_runs() {
    let _alone = alone();
    let place = Place::new();
    let theirs = place.join("theirs");
    fs::create_dir(&theirs).expect("a folder");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o555)).expect("a mode");
    fs::create_dir(place.join("open")).expect("a folder");
    fs::set_permissions(place.join("open"), fs::Permissions::from_mode(0o777)).expect("a mode");
    for folder in ["theirs", "theirs/r"] {
        let command = ["-o", folder, "--", "sh", "-c", "touch open/has-run"];
        let Some(ran) = place.amdahl_as_ordinary_user(&quick(&command)) else {
            return;
        };
        let ran = ran.ends_with(1);
        let message = ran.message();
        assert!(message.contains("Permission denied"), "{message}");
        assert!(
            message.contains("choose a folder that you may write to"),
            "{message}"
        );
    }
    assert_eq!(names(&place.join("open")), [""; 0]);
    assert_eq!(names(&theirs), [""; 0]);
}

/// Runs the tool with `disk` as a file system of its own, which goes away with it.
fn on_disk(options: &str, args: &[&str]) -> Option<(crate::tool::Ran, String)> {
    if !is_root() {
        skipped("only root may mount a file system");
        return None;
    }
    if !has("unshare") {
        skipped("unshare (util-linux) is not installed");
        return None;
    }
    let place = Place::new();
    fs::create_dir(place.join("disk")).expect("a folder");
    let script = r#"mount -t tmpfs -o "$0" tmpfs disk || { echo cannot mount >&2; exit 77; }
        "$@"; code=$?; ls -A disk > left; exit $code"#;
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "sh",
            "-c",
            script,
            options,
            env!("CARGO_BIN_EXE_amdahl"),
        ])
        .args(args);
    let ran = place.run(place.here(command));
    if ran.status.code() == Some(77) || ran.err.contains("unshare failed") {
        skipped(format_args!("no mount namespace: {}", ran.err.trim_end()));
        return None;
    }
    Some((ran, place.read("left")))
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let _alone = alone();
    // Room for the folder, but not for all of its files.
    let args = quick(&["-o", "disk/r", "--", "true"]);
    let Some((ran, left)) = on_disk("size=8k", &args) else {
        return;
    };
    let ran = ran.ends_with(1);
    let message = ran.message();
    assert!(message.contains("No space left on device"), "{message}");
    assert!(
        message.contains("free some space, or write to another disk"),
        "{message}"
    );
    assert!(message.contains("disk/r/"), "{message}");
    assert!(!message.contains('\n'), "{message}");
    assert_eq!(left, "", "nothing half-written is left");
}

/// What has been measured is not thrown away because it could not be written.
#[test]
fn a_full_disk_does_not_take_the_report() {
    let _alone = alone();
    let args = quick(&["-o", "disk/r", "--", "true"]);
    let Some((ran, _)) = on_disk("size=8k", &args) else {
        return;
    };
    ran.ends_with(1).says("Where the CPU time goes");
}

#[test]
fn a_read_only_file_system_is_refused_before_anything_runs() {
    let _alone = alone();
    let args = quick(&["-o", "disk/r", "--", "touch", "has-run"]);
    let Some((ran, left)) = on_disk("ro", &args) else {
        return;
    };
    let ran = ran.ends_with(1);
    let message = ran.message();
    assert!(message.contains("Read-only file system"), "{message}");
    assert!(
        message.contains("choose a folder that you may write to"),
        "{message}"
    );
    assert_eq!(left, "");
    assert!(ran.out.is_empty());
}
