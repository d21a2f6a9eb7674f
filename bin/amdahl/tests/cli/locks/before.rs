//! Waits that began before the recording did.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use amdahl_report::locks::schema::{LockRow, LocksResult};
use rustix::process::Signal;

use super::truth::{is_of, rows};
use super::{ready_with, result};
use crate::tool::{Place, Running, alone, until, until_it_watches};
use crate::workload::{in_some_try, watching};

fn ready() -> Option<(Place, PathBuf)> {
    ready_with("before")
}

/// The planted program, once `stuck` of its threads wait for what they are to wait for.
fn waiting(place: &Place, program: &Path, how: &str, stuck: usize) -> Running {
    let mut command = Command::new(program);
    command.arg(how);
    let mut command = place.here(command);
    command.stdin(Stdio::piped());
    let process = place.start(command);
    let threads = format!("/proc/{}/task", process.pid());
    until("threads that wait", || {
        let all = std::fs::read_dir(&threads).ok()?.flatten();
        let is_stuck = |folder: &Path| {
            let read = |file| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
            let (name, stat) = (read("comm"), read("stat"));
            name == "stuck\n" && stat.contains(") S ")
        };
        (all.filter(|thread| is_stuck(&thread.path())).count() == stuck).then_some(())
    });
    process
}

fn pid_of(process: &Running) -> String {
    process.pid().to_string()
}

/// What a view of the process has seen when it is told to end.
fn seen(place: &Place, options: &[&str]) -> LocksResult {
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    let tool = watching(place, "locks", &options);
    tool.signal(Signal::INT);
    result(&tool.ended().ends_with(5))
}

/// The only wait of `what` in `function`.
fn only<'a>(found: &'a LocksResult, what: &str, function: &str) -> &'a LockRow {
    let mut all = found.rows.iter().filter(|row| is_of(row, what, function));
    let row = all
        .next()
        .unwrap_or_else(|| panic!("{function}: {}", rows(found)));
    assert!(all.next().is_none(), "{function}: {}", rows(found));
    assert_eq!((row.times, row.sleeps, row.before), (1, 1, 1), "{row:?}");
    assert!(row.max_s <= found.seconds * (1.0 + 1e-9), "{row:?}");
    row
}

fn is_deadlocked(found: &LocksResult) {
    for function in ["want_left", "want_right"] {
        let row = only(found, "pthread mutex", function);
        assert_eq!((row.open, row.class.as_str()), (1, "lock"), "{row:?}");
        assert!(row.site.symbol.contains(function), "{row:?}");
        let file = row.site.file.as_deref().unwrap_or_default();
        assert!(file.ends_with("before.c") && row.site.line.is_some());
        assert!(row.owners.is_empty());
    }
}

/// Nobody had seen them begin, and the table was empty.
#[test]
fn a_process_in_a_deadlock_shows_it() {
    let Some((place, program)) = ready() else {
        return;
    };
    let process = waiting(&place, &program, "deadlock", 2);
    let pid = pid_of(&process);
    is_deadlocked(&seen(&place, &["--pid", &pid]));
    let tool = place.start(place.tool(["locks", "--quiet", "--for", "1h", "--pid", &pid]));
    until_it_watches(&tool);
    tool.signal(Signal::INT);
    let text = tool.ended().ends_with(5);
    for said in ["want_left", "want_right", "before the recording"] {
        assert!(text.out.contains(said), "{}", text.out);
    }
}

#[test]
fn a_deadlock_in_the_system_shows() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let process = waiting(&place, &program, "deadlock", 2);
    let mut found = seen(&place, &["--system", "--by", "thread"]);
    found.rows.retain(|row| row.pid == process.pid());
    is_deadlocked(&found);
}

/// What had not ended was told only when the view did.
#[test]
fn a_deadlock_shows_while_it_is_watched() {
    let Some((place, program)) = ready() else {
        return;
    };
    let process = waiting(&place, &program, "deadlock", 2);
    for probe in ["bpf", "proc"] {
        let pid = pid_of(&process);
        let args = [
            "top", "--batch", "1", "--json", "--probe", probe, "--pid", &pid,
        ];
        let ran = place.amdahl(args).ends_with(0);
        for function in ["want_left", "want_right"] {
            assert!(ran.out.contains(function), "{probe}: {}", ran.out);
        }
    }
}

/// Once, from the begin of the recording to its end, which somebody caused.
#[test]
fn a_wait_that_ends_in_the_recording_is_told_once() {
    let Some((place, program)) = ready() else {
        return;
    };
    for (how, what, function) in [
        ("mutex", "pthread mutex", "want_left"),
        ("semaphore", "SysV semaphore", "want_set"),
        ("flock", "file lock", "want_flock"),
    ] {
        in_some_try(|| {
            let mut process = waiting(&place, &program, how, 1);
            let pid = pid_of(&process);
            let options = ["--owner", "--pid", &pid].map(OsStr::new);
            let tool = watching(&place, "locks", &options);
            process.say("go on");
            process.ended().ends_with(0);
            let found = result(&tool.ended().ends_with(0));
            let row = only(&found, what, function);
            assert_eq!(row.open, 0, "{row:?}");
            // Where the machine hides a switch nobody knows who caused it.
            let owner = row.owners.first().map(|owner| &*owner.site.symbol);
            match owner {
                Some("let_go" | "operate") => Ok(()),
                _ => Err(format!("{how}: {row:?}")),
            }
        });
    }
}

/// A thread that is looked at may run on and wait again meanwhile.
#[test]
fn of_a_busy_process_nothing_is_told_twice() {
    let Some((place, program)) = ready() else {
        return;
    };
    for _ in 0..5 {
        let mut process = waiting(&place, &program, "busy", 0);
        let pid = pid_of(&process);
        until("threads", || {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
            (threads.count() == 7).then_some(())
        });
        let options = ["--by", "thread", "--pid", &pid].map(OsStr::new);
        // Waits are seen from before the time that the result says: hooks are there first.
        let begun = std::time::Instant::now();
        let tool = watching(&place, "locks", &options);
        process.say("end");
        process.ended().ends_with(0);
        let found = result(&tool.ended().ends_with(0));
        let all_s = begun.elapsed().as_secs_f64();
        for row in found.rows.iter().filter(|row| !row.in_kernel) {
            let is_of_thread = |other: &&LockRow| other.tid == row.tid && !other.in_kernel;
            let of_thread = found.rows.iter().filter(is_of_thread);
            let (before, seconds) = of_thread.fold((0, 0.0), |(before, seconds), row| {
                (before + row.before, seconds + row.total_s)
            });
            // It waits for one thing at a time.
            assert!(before <= 1, "{row:?}");
            assert!(seconds <= all_s, "{row:?}");
        }
        let waited = |row: &&LockRow| is_of(row, "pthread mutex", "take_turns");
        assert!(
            found.rows.iter().any(|row| waited(&row)),
            "{}",
            rows(&found)
        );
    }
}
