//! `amdahl locks` on programs that know their waits.

mod before;
pub mod kernel;
mod languages;
mod pool;
mod replaced;
mod truth;
mod whom;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use amdahl_report::locks::schema::{LockRow, LocksResult, Step};
use amdahl_report::locks::{self, schema::SCHEMA};
use amdahl_report::schema::Source;
use serde_json::Value;

use crate::tool::{Place, Ran, alone, bpf, has, skipped};
use crate::workload::{in_some_try, planted, to_be_told, watched, watched_to_its_end, watching};
use kernel::{first_cpu, tells_of_its_locks};
pub use truth::{Truth, agree, is_made};
use truth::{
    are_released_in, has_all, holds, is_longest, is_near, is_of, rows, seconds_of_all, sum, truths,
    truths_by_turns,
};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planted/locks");

/// A planted program in C, built; `None` without a compiler.
fn built(place: &Place, name: &str) -> Option<PathBuf> {
    let flags = ["-std=gnu11", "-O2", "-g", "-pthread", "-o"];
    made(place, "gcc", &flags, name, &format!("{name}.c"))
}

/// What a compiler makes of a planted program; `None` without it.
fn made(
    place: &Place,
    compiler: &str,
    flags: &[&str],
    name: &str,
    source: &str,
) -> Option<PathBuf> {
    if !has(compiler) {
        skipped(format!("no {compiler} found"));
        return None;
    }
    let program = place.join(name);
    let mut command = Command::new(compiler);
    command.args(flags).arg(&program);
    command.arg(Path::new(SOURCES).join(source));
    let ran = place.run(place.here(command));
    assert!(ran.status.success(), "{}", ran.err);
    Some(program)
}

/// The program with one lock of each family; `None` without BPF or a compiler.
pub fn ready() -> Option<(Place, PathBuf)> {
    ready_with("families")
}

/// The same with the program of threads that live for one wait.
fn ready_for_churn() -> Option<(Place, PathBuf)> {
    ready_with("churn")
}

fn ready_with(name: &str) -> Option<(Place, PathBuf)> {
    bpf().map_err(skipped).ok()?;
    let place = Place::new();
    let program = built(&place, name)?;
    Some((place, program))
}

fn result(ran: &Ran) -> LocksResult {
    locks::parse(ran.out.as_bytes(), "standard output".into())
        .unwrap_or_else(|error| panic!("{}\n{error}\n{}", ran.what, ran.out))
}

/// Runs a family under the tool. The program's own figures and the tool's.
fn watch(place: &Place, program: &Path, family: &str, options: &[&str]) -> (Truth, LocksResult) {
    watch_under(&[], place, program, family, options)
}

/// As `watch`, the program started by the words of `before`.
fn watch_under(
    before: &[&str],
    place: &Place,
    program: &Path,
    family: &str,
    options: &[&str],
) -> (Truth, LocksResult) {
    let mut command: Vec<&OsStr> = before.iter().map(OsStr::new).collect();
    command.extend([program.as_os_str(), OsStr::new(family)]);
    let (line, found) = watch_command(place, &command, options);
    (Truth::of(&line), found)
}

/// Other programs hardly run meanwhile: what a wait takes longer by their turns before it begins is in no table.
pub const BEFORE_OTHERS: [&str; 3] = ["nice", "-n", "-20"];

/// Runs a planted program under the tool. What it says of itself, and what the tool does.
fn watch_command(place: &Place, command: &[&OsStr], options: &[&str]) -> (Value, LocksResult) {
    let command = [&BEFORE_OTHERS.map(OsStr::new)[..], command].concat();
    let (line, ran) = watched(place, "locks", options, &command);
    (line, result(&ran))
}

/// A family of a planted program: its name, what the table calls its waits, who waits, and who lets
/// them go on, which may be nobody.
type Family = (&'static str, &'static str, &'static str, &'static str);

/// Waits of each family are in the table as often and as long as the program says, with their holder.
fn are_told(place: &Place, program: &Path, families: &[Family], thread: &str) {
    for &(family, what, function, holder) in families {
        in_some_try(|| {
            let (truth, found) = watch(place, program, family, &["--owner"]);
            assert_eq!(found.events_lost, 0);
            is_made(&truth)?;
            let of_family = |miss| format!("{family}: {miss}");
            let told = seconds_of_all(&found, what, function, &truth);
            told.and_then(|seconds| agree(&truth, seconds))
                .map_err(of_family)?;
            let rows = found.rows.iter().filter(|row| is_of(row, what, function));
            is_longest(rows, found.p99_error, &truth).map_err(of_family)?;
            if holder.is_empty() {
                return Ok(());
            }
            holds(&found, what, function, (thread, holder))
        });
    }
}

#[test]
fn waits_are_what_the_program_measured() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let families = [
        ("mutex", "pthread mutex", "want_mutex", "hold_mutex"),
        (
            "mutex-inheriting",
            "pthread mutex",
            "want_mutex",
            "hold_mutex",
        ),
        ("stream", "stdio mutex", "want_stream", "hold_stream"),
        (
            "rwlock-read",
            "pthread rwlock (read)",
            "want_reading",
            "hold_writing",
        ),
        (
            "rwlock-write",
            "pthread rwlock (write)",
            "want_writing",
            "hold_reading",
        ),
        (
            "semaphore",
            "pthread semaphore",
            "want_semaphore",
            "hold_semaphore",
        ),
        (
            "condvar",
            "pthread condvar",
            "want_condition",
            "hold_condition",
        ),
        ("barrier", "pthread barrier", "want_barrier", "hold_barrier"),
        ("several", "futex (condition)", "want_any", "hold_several"),
        ("sysv-semaphore", "SysV semaphore", "want_set", "operate"),
        ("flock", "file lock", "want_flock", "hold_flock"),
        ("fcntl", "file lock", "want_range", "lock_range"),
        ("rcu", "RCU", "want_grace", ""),
    ];
    are_told(&place, &program, &families, "holder");
}

/// Rows of one line had the waits and the owners of another, where both called from stacks of equal depth.
#[test]
fn lines_at_stacks_of_equal_depth_are_told_apart() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    // Through the dynamic linker all code is that of a library to the kernel.
    let linker = match std::env::consts::ARCH {
        "x86_64" => "/lib64/ld-linux-x86-64.so.2",
        _ => "/lib/ld-linux-aarch64.so.1",
    };
    let ways: &[&[&str]] = match Path::new(linker).exists() {
        true => &[&[], &[linker]],
        false => &[&[]],
    };
    for (family, what, wants, lets) in [
        (
            "mutex-by-turns",
            "pthread mutex",
            "take_mutex",
            "free_mutex",
        ),
        (
            "rwlock-by-turns",
            "pthread rwlock (read)",
            "take_to_read",
            "free_to_read",
        ),
        (
            "condvar-by-turns",
            "pthread condvar",
            "await_word",
            "give_word",
        ),
    ] {
        for way in ways {
            let mut command: Vec<&OsStr> = way.iter().map(OsStr::new).collect();
            command.extend([program.as_os_str(), OsStr::new(family)]);
            in_some_try(|| {
                let (line, found) = watch_command(&place, &command, &["--owner"]);
                assert_eq!(found.events_lost, 0);
                let (odd, even) = truths_by_turns(&line);
                for (turn, truth) in [("odd", odd), ("even", even)] {
                    is_made(&truth)?;
                    let function = format!("{wants}_{turn}");
                    seconds_of_all(&found, what, &function, &truth)
                        .and_then(|seconds| agree(&truth, seconds))
                        .map_err(|miss| format!("{way:?} {family}: {function}: {miss}"))?;
                    holds(
                        &found,
                        what,
                        &function,
                        ("holder", &format!("{lets}_{turn}")),
                    )?;
                }
                Ok(())
            });
        }
    }
}

/// One of two hundred waits is eight times as long as the others.
#[test]
fn one_long_wait_is_the_longest_and_not_the_99th_percentile() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let command = [program.as_os_str(), OsStr::new("uneven"), OsStr::new("120")];
    in_some_try(|| {
        let (line, found) = watch_command(&place, &command, &[]);
        let truth = Truth::of(&line);
        assert_eq!(found.events_lost, 0);
        let (what, function) = ("pthread mutex", "want_mutex");
        agree(&truth, seconds_of_all(&found, what, function, &truth)?)?;
        let row = found.rows.iter().find(|row| is_of(row, what, function));
        let row = row.expect("a row");
        is_longest([row].into_iter(), found.p99_error, &truth)?;
        let others = (row.total_s - row.max_s) / (row.times - 1) as f64;
        let p99 = row.p99_s.expect("single waits");
        let measured = line["p99"].as_f64().expect("a percentile");
        is_near(p99, measured, 0.0).map_err(|miss| format!("p99: {miss}"))?;
        if row.max_s > 2.0 * others && p99 > 0.95 * others {
            return Ok(());
        }
        Err(format!("{p99} s, others {others} s: {row:?}"))
    });
}

/// Two locks of one kind, taken by the same code or not, are rows of their own, at the addresses that the program
/// tells.
#[test]
fn rows_by_lock_have_the_address_of_the_lock() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    for (family, what, function) in [
        ("mutex", "pthread mutex", "want_mutex"),
        ("mutex-inheriting", "pthread mutex", "want_mutex"),
        ("semaphore", "pthread semaphore", "want_semaphore"),
        ("nested", "pthread mutex", "want_mutex"),
    ] {
        let command = [program.as_os_str(), OsStr::new(family)];
        in_some_try(|| {
            let (line, found) = watch_command(&place, &command, &["--by", "lock"]);
            let truth = Truth::of(&line);
            assert_eq!((found.by.as_str(), found.events_lost), ("lock", 0));
            is_made(&truth)?;
            let address = line["lock"].as_str().expect("an address");
            let mut at = found.rows.iter().filter(|row| row.address == address);
            let told = || {
                let row = |row: &LockRow| format!("{} at {}", row.what, row.address);
                found.rows.iter().map(row).collect::<Vec<_>>()
            };
            let row = at
                .next()
                .ok_or_else(|| format!("{address}: {:?}", told()))?;
            assert!(at.next().is_none(), "{address}: {:?}", told());
            assert!(row.pid != 0 && is_of(row, what, function), "{row:?}");
            assert_eq!(row.locks, 1, "{row:?}");
            if family == "nested" {
                let inner = found
                    .rows
                    .iter()
                    .find(|row| is_of(row, what, "wait_for_the_inner_lock"));
                assert_ne!(inner.expect("the inner lock").address, address);
            }
            // The holder may have waited for the waiter.
            if row.times != truth.times {
                return Err(format!("{} times of {}", row.times, truth.times));
            }
            agree(&truth, row.total_s)
        });
    }
}

#[test]
fn rows_are_sorted_by_the_figure_that_is_asked_for() {
    let Some((place, program)) = ready() else {
        return;
    };
    let program = program.to_str().expect("a path");
    type Figure = fn(&LockRow) -> f64;
    let figures: [(&str, Figure); 5] = [
        ("total", |row| row.total_s),
        ("times", |row| row.times as f64),
        ("max", |row| row.max_s),
        ("mean", |row| row.mean_s),
        ("p99", |row| row.p99_s.unwrap_or(0.0)),
    ];
    for (name, figure) in figures {
        let ran = place
            .amdahl([
                "locks", "--json", "--quiet", "--owner", "--sort", name, "--", program, "nested",
                "8",
            ])
            .ends_with(0);
        let found = result(&ran);
        assert_eq!(found.sort, name);
        for rows in [&found.rows, &found.holds] {
            let falls = |a: &LockRow, b: &LockRow| figure(a) * (1.0 + 1e-9) >= figure(b);
            assert!(rows.is_sorted_by(falls), "{name}: {rows:#?}");
        }
        assert!(found.rows.len() > 1, "{}", rows(&found));
    }
    let usual = place.amdahl(["locks", "--json", "--quiet", "--", program, "mutex", "8"]);
    assert_eq!(result(&usual.ends_with(0)).sort, "total");
}

#[test]
fn what_rows_cannot_be_sorted_by_is_refused() {
    let place = Place::new();
    let ran = place
        .amdahl(["locks", "--sort", "site", "--", "true"])
        .ends_with(2);
    for said in ["--sort", "total, times, max, mean, p99"] {
        assert!(ran.err.contains(said), "{}", ran.err);
    }
    // There are keys for it. As many rows are shown as there is room for: the number was accepted and ignored.
    for option in [["--sort", "max"], ["--rows", "5"]] {
        let args = [&["locks", "--live"][..], &option, &["--", "true"]].concat();
        let ran = place.amdahl(args).ends_with(2);
        let is_named = ran.err.contains("--live") && ran.err.contains(option[0]);
        assert!(is_named, "{}", ran.err);
    }
}

/// A lock of the program's own, whose sleeper is woken for nothing at times; a barrier of a mutex and a
/// condition; and goroutines, which sleep without a thread and are looked for after the wake-up.
#[test]
fn waits_of_runtimes_are_what_the_program_measured() {
    let _alone = alone();
    if let Err(why) = bpf() {
        return skipped(why);
    }
    let place = Place::new();
    // Who lets others go on is one of those who wait at other times. Of goroutines it is not known.
    for (name, compiler, what, function, releaser) in [
        (
            "c-raw_futex",
            "gcc",
            "futex",
            "open_the_vault",
            "close_the_vault",
        ),
        (
            "rust-barrier",
            "rustc",
            "Rust barrier",
            "meet_at_the_summit",
            "meet_at_the_summit",
        ),
        ("go-mutex", "go", "Go mutex", "main.lockTheCache", ""),
    ] {
        let Some(program) = planted(&place, name, compiler) else {
            continue;
        };
        in_some_try(|| {
            let command = [program.as_os_str(), OsStr::new("2")];
            let (line, found) = watch_command(&place, &command, &["--owner"]);
            let truth = Truth {
                times: 0,
                seconds: line["seconds"].as_f64().expect("seconds"),
                queued: 0.0,
                longest: None,
            };
            assert_eq!(found.events_lost, 0);
            let (_, seconds) = sum(&found, what, function);
            agree(&truth, seconds)
                .and_then(|()| are_released_in(&found, what, function, releaser))
                .map_err(|miss| format!("{name}: {miss}: {}", rows(&found)))
        });
    }
}

#[test]
fn what_the_holder_waited_for_is_named() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let on_one = ["taskset", "-c", &*first_cpu()];
    for (before, family, inner) in [
        (
            &[][..],
            ("nested", "pthread mutex", "want_mutex", "hold_nested"),
            ("pthread mutex", "wait_for_the_inner_lock"),
        ),
        (
            &on_one,
            (
                "position-nested",
                "mutex",
                "want_position",
                "write_at_the_position",
            ),
            ("rwsem (write)", ""),
        ),
    ] {
        let (name, what, function, holder) = family;
        in_some_try(|| {
            let (truth, found) = watch_under(before, &place, &program, name, &["--owner"]);
            let in_kernel = !before.is_empty();
            if in_kernel && !tells_of_its_locks(&found) {
                return Ok(());
            }
            holds(&found, what, function, ("holder", holder))?;
            let outer = found.rows.iter().find(|row| is_of(row, what, function));
            let outer = outer.expect("the outer lock");
            let is_inner = |step: &Step| step.what == inner.0 && step.site.symbol.contains(inner.1);
            // Who held the inner one may have met locks of the kernel on its way.
            let of_inner = outer.nested.iter().filter(|of| is_inner(&of.chain[0]));
            let seconds: f64 = of_inner.map(|of| of.seconds).sum();
            // All the time that somebody waited for the outer lock its holder waited for the inner one.
            if seconds > 0.9 * truth.seconds {
                return Ok(());
            }
            Err(format!("{:?} of {}", outer.nested, truth.seconds))
        });
    }
}

/// It once said nothing of the library that it lacked, but that all "other" waits were polled.
#[test]
fn without_privileges_a_library_that_is_not_there_is_named() {
    let place = Place::new();
    let mut tool = place.tool(["locks", "--json", "--quiet", "--probe", "proc"]);
    tool.args(["--", "true"]).env("AMDAHL_PRELOAD", "/nowhere");
    let found = result(&place.run(tool).ends_with(0));
    let of_library = |source: &&Source| source.missing.contains("libamdahl_preload.so");
    let named = found.sources.iter().find(of_library).expect("a source");
    assert_eq!(named.how, "missing");
    assert!(named.remedy.contains("AMDAHL_PRELOAD"), "{}", named.remedy);
}

#[test]
fn without_privileges_the_library_counts_as_exactly() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = built(&place, "families") else {
        return;
    };
    in_some_try(|| {
        let (truth, found) = watch(&place, &program, "mutex", &["--probe", "proc"]);
        if !found.sources.iter().any(|source| source.how == "preload") {
            skipped("libamdahl_preload.so is not built");
            return Ok(());
        }
        // The library's clocks stand around the call, so it sees calls that did not sleep, too.
        let (times, seconds) = sum(&found, "pthread mutex", "want_mutex");
        assert!(times >= truth.times, "{times} of {}", truth.times);
        assert!(found.sources.iter().any(|source| !source.remedy.is_empty()));
        agree(&truth, seconds)
    });
}

#[test]
fn all_forms_of_output_tell_the_same() {
    let Some((place, program)) = ready() else {
        return;
    };
    let program = program.to_str().expect("a path");
    let ran = place
        .amdahl([
            "locks", "--quiet", "--output", "found", "--", program, "mutex", "8",
        ])
        .ends_with(0)
        .says("Written to found/");
    assert!(ran.out.contains("want_mutex"), "{}", ran.out);
    let mut names = place.names();
    names.retain(|name| name == "found");
    assert_eq!(names, ["found"]);
    let json = place.read("found/result.json");
    assert!(json.contains(SCHEMA) && json.contains("want_mutex"));
    assert!(place.read("found/report.html").contains("want_mutex"));
    place
        .amdahl(["report", "found"])
        .ends_with(0)
        .says("want_mutex");
    let csv = place
        .amdahl(["locks", "--csv", "--quiet", "--", program, "mutex", "4"])
        .ends_with(0);
    assert!(csv.out.starts_with("what,class,site,"), "{}", csv.out);
}

#[test]
fn short_lived_processes_and_threads_are_followed() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let script = "i=0; while [ $i -lt 60 ]; do \"$0\" mutex 1 & i=$((i+1)); done; wait";
    in_some_try(|| {
        let _ = std::fs::remove_file(place.join("said"));
        let mut tool = place.tool(["locks", "--json", "--quiet", "--", "sh", "-c", script]);
        tool.arg(&program).env("PLANTED_OUT", place.join("said"));
        let found = result(&place.run(tool).ends_with(0));
        if found.events_lost > 0 {
            return Err(format!("{} events lost", found.events_lost));
        }
        // One round each; not all of them meet at the lock.
        let truths = truths(&place.read("said"));
        assert_eq!(truths.len(), 60);
        let truth = Truth {
            times: truths.iter().map(|of| of.times).sum(),
            seconds: truths.iter().map(|of| of.seconds).sum(),
            queued: 0.0,
            longest: None,
        };
        is_made(&truth)?;
        let seconds = seconds_of_all(&found, "pthread mutex", "want_mutex", &truth)?;
        // Who waits among so many stands in a run queue before the sleep, too, which is no wait.
        if seconds > 0.0 && seconds <= 1.05 * truth.seconds {
            return Ok(());
        }
        Err(format!("{seconds} s of {}", truth.seconds))
    });
}

#[test]
fn waits_of_threads_that_come_and_go_are_what_they_measured() {
    let _alone = alone();
    let Some((place, program)) = ready_for_churn() else {
        return;
    };
    // The second one ends while its last hundred threads wait.
    for how in [&["100", "4"][..], &["100", "2", "leave"]] {
        in_some_try(|| {
            let words = how.iter().map(OsStr::new);
            let command: Vec<&OsStr> = [program.as_os_str()].into_iter().chain(words).collect();
            let (line, found) = watch_command(&place, &command, &[]);
            let truth = Truth::of(&line);
            has_all(&found, &truth, how.contains(&"leave"))?;
            let is_it = |row: &&LockRow| row.site.symbol == "want_the_room";
            let row = found.rows.iter().find(is_it).expect("a row");
            // Each of them waited once.
            assert_eq!((row.threads, row.open), (truth.times, 0), "{how:?}");
            Ok(())
        });
    }
}

/// Of threads whose ids meet in the table of waits only one was told.
#[test]
fn waits_that_have_not_ended_are_told_of_threads_with_similar_ids() {
    let _alone = alone();
    let Some((place, program)) = ready_with("meeting") else {
        return;
    };
    let mut process = to_be_told(&place, &program, &[], "said");
    let pid = process.pid().to_string();
    let tool = watching(&place, "locks", &["--pid", &pid].map(OsStr::new));
    process.say("begin");
    while !process.out_so_far().contains('\n') {
        std::thread::yield_now();
    }
    if process.out_so_far().contains("apart") {
        return skipped("there are no thread ids that are 65536 apart (kernel.pid_max)");
    }
    tool.signal(rustix::process::Signal::INT);
    let found = result(&tool.ended().ends_with(5));
    let in_vain = found
        .rows
        .iter()
        .filter(|row| row.site.symbol == "wait_in_vain");
    let open: u64 = in_vain.map(|row| row.open).sum();
    assert_eq!((open, found.events_lost), (2, 0), "{}", rows(&found));
}

/// Its mappings were looked at when the first waits came to be added up, when it had ended.
#[test]
fn a_process_that_ends_while_it_is_watched_keeps_its_waits_and_names() {
    let _alone = alone();
    let Some((place, program)) = ready_for_churn() else {
        return;
    };
    for how in [&["100", "2"][..], &["100", "1", "leave"]] {
        in_some_try(|| {
            let (_, line, ran) = watched_to_its_end(&place, "locks", &program, how);
            has_all(&result(&ran), &Truth::of(&line), how.contains(&"leave"))
        });
    }
}

/// The text had rows that looked the same, and the CSV did not say which stack a row was of.
#[test]
fn rows_by_stack_show_their_stacks() {
    let _alone = alone();
    let Some((place, program)) = ready_for_churn() else {
        return;
    };
    let program = program.to_str().expect("a path");
    let of_both = |out: &str, before: &str, between: &str| {
        let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
        for guest in ["even_guest", "odd_guest", "third_guest"] {
            let stack = format!("{before}want_the_room{between}{guest}{between}stay");
            assert!(words.contains(&stack), "no {stack} in\n{out}");
        }
    };
    let args = ["locks", "--quiet", "--by", "stack"];
    let command = ["--", program, "20", "2"];
    let text = place.amdahl([&args[..], &command].concat()).ends_with(0);
    of_both(&text.out, "< ", " < ");
    let csv = [&args[..], &["--csv"], &command].concat();
    of_both(&place.amdahl(csv).ends_with(0).out, ";", ";");
}

/// Where the kernel told nothing the result said that BPF did.
#[test]
fn holds_are_there_if_their_source_says_so() {
    let _alone = alone();
    let Some((place, program)) = ready_for_churn() else {
        return;
    };
    let command = [program.as_os_str(), OsStr::new("20"), OsStr::new("2")];
    let (_, found) = watch_command(&place, &command, &["--owner"]);
    let is_it = |source: &&Source| source.what == "mmap_lock holds";
    let source = found.sources.iter().find(is_it).expect("a source");
    // Threads get their stacks by `mmap`.
    assert_eq!(source.how == "bpf", !found.holds.is_empty(), "{source:?}");
    let has_stack = |row: &LockRow| !row.stack.is_empty();
    assert!(found.holds.is_empty() || found.holds.iter().any(has_stack));
}
