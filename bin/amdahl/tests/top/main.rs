//! `amdahl top` in a real pseudo-terminal, on a program whose threads want one lock.

mod pty;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use pty::Pty;
use tempfile::TempDir;

/// Not captured by the test harness.
fn skipped(reason: &str) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes());
}

/// The planted program, built once; `None` without a compiler.
fn planted() -> Option<&'static str> {
    static BUILT: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/top/lock.c");
        let program = folder.path().join("lock");
        let built = Command::new("cc")
            .args(["-O2", "-g", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&program, &source])
            .status();
        assert!(built.ok()?.success(), "lock.c does not compile");
        Some((folder, program))
    });
    if built.is_none() {
        skipped("no C compiler");
    }
    built.as_ref().and_then(|(_, program)| program.to_str())
}

/// Whether BPF can be used; says why not.
fn has_bpf() -> bool {
    let tried = Command::new(env!("CARGO_BIN_EXE_amdahl"))
        .args(["top", "--batch", "1", "--probe", "bpf"])
        .stdin(Stdio::null())
        .output()
        .expect("started");
    if !tried.status.success() {
        skipped(String::from_utf8_lossy(&tried.stderr).trim());
    }
    tried.status.success()
}

/// The screen over the planted program, when it has the lock's row.
fn on_lock() -> Option<Pty> {
    let program = planted().filter(|_| has_bpf())?;
    let mut pty = Pty::run(&["top", "--interval", "500ms", "--", program]);
    pty.shows("pthread mutex");
    Some(pty)
}

#[test]
fn a_lock_is_seen_filtered_explained_and_left() {
    let Some(mut pty) = on_lock() else { return };
    let screen = pty.shows("want_the");
    assert!(
        screen
            .lines()
            .nth(3)
            .is_some_and(|line| line.contains("totalv")),
        "{screen}"
    );
    assert!(screen.contains("% of one CPU"), "{screen}");
    // Sorted by the column to the left, and the other way round.
    pty.press("<");
    pty.shows("timesv");
    pty.press("i");
    pty.shows("times^");
    pty.press("/no such lock\r");
    pty.shows("No row has this text.");
    pty.press("\u{1b}");
    pty.shows("pthread mutex");
    pty.press("/MUTEX\r");
    pty.shows("only /MUTEX/");
    pty.shows("pthread mutex");
    pty.press("\r");
    pty.shows("Call stack, innermost first:");
    pty.shows("Who released it");
    pty.press("\u{1b}");
    pty.shows("times^");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn rows_can_be_threads_and_counting_begins_again() {
    let Some(mut pty) = on_lock() else { return };
    pty.press("g");
    pty.shows("whose");
    pty.press("r");
    pty.shows("waiting for the first figures");
    pty.shows("want_");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn a_held_screen_does_not_change() {
    let Some(mut pty) = on_lock() else { return };
    pty.press(" ");
    let held = pty.shows("PAUSED");
    // Keys work meanwhile: the answer to one tells that what came before it was drawn.
    pty.press("?");
    pty.shows("hold the screen");
    pty.press("\u{1b}");
    let rows = |screen: &str| -> Vec<String> {
        let lines = screen.lines().map(|line| line.trim_end().to_owned());
        lines.collect()
    };
    pty.until("the same table", |screen| rows(screen) == rows(&held));
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn each_tab_records_what_it_shows() {
    let Some(mut pty) = on_lock() else { return };
    pty.press("2");
    pty.shows("CPUs busy");
    pty.shows("waitv");
    pty.press("\t");
    pty.shows("page faults");
    pty.press("1");
    pty.shows("pthread mutex");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn small_terminals_have_the_important_columns() {
    let Some(mut pty) = on_lock() else { return };
    for (rows, columns) in [(10, 40), (24, 80), (3, 10), (50, 200)] {
        pty.resize(rows, columns);
        if columns < 20 {
            pty.shows("too small");
        } else {
            pty.until("the lock", |screen| {
                let has = |text: &str| screen.contains(text);
                has("total") && has("want") && has("?:help") && !has("too small")
            });
        }
    }
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let Some(pty) = on_lock() else { return };
        pty.signal(signal);
        assert_eq!(pty.ends().code(), Some(5));
    }
}

#[test]
fn a_view_of_locks_may_be_live() {
    let Some(program) = planted().filter(|_| has_bpf()) else {
        return;
    };
    let mut pty = Pty::run(&["locks", "--live", "--by", "thread", "--", program]);
    let screen = pty.shows("want_th");
    assert!(
        screen.contains("1 locks") && screen.contains("whose"),
        "{screen}"
    );
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
    // And of the whole system while a command runs.
    let mut pty = Pty::run(&["locks", "--live", "--system", "--", program]);
    pty.shows("mutex");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn a_live_view_of_locks_shows_owners() {
    let Some(program) = planted().filter(|_| has_bpf()) else {
        return;
    };
    let mut pty = Pty::run(&["locks", "--live", "--owner", "--", program]);
    pty.shows("released by");
    // Beside the row of the lock stands a thread of the program, which releases it where it takes it.
    pty.until("an owner beside the lock", |screen| {
        let row = screen.lines().find(|line| line.contains("mutex"));
        row.is_some_and(|row| row.contains("want") && row.contains("lock ("))
    });
    pty.press("o");
    pty.until("no owners", |screen| {
        screen.contains("pthread mutex") && !screen.contains("released by")
    });
    pty.press("o");
    pty.shows("released by");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
    // The same for scripts.
    let output = Command::new(env!("CARGO_BIN_EXE_amdahl"))
        .args(["top", "--owner", "--batch", "1", "--", program])
        .stdin(Stdio::null())
        .output()
        .expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("released by"), "{text}");
}

#[test]
fn huge_pages_are_shown_by_mapping() {
    let Some(program) = planted() else { return };
    // With and without BPF: what is mapped is the owner's to see.
    for probe in ["auto", "proc"] {
        let mut pty = Pty::run(&[
            "top", "--tab", "mem", "--by", "mapping", "--probe", probe, "--", program,
        ]);
        pty.shows("in the way");
        pty.shows("smallv");
        pty.shows("lock [");
        pty.press("/libc\r");
        pty.until("a row of libc and its share", |screen| {
            let mut rows = screen.lines().filter(|line| line.contains("lock ["));
            rows.any(|row| row.contains("libc") && row.split_whitespace().any(|word| word == "0%"))
        });
        pty.press("\r");
        pty.shows("of it in huge pages");
        pty.press("\u{1b}");
        // The key after it would be taken for a part of an escape sequence.
        pty.until("the table", |screen| {
            !screen.contains("of it in huge pages")
        });
        pty.press("g");
        pty.shows("by site");
        pty.press("q");
        assert_eq!(pty.ends().code(), Some(0));
    }
}

#[test]
fn without_bpf_the_screen_says_what_is_missing() {
    let Some(program) = planted() else { return };
    let mut pty = Pty::run(&["top", "--probe", "proc", "--", program]);
    pty.shows("not all is known, see ?");
    pty.press("?");
    // It may be on a later page.
    pty.shows("amdahl top");
    for _ in 0..4 {
        pty.press(" ");
    }
    pty.shows("counts are lower");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

#[test]
fn without_a_terminal_there_are_tables() {
    let output = Command::new(env!("CARGO_BIN_EXE_amdahl"))
        .arg("top")
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--batch"));
    let output = Command::new(env!("CARGO_BIN_EXE_amdahl"))
        .args([
            "top", "--batch", "2", "--for", "1s", "--json", "--tab", "sched",
        ])
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let result: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(result["schema"], "amdahl.sched/1");
    }
}
