//! `amdahl phantom`: what it shows, what it publishes, what it leaves behind.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;

use amdahl_phantom_page::{Reader, Source, coarse_now_ns};
use rustix::process::Signal;
use serde_json::Value;

use crate::processes::{is_alive, kill, parent_of, pid_in, until_catches, until_gone};
use crate::tool::{Place, Running, bpf, has, is_root, skipped, until};

/// A process that is always busy.
fn busy(place: &Place) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    place.start(place.here(command))
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// The parts of the CPUs add up, and the process had something of them.
fn check(result: &Value) {
    let mean = |name: &str| number(&result["figures"][name]["mean"]);
    let allowed = number(&result["allowed_cpus"]);
    let parts = ["running", "others", "idle", "steal"].map(mean);
    assert!(
        (parts.iter().sum::<f64>() - allowed).abs() < 0.01,
        "{result}"
    );
    assert!(mean("running") > 0.0, "{result}");
    assert!(mean("runnable_cpus") <= allowed + 1e-6, "{result}");
    assert!(number(&result["ticks"]) > 0.0);
}

#[test]
fn a_busy_process_is_seen_with_bpf_and_without() {
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    for probe in ["proc", "bpf"] {
        if probe == "bpf"
            && let Err(why) = bpf()
        {
            skipped(why);
            continue;
        }
        let args = ["phantom", "--pid", &pid, "--probe", probe, "--for", "1s"];
        let result = place
            .amdahl(args.iter().chain(&["--json"]))
            .ends_with(0)
            .json();
        assert_eq!(result["schema"], "amdahl.phantom/1");
        assert_eq!(result["target"], format!("process {pid}"));
        check(&result);
        let table = place.amdahl(args).ends_with(0).out;
        for words in [
            "runnable CPUs",
            "phantoms",
            "who had the allowed CPUs",
            "nobody",
        ] {
            assert!(table.contains(words), "{table}");
        }
        assert!(
            table.lines().all(|line| line.chars().count() <= 80),
            "{table}"
        );
        assert_eq!(table.contains("To get more"), probe == "proc", "{table}");
    }
}

#[test]
fn a_command_is_run_and_its_failure_is_told() {
    let place = Place::new();
    let command = ["phantom", "--json", "--", "sh", "-c"];
    let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let result = place
        .amdahl(command.iter().chain(&[spin]))
        .ends_with(0)
        .json();
    assert_eq!(result["command"][2], spin);
    check(&result);
    let ran = place.amdahl(command.iter().chain(&["exit 7"])).ends_with(3);
    assert!(ran.err.contains("exit code 7"), "{}", ran.err);
}

#[test]
fn watching_prints_a_line_for_each_look() {
    let place = Place::new();
    let args = [
        "phantom",
        "--system",
        "--watch",
        "--for",
        "1s",
        "--interval",
        "50ms",
    ];
    let json = place
        .amdahl(args.iter().chain(&["--json"]))
        .ends_with(0)
        .out;
    let mut last = 0.0;
    for line in json.lines() {
        let tick: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(tick["schema"], "amdahl.phantom-tick/1");
        assert!(number(&tick["time_ns"]) > last);
        last = number(&tick["time_ns"]);
        assert!(number(&tick["runnable_cpus"]) <= number(&tick["allowed_cpus"]) + 1e-6);
    }
    assert!(last > 0.0, "{json}");
    let lines = place.amdahl(args).ends_with(0).out;
    assert!(
        lines.lines().count() >= 2 && lines.contains("runnable"),
        "{lines}"
    );
    assert!(
        lines.lines().all(|line| line.chars().count() <= 80),
        "{lines}"
    );
}

#[test]
fn ctrl_c_ends_a_measurement_with_what_was_seen() {
    let place = Place::new();
    let tool = place.start(place.tool(["phantom", "--system", "--json", "--for", "1h"]));
    until_catches(tool.pid(), Signal::INT);
    tool.signal(Signal::INT);
    let ran = tool.ended().ends_with(5);
    assert_eq!(ran.json()["partial"], true);
}

/// Runs the tool with an output that nobody reads any more.
#[track_caller]
fn ends_well_unread(mut tool: Command) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    tool.stdout(writer);
    let mut tool = tool.spawn().expect("the tool");
    drop(reader);
    let status = until("the end", || tool.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn watching_ends_when_nobody_reads() {
    let place = Place::new();
    let tool = place.tool(["phantom", "--watch", "--interval", "10ms"]);
    ends_well_unread(tool);
}

/// The page whose path the tool has printed.
fn page_of(tool: &Running) -> String {
    until("the page's path", || {
        let text = tool.out_so_far();
        text.lines()
            .next()
            .filter(|_| text.ends_with('\n'))
            .map(str::to_owned)
    })
}

fn open(path: &str) -> Reader {
    Reader::open(&CString::new(path).expect("no zero"))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn until_fresh(reader: &Reader) -> amdahl_phantom_page::Snapshot {
    until("a fresh page", || reader.read_fresh(coarse_now_ns()).ok())
}

#[test]
fn a_page_is_served_taken_over_after_a_kill_and_taken_away_in_the_end() {
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    let start = || {
        let mut tool = place.tool(["phantom", "--serve", "--pid", &pid]);
        if !is_root() {
            tool.env("XDG_RUNTIME_DIR", place.path());
        }
        place.start(tool)
    };
    let killed = start();
    let path = page_of(&killed);
    assert!(path.ends_with(&format!("phantom-pid-{pid}")), "{path}");
    let reader = open(&path);
    let snapshot = until_fresh(&reader);
    assert!(snapshot.allowed >= 1 && snapshot.runnable.to_f64() <= f64::from(snapshot.allowed));
    assert_eq!(reader.writer(), killed.pid());
    if bpf().is_ok() {
        assert_eq!(reader.source(), Source::Bpf);
    }
    // A second one must not write to the same page.
    let second = start().ended().ends_with(1);
    assert!(second.err.contains("already"), "{}", second.err);
    killed.signal(Signal::KILL);
    killed.ended();
    assert!(Path::new(&path).exists());
    until("staleness", || reader.read_fresh(coarse_now_ns()).err());

    let next = start();
    assert_eq!(page_of(&next), path);
    // The mapping from before shows the new writer's figures.
    until_fresh(&reader);
    assert_eq!(reader.writer(), next.pid());
    until_catches(next.pid(), Signal::TERM);
    next.signal(Signal::TERM);
    next.ended().ends_with(0);
    assert!(!Path::new(&path).exists());
}

#[test]
fn a_command_finds_its_page_in_the_environment() {
    let place = Place::new();
    let mut tool = place.tool([
        "phantom",
        "--serve",
        "--",
        "sh",
        "-c",
        r#"test -s "$AMDAHL_PHANTOM""#,
    ]);
    if !is_root() {
        tool.env("XDG_RUNTIME_DIR", place.path());
    }
    let ran = place.run(tool).ends_with(0);
    let path = ran.out.lines().next().expect("a path");
    assert!(!Path::new(path).exists(), "it is gone with the tool");
}

/// Says its process id, and that it was started; ends with 7 when it reads a line.
const WAITS: &str = "echo $$ > pid; read line < line; echo $line > end; exit 7";

/// The tool with [`WAITS`], once that runs: its process id, and the guard's.
fn start_waiting(place: &Place, args: &[&str]) -> (Running, u32, u32) {
    let made = Command::new("mkfifo").arg(place.join("line")).status();
    assert!(made.expect("mkfifo").success());
    let mut tool = place.tool(["phantom"].iter().chain(args));
    tool.args(["--", "sh", "-c", WAITS]);
    if !is_root() {
        tool.env("XDG_RUNTIME_DIR", place.path());
    }
    let tool = place.start(tool);
    let program = pid_in(place, "pid");
    (tool, program, parent_of(program))
}

/// Lets [`WAITS`] end. Nobody waits for a reader who is dead.
fn tell(place: &Place) -> std::fs::File {
    use std::io::Write;
    let line = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(place.join("line"));
    let mut line = line.expect("a pipe");
    line.write_all(b"told\n").expect("room");
    line
}

/// How often a process has gone to sleep.
fn sleeps(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    lines.find_map(|line| {
        line.strip_prefix("voluntary_ctxt_switches:")?
            .trim()
            .parse()
            .ok()
    })
}

/// The helper is not worth the program: it ended with the tool.
#[test]
fn a_command_goes_on_when_the_tool_is_killed() {
    for args in [&["--serve"][..], &["--watch", "--quiet"]] {
        let place = Place::new();
        let (tool, program, guard) = start_waiting(&place, args);
        if args[0] == "--serve" {
            page_of(&tool);
        }
        let before = sleeps(guard);
        tool.signal(Signal::KILL);
        tool.ended();
        // It has learnt of it: it has ended, or waits for something else.
        until("the guard's sleep", || {
            (!is_alive(guard) || sleeps(guard) > before).then_some(())
        });
        assert!(is_alive(program), "{args:?}: the program has died");
        let _line = tell(&place);
        until_gone(program);
        assert_eq!(place.read("end"), "told\n", "{args:?}");
        until_gone(guard);
    }
}

#[test]
fn a_command_goes_on_and_is_waited_for_when_the_guard_is_killed() {
    let place = Place::new();
    let (tool, program, guard) = start_waiting(&place, &["--serve"]);
    page_of(&tool);
    kill(guard);
    until_gone(guard);
    assert!(is_alive(program), "the program has died");
    let _line = tell(&place);
    let ran = tool.ended().ends_with(3);
    assert!(ran.err.contains("exit code 7"), "{}", ran.err);
    assert_eq!(place.read("end"), "told\n");
}

#[test]
fn ctrl_c_ends_the_command_with_the_tool() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let (tool, program, guard) = start_waiting(&place, &["--serve"]);
        let path = page_of(&tool);
        tool.signal(signal);
        tool.ended().ends_with(5);
        assert!(!is_alive(program) && !is_alive(guard));
        assert!(!Path::new(&path).exists());
    }
}

/// What was asked to end does not outlive the tool because that is killed meanwhile.
#[test]
fn a_command_that_is_to_end_does_not_go_on_when_the_tool_is_killed() {
    let place = Place::new();
    let mut tool = place.tool(["phantom", "--watch", "--quiet", "--", "sh", "-c"]);
    // A shell that runs nothing else runs its traps at once.
    tool.arg("trap 'echo > asked' TERM; echo $$ > pid; while :; do :; done");
    let tool = place.start(tool);
    let program = pid_in(&place, "pid");
    tool.signal(Signal::INT);
    until("SIGTERM", || place.join("asked").exists().then_some(()));
    tool.signal(Signal::KILL);
    tool.ended();
    until_gone(program);
}

/// Looking can fail in the middle (here: the tool loses sight of which CPUs there are). The program was ended for it.
#[test]
fn a_command_goes_on_when_looking_fails() {
    if !is_root() || !has("unshare") {
        return skipped("which CPUs there are is hidden by a mount: needs root and unshare");
    }
    let hides = "mount -t tmpfs none /sys && while test -e $AMDAHL_PHANTOM; do :; done; echo > gone; exit 7";
    let fails = |args: &[&str]| {
        let place = Place::new();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command.args([env!("CARGO_BIN_EXE_amdahl"), "phantom"]);
        command.args(args).args(["--", "sh", "-c", hides]);
        let ran = place.run(place.here(command)).ends_with(3);
        assert!(
            ran.err.contains("sh goes on") && ran.err.contains("exit code 7"),
            "{}",
            ran.err
        );
        assert!(place.join("gone").exists(), "{}", ran.err);
    };
    fails(&["--serve", "--probe", "proc"]);
    if let Err(why) = bpf() {
        return skipped(why);
    }
    fails(&["--serve", "--probe", "bpf"]);
}

/// Nobody reads what is shown any more, which is no reason to end what somebody computes.
#[test]
fn a_command_goes_on_when_nobody_reads() {
    let place = Place::new();
    let mut tool = place.tool(["phantom", "--watch", "--interval", "10ms", "--", "sh", "-c"]);
    // It goes on until the thread that looks is gone.
    tool.arg(
        "read -r _ _ _ tool _ < /proc/$PPID/stat; \
         while grep -q amdahl-look /proc/$tool/task/*/comm; do :; done; echo > end",
    );
    ends_well_unread(tool);
    assert!(place.join("end").exists());
}

#[test]
fn an_ordinary_user_gets_what_there_is_and_is_told_what_is_missing() {
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    let args = ["phantom", "--pid", &pid, "--for", "1s", "--json"];
    let Some(ran) = place.amdahl_as_ordinary_user(&args) else {
        return;
    };
    let result = ran.ends_with(0).json();
    check(&result);
    if is_root() {
        assert_eq!(result["sources"][0]["how"], "/proc");
        assert!(
            result["sources"][0]["remedy"]
                .as_str()
                .is_some_and(|text| text.contains("root"))
        );
    }
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let place = Place::new();
    // Process ids end at 2^22.
    for flag in ["--pid", "--vm"] {
        let ran = place.amdahl(["phantom", flag, "2000000000"]).ends_with(3);
        assert!(
            ran.err.contains(flag) && ran.err.contains("no such process"),
            "{}",
            ran.err
        );
    }
    let me = std::process::id().to_string();
    let ran = place.amdahl(["phantom", "--vm", &me]).ends_with(3);
    assert!(
        ran.err.contains("virtual CPU") && ran.err.contains("--pid"),
        "{}",
        ran.err
    );
    for args in [
        &["phantom", "--cgroup", "/proc"][..],
        &["phantom", "--serve", "--json"],
        &["phantom", "--pid", "1", "--", "true"],
        &["phantom", "--interval", "1ms"],
    ] {
        place.amdahl(args).ends_with(2);
    }
}

#[test]
fn help_has_examples() {
    let help = Place::new().amdahl(["phantom", "--help"]).ends_with(0).out;
    let (_, examples) = help.split_once("\nExamples:\n").expect("examples");
    assert!(
        examples.matches("\n  amdahl phantom").count() >= 3,
        "{help}"
    );
}
