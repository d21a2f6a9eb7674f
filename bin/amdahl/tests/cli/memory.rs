//! `amdahl mem` on processes and threads that come and go and count their page faults themselves, and beside others that look.

mod lock;
mod touches;
mod unprivileged;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use amdahl_report::mem;
use amdahl_report::mem::schema::{FaultSite, MemResult};
use amdahl_report::schema::Source;
use rustix::process::Signal;
use serde_json::Value;

use crate::processes::{Group, until_catches};
use crate::tool::{Place, Ran, alone, bpf, skipped, until_it_opens, until_it_watches};
use crate::workload::{
    compiled, in_some_try, replaced_while_watched, said, to_be_told, watched, watched_in_a_group,
    watched_to_its_end,
};

const SOURCE: &str = include_str!("../mem/guests.c");
const FILL: &str = "fill_the_room";

/// The planted program; `None` without BPF or a compiler.
fn ready() -> Option<(Place, PathBuf)> {
    ready_with("guests", SOURCE)
}

/// The same of another program.
fn ready_with(name: &str, source: &str) -> Option<(Place, PathBuf)> {
    bpf().map_err(skipped).ok()?;
    let place = Place::new();
    let program = compiled(&place, name, source, &["-g"])?;
    Some((place, program))
}

/// The source of a part of the result.
fn source<'a>(found: &'a MemResult, what: &str) -> &'a Source {
    let mut sources = found.sources.iter().filter(|source| source.what == what);
    match (sources.next(), sources.next()) {
        (Some(source), None) => source,
        _ => panic!("{what}: {:?}", found.sources),
    }
}

fn result(ran: &Ran) -> MemResult {
    mem::parse(ran.out.as_bytes(), "standard output".into())
        .unwrap_or_else(|error| panic!("{}\n{error}\n{}", ran.what, ran.out))
}

/// What the program says of itself.
struct Truth {
    /// Faults in [`FILL`].
    filled: u64,
    /// Faults of its child processes.
    lived: u64,
}

impl Truth {
    fn of(said: &Value) -> Truth {
        let count = |what: &str| said[what].as_u64().expect("a count");
        Truth {
            filled: count("filled"),
            lived: count("lived"),
        }
    }
}

/// Runs `command` under the tool. What the program says, and what the tool does.
fn watch(place: &Place, command: &[&OsStr], options: &[&str]) -> (Truth, MemResult) {
    let (line, ran) = watched(place, "mem", options, command);
    (Truth::of(&line), result(&ran))
}

fn is_in(site: &FaultSite, function: &str) -> bool {
    site.code.stack.iter().any(|frame| frame == function)
}

fn sum<'a>(sites: impl Iterator<Item = &'a FaultSite>) -> u64 {
    sites.map(|site| site.count).sum()
}

/// Faults of the program's first uses of memory.
fn filled(found: &MemResult) -> u64 {
    sum(found.faults.sites.iter().filter(|site| is_in(site, FILL)))
}

/// Those that the program counted, and all of them are first uses.
fn has_all(found: &MemResult, truth: &Truth) -> Result<(), String> {
    let faults = &found.faults;
    if faults.lost > 0 {
        return Err(format!("{} events were lost", faults.lost));
    }
    let (seen, planted) = (filled(found), truth.filled);
    if seen != planted {
        let mut by_code = BTreeMap::<(&str, &str), u64>::new();
        for site in &faults.sites {
            *by_code.entry((&site.kind, &site.code.symbol)).or_default() += site.count;
        }
        let (left_out, notices) = (faults.left_out, &found.warnings);
        return Err(format!(
            "{seen} of {planted}, {left_out} not listed: {by_code:?}, {notices:?}"
        ));
    }
    // Code of the program itself is mapped there, too.
    let sites = faults.sites.iter().filter(|site| is_in(site, FILL));
    let others = sum(sites.filter(|site| site.kind != "first-touch"));
    if others * 10 <= planted {
        return Ok(());
    }
    Err(format!("{others} of {planted} are no first uses"))
}

fn told(site: &FaultSite) -> String {
    format!("{} {} in {}", site.count, site.kind, site.code.symbol)
}

#[test]
fn faults_of_short_lived_processes_and_of_threads_are_what_they_counted() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    for how in [["processes", "20", "5"], ["threads", "100", "5"]] {
        in_some_try(|| {
            let words = how.iter().map(OsStr::new);
            let command: Vec<&OsStr> = [program.as_os_str()].into_iter().chain(words).collect();
            let (truth, found) = watch(&place, &command, &[]);
            has_all(&found, &truth)
        });
    }
}

/// Nobody looked at what it prints.
#[test]
fn comma_separated_values_are_what_the_program_counted() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    in_some_try(|| {
        let _ = std::fs::remove_file(place.join("said"));
        let mut tool = place.tool(["mem", "--csv", "--quiet", "--"]);
        tool.arg(&program).args(["threads", "50", "3"]);
        tool.env("PLANTED_OUT", place.join("said"));
        let text = place.run(tool).ends_with(0).out;
        let truth = Truth::of(&said(&place, "said"));
        let (header, rows) = text.split_once("\r\n").expect("a header");
        let column = |name| {
            header
                .split(',')
                .position(|of| of == name)
                .expect("a column")
        };
        let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
        let of = |table: &str, what: &str, name| {
            let is_it = |row: &&Vec<&str>| row[0] == table && row[1] == what;
            let row = rows
                .iter()
                .find(is_it)
                .unwrap_or_else(|| panic!("{table}: {text}"));
            row[column(name)].to_owned()
        };
        let count = |cell: String| cell.parse::<u64>().expect("a number");
        let (touched, all) = (
            of("fault", "first-touch", "count"),
            of("fault", "", "count"),
        );
        let (touched, all) = (count(touched), count(all));
        assert!(all >= touched, "{text}");
        // Where the tool got no CPU while the program ran it has not seen its memory.
        if !rows.iter().any(|row| row[0] == "process") {
            return Err("the process was not looked at".to_owned());
        }
        assert!(count(of("process", "", "bytes")) > 0);
        let (bytes, huge) = (of("process", "", "bytes"), of("process", "", "huge_bytes"));
        assert!(count(bytes) >= count(huge));
        assert!(rows.iter().any(|row| row[0] == "free"), "{text}");
        let mappings = rows
            .iter()
            .filter(|row| row[0] == "mapping" && row.len() == rows[0].len());
        let mut huge = mappings.map(|row| row[column("huge_bytes")].parse::<u64>());
        assert!(huge.all(|huge| huge.is_ok()), "{text}");
        if touched < truth.filled {
            return Err(format!("{touched} of {}", truth.filled));
        }
        Ok(())
    });
}

/// From the fork on to the end, under the names that they had last.
#[test]
fn all_faults_of_processes_are_what_the_kernel_counted() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    in_some_try(|| {
        let words = ["processes", "5", "2"].map(OsStr::new);
        let command = [&[program.as_os_str()][..], &words].concat();
        let (truth, found) = watch(&place, &command, &[]);
        if found.faults.lost + found.faults.left_out > 0 {
            let faults = &found.faults;
            return Err(format!(
                "{} lost, {} left out",
                faults.lost, faults.left_out
            ));
        }
        let of_guests = |site: &&FaultSite| site.process == "guest";
        let seen = sum(found.faults.sites.iter().filter(of_guests));
        if seen == truth.lived {
            return Ok(());
        }
        let sites = found.faults.sites.iter().filter(of_guests).map(told);
        let sites: Vec<String> = sites.collect();
        Err(format!("{seen} of {}: {sites:?}", truth.lived))
    });
}

#[test]
fn a_process_that_ends_while_it_is_watched_keeps_its_faults_and_names() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    for how in [["threads", "100", "2"], ["processes", "20", "2"]] {
        in_some_try(|| {
            let (pid, line, ran) = watched_to_its_end(&place, "mem", &program, &how);
            let found = result(&ran);
            let of_it = |site: &&FaultSite| site.pid == pid;
            let mut own = found.faults.sites.iter().filter(of_it);
            assert!(own.all(|site| site.process == "guests"));
            let memory = found.processes.iter().find(|memory| memory.pid == pid);
            let memory = memory.expect("its memory");
            assert!(memory.name == "guests" && memory.resident_bytes > 0);
            has_all(&found, &Truth::of(&line))
        });
    }
}

/// Mappings were learned at the end: of a file that was replaced there was no name.
#[test]
fn a_program_that_is_replaced_while_it_runs_keeps_its_names_or_has_none() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    // The same functions at other addresses.
    let flags = ["-g", "-O0", "-falign-functions=4096"];
    let Some(other) = compiled(&place, "other", SOURCE, &flags) else {
        return;
    };
    for is_known in [true, false] {
        let (it, enough) = (place.join("it"), place.join("enough"));
        std::fs::copy(&program, &it).expect("a copy");
        let words = [OsStr::new("threads"), OsStr::new("10"), enough.as_os_str()];
        let mut tool = place.tool(["mem", "--json", "--quiet", "--"]);
        tool.arg(&it).args(words);
        tool.env("PLANTED_OUT", place.join("said"));
        let ran = replaced_while_watched(&place, tool, &it, (&it, &other), is_known);
        let found = result(&ran.ends_with(0));
        // The kernel says of its file that it is deleted where it was asked late.
        let of_it = |site: &&FaultSite| {
            let module = &*site.code.module;
            Path::new(module.strip_suffix(" (deleted)").unwrap_or(module)) == it
        };
        let sites = found.faults.sites.iter().filter(of_it);
        // Most faults are where it fills its rooms.
        let most = sites.max_by_key(|site| site.count).expect("a site");
        let is_nameless = most.code.symbol.starts_with("it+0x");
        assert!(
            most.code.symbol == FILL || is_nameless && !is_known,
            "{}",
            told(most)
        );
    }
}

#[test]
fn of_a_control_group_only_its_members_are_watched() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let Some(group) = Group::new("mem") else {
        return;
    };
    in_some_try(|| {
        let planted = (&*program, &["processes", "20", "2"][..]);
        let Some(watched) = watched_in_a_group(&place, "mem", &[], planted, &group) else {
            return Ok(());
        };
        assert!(Truth::of(&watched.outside).filled > 0);
        has_all(&result(&watched.ran), &Truth::of(&watched.inside))
    });
    group.is_left_empty();
}

/// Its mappings were read when the watching began, or never: its faults had neither kind nor code.
#[test]
fn who_joins_a_control_group_while_it_is_watched_has_kinds_and_names() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let Some(group) = Group::new("mem-joined") else {
        return;
    };
    let enough = place.join("enough");
    let how = ["threads", "10", enough.to_str().expect("a path")];
    let mut process = to_be_told(&place, &program, &how, "said");
    let pid = process.pid();
    let mut tool = place.tool(["mem", "--json", "--quiet", "--for", "1h"]);
    tool.arg("--cgroup").arg(group.folder());
    let tool = place.start(tool);
    until_it_watches(&tool);
    if !group.takes_in(pid) {
        return;
    }
    process.say("begin");
    until_it_opens(&tool, &program);
    std::fs::write(&enough, "").expect("a file");
    process.ended().ends_with(0);
    tool.signal(Signal::INT);
    let found = result(&tool.ended().ends_with(5));
    let sites = &found.faults.sites;
    assert!(filled(&found) > 0, "{sites:?}");
    let is_known = |site: &&FaultSite| site.kind != "unknown" && site.process == "guests";
    let (all, known) = (sum(sites.iter()), sum(sites.iter().filter(is_known)));
    assert_eq!(known, all, "{sites:?}");
}

#[test]
fn two_instances_do_not_disturb_each_other() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let args = ["mem", "--system", "--json", "--quiet", "--for", "1h"];
    let other = place.start(place.tool(args));
    until_it_watches(&other);
    until_catches(other.pid(), Signal::INT);
    let mut all = Truth {
        filled: 0,
        lived: 0,
    };
    in_some_try(|| {
        let words = ["threads", "50", "3"].map(OsStr::new);
        let command = [&[program.as_os_str()][..], &words].concat();
        let (truth, found) = watch(&place, &command, &[]);
        all.filled += truth.filled;
        has_all(&found, &truth)
    });
    other.signal(Signal::INT);
    let found = result(&other.ended().ends_with(5));
    has_all(&found, &all).unwrap_or_else(|miss| panic!("the system: {miss}"));
}

/// Who watches has faults of its own, which are not those of what it watches.
#[test]
fn it_watches_itself() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let script = "\"$0\" mem --quiet --output inner -- \"$1\" threads 50 3 >inner.txt";
    let tool = env!("CARGO_BIN_EXE_amdahl");
    let words = ["sh", "-c", script, tool].map(OsStr::new);
    let command = [&words[..], &[program.as_os_str()]].concat();
    in_some_try(|| {
        let _ = std::fs::remove_dir_all(place.join("inner"));
        let (truth, outer) = watch(&place, &command, &[]);
        let inner = std::fs::read(place.join("inner/result.json")).expect("the result");
        let inner = mem::parse(&inner, "inner".into()).expect("a result");
        for (who, found) in [("outer", &outer), ("inner", &inner)] {
            has_all(found, &truth).map_err(|miss| format!("{who}: {miss}"))?;
        }
        let is_of_the_tool = |site: &FaultSite| site.process == "amdahl";
        assert!(outer.faults.sites.iter().any(is_of_the_tool));
        assert!(!inner.faults.sites.iter().any(is_of_the_tool));
        Ok(())
    });
}

/// A reader of `/proc` holds the lock of whom it reads about. Only those who are watched were recorded.
#[test]
fn who_reads_of_a_watched_process_is_told() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let mut process = to_be_told(&place, &program, &["threads", "2", "1"], "said");
    let pid = process.pid();
    let mut tool = place.tool(["mem", "--json", "--quiet", "--holds", "--for", "1h"]);
    tool.args(["--pid", &pid.to_string()]);
    let tool = place.start(tool);
    until_it_watches(&tool);
    // It waits to be told: nobody is in the way of the reader, who takes the lock once each time.
    let mut reader = Command::new("sh");
    let script = "i=0; while [ $i -lt 25 ]; do cat /proc/$0/smaps_rollup; i=$((i+1)); done";
    reader.args(["-c", script, &pid.to_string()]);
    place.run(place.here(reader)).ends_with(0);
    process.say("begin");
    process.ended().ends_with(0);
    let found = result(&tool.ended().ends_with(0));
    let source = source(&found, "holds of mmap_lock");
    if source.how == "missing" {
        return skipped(&source.missing);
    }
    let strangers = &found.mmap_lock.strangers;
    let reader = strangers.iter().find(|row| row.process == "cat");
    let Some(reader) = reader else {
        panic!("{strangers:?}");
    };
    assert_eq!((&*reader.operation, &*reader.mode), ("proc-reader", "read"));
    assert_eq!((reader.count, reader.processes), (25, 25));
    assert_eq!((reader.of_pid, &*reader.of_process), (pid, "guests"));
    // What looks at the memory for the result is no part of it.
    assert!(strangers.iter().all(|row| row.process != "amdahl"));
    let holds = found.mmap_lock.holds.iter();
    let of_readers = holds.filter(|row| row.operation == "proc-reader");
    let of_readers: u64 = of_readers.map(|row| row.count).sum();
    assert!(of_readers >= 25, "{of_readers}");
}
