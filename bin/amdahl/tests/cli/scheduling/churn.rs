//! Threads and processes that come and go, and count themselves.

use std::ffi::OsStr;
use std::path::PathBuf;

use amdahl_report::sched;
use amdahl_report::sched::schema::{SchedResult, ThreadEntry};
use serde_json::Value;

use super::{can_record, record, result};
use crate::processes::Group;
use crate::tool::{Place, alone};
use crate::workload::{compiled, in_some_try, watched, watched_in_a_group, watched_to_its_end};

const SOURCE: &str = include_str!("../../../../../planted/locks/churn.c");
/// Where what it includes is looked for.
const INCLUDES: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../planted/locks");
/// Fewer than the table of threads has rows.
const THREADS: [&str; 2] = ["20", "40"];

/// The planted program; `None` without BPF or a compiler.
fn ready() -> Option<(Place, PathBuf)> {
    if !can_record() {
        return None;
    }
    let place = Place::new();
    let program = compiled(&place, "churn", SOURCE, &["-std=gnu11", INCLUDES])?;
    Some((place, program))
}

/// Nothing of it was lost.
fn is_whole(found: &SchedResult) -> Result<(), String> {
    match found.totals.events_lost {
        0 => Ok(()),
        lost => Err(format!("{lost} events were lost")),
    }
}

fn rows<'a>(found: &'a SchedResult, name: &str) -> impl Iterator<Item = &'a ThreadEntry> {
    found.threads.iter().filter(move |row| row.name == name)
}

/// Threads and their CPU time are what the program said.
fn has_all(found: &SchedResult, said: &Value) -> Result<(), String> {
    is_whole(found)?;
    let planted = said["threads"].as_u64().expect("a count");
    let cpu_s = said["cpu_s"].as_f64().expect("seconds");
    let threads: u64 = rows(found, "churn").map(|row| row.threads).sum();
    assert_eq!(threads, planted + 1, "{:?}", found.threads);
    let run_s: f64 = rows(found, "churn").map(|row| row.run_s).sum();
    // What the hypervisor takes of a thread on a CPU is not in its CPU time. It is told in ticks.
    let stolen_s: f64 = found.steal.iter().map(|cpu| cpu.steal_s).sum();
    let most_s = cpu_s + stolen_s;
    if (0.9 * cpu_s..=1.1 * most_s).contains(&run_s) {
        return Ok(());
    }
    Err(format!("{run_s} s of {cpu_s}, {stolen_s} s stolen"))
}

/// The same of a recording that has nothing else in it, whose program ended in it.
fn has_nothing_else(found: &SchedResult, said: &Value) -> Result<(), String> {
    has_all(found, said)?;
    let planted = said["threads"].as_u64().expect("a count");
    let totals = &found.totals;
    if (totals.forks, totals.exits) == (planted, planted + 1) {
        return Ok(());
    }
    Err(format!("{planted}: {totals:?}"))
}

#[test]
fn every_thread_of_a_fork_heavy_program_is_counted() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let script = "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done";
    in_some_try(|| {
        let ran = record(&place, &["sh", "-c", script]);
        is_whole(&ran)?;
        let totals = &ran.totals;
        // The shell was there before.
        assert_eq!((totals.forks, totals.exits), (200, 201), "{totals:?}");
        let threads: u64 = ran.threads.iter().map(|row| row.threads).sum();
        assert_eq!(threads, 201);
        assert!(rows(&ran, "true").next().is_some(), "{:?}", ran.threads);
        Ok(())
    });
}

#[test]
fn threads_that_come_and_go_are_counted_with_their_time() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    in_some_try(|| {
        let words = THREADS.map(OsStr::new);
        let command = [&[program.as_os_str()][..], &words].concat();
        let (said, ran) = watched(&place, "sched record", &[], &command);
        has_nothing_else(&result(&ran), &said)
    });
}

#[test]
fn a_process_that_ends_while_it_is_watched_keeps_its_threads() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    in_some_try(|| {
        let (_, said, ran) = watched_to_its_end(&place, "sched record", &program, &THREADS);
        has_nothing_else(&result(&ran), &said)
    });
    // Those who are ended by its end leave their CPU for the last time after who waits for it has heard of it.
    in_some_try(|| {
        let how = [THREADS[0], THREADS[1], "leave"];
        let (_, said, ran) = watched_to_its_end(&place, "sched record", &program, &how);
        has_nothing_else(&result(&ran), &said)
    });
}

#[test]
fn of_a_control_group_only_its_members_are_recorded() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let Some(group) = Group::new("sched") else {
        return;
    };
    in_some_try(|| {
        let planted = (&*program, &THREADS[..]);
        let watched = watched_in_a_group(&place, "sched record", &[], planted, &group);
        let Some(watched) = watched else {
            return Ok(());
        };
        assert!(watched.outside["threads"].as_u64() > Some(0));
        let found = result(&watched.ran);
        let mut known = found.threads.iter().filter(|row| row.tid != 0);
        assert!(known.all(|row| row.pid == watched.pid));
        has_nothing_else(&found, &watched.inside)
    });
    group.is_left_empty();
}

/// Who records is a program with threads of its own, which are not those of what it records.
#[test]
fn it_records_itself() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let script = "\"$0\" sched record --quiet --output inner -- \"$1\" 20 40 >inner.txt";
    let tool = env!("CARGO_BIN_EXE_amdahl");
    let words = ["sh", "-c", script, tool].map(OsStr::new);
    let command = [&words[..], &[program.as_os_str()]].concat();
    in_some_try(|| {
        let _ = std::fs::remove_dir_all(place.join("inner"));
        let (said, ran) = watched(&place, "sched record", &[], &command);
        let outer = result(&ran);
        let inner = sched::load::load(&place.join("inner")).expect("a result");
        has_nothing_else(&inner, &said).map_err(|miss| format!("inner: {miss}"))?;
        has_all(&outer, &said).map_err(|miss| format!("outer: {miss}"))?;
        let names_of_the_tool = ["amdahl", "amdahl-analyse"];
        for name in names_of_the_tool {
            assert!(rows(&outer, name).next().is_some(), "{:?}", outer.threads);
            assert!(rows(&inner, name).next().is_none(), "{:?}", inner.threads);
        }
        Ok(())
    });
}
