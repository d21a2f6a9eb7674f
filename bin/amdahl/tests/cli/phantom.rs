//! `amdahl phantom`: what it shows, what it publishes, what it leaves behind.

use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use amdahl_phantom_page::{Cpus, Publisher, Reader, Snapshot, Source, coarse_now_ns};
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

/// Serves about a process in a file of a guest, once there is something in it. Its ticks are so far apart that they are not stale soon.
fn serve_in(place: &Place, pid: &str, file: &str) -> Running {
    let args = ["phantom", "--serve", "--interval", "200ms", "--pid", pid];
    let tool = place.start(place.tool(args.iter().chain(&["--page", file])));
    assert_eq!(page_of(&tool), place.join(file).to_str().expect("plain"));
    tool
}

/// What a reader makes of the host's page in one second.
fn heard(place: &Place, pid: &str, page: &str) -> Value {
    let args = ["phantom", "--pid", pid, "--for", "1s", "--json"];
    let ran = place.amdahl(args.iter().chain(&["--host-page", page]));
    ran.ends_with(0).json()
}

#[test]
fn what_the_host_publishes_in_a_file_is_a_source_in_the_guest_while_it_lives() {
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    let page = place.join("page");
    let page = page.to_str().expect("plain");
    let used = || {
        until("the host's page in use", || {
            let result = heard(&place, &pid, page);
            (result["host_page"]["used"] == true).then_some(result)
        })
    };
    let host = serve_in(&place, &pid, "page");
    let second = place.amdahl(["phantom", "--serve", "--system", "--page", page]);
    assert!(second.ends_with(1).err.contains("already"));
    let result = used();
    check(&result);
    let said = &result["host_page"];
    assert_eq!(
        (&said["path"], &said["writer"]),
        (&page.into(), &host.pid().into()),
        "{result}"
    );
    let sources = result["sources"].as_array().expect("a list");
    assert!(
        sources
            .iter()
            .any(|source| source["how"] == "the host's page"),
        "{result}"
    );
    let table = until("the host in a table", || {
        let ran = place.amdahl(["phantom", "--for", "1s", "--host-page", page]);
        let table = ran.ends_with(0).out;
        table
            .contains("CPUs of the guest, by its host")
            .then_some(table)
    });
    assert!(
        table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
    until("the host in a line", || {
        let args = ["phantom", "--watch", "--json", "--for", "1s"];
        let ran = place.amdahl(args.iter().chain(&["--host-page", page]));
        let lines = ran.ends_with(0).out;
        let mut ticks = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        ticks.find(|tick| !tick["host_runnable_cpus"].is_null())
    });

    // What a killed writer has left is not taken for a living one.
    host.signal(Signal::KILL);
    host.ended();
    let ignored = |why: &str| {
        let result = heard(&place, &pid, page);
        check(&result);
        let said = &result["host_page"];
        assert_eq!(said["used"], false, "{result}");
        assert!(said["runnable_cpus"].is_null(), "{result}");
        let told = said["why"].as_str().expect("text");
        assert!(told.contains(why), "{result}");
    };
    ignored("has not changed");
    // The next one goes on in the same file, and leaves it empty.
    let next = serve_in(&place, &pid, "page");
    assert_eq!(used()["host_page"]["writer"], next.pid());
    until_catches(next.pid(), Signal::TERM);
    next.signal(Signal::TERM);
    next.ended().ends_with(0);
    assert!(Path::new(page).exists());
    ignored("nothing was published");
}

/// Figures of a guest that reads what its host publishes reach the guest's runtimes in the page that they read anyway.
#[test]
fn what_the_host_has_is_in_the_page_that_the_guest_publishes() {
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    // A host that has next to nothing: nobody else says so here.
    let mut host = Publisher::keeping(&place.join("page"), Source::Proc).expect("a page");
    let mut tool = place.tool(["phantom", "--serve", "--pid", &pid, "--host-page", "page"]);
    if !is_root() {
        tool.env("XDG_RUNTIME_DIR", place.path());
    }
    let guest = place.start(tool);
    let reader = open(&page_of(&guest));
    let mut ticks = 0;
    until("the host's bound", || {
        ticks += 1;
        host.publish(Snapshot {
            // Of a clock that has nothing to do with ours.
            time_ns: ticks,
            ticks,
            tick_us: 10_000_000,
            window_us: 100_000,
            runnable: Cpus::from_f64(0.125),
            allowed: 1,
            ..Snapshot::default()
        });
        let read = reader.read_fresh(coarse_now_ns()).ok()?;
        (read.runnable <= Cpus::from_f64(0.125)).then_some(())
    });
    until("what is told", || {
        guest.err_so_far().contains("is used").then_some(())
    });
    // Nonsense is no bound.
    host.publish(Snapshot::default());
    drop(host);
    until("the guest's own", || {
        let read = reader.read_fresh(coarse_now_ns()).ok()?;
        (read.runnable > Cpus::from_f64(0.125)).then_some(())
    });
    until("what is told", || {
        guest.err_so_far().contains("is ignored").then_some(())
    });
}

/// What QEMU maps into its guest: the file as it is, also when another writer goes on in it.
#[test]
fn a_guest_of_qemu_has_the_page_in_its_memory() {
    if cfg!(not(target_arch = "x86_64")) || !has("qemu-system-x86_64") {
        return skipped("qemu-system-x86_64 is not there");
    }
    let place = Place::new();
    let process = busy(&place);
    let pid = process.pid().to_string();
    let host = serve_in(&place, &pid, "page");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-m", "64M", "-display", "none"])
        .args(["-nodefaults", "-no-user-config", "-machine", "pc"])
        .args(["-monitor", "stdio", "-device", "ivshmem-plain,memdev=m"])
        .arg("-object")
        .arg("memory-backend-file,id=m,share=on,readonly=on,mem-path=page,size=64K");
    let mut qemu = place.here(qemu);
    qemu.stdin(Stdio::piped());
    let mut qemu = place.start(qemu);
    // The firmware has to place it first.
    let at = until("BAR 2", || {
        qemu.say("info pci");
        let out = qemu.out_so_far();
        let (_, at) = out.rsplit_once("BAR2: 64 bit prefetchable memory at 0x")?;
        let at = u64::from_str_radix(at.split_once(' ')?.0, 16).ok()?;
        (at != u64::MAX).then_some(at)
    });
    // The words of this number that the guest has seen so far.
    let mut seen = |word: u64| -> Vec<u64> {
        let at = at + 8 * word;
        qemu.say(&format!("xp /1gx 0x{at:x}"));
        let out = qemu.out_so_far();
        let of_line = |line: &str| {
            let (_, value) = line.split_once(&format!("{at:016x}: 0x"))?;
            u64::from_str_radix(value.trim_end(), 16).ok()
        };
        out.lines().filter_map(of_line).collect()
    };
    until("the beginning of a page", || {
        seen(0)
            .contains(&u64::from_ne_bytes(*b"AMDAHLPH"))
            .then_some(())
    });
    until("ticks", || {
        let ticks = seen(10);
        (ticks.iter().max() > ticks.iter().min()).then_some(())
    });
    let mut written_by = |writer: u32| {
        until("the writer", || {
            seen(1)
                .contains(&(1 | u64::from(writer) << 32))
                .then_some(())
        });
    };
    written_by(host.pid());
    host.signal(Signal::KILL);
    host.ended();
    let next = serve_in(&place, &pid, "page");
    written_by(next.pid());
}

#[test]
fn files_that_are_not_for_pages_are_told_apart() {
    let place = Place::new();
    std::fs::write(place.join("thesis"), "years of work").expect("written");
    let serve = |page: &str, code| {
        let args = ["phantom", "--serve", "--system", "--for", "1s", "--page"];
        place.amdahl(args.iter().chain(&[page])).ends_with(code).err
    };
    assert!(serve("thesis", 1).contains("is not written to"));
    assert_eq!(place.read("thesis"), "years of work");
    if is_root() {
        let page = place.join("somebody");
        std::fs::write(&page, [0; 4096]).expect("written");
        std::os::unix::fs::chown(&page, Some(12_345), None).expect("root");
        assert!(serve("somebody", 1).contains("another user"));
        // The folder whose files are removed when nobody writes them.
        let refused = serve("/dev/shm/amdahl-0/guest", 2);
        assert!(refused.contains("another folder"), "{refused}");
    } else {
        skipped("files of other users: not root");
    }
    let read = |page: &str| {
        let args = ["phantom", "--system", "--for", "1s", "--json"];
        place.amdahl(args.iter().chain(&["--host-page", page]))
    };
    let none = read("none").ends_with(6);
    assert!(none.err.contains("--host-page none"), "{}", none.err);
    std::fs::write(place.join("other"), [7; 4096]).expect("written");
    let result = read("other").ends_with(0).json();
    check(&result);
    let why = result["host_page"]["why"].as_str().expect("text");
    assert!(why.contains("not a page of estimates"), "{why}");
    assert!(read("off").ends_with(0).json()["host_page"].is_null());
    place.amdahl(["phantom", "--page", "x"]).ends_with(2);
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

/// A process that looks like a virtual machine of one CPU: its thread has the name that QEMU gives it, and waits.
fn guest(place: &Place, args: &[&str]) -> Running {
    let mut command = Command::new("sh");
    let script = "printf 'CPU 0/TCG' > /proc/self/comm; echo there; read wait; :";
    command.args(["-c", script, "qemu"]).args(args);
    let mut command = place.here(command);
    command.stdin(Stdio::piped());
    let guest = place.start(command);
    until("its name", || {
        guest.out_so_far().contains("there").then_some(())
    });
    guest
}

/// Something was published at this path in the last ticks.
fn until_published(path: &Path) {
    let path = CString::new(path.to_str().expect("plain")).expect("no zero");
    until("a fresh page", || {
        let reader = Reader::open(&path).ok()?;
        reader.read_fresh(coarse_now_ns()).ok()
    });
}

#[test]
fn one_server_has_a_page_for_each_virtual_machine_while_it_lives() {
    let place = Place::new();
    let [web, other] =
        [&["-name", "guest=web1,debug-threads=on"][..], &[]].map(|args| guest(&place, args));
    let of_process = |guest: &Running| place.join("pages").join(format!("pid-{}", guest.pid()));
    let (of_web, of_other) = (of_process(&web), of_process(&other));
    let args = [
        "phantom", "--serve", "--vm", "all", "--probe", "proc", "--page", "pages",
    ];
    let server = place.start(place.tool(args));
    assert_eq!(
        page_of(&server),
        place.join("pages").to_str().expect("plain")
    );
    until_published(&place.join("pages/web1"));
    until_published(&of_other);
    assert_eq!(
        std::fs::read_link(&of_web).expect("a link"),
        Path::new("web1")
    );
    // One that comes, of a name that is taken.
    let next = guest(&place, &["-name", "web1"]);
    let of_next = of_process(&next);
    until_published(&of_next);
    assert!(!of_next.is_symlink());
    // Of those that have gone the named one's page stays, with nothing on it: another machine of that name maps the file.
    for gone in [web, other] {
        gone.signal(Signal::KILL);
        gone.ended();
    }
    let is_gone = |path: &Path| (!path.is_symlink() && !path.exists()).then_some(());
    until("no page", || is_gone(&of_web));
    until("no page", || is_gone(&of_other));
    let left = CString::new(place.join("pages/web1").to_str().expect("plain")).expect("no zero");
    let is_fresh =
        || Reader::open(&left).is_ok_and(|page| page.read_fresh(coarse_now_ns()).is_ok());
    assert!(place.join("pages/web1").exists() && !is_fresh());
    until_published(&of_next);
    let again = guest(&place, &["-name", "web1"]);
    until_published(&place.join("pages/web1"));
    let of_again = of_process(&again);
    server.signal(Signal::TERM);
    let ran = server.ended().ends_with(0);
    for words in ["(web1) in ", "(web1) has ended", "pid-"] {
        assert!(ran.err.contains(words), "{}", ran.err);
    }
    assert!(is_gone(&of_next).is_some() && is_gone(&of_again).is_some());
    assert!(!is_fresh());
}

#[test]
fn a_server_of_some_virtual_machines_ends_with_the_last() {
    let place = Place::new();
    let [first, second] = [&[][..], &[]].map(|args| guest(&place, args));
    let both = format!("{},{}", first.pid(), second.pid());
    let args = ["phantom", "--serve", "--vm", &both, "--page", "pages"];
    let server = place.start(place.tool(args.iter().chain(&["--probe", "proc", "--for", "1h"])));
    for guest in [first, second] {
        until_published(&place.join("pages").join(format!("pid-{}", guest.pid())));
        guest.signal(Signal::KILL);
        guest.ended();
    }
    server.ended().ends_with(0);

    // Or when time is up, be there one or none.
    let all = ["phantom", "--serve", "--vm", "all", "--page", "pages"];
    let ended = place.amdahl(all.iter().chain(&["--for", "300ms"]));
    ended.ends_with(0);

    let me = std::process::id().to_string();
    let args = [
        "phantom", "--serve", "--vm", &me, "--vm", "1", "--page", "pages",
    ];
    let ran = place.amdahl(args).ends_with(3);
    assert!(ran.err.contains("virtual CPU"), "{}", ran.err);
    for (args, words) in [
        (&["phantom", "--vm", "all"][..], "--serve"),
        (
            &["phantom", "--serve", "--vm", "some"],
            "a process id or all",
        ),
        (
            &["phantom", "--serve", "--vm", "all", "--pid", "1"],
            "--pid",
        ),
    ] {
        let ran = place.amdahl(args).ends_with(2);
        assert!(ran.err.contains(words), "{}", ran.err);
    }
    // Who may write there could put other files in their places.
    let open = place.join("open");
    std::fs::create_dir(&open).expect("made");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("changed");
    let args = ["phantom", "--serve", "--vm", "all", "--page", "open"];
    let ran = place.amdahl(args).ends_with(2);
    assert!(ran.err.contains("nobody else may write"), "{}", ran.err);
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
    for words in ["virtual CPU", "--pid", "debug-threads=on"] {
        assert!(ran.err.contains(words), "{}", ran.err);
    }
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
