//! Locks that C++, Rust, Go and Java bring along.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use amdahl_report::locks::schema::{LockRow, LocksResult};
use amdahl_report::schema::Source;
use serde_json::Value;

use super::{
    SOURCES, Truth, agree, are_released_in, are_told, holds, is_of, made, result, rows, sum,
    watch_command,
};
use crate::tool::{Place, alone, bpf, has, skipped};
use crate::workload::{in_some_try, watched};

/// A place, where waits can be recorded and all of `compilers` are there.
fn ready(compilers: &[&str]) -> Option<Place> {
    bpf().map_err(skipped).ok()?;
    for compiler in compilers {
        if !has(compiler) {
            skipped(format!("no {compiler} found"));
            return None;
        }
    }
    Some(Place::new())
}

#[test]
fn waits_of_cpp_are_what_the_program_measured() {
    let _alone = alone();
    let Some(place) = ready(&["g++"]) else {
        return;
    };
    let flags = ["-std=c++20", "-O2", "-g", "-pthread", "-o"];
    let Some(program) = made(&place, "g++", &flags, "library", "library.cpp") else {
        return;
    };
    let families = [
        ("semaphore", "C++ semaphore", "want_ticket", "hold_tickets"),
        ("barrier", "C++ barrier", "want_gate", "hold_gate"),
        ("latch", "C++ barrier", "want_latch", "hold_latch"),
        (
            "shared-read",
            "pthread rwlock (read)",
            "want_to_read",
            "hold_register_for_writing",
        ),
        (
            "shared-write",
            "pthread rwlock (write)",
            "want_to_write",
            "hold_register_for_reading",
        ),
        ("timed-mutex", "pthread mutex", "want_kiosk", "hold_kiosk"),
    ];
    are_told(&place, &program, &families, "holder");
}

/// The planted program of this workspace.
fn planted_locks(place: &Place) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "--quiet"]);
    cargo.args(["-p", "amdahl-planted-locks", "--manifest-path"]);
    cargo.arg(Path::new(SOURCES).join("rust/Cargo.toml"));
    cargo.arg("--target-dir").arg(place.join("target"));
    let ran = place.run(place.here(cargo));
    assert!(ran.status.success(), "{}", ran.err);
    place.join("target/release/planted-locks")
}

#[test]
fn waits_of_rust_are_what_the_program_measured() {
    let _alone = alone();
    let Some(place) = ready(&[]) else {
        return;
    };
    let program = planted_locks(&place);
    let families = [
        (
            "std-mutex",
            "Rust mutex",
            "standard::want_mutex",
            "standard::hold_mutex",
        ),
        (
            "std-read",
            "Rust rwlock (read)",
            "standard::want_to_read",
            "standard::hold_for_writing",
        ),
        (
            "std-write",
            "Rust rwlock (write)",
            "standard::want_to_write",
            "standard::hold_for_reading",
        ),
        (
            "std-condvar",
            "Rust condvar",
            "standard::wait_for_the_bell",
            "standard::ring",
        ),
        (
            "std-once",
            "Rust once",
            "standard::want_it_open",
            "standard::open",
        ),
        (
            "parking_lot-mutex",
            "parking_lot mutex",
            "parked::want_mutex",
            "parked::hold_mutex",
        ),
        (
            "parking_lot-read",
            "parking_lot rwlock (read)",
            "parked::want_to_read",
            "parked::hold_for_writing",
        ),
        (
            "parking_lot-write",
            "parking_lot rwlock (write)",
            "parked::want_to_write",
            "parked::hold_for_reading",
        ),
        (
            "parking_lot-condvar",
            "parking_lot condvar",
            "parked::wait_for_the_bell",
            "parked::ring",
        ),
    ];
    are_told(&place, &program, &families, "planted-locks");
}

/// The thread that parks a goroutine sleeps at one place, whatever the goroutine waits for: once
/// all waits of a thread were taken for those of its deepest stack.
#[test]
fn waits_of_one_goroutine_are_told_apart() {
    let _alone = alone();
    let Some(place) = ready(&["go"]) else {
        return;
    };
    let flags = ["build", "-o"];
    let Some(program) = made(&place, "go", &flags, "goroutines", "goroutines.go") else {
        return;
    };
    in_some_try(|| {
        let (line, found) = watch_command(&place, &[program.as_os_str()], &["--owner"]);
        // Beside other busy programs it is not all of their waits.
        let is_of_go = |source: &&Source| source.what == "waits of goroutines";
        let note = found.sources.iter().find(is_of_go).expect("a note");
        assert!(note.missing.contains("waits longer than is told"));
        let waits = [
            ("mutex", "Go mutex", "main.wantTheVault"),
            ("read", "Go rwlock (read)", "main.wantToRead"),
            ("write", "Go rwlock (write)", "main.wantToWrite"),
            ("channel", "Go message", "main.wantTheLetter"),
        ];
        for (wait, what, function) in waits {
            let (times, seconds) = sum(&found, what, function);
            let truth = Truth::of(&line[wait]);
            agree(&truth, seconds)
                .and_then(|()| once_or_twice_as_often(&truth, times))
                .map_err(|miss| format!("{wait}: {miss}: {}", rows(&found)))?;
            // At other times the runtime wakes the thread.
            let mut told = found.rows.iter().filter(|row| is_of(row, what, function));
            let by_holder = |row: &LockRow| {
                let mut owners = row.owners.iter();
                owners.any(|owner| owner.site.symbol.contains("main.main.func1"))
            };
            if !told.any(by_holder) {
                return Err(format!(
                    "{wait}: the holder let nobody go on: {:?}",
                    found.rows
                ));
            }
        }
        Ok(())
    });
}

/// Where threads always have another goroutine to run nobody sleeps for one that waits: the table had nothing of it.
#[test]
fn waits_of_goroutines_are_told_whatever_their_threads_do() {
    let _alone = alone();
    let Some(place) = ready(&["go"]) else {
        return;
    };
    let stripped = ["build", "-ldflags=-s -w", "-buildmode=pie", "-o"];
    for (name, flags) in [("crowd", &["build", "-o"][..]), ("stripped", &stripped)] {
        let Some(program) = made(&place, "go", flags, name, "crowd.go") else {
            return;
        };
        in_some_try(|| goroutines_are_told(&place, &program));
    }
}

/// A goroutine that never goes on is known by its beginning alone.
#[test]
fn goroutines_that_wait_to_the_end_are_told() {
    let _alone = alone();
    let Some(place) = ready(&["go"]) else {
        return;
    };
    let Some(program) = made(&place, "go", &["build", "-o"], "crowd", "crowd.go") else {
        return;
    };
    in_some_try(|| {
        let command = [program.as_os_str(), OsStr::new("stuck")];
        let (line, ran) = watched(&place, "locks", &["--goroutines"], &command);
        let found = result(&ran);
        let (what, function) = ("Go mutex", "main.beStuck");
        let (times, seconds) = sum(&found, what, function);
        let of_stuck = found.rows.iter().filter(|row| is_of(row, what, function));
        let open: u64 = of_stuck.map(|row| row.open).sum();
        assert_eq!((times, open), (16, 0), "they end with the program");
        agree(&Truth::of(&line["stuck"]), seconds)
    });
}

fn goroutines_are_told(place: &Place, program: &Path) -> Result<(), String> {
    let options = ["--goroutines", "--owner"];
    let (line, ran) = watched(place, "locks", &options, &[program.as_os_str()]);
    let found = result(&ran);
    assert_eq!(found.events_lost, 0);
    let is_of_go = |source: &&Source| source.what == "waits of goroutines";
    let source = found.sources.iter().find(is_of_go).expect("a note");
    assert_eq!(source.how, "bpf, probes in programs");
    let waits = [
        ("mutex", "Go mutex", "main.wantTheVault", "main.main.func1"),
        (
            "condition",
            "Go condvar",
            "main.waitToBegin",
            "main.letBegin",
        ),
        ("group", "Go join", "main.waitForAll", "main.main.func1"),
    ];
    for (wait, what, function, releaser) in waits {
        let truth = Truth::of(&line[wait]);
        let of_wait = |miss: String| format!("{wait}: {miss}: {}", rows(&found));
        let (times, seconds) = sum(&found, what, function);
        let again_s = match wait {
            // Whose mutex it takes before it goes on.
            "condition" => sum(&found, "Go mutex", function).1,
            _ => 0.0,
        };
        agree(&truth, seconds + again_s).map_err(of_wait)?;
        nearly_as_often(&truth, times).map_err(of_wait)?;
        are_released_in(&found, what, function, releaser).map_err(of_wait)?;
    }
    Ok(())
}

/// What HotSpot is told so that its code has names: all of it is compiled, nothing into its caller.
const WITH_NAMES: [&str; 7] = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+PreserveFramePointer",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:+DumpPerfMapAtExit",
    "-XX:TieredStopAtLevel=1",
    "-XX:-Inline",
    "-Xcomp",
];

/// Runs the planted program with these options of the virtual machine. Whether that wrote a map of names.
fn watch_java(place: &Place, options: &[&str]) -> (Value, LocksResult, bool) {
    let classes = place.join("classes");
    let mut command: Vec<&OsStr> = vec![OsStr::new("java")];
    command.extend(options.iter().map(OsStr::new));
    command.extend([
        OsStr::new("-cp"),
        classes.as_os_str(),
        OsStr::new("Monitors"),
    ]);
    let options = ["--owner", "--by", "thread"];
    let (line, found) = watch_command(place, &command, &options);
    assert_eq!(found.events_lost, 0);
    let map = format!("/tmp/perf-{}.map", line["pid"]);
    let had_map = std::fs::remove_file(map).is_ok();
    (line, found, had_map)
}

/// Of those of its waits that `is_it` says.
fn waited_by(found: &LocksResult, thread: &str, is_it: impl Fn(&LockRow) -> bool) -> (u64, f64) {
    let rows = found.rows.iter();
    let of_thread = rows.filter(|row| row.thread == thread && is_it(row));
    of_thread.fold((0, 0.0), |(times, seconds), row| {
        (times + row.times, seconds + row.total_s)
    })
}

/// Sleeps of threads for goroutines that waited: Go's monitor may take the running goroutine off its thread meanwhile,
/// which wakes the one that sleeps; it finds nothing to run and sleeps again.
fn once_or_twice_as_often(truth: &Truth, times: u64) -> Result<(), String> {
    if !(truth.times * 3 / 4..=truth.times * 2).contains(&times) {
        return Err(format!("{times} sleeps for {} waits", truth.times));
    }
    Ok(())
}

/// What runtimes do before they let a thread sleep may end a wait, and whose turn it is not may sleep twice.
fn nearly_as_often(truth: &Truth, times: u64) -> Result<(), String> {
    if times.abs_diff(truth.times) > truth.times / 4 {
        return Err(format!("{times} times of {}", truth.times));
    }
    Ok(())
}

#[test]
fn waits_of_java_are_what_the_program_measured() {
    let _alone = alone();
    let Some(place) = ready(&["javac", "java"]) else {
        return;
    };
    if made(&place, "javac", &["-d"], "classes", "Monitors.java").is_none() {
        return;
    }
    let is_unnamed = |found: &LocksResult| {
        let mut warnings = found.warnings.iter();
        warnings.any(|warning| warning.code == "java-unnamed" && warning.text.contains("jcmd"))
    };
    in_some_try(|| {
        let (line, found, had_map) = watch_java(&place, &WITH_NAMES);
        if !had_map {
            skipped("this Java tells no names of its code: 17 or newer does");
            return Ok(());
        }
        assert!(!is_unnamed(&found), "{:?}", found.warnings);
        let waits = [
            ("monitor", "Java monitor", "Monitors.wantTheVault"),
            ("mutex", "Java mutex", "Monitors.wantTheLedger"),
            ("read", "Java rwlock (read)", "Monitors.wantToRead"),
            ("write", "Java rwlock (write)", "Monitors.wantToWrite"),
            ("semaphore", "Java semaphore", "Monitors.wantATicket"),
            ("barrier", "Java barrier", "Monitors.waitAtTheGate"),
            ("condition", "Java condvar", "Monitors.waitForTheBell"),
        ];
        for (wait, what, function) in waits {
            let (times, seconds) = waited_by(&found, wait, |row| is_of(row, what, function));
            let truth = Truth::of(&line[wait]);
            agree(&truth, seconds)
                .and_then(|()| nearly_as_often(&truth, times))
                .map_err(|miss| format!("{wait}: {miss}: {}", rows(&found)))?;
        }
        for (wait, holder) in [
            (0, "Monitors.holdTheVault"),
            (1, "Monitors.holdTheLedger"),
            // Both unlock by the same code of the virtual machine; compiled, their stacks may be of one depth.
            (2, "Monitors.holdFor"),
            (3, "Monitors.holdFor"),
            (4, "Monitors.holdTheTicket"),
            (5, "Monitors.comeToTheGateLate"),
            (6, "Monitors.ringTheBell"),
        ] {
            let (_, what, function) = waits[wait];
            holds(&found, what, function, ("holder", holder))?;
        }
        Ok(())
    });
    // Without names the virtual machine's own functions tell of monitors.
    in_some_try(|| {
        let (line, found, _) = watch_java(&place, &[]);
        assert!(is_unnamed(&found), "{:?}", found.warnings);
        let (times, seconds) = waited_by(&found, "monitor", |row| row.what == "Java monitor");
        let truth = Truth::of(&line["monitor"]);
        agree(&truth, seconds)
            .and_then(|()| nearly_as_often(&truth, times))
            .map_err(|miss| format!("{miss}: {}", rows(&found)))
    });
}
