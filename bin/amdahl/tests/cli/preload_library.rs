//! Without privileges pthread waits come from a library that is loaded into the program, or they do not: both are told.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use amdahl_report::schema::{Notice, ScaleResult, Source};

use crate::tool::{ORDINARY, Place, alone, has_notice, is_root, notice, skipped};
use crate::workload::{CROWDED, compiled};

const SCALE: [&str; 9] = [
    "scale",
    "--probe",
    "proc",
    "--cpus",
    "1",
    "--runs",
    "1",
    "--no-warmup",
    "--no-output",
];

fn pthread_waits(sources: &[Source]) -> &Source {
    let mut found = sources
        .iter()
        .filter(|source| source.what == "pthread waits");
    found
        .next()
        .unwrap_or_else(|| panic!("no source of pthread waits: {sources:?}"))
}

/// A file of which the dynamic linker complains that it is no library, and goes on.
fn no_library(place: &Place) -> String {
    fs::write(place.join("x.so"), "").expect("a file");
    let library = place.join("x.so");
    library.to_str().expect("UTF-8").to_owned()
}

/// Runs `command` under the library `library`.
fn measured(place: &Place, library: &str, command: &[&str]) -> ScaleResult {
    let args = [&SCALE[..], &["--json", "--"], command].concat();
    let mut tool = place.tool(args);
    tool.env("AMDAHL_PRELOAD", library);
    place.run(tool).ends_with(0).result()
}

/// After `cargo install` there is none, and nothing said so.
#[test]
fn scale_says_that_the_library_is_not_there_as_locks_does() {
    let _alone = alone();
    let place = Place::new();
    let result = measured(&place, "/nowhere", &["true"]);
    let source = pthread_waits(&result.sources);
    assert_eq!(source.how, "missing");
    assert!(source.missing.contains("libamdahl_preload.so"));
    assert!(source.remedy.contains("AMDAHL_PRELOAD"));

    let mut tool = place.tool([&SCALE[..], &["--", "true"]].concat());
    tool.env("AMDAHL_PRELOAD", "/nowhere");
    place
        .run(tool)
        .ends_with(0)
        .says("Missing: pthread waits: libamdahl_preload.so")
        .says("To get it: put it beside amdahl");

    let mut tool = place.tool([
        "locks", "--json", "--quiet", "--probe", "proc", "--", "true",
    ]);
    tool.env("AMDAHL_PRELOAD", "/nowhere");
    let ran = place.run(tool).ends_with(0);
    let locks = amdahl_report::locks::parse(ran.out.as_bytes(), "standard output".into());
    let locks = locks.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(pthread_waits(&locks.sources), source);
}

#[test]
fn a_program_that_takes_no_library_is_told_so() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "crowded", CROWDED, &["-static"]) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    // It is the program's doing, whether there is a library or not.
    let library = no_library(&place);
    for library in ["/nowhere", &library] {
        let result = measured(&place, library, &[program]);
        let source = pthread_waits(&result.sources);
        assert_eq!(source.how, "missing");
        assert!(source.missing.contains("linked statically"), "{source:?}");
        assert!(source.remedy.contains("dynamically"), "{source:?}");
    }
    // A script might start programs that take it; this one does not, which shows only afterwards.
    let script = place.join("script");
    fs::write(&script, format!("#!/bin/sh\nexec {program}\n")).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a mode");
    let result = measured(&place, &library, &["./script"]);
    let source = pthread_waits(&result.sources);
    assert!(source.missing.contains("recorded anything"), "{source:?}");
}

#[test]
fn the_library_is_named_where_it_records() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "crowded", CROWDED, &[]) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    let args = [&SCALE[..], &["--json", "--", program]].concat();
    let result = place.amdahl(args).ends_with(0).result();
    let source = pthread_waits(&result.sources);
    if source.missing.contains("was not found") {
        return skipped("libamdahl_preload.so is not built");
    }
    assert_eq!((&*source.how, &*source.missing), ("preload", ""));
    for code in ["records-damaged", "records-left-out", "hidden"] {
        assert_eq!(has_notice(&result, code), None);
    }
}

/// They were counted and the counts dropped.
#[test]
fn damaged_records_are_told() {
    let _alone = alone();
    let place = Place::new();
    let library = &no_library(&place);
    let damage = r#"test -z "$AMDAHL_PRELOAD_DIR" || echo x > "$AMDAHL_PRELOAD_DIR/1-1.waits""#;
    let command = ["sh", "-c", damage];
    let result = measured(&place, library, &command);
    let text = notice(&result, "records-damaged");
    assert!(text.starts_with("1 of the records"), "{text}");
    assert!(text.contains("TMPDIR"), "{text}");

    let args = ["locks", "--json", "--quiet", "--probe", "proc", "--"];
    let mut tool = place.tool([&args[..], &command].concat());
    tool.env("AMDAHL_PRELOAD", library);
    let ran = place.run(tool).ends_with(0);
    let locks = amdahl_report::locks::parse(ran.out.as_bytes(), "standard output".into());
    let warnings: Vec<Notice> = locks.unwrap_or_else(|error| panic!("{error}")).warnings;
    assert!(
        warnings.iter().any(|notice| notice.text == text),
        "{warnings:?}"
    );
}

/// Set-user-ID: takes no library, and what it waits for is hidden.
const PRIVILEGED: &str = r#"
#include <time.h>
#include <unistd.h>
int main(void) {
    struct timespec pause = { 0, 300000000 };
    return geteuid() == getuid() ? 77 : nanosleep(&pause, 0);
}
"#;

#[test]
fn a_program_with_other_rights_is_told_to_hide() {
    let _alone = alone();
    if !is_root() {
        return skipped("only root may make a program that gains rights");
    }
    let place = Place::new();
    let Some(program) = compiled(&place, "privileged", PRIVILEGED, &[]) else {
        return;
    };
    // Given away, so that it gains the rights of neither root nor who runs it: the bounding set does not matter.
    chown(&program, Some(ORDINARY - 1), None).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("a mode");
    let program = program.to_str().expect("UTF-8");
    let args = [&SCALE[..], &["--json", "--", program]].concat();
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    if ran.err.contains("exit code 77") {
        return skipped("programs of temporary folders gain no rights here (nosuid)");
    }
    let result = ran.ends_with(0).result();
    let source = pthread_waits(&result.sources);
    assert!(source.missing.contains("set-user-ID"), "{source:?}");
    let text = notice(&result, "hidden");
    assert!(text.contains("another user"), "{text}");
}
