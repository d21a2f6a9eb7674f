//! Real programs under the library: what they waited for is known by construction.
//!
//! No timing is assumed. A program withholds something from a thread that it has seen
//! asleep and notes the clock before and after; the recorded wait must enclose that.

use std::ffi::OsStr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use amdahl_probe::unprivileged::preload::{self, LIBRARY, Records};
use amdahl_speedup::snapshot::{ProcessWaits, UserWait, WaitKind};
use tempfile::TempDir;

/// The library as cargo built it for these tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let deps = test.parent().expect("its folder");
    let found = [deps.join(LIBRARY), deps.join("..").join(LIBRARY)]
        .into_iter()
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .expect("cargo builds the library before its tests");
    found.1.canonicalize().expect("a path")
}

struct Case {
    dir: TempDir,
    program: PathBuf,
}

impl Case {
    fn new() -> Case {
        let dir = tempfile::tempdir().expect("a folder");
        let program = dir.path().join("waits");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/waits.c");
        let built = Command::new("cc")
            .args(["-O1", "-g", "-pthread", "-Wall", "-o"])
            .args([program.as_os_str(), source.as_os_str()])
            .status()
            .expect("cc is installed");
        assert!(built.success());
        Case { dir, program }
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(what)
            .env("LD_PRELOAD", library())
            .env(preload::DIR_VARIABLE, self.dir.path());
        command
    }

    fn run(&self, what: &str) -> (Output, Records) {
        let output = self.command(what).output().expect("the program starts");
        let records = preload::read_dir(self.dir.path()).expect("the folder is there");
        assert_eq!((records.damaged, records.left_out), (0, 0));
        (output, records)
    }

    fn files(&self) -> usize {
        let entries = self.dir.path().read_dir().expect("the folder is there");
        let is_record = |path: PathBuf| path.extension() == Some(OsStr::new("waits"));
        entries
            .flatten()
            .filter(|entry| is_record(entry.path()))
            .count()
    }
}

/// A wait as the program announced it.
#[derive(Debug)]
struct Announced {
    kind: WaitKind,
    object: u64,
    tid: u32,
    from: u64,
    to: u64,
    function: u64,
}

fn announced(output: &Output) -> Vec<Announced> {
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let waits = text.lines().filter_map(|line| line.strip_prefix("wait "));
    waits
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            Announced {
                kind: match words[0] {
                    "mutex" => WaitKind::Mutex,
                    "rwlock-read" => WaitKind::RwlockRead,
                    "rwlock-write" => WaitKind::RwlockWrite,
                    "condition" => WaitKind::Condition,
                    "semaphore" => WaitKind::Semaphore,
                    "barrier" => WaitKind::Barrier,
                    "join" => WaitKind::Join,
                    "spin" => WaitKind::Spin,
                    other => panic!("unknown kind {other}"),
                },
                object: number(1),
                tid: number(2) as u32,
                from: number(3),
                to: number(4),
                function: number(5),
            }
        })
        .collect()
}

fn is_of(wait: &UserWait, announced: &Announced) -> bool {
    // No function of the program is longer than this.
    let is_there = wait.caller.wrapping_sub(announced.function) < 400;
    (wait.kind, wait.object, wait.tid) == (announced.kind, announced.object, announced.tid)
        && is_there
        && wait.start <= announced.from
        && wait.end.is_none_or(|end| end >= announced.to)
}

/// Every announced wait is recorded exactly once, by `process`.
fn assert_recorded(process: &ProcessWaits, announced: &[Announced]) {
    for expected in announced {
        let found = process
            .waits
            .iter()
            .filter(|wait| is_of(wait, expected))
            .count();
        assert_eq!(found, 1, "{expected:#?} in {:#x?}", process.waits);
    }
}

fn ok(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn every_primitive_is_recorded_with_object_thread_and_caller() {
    let (output, records) = Case::new().run("all");
    ok(&output);
    let [process] = &records.processes[..] else {
        panic!("{records:?}")
    };
    let waits = announced(&output);
    assert_eq!(waits.len(), 12);
    assert_recorded(process, &waits);
    for wait in &waits {
        let total = process.totals.iter().find(|total| {
            (total.kind, total.object) == (wait.kind, wait.object)
                && total.caller.wrapping_sub(wait.function) < 400
        });
        let total = total.expect("a total for every wait");
        assert!(total.ns >= wait.to - wait.from && total.max_ns <= total.ns);
    }
    let episodes: u64 = process.by_kind.iter().map(|&(_, count, _)| count).sum();
    assert_eq!(
        episodes,
        process.totals.iter().map(|total| total.count).sum::<u64>()
    );
    assert_eq!(
        episodes,
        process
            .waits
            .iter()
            .filter(|wait| wait.end.is_some())
            .count() as u64
    );
    assert_eq!((process.overwritten, process.untabled), (0, 0));
}

#[test]
fn the_functions_keep_their_meaning() {
    let (output, _) = Case::new().run("meaning");
    ok(&output);
    assert_eq!(output.stdout, b"ok\n");
}

/// A cancelled thread is unwound through the library's frames.
#[test]
fn cancelled_threads_unwind_through_the_library() {
    let (output, records) = Case::new().run("cancel");
    ok(&output);
    assert_recorded(&records.processes[0], &announced(&output));
}

#[test]
fn a_program_that_never_waits_makes_no_file() {
    let case = Case::new();
    let (output, _) = case.run("free");
    ok(&output);
    assert_eq!(case.files(), 0);
}

#[test]
fn without_a_folder_or_room_nothing_is_recorded_and_nothing_breaks() {
    let case = Case::new();
    let unset = case
        .command("all")
        .env_remove(preload::DIR_VARIABLE)
        .output()
        .expect("starts");
    ok(&unset);
    let relative = case
        .command("all")
        .env(preload::DIR_VARIABLE, "here")
        .output()
        .expect("starts");
    ok(&relative);
    let absent = case
        .command("all")
        .env(preload::DIR_VARIABLE, "/nowhere")
        .output()
        .expect("starts");
    ok(&absent);
    let mut small = Command::new("sh");
    small
        .args(["-c", "ulimit -f 8; exec \"$@\"", "sh"])
        .arg(&case.program)
        .arg("all")
        .env("LD_PRELOAD", library())
        .env(preload::DIR_VARIABLE, case.dir.path());
    ok(&small.output().expect("starts"));
    assert_eq!(case.files(), 0);
}

#[test]
fn the_ring_and_the_table_are_bounded_and_say_so() {
    let (output, records) = Case::new().run("many");
    ok(&output);
    let process = &records.processes[0];
    assert_eq!(
        process
            .by_kind
            .iter()
            .map(|&(kind, count, _)| (kind, count))
            .collect::<Vec<_>>(),
        [(WaitKind::Mutex, 5000)]
    );
    assert_eq!(process.overwritten + process.waits.len() as u64, 5000);
    assert!(process.overwritten > 0);
    assert!(process.waits.is_sorted_by_key(|wait| wait.start));
    let [total] = process.totals[..] else {
        panic!("{:?}", process.totals)
    };
    assert_eq!(total.count, 5000);

    let (output, records) = Case::new().run("objects");
    ok(&output);
    let process = &records.processes[0];
    assert!(process.untabled > 0);
    let tabled: u64 = process.totals.iter().map(|total| total.count).sum();
    assert_eq!(tabled + process.untabled, 3000);
}

#[test]
fn a_forked_child_has_a_file_of_its_own() {
    let (output, records) = Case::new().run("fork");
    ok(&output);
    // One before the fork, one in each process after it.
    let waits = announced(&output);
    assert_eq!((records.processes.len(), waits.len()), (2, 3));
    let [parent, child] = &records.processes[..] else {
        panic!("{records:?}")
    };
    assert_ne!(parent.pid, child.pid);
    for wait in &waits {
        let by = [parent, child].map(|process| process.waits.iter().any(|one| is_of(one, wait)));
        assert_eq!(by.iter().filter(|&&by| by).count(), 1, "{wait:?}");
    }
    let of = |process: &ProcessWaits| {
        process
            .by_kind
            .iter()
            .find(|(kind, ..)| *kind == WaitKind::Mutex)
            .map(|&(_, count, _)| count)
    };
    assert_eq!((of(parent), of(child)), (Some(2), Some(1)));
}

#[test]
fn every_image_of_a_process_has_a_file() {
    let (output, records) = Case::new().run("exec");
    ok(&output);
    let [first, second] = &records.processes[..] else {
        panic!("{records:?}")
    };
    assert_eq!(first.pid, second.pid);
    assert!(first.started < second.started);
    let waits = announced(&output);
    assert_recorded(first, &waits[..1]);
    assert_recorded(second, &waits[1..]);
}

#[test]
fn what_was_recorded_survives_a_kill() {
    let (output, records) = Case::new().run("kill");
    assert_eq!(output.status.signal(), Some(9));
    let [process] = &records.processes[..] else {
        panic!("{records:?}")
    };
    let waits = announced(&output);
    assert_recorded(process, &waits);
    let ended: Vec<bool> = process
        .waits
        .iter()
        .filter(|wait| wait.kind == WaitKind::Mutex)
        .map(|wait| wait.end.is_some())
        .collect();
    assert_eq!(
        ended,
        [true, false],
        "one that ended, one that the kill cut off"
    );
}

/// A function was looked up when it was called first, which waits for the dynamic linker's lock: for ever, where the
/// thread that has it waits in a constructor for the one that looks up.
#[test]
fn a_constructor_may_wait_for_a_thread_that_calls_something_for_the_first_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/opens.c");
    let [program, plugin] = ["opens", "plugin.so"].map(|name| dir.path().join(name));
    for (options, to) in [
        (&["-rdynamic"][..], &program),
        (&["-DPLUGIN", "-shared", "-fPIC"], &plugin),
    ] {
        let built = Command::new("cc")
            .args(["-O1", "-pthread", "-Wall"])
            .args(options)
            .arg(&source)
            .arg("-o")
            .arg(to)
            .arg("-ldl")
            .status()
            .expect("cc is installed");
        assert!(built.success());
    }
    let mut command = Command::new(program);
    command.arg(plugin);
    command.env("LD_PRELOAD", library());
    command.env(preload::DIR_VARIABLE, dir.path());
    let output = command.output().expect("starts");
    ok(&output);
    assert_eq!(output.stdout, b"ok\n");
}

#[test]
fn programs_that_close_everything_still_record() {
    let case = Case::new();
    let mut command = case.command("mutex");
    // Nothing of the library depends on a descriptor; this one merely has none to spare.
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let few = Rlimit { soft: 6, hard: 6 };
            assert_eq!(setrlimit(RLIMIT_NOFILE, &few), 0);
            Ok(())
        });
    }
    let output = command.output().expect("starts");
    ok(&output);
    let records = preload::read_dir(case.dir.path()).expect("the folder is there");
    assert_recorded(&records.processes[0], &announced(&output));
}

#[repr(C)]
struct Rlimit {
    soft: u64,
    hard: u64,
}

const RLIMIT_NOFILE: i32 = 7;

unsafe extern "C" {
    fn setrlimit(resource: i32, limit: *const Rlimit) -> i32;
}
