//! `amdahl top` in a real pseudo-terminal, on a program whose threads want one lock, and on others whose threads and
//! processes come and go.

mod pty;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use pty::Pty;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// Not captured by the test harness.
fn skipped(reason: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes());
}

type Built = OnceLock<Option<(TempDir, PathBuf)>>;

/// A program, built once from its source; `None` without a compiler.
fn built(once: &'static Built, source: &str) -> Option<&'static str> {
    let built = once.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let program = folder.path().join(source.file_stem().expect("a name"));
        let built = Command::new("cc")
            .args(["-O2", "-g", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&program, &source])
            .status();
        assert!(
            built.ok()?.success(),
            "{} does not compile",
            source.display()
        );
        Some((folder, program))
    });
    if built.is_none() {
        skipped("no C compiler");
    }
    built.as_ref().and_then(|(_, program)| program.to_str())
}

/// The program whose threads want one lock.
fn planted() -> Option<&'static str> {
    static BUILT: Built = OnceLock::new();
    built(&BUILT, "tests/top/lock.c")
}

/// A process that a test started.
struct Process(Child);

impl Process {
    /// A program that begins when it is told to, and will write to `said`.
    fn to_be_told(program: &str, args: &[&str], said: &Path) -> Process {
        let child = Command::new(program)
            .args(args)
            .env("PLANTED_OUT", said)
            .stdin(Stdio::piped())
            .spawn();
        Process(child.expect("started"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Waits for its end, not for ever.
    fn ends(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.0);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let pidfd = pidfd.expect("a descriptor");
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        let hangs_after = Timespec {
            tv_sec: 120,
            tv_nsec: 0,
        };
        let ended = poll(&mut polled, Some(&hangs_after)).expect("polled");
        assert_eq!(ended, 1, "it goes on");
        self.0.wait().expect("waited")
    }

    /// Tells it to begin, and waits for its end.
    fn runs(&mut self) {
        let mut input = self.0.stdin.take().expect("a pipe");
        writeln!(input, "begin").expect("it reads");
        assert!(self.0.wait().expect("waited").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a planted program says it had of `what`.
fn count(said: &Path, what: &str) -> String {
    let text = std::fs::read_to_string(said).expect("what it says");
    let said: serde_json::Value = serde_json::from_str(&text).expect("a line");
    said[what].to_string()
}

/// The row with `text` has `figure` in it.
fn has_in_row(screen: &str, text: &str, figure: &str) -> bool {
    let mut rows = screen.lines().filter(|line| line.contains(text));
    rows.any(|row| row.split_whitespace().any(|word| word == figure))
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
fn it_ends_with_its_terminal() {
    let Some(mut pty) = on_lock() else { return };
    pty.counts_on();
    assert_eq!(pty.hang_up().code(), Some(5));
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
fn a_live_view_without_bpf_says_which_owners_it_does_not_show() {
    let Some(program) = planted() else { return };
    for (owner, is_named) in [(&["--owner"][..], true), (&[], false)] {
        let output = Command::new(env!("CARGO_BIN_EXE_amdahl"))
            .args(["top", "--probe", "proc", "--batch", "1", "--json"])
            .args(owner)
            .args(["--", program])
            .stdin(Stdio::null())
            .output()
            .expect("started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.contains("mmap_lock holds"), is_named, "{text}");
    }
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
fn cpus_and_those_of_guests_are_shown() {
    let Some(program) = planted().filter(|_| has_bpf()) else {
        return;
    };
    let mut pty = Pty::run(&["top", "--tab", "sched", "--by", "cpu", "--", program]);
    pty.shows("wastedv");
    pty.until("a CPU with switches", |screen| {
        let mut rows = screen.lines().skip(4).map(|line| line.split_whitespace());
        rows.any(|row| row.clone().count() > 6 && row.flat_map(str::parse::<u64>).count() > 1)
    });
    pty.press("g");
    pty.shows("phantomv");
    pty.shows("Nothing yet.");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
    // A view that has no such rows says which it has.
    let refused = Command::new(env!("CARGO_BIN_EXE_amdahl"))
        .args(["top", "--tab", "mem", "--by", "guest", "--batch", "1"])
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("site, process, kind, mapping"), "{said}");
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

/// Snapshots at this interval end when their reader goes, who has read the first.
fn ends_with_its_reader(interval: &str) {
    let tool = Command::new(env!("CARGO_BIN_EXE_amdahl"))
        .args(["top", "--batch", "1000000", "--interval", interval])
        .args(["--json", "--tab", "sched", "--probe", "proc"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut tool = Process(tool.expect("started"));
    let mut out = BufReader::new(tool.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    assert!(out.read_line(&mut line).expect("a line") > 0);
    drop(out);
    assert_eq!(tool.ends().code(), Some(0));
}

/// `amdahl top --batch 1000 | head` went on until all was recorded, for nobody.
#[test]
fn it_ends_with_its_reader() {
    ends_with_its_reader("200ms");
}

/// It was noticed when the next snapshot was written, after its interval.
#[test]
fn it_ends_with_its_reader_without_waiting_for_the_next_snapshot() {
    // The first snapshot does not wait for the interval.
    ends_with_its_reader("1h");
}

/// Threads live for one wait each; when all of them have ended, and their process, the screen has each wait, and
/// goes on.
#[test]
fn a_process_that_ends_while_it_is_shown_keeps_its_waits_and_names() {
    static BUILT: Built = OnceLock::new();
    let Some(program) = built(&BUILT, "../../planted/locks/churn.c").filter(|_| has_bpf()) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let said = folder.path().join("said");
    // Whether each thread that was woken had waited is for the kernel to say: the two may differ by one.
    let is_exact = (0..4).any(|_| {
        let _ = std::fs::remove_file(&said);
        let mut process = Process::to_be_told(program, &["100", "10"], &said);
        let pid = process.pid();
        let mut pty = Pty::run(&["top", "--interval", "500ms", "--pid", &pid]);
        pty.resize(24, 160);
        pty.shows("Nothing yet.");
        process.runs();
        pty.shows("want_the_room");
        // What happened last comes with the next part.
        let mut screen = String::new();
        for _ in 0..3 {
            screen = pty.counts_on();
        }
        let is_exact = has_in_row(&screen, "want_the_room", &count(&said, "times"));
        pty.press("gg");
        pty.until("its process", |screen| {
            let mut rows = screen.lines().filter(|line| line.contains("mutex"));
            rows.any(|row| row.starts_with("churn"))
        });
        // Those who have waited are a thousand rows.
        pty.press("ggg");
        pty.shows("want_the_room");
        pty.press("g");
        pty.shows("churn [");
        pty.press("q");
        assert_eq!(pty.ends().code(), Some(0));
        is_exact
    });
    assert!(is_exact);
}

#[test]
fn processes_that_come_and_go_keep_their_faults_and_names() {
    static BUILT: Built = OnceLock::new();
    let Some(program) = built(&BUILT, "tests/mem/guests.c").filter(|_| has_bpf()) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let said = folder.path().join("said");
    let mut process = Process::to_be_told(program, &["threads", "100", "5"], &said);
    let pid = process.pid();
    let mut args = vec!["top", "--interval", "500ms", "--tab", "mem", "--pid", &*pid];
    let mut pty = Pty::run(&args);
    pty.resize(24, 160);
    pty.shows("Nothing yet.");
    process.runs();
    pty.until("all faults", |screen| {
        has_in_row(screen, "fill_the_room", &count(&said, "filled"))
    });
    pty.press("g");
    pty.shows(&format!("guests [{pid}]"));
    // What it had mapped is no more.
    pty.press("gg");
    pty.shows("Nothing yet.");
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
    // Two hundred that live for some faults.
    args.truncate(5);
    args.extend(["--filter", "guest ", "--", program, "processes", "100", "2"]);
    let mut pty = Pty::run(&args);
    pty.resize(24, 160);
    pty.until("a process that has ended", |screen| {
        screen.contains("guest [") && screen.contains("fill_")
    });
    pty.shows("ended");
    pty.counts_on();
    pty.press("q");
    assert_eq!(pty.ends().code(), Some(0));
}

/// One watches a program, another one everything, a third one the first.
#[test]
fn instances_do_not_disturb_each_other() {
    let Some(mut first) = on_lock() else { return };
    let mut second = Pty::run(&["top", "--interval", "500ms", "--system", "--filter", "want"]);
    second.shows("pthread mutex");
    let pid = first.pid().to_string();
    let mut third = Pty::run(&["top", "--tab", "sched", "--by", "process", "--pid", &pid]);
    // Its workload is among its descendants.
    third.until("the first one", |screen| {
        screen.contains("amdahl (") && screen.contains("lock (")
    });
    first.counts_on();
    third.press("q");
    assert_eq!(third.ends().code(), Some(0));
    for _ in 0..2 {
        first.counts_on();
        second.counts_on();
    }
    first.press("q");
    assert_eq!(first.ends().code(), Some(0));
    second.counts_on();
    second.press("q");
    assert_eq!(second.ends().code(), Some(0));
}
