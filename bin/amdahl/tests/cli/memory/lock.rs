//! The address-space lock, and the kernel's own address ranges.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use amdahl_report::mem::schema::{LockRow, LockSite, MemResult};

use super::{ready_with, result, source};
use crate::locks::kernel::first_cpu;
use crate::locks::{self, BEFORE_OTHERS, Truth, agree, is_made};
use crate::tool::{Place, alone, bpf, cpus, skipped, until_it_watches};
use crate::workload::{CROWDED, READER, compiled, in_some_try, said, watched};

const HELD: &str = include_str!("../../mem/held.c");

/// What was recorded of it, or a word that this kernel does not tell.
fn is_told(found: &MemResult, what: &str) -> bool {
    let source = source(found, what);
    let is_told = source.how != "missing";
    if !is_told {
        skipped(&source.missing);
    }
    is_told
}

/// Runs a family of the planted locks under the tool, on one CPU: there nobody spins while the holder runs, and the
/// kernel tells of all waiters. The program's own figures and the tool's.
fn watch(place: &Place, program: &Path, family: &str) -> (Truth, MemResult) {
    let cpu = first_cpu();
    let words = BEFORE_OTHERS.into_iter().chain(["taskset", "-c", &cpu]);
    let mut command: Vec<&OsStr> = words.map(OsStr::new).collect();
    command.extend([program.as_os_str(), OsStr::new(family)]);
    let (line, ran) = watched(place, "mem", &[], &command);
    (Truth::of(&line), result(&ran))
}

/// Waits in `function`, for reading or for writing: how many, for how long, and in which operations.
fn waits_in<'a>(found: &'a MemResult, function: &str, mode: &str) -> (u64, f64, Vec<&'a LockSite>) {
    let is_it = |site: &&LockSite| {
        site.mode == mode && site.code.stack.iter().any(|frame| frame == function)
    };
    let sites: Vec<&LockSite> = found.mmap_lock.sites.iter().filter(is_it).collect();
    let seconds = sites.iter().map(|site| site.seconds).sum();
    (sites.iter().map(|site| site.count).sum(), seconds, sites)
}

fn told(found: &MemResult) -> String {
    let sites = found.mmap_lock.sites.iter();
    let told = sites.map(|site| {
        let LockSite {
            operation,
            mode,
            count,
            seconds,
            code,
            ..
        } = site;
        format!(
            "{operation} {mode} in {}: {count}, {seconds} s",
            code.symbol
        )
    });
    told.collect::<Vec<_>>().join("; ")
}

#[test]
fn waits_are_what_the_program_measured() {
    let _alone = alone();
    let Some((place, program)) = locks::ready() else {
        return;
    };
    for (family, operation, mode, function) in [
        ("mmap", "mprotect", "write", "want_mmap"),
        ("fault", "fault", "read", "want_hole"),
    ] {
        in_some_try(|| {
            let (truth, found) = watch(&place, &program, family);
            if !is_told(&found, "waits for mmap_lock") {
                return Ok(());
            }
            assert_eq!(found.faults.lost, 0);
            is_made(&truth)?;
            let (count, seconds, sites) = waits_in(&found, function, mode);
            if count != truth.times {
                let (told, times) = (told(&found), truth.times);
                return Err(format!("{family}: {count} waits of {times}: {told}"));
            }
            agree(&truth, seconds)?;
            assert!(sites.iter().all(|site| site.operation == operation));
            // The holder may have waited for the waiter at times.
            let waits = found.mmap_lock.waits.iter();
            let row = waits
                .clone()
                .find(|row| (&*row.operation, &*row.mode) == (operation, mode))
                .unwrap_or_else(|| panic!("{family}: {:?}", found.mmap_lock.waits));
            assert!(row.count >= count && row.seconds >= seconds * 0.999);
            assert!(row.max_s <= row.seconds && row.p99_s.is_some_and(|p99| p99 <= row.max_s));
            let all = |of: &[LockSite]| of.iter().map(|site| site.count).sum::<u64>();
            let by_operation: u64 = waits.map(|row| row.count).sum();
            assert_eq!(by_operation, all(&found.mmap_lock.sites));
            Ok(())
        });
    }
}

/// Only how many holds there were was tested. How long: the calls do little else, and unmapping goes on as a reader.
#[test]
fn holds_last_as_long_as_the_calls_that_hold() {
    let _alone = alone();
    let Some((place, program)) = ready_with("held", HELD) else {
        return;
    };
    in_some_try(|| {
        let (said, ran) = watched(&place, "mem", &["--holds"], &[program.as_os_str()]);
        let found = result(&ran);
        if !is_told(&found, "holds of mmap_lock") {
            return Ok(());
        }
        assert_eq!(found.faults.lost, 0);
        let holds = &found.mmap_lock.holds;
        let of = |what: &str| said[what].as_f64().expect("seconds");
        for (operation, took) in ["mprotect", "munmap"].map(|what| (what, of(what))) {
            let rows = holds.iter().filter(|row| row.operation == operation);
            let held: f64 = rows.map(|row| row.seconds).sum();
            // What the loader does is in it, and the hooks take their time on both sides.
            if !(0.9 * took..1.05 * took).contains(&held) {
                return Err(format!("{operation}: {held} s of {took}: {holds:?}"));
            }
        }
        let is_it = |row: &&LockRow| (&*row.operation, &*row.mode) == ("mprotect", "write");
        let row = holds.iter().find(is_it).expect("a row");
        let (longest, max_s) = (of("longest"), row.max_s);
        if !(0.9 * longest..1.01 * longest).contains(&max_s) {
            return Err(format!("at most {max_s} s, and the call took {longest}"));
        }
        Ok(())
    });
}

/// Whoever read from a file was taken for a reader of `/proc`.
#[test]
fn reading_into_memory_that_is_pinned_is_no_reading_of_proc() {
    let _alone = alone();
    let Some((place, program)) = locks::ready() else {
        return;
    };
    let mut direct = OpenOptions::new();
    direct.write(true).create(true).custom_flags(libc::O_DIRECT);
    if let Err(error) = direct.open(place.join("planted-direct")) {
        return skipped(format!("no O_DIRECT here: {error}"));
    }
    in_some_try(|| {
        let (truth, found) = watch(&place, &program, "direct");
        if !is_told(&found, "waits for mmap_lock") {
            return Ok(());
        }
        is_made(&truth)?;
        let (count, _, sites) = waits_in(&found, "want_direct", "read");
        if count == 0 {
            return Err(told(&found));
        }
        let is_read = |site: &&LockSite| site.operation == "read";
        assert!(sites.iter().all(is_read), "{}", told(&found));
        let waits = &found.mmap_lock.waits;
        assert!(waits.iter().all(|row| row.operation != "proc-reader"));
        Ok(())
    });
}

/// Only waits of those who are watched were recorded.
#[test]
fn who_waits_to_read_of_a_watched_process_is_told() {
    let _alone = alone();
    let Some((place, program)) = locks::ready() else {
        return;
    };
    let Some(reader) = compiled(&place, "reader", READER, &[]) else {
        return;
    };
    in_some_try(|| reads(&place, &program, &reader));
}

fn reads(place: &Place, program: &Path, reader: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    // It is killed long before.
    command.args(["mmap", "100000"]);
    let process = place.start(place.here(command));
    let pid = process.pid();
    let mut tool = place.tool(["mem", "--json", "--quiet", "--for", "1h"]);
    tool.args(["--pid", &pid.to_string()]);
    let tool = place.start(tool);
    until_it_watches(&tool);
    let mut command = Command::new("nice");
    command.args(["-n", "-20"]).arg(reader);
    command.args([&format!("/proc/{pid}/cmdline"), "20"]);
    command.env("PLANTED_OUT", place.join("read"));
    place.run(place.here(command)).ends_with(0);
    drop(process);
    let found = result(&tool.ended().ends_with(0));
    if !is_told(&found, "waits for mmap_lock") {
        return Ok(());
    }
    let line = said(place, "read");
    let truth = Truth::of(&line);
    is_made(&truth)?;
    let lock = &found.mmap_lock;
    let row = lock.strangers.iter().find(|row| row.process == "reader");
    let row = row.ok_or_else(|| format!("{:?}", lock.strangers))?;
    assert_eq!((&*row.operation, &*row.mode), ("proc-reader", "read"));
    assert_eq!((row.of_pid, row.processes), (pid, 1));
    assert!(!row.of_process.is_empty());
    // Holds were not asked for, and a wait of others is none of the program's.
    assert_eq!((row.count, row.seconds), (0, 0.0));
    assert!(lock.waits.iter().all(|row| row.operation != "proc-reader"));
    // Beside them are those that were over before the reader slept, which are short.
    if row.waits < truth.times {
        return Err(format!("{} waits of {}", row.waits, truth.times));
    }
    agree(&truth, row.waited_s)
}

/// Each thread has a stack in the kernel, but for those that lie ready on a CPU.
#[test]
fn ranges_of_the_kernel_grow_with_threads() {
    let _alone = alone();
    if let Err(why) = bpf() {
        return skipped(why);
    }
    let place = Place::new();
    let Some(program) = compiled(&place, "crowded", CROWDED, &[]) else {
        return;
    };
    for threads in [20, 200] {
        let mut tool = place.tool(["mem", "--json", "--quiet", "--"]);
        tool.arg(&program).arg(threads.to_string());
        let found = result(&place.run(tool).ends_with(0));
        if !is_told(&found, "vmalloc") {
            return;
        }
        let vmalloc = found.vmalloc.expect("it is told");
        let is_clone = |call: &str| call.starts_with("clone");
        let of_it = vmalloc
            .sites
            .iter()
            .filter(|site| site.process == "crowded");
        let stacks = of_it.filter(|site| is_clone(&site.syscall));
        let stacks: u64 = stacks.map(|site| site.count).sum();
        // Two of each CPU, as the kernel keeps them.
        let ready = 2 * cpus() as u64;
        assert!(
            (threads - ready..=threads).contains(&stacks),
            "{stacks} for {threads}: {:?}",
            vmalloc.sites
        );
        assert!(vmalloc.allocs >= stacks && vmalloc.bytes >= stacks * 4096);
    }
}

/// Placement by first use, and with `--holds` holds, were just not there.
#[test]
fn every_part_that_is_empty_has_a_source_that_says_why() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "crowded", CROWDED, &[]) else {
        return;
    };
    let probes: &[&str] = match bpf() {
        Ok(()) => &["proc", "bpf"],
        Err(_) => &["proc"],
    };
    for probe in probes {
        let mut tool = place.tool(["mem", "--json", "--quiet", "--holds", "--probe", probe]);
        tool.arg("--").arg(&program).arg("2");
        let found = result(&place.run(tool).ends_with(0));
        let nodes = found.numa.iter().flat_map(|numa| &numa.nodes);
        let mut first_uses = nodes.map(|node| node.touched);
        for (what, is_there) in [
            ("page faults", found.faults.is_timed),
            ("waits for mmap_lock", !found.mmap_lock.waits.is_empty()),
            ("holds of mmap_lock", !found.mmap_lock.holds.is_empty()),
            ("TLB misses", found.tlb.is_some()),
            ("memory by node", found.numa.is_some()),
            ("first uses by node", first_uses.any(|touched| touched > 0)),
            ("vmalloc", found.vmalloc.is_some()),
            ("mappings", !found.processes.is_empty()),
        ] {
            let source = source(&found, what);
            // Nobody may have waited.
            let may_be_none = what == "waits for mmap_lock" && source.how == "bpf";
            let is_lacking = !source.missing.is_empty();
            assert!(is_there || is_lacking || may_be_none, "{probe}: {source:?}");
            assert_eq!(is_lacking, !source.remedy.is_empty(), "{probe}: {source:?}");
            if source.how == "missing" {
                assert!(!is_there && is_lacking, "{probe}: {source:?}");
            }
        }
    }
}
