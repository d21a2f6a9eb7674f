//! The table as the documented result.

use amdahl_locks::histogram::QUANTILE_ERROR;
use amdahl_locks::{
    Class, Folded, GroupBy, Row, Site, SortBy, Table, ThreadName, Tracker, What, folded_stacks,
};
use amdahl_probe::bpf::RecorderError;
use amdahl_report::locks::schema::{CodeSite, LockRow, LocksResult, Nested, Owner, SCHEMA, Step};
use amdahl_report::schema::{Notice, SampleRow, Source};
use amdahl_speedup::event::{CallStack, Tid};
use amdahl_speedup::primitive::{Library, kernel_frame, own_frame, seen_frames};

use crate::cli::{LocksBy, LocksSort};

/// Rows of a result, at most.
const ROWS: usize = 4096;
/// Frames of a stack that are kept.
const FRAMES: usize = 64;

impl From<LocksBy> for GroupBy {
    fn from(by: LocksBy) -> GroupBy {
        match by {
            LocksBy::Site => GroupBy::Site,
            LocksBy::Thread => GroupBy::Thread,
            LocksBy::Process => GroupBy::Process,
            LocksBy::Lock => GroupBy::Lock,
            LocksBy::Stack => GroupBy::Stack,
        }
    }
}

fn by_name(by: LocksBy) -> &'static str {
    match by {
        LocksBy::Site => "site",
        LocksBy::Thread => "thread",
        LocksBy::Process => "process",
        LocksBy::Lock => "lock",
        LocksBy::Stack => "stack",
    }
}

impl From<LocksSort> for SortBy {
    fn from(sort: LocksSort) -> SortBy {
        match sort {
            LocksSort::Total => SortBy::Total,
            LocksSort::Times => SortBy::Times,
            LocksSort::Max => SortBy::Max,
            LocksSort::Mean => SortBy::Mean,
            LocksSort::P99 => SortBy::P99,
        }
    }
}

fn sort_name(sort: SortBy) -> &'static str {
    match sort {
        SortBy::Total => "total",
        SortBy::Times => "times",
        SortBy::Max => "max",
        SortBy::Mean => "mean",
        SortBy::P99 => "p99",
    }
}

fn class(what: &What) -> &'static str {
    match what.class {
        Class::Lock => "lock",
        Class::Barrier => "barrier",
        Class::Partner => "partner",
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// The figures of `table`; who, when and how is filled in by the caller.
pub fn result(table: &Table, by: LocksBy) -> LocksResult {
    let kept = table.rows.len().min(ROWS);
    let left_out: u64 = table.rows[kept..].iter().map(|row| row.total_ns).sum();
    LocksResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        by: by_name(by).to_owned(),
        sort: sort_name(table.sort).to_owned(),
        p99_error: QUANTILE_ERROR,
        rows: table.rows[..kept].iter().map(row).collect(),
        holds: table.holds.iter().take(ROWS).map(row).collect(),
        rows_left_out: (table.rows.len() - kept) as u64,
        left_out_s: seconds(left_out),
        events_lost: table.lost,
        folded_threads: table.folded.threads,
        folded_places: table.folded.places,
        warnings: no_room(table.folded),
        ..LocksResult::default()
    }
}

/// What the reader must know of what there was no room for.
fn no_room(folded: Folded) -> Vec<Notice> {
    let notice = |count: u64, code: &str, text: String| {
        let code = code.to_owned();
        (count > 0).then_some(Notice { code, text })
    };
    let Folded { stacks, chains, .. } = folded;
    let all = [
        notice(
            stacks,
            "stacks-left-out",
            format!(
                "There was no room for {stacks} call stacks, of so many different places: those places have no name, and \
                 sleeps there may be told as several waits."
            ),
        ),
        notice(
            chains,
            "chains-left-out",
            format!(
                "What holders waited for themselves is not told of {chains} waits: there were too many different chains."
            ),
        ),
    ];
    all.into_iter().flatten().collect()
}

/// Adds to the sources what the table cannot tell of the programs in it: of goroutines, which the kernel
/// does not know.
pub fn note_goroutines(found: &mut LocksResult, how: &str) {
    let of_go = Library::Go.adjective();
    if !found.rows.iter().any(|row| row.what.starts_with(of_go)) {
        return;
    }
    found
        .sources
        .push(of_goroutines(how, cfg!(target_arch = "x86_64")));
}

/// What is missing of goroutines; `are_found`: the probe finds the goroutine that a thread has parked.
fn of_goroutines(how: &str, are_found: bool) -> Source {
    let (how, missing) = if are_found && how == "bpf" {
        (
            how,
            "They are told for as long as a thread slept for them. A goroutine whose thread goes on with another \
             one, or that could go on and finds no thread (more threads than CPUs, other busy programs), waits \
             longer than is told.",
        )
    } else {
        (
            "missing",
            "What a thread of Go slept for is not found here: threads that have nothing else to do are idle workers \
             (Go idle worker), whichever lock or message their last goroutine waits for.",
        )
    };
    let remedy = "--goroutines, as root, times them by probes in their program, but not their messages; or ask Go itself: \
                  runtime.SetBlockProfileRate(1), go tool pprof";
    super::source("waits of goroutines", how, missing, remedy)
}

/// What is told of goroutines where they are timed by probes in their programs, if there `are_any`.
pub fn of_timed_goroutines(are_any: bool, failure: Option<&RecorderError>) -> Source {
    let missing = if are_any {
        "Mutexes, wait groups and conditions are told for as long as a goroutine waited, from when its program was found on. What it waits \
         for else, as messages, is told for as long as a thread slept for it."
    } else {
        "No program in Go 1.18 or newer was found."
    };
    let failure = failure.map_or_else(String::new, |failure| format!(" {failure}."));
    super::source(
        "waits of goroutines",
        if are_any {
            "bpf, probes in programs"
        } else {
            "missing"
        },
        &format!("{missing}{failure}"),
        "",
    )
}

fn row(row: &Row) -> LockRow {
    let total_s = seconds(row.total_ns);
    LockRow {
        what: row.what.name.clone(),
        class: class(&row.what).to_owned(),
        in_kernel: row.what.is_kernel,
        site: site(&row.site),
        from: site(&row.from),
        sites: row.sites,
        process: row.who.process.clone(),
        thread: row.who.thread.clone(),
        pid: row.of.pid.max(row.of.lock.pid),
        tid: row.of.tid,
        address: match row.of.lock.address {
            0 => String::new(),
            address => format!("{address:#x}"),
        },
        times: row.times,
        sleeps: row.sleeps,
        open: row.open,
        before: row.before,
        at_least: row.polled > 0,
        total_s,
        max_s: seconds(row.max_ns),
        mean_s: total_s / row.times.max(1) as f64,
        p99_s: row.p99_ns.map(seconds),
        locks: row.locks,
        threads: row.threads,
        stack: row.stack.as_deref().map(frames).unwrap_or_default(),
        owners: row.owners.iter().map(owner).collect(),
        unowned: row.unowned,
        nested: row.nested.iter().map(nested).collect(),
    }
}

fn site(site: &Site) -> CodeSite {
    CodeSite {
        symbol: site.symbol.clone(),
        file: (!site.file.is_empty()).then(|| site.file.clone()),
        line: (site.line > 0).then_some(site.line),
        module: site.module.clone(),
    }
}

fn owner(of: &amdahl_locks::OwnerRow) -> Owner {
    Owner {
        process: of.who.process.clone(),
        thread: of.who.thread.clone(),
        threads: of.threads,
        site: site(&of.site),
        times: of.share.count,
        seconds: seconds(of.share.ns),
    }
}

fn nested(of: &amdahl_locks::NestedRow) -> Nested {
    let step = |(what, at): &(What, Site)| Step {
        what: what.name.clone(),
        site: site(at),
    };
    Nested {
        chain: of.chain.iter().map(step).collect(),
        times: of.share.count,
        seconds: seconds(of.share.ns),
    }
}

fn frames(stack: &CallStack) -> Vec<String> {
    let frames = seen_frames(stack).iter().chain(&stack.user).take(FRAMES);
    frames.map(|frame| frame.symbol.clone()).collect()
}

/// Waiting time by stack, for the flame graph and `samples.parquet`.
pub fn samples(tracker: &Tracker, names: &dyn Fn(Tid) -> ThreadName) -> Vec<SampleRow> {
    let folded = folded_stacks(tracker, tracker.tally()).into_iter();
    folded
        .map(|folded| {
            let who = names(folded.tid);
            let stack = folded.stack.as_deref();
            let frame = stack.and_then(|stack| {
                if folded.what.is_kernel {
                    kernel_frame(stack)
                } else {
                    own_frame(stack)
                }
            });
            let frame = frame.cloned().unwrap_or_default();
            SampleRow {
                run: 1,
                pid: folded.pid,
                tid: folded.tid,
                process: who.process,
                thread: who.thread,
                cause: folded.what.name,
                charged_ns: folded.share.ns,
                count: folded.share.count,
                symbol: frame.symbol,
                file: frame.file.unwrap_or_default(),
                line: frame.line.unwrap_or(0),
                stack: stack.map(frames).unwrap_or_default().join(";"),
                ..SampleRow::default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(what: &str) -> LockRow {
        LockRow {
            what: what.to_owned(),
            ..LockRow::default()
        }
    }

    #[test]
    fn what_there_was_no_room_for_is_told() {
        assert!(no_room(Folded::default()).is_empty());
        let notices = no_room(Folded {
            stacks: 3,
            chains: 5,
            ..Folded::default()
        });
        let codes: Vec<&str> = notices.iter().map(|notice| &*notice.code).collect();
        assert_eq!(codes, ["stacks-left-out", "chains-left-out"]);
        assert!(notices[0].text.contains(" 3 ") && notices[1].text.contains(" 5 "));
    }

    #[test]
    fn where_goroutines_are_in_the_table_it_says_what_it_does_not_know() {
        let noted = |rows: &[&str]| {
            let mut found = LocksResult {
                rows: rows.iter().map(|what| of(what)).collect(),
                sources: vec![crate::locks::source("futex waits", "bpf", "", "")],
                ..LocksResult::default()
            };
            note_goroutines(&mut found, "bpf");
            found.sources.split_off(1)
        };
        assert_eq!(noted(&["pthread mutex", "Google lock"]), []);
        for what in ["Go mutex", "Go idle worker"] {
            let said = noted(&["futex", what]);
            assert_eq!((said.len(), &*said[0].what), (1, "waits of goroutines"));
        }
        let source = of_goroutines("bpf", true);
        assert!(source.how == "bpf" && source.missing.contains("waits longer than is told"));
        // On arm64, and in polls: it was said there, too, that they are told for as long as a thread slept.
        for (how, are_found) in [("bpf", false), ("/proc", true)] {
            let source = of_goroutines(how, are_found);
            assert!(source.how == "missing" && source.missing.contains("Go idle worker"));
            assert!(source.remedy.contains("pprof"));
        }
    }
}
