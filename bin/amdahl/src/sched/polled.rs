//! `amdahl sched record` without privileges: sums from `/proc`.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_report::sched::schema::{
    CpuEntry, Elsewhere, Latency, SCHEMA, SchedResult, StealEntry, ThreadEntry,
};
use amdahl_report::schema::Source;
use amdahl_sched::proc::{Looks, ThreadLook, ThreadRan, thread_look};
use amdahl_topology::CpuSet;

use super::facts;
use crate::child::{Child, Ended};
use crate::cli::{SchedRecord, Selection};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::watch::{self, machine};

/// How often to look: a thread that lives shorter may be missed.
const PAUSE: Duration = Duration::from_millis(100);
const ROWS: usize = 1_000;

/// What a result has none of.
const MISSING: &str = "Sums of run time, run queue latency and time slices per thread, and use per CPU, only. No distributions of \
run queue latency and of time slices; no switches, preemptions, yields and sleeps; no wake-ups, wakers and wake-up chains; no \
migrations; no wasted time and overloaded CPUs, no lengths of queues; no forks and exits; no CPUs of guests and their phantom \
time; no pictures of threads on CPUs and of threads over time (timelines), and no events on disk. Threads that lived less than \
0.1 s may be missing.";

/// Records sums per thread and CPU. `remedy` is what would give more; `begun` is called when the command has started.
pub fn record(
    args: &SchedRecord,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    remedy: String,
    begun: impl FnOnce() -> Result<(), Failure>,
) -> Result<(SchedResult, Option<Ended>), Failure> {
    let selection = &args.selection;
    let mut child = watch::start(selection, cpus, &[])?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let from = Instant::now();
    let started = machine::now();
    let stop = AtomicBool::new(false);
    let (looks, ended) = std::thread::scope(|scope| {
        let looking = std::thread::Builder::new()
            .name("amdahl-look".into())
            .spawn_scoped(scope, || look(selection, root, &stop))
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        let ended = watch::begin(&mut child)
            .and_then(|()| begun())
            .and_then(|()| watch::run(selection, child, interrupt, || ()));
        stop.store(true, Ordering::Relaxed);
        looking.thread().unpark();
        let looks = looking.join().expect("looking does not panic");
        Ok((looks, ended?))
    })?;
    let mut result = result(&looks, from.elapsed(), remedy);
    result.command = selection.whom();
    result.started = started;
    result.machine = machine::describe();
    Ok((result, ended))
}

fn look(selection: &Selection, root: Option<u32>, stop: &AtomicBool) -> Looks {
    let mut looks = Looks::default();
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        look_once(&mut looks, selection, root);
        if is_last {
            return looks;
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// Adds what is there now.
pub fn look_once(looks: &mut Looks, selection: &Selection, root: Option<u32>) {
    let present = watch::present(selection, root);
    let threads = present
        .iter()
        .flat_map(|(pid, tids)| tids.iter().map(|tid| (*pid, *tid)));
    let threads: Vec<ThreadLook> = threads.filter_map(|(pid, tid)| thread(pid, tid)).collect();
    looks.add(threads, facts::cpus_now());
}

fn thread(pid: u32, tid: u32) -> Option<ThreadLook> {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).ok();
    thread_look(pid, &read("stat")?, &read("schedstat")?)
}

/// Sums so far.
pub fn result(looks: &Looks, wall: Duration, remedy: String) -> SchedResult {
    let tick_s = facts::clock_tick_ns() as f64 / 1e9;
    let threads = looks.threads().into_iter();
    let rows: Vec<ThreadRan<'_>> = threads.filter(|row| row.run_ns + row.wait_ns > 0).collect();
    let cpus = looks.cpus();
    SchedResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        wall_s: wall.as_secs_f64(),
        sources: vec![Source {
            what: "scheduling".to_owned(),
            how: "/proc".to_owned(),
            missing: MISSING.to_owned(),
            remedy,
        }],
        cpus: cpus
            .iter()
            .map(|cpu| CpuEntry {
                cpu: cpu.cpu,
                run_s: cpu.busy_ticks as f64 * tick_s,
                idle_s: cpu.idle_ticks as f64 * tick_s,
                ..CpuEntry::default()
            })
            .collect(),
        steal: cpus
            .iter()
            .filter(|cpu| cpu.steal_ticks > 0)
            .map(|cpu| StealEntry {
                cpu: cpu.cpu,
                steal_s: cpu.steal_ticks as f64 * tick_s,
            })
            .collect(),
        threads: rows.iter().take(ROWS).map(entry).collect(),
        threads_elsewhere: rows
            .iter()
            .skip(ROWS)
            .fold(Elsewhere::default(), |sum, row| Elsewhere {
                threads: sum.threads + row.threads,
                run_s: sum.run_s + s(row.run_ns),
                wait_s: sum.wait_s + s(row.wait_ns),
            }),
        ..SchedResult::default()
    }
}

fn s(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn entry(row: &ThreadRan<'_>) -> ThreadEntry {
    ThreadEntry {
        tid: row.tid,
        pid: row.pid,
        name: row.name.to_owned(),
        threads: row.threads,
        last_cpu: row.cpu,
        run_s: s(row.run_ns),
        wait_s: s(row.wait_ns),
        slices: Latency {
            count: row.slices,
            total_s: s(row.run_ns),
            mean_s: s(row.run_ns) / row.slices.max(1) as f64,
            ..Latency::default()
        },
        ..ThreadEntry::default()
    }
}

#[cfg(test)]
mod tests {
    use amdahl_sched::proc::CpuLook;
    use serde_json::Value;

    use super::*;

    fn looks(threads: u32) -> Looks {
        let at = |time: u64| {
            let thread = |tid| ThreadLook {
                tid,
                pid: 7,
                name: "x".to_owned(),
                run_ns: time,
                wait_ns: time,
                slices: time,
                cpu: 1,
                ..ThreadLook::default()
            };
            let cpu = CpuLook {
                cpu: 1,
                busy_ticks: time,
                idle_ticks: time,
                steal_ticks: time,
            };
            ((1..=threads).map(thread).collect(), vec![cpu])
        };
        let mut looks = Looks::default();
        for time in [0, 1_000_000_000] {
            let (threads, cpus) = at(time);
            looks.add(threads, cpus);
        }
        looks
    }

    fn json(value: &impl serde::Serialize) -> Value {
        serde_json::to_value(value).expect("a value")
    }

    /// Fields of `found` that say no more than those of `nothing`, by their names.
    fn empty(found: &Value, nothing: &Value) -> Vec<String> {
        let fields = found.as_object().expect("fields").iter();
        let empty = fields.filter(|(name, value)| nothing[*name] == **value);
        empty.map(|(name, _)| name.clone()).collect()
    }

    /// Guests, chains and timelines were empty, and nobody said so.
    #[test]
    fn all_that_is_empty_is_named() {
        let found = result(&looks(1), Duration::from_secs(1), "be root".to_owned());
        let missing = &found.sources[0].missing;
        let whole = empty(&json(&found), &json(&SchedResult::default()));
        let of_cpus = empty(&json(&found.cpus[0]), &json(&CpuEntry::default()));
        let of_threads = empty(&json(&found.threads[0]), &json(&ThreadEntry::default()));
        assert!(whole.len() > 10 && of_cpus.len() > 5 && of_threads.len() > 10);
        for field in [whole, of_cpus, of_threads].concat() {
            let name = match &*field {
                // Of the recording, and told by who made it; and what is no lack.
                "command" | "started" | "machine" | "warnings" | "threads_elsewhere"
                | "is_kernel" => continue,
                "totals" => "switches",
                "wake_latency" | "preempt_latency" | "latency" => {
                    "distributions of run queue latency"
                }
                "slices" => "and of time slices",
                "migrations" | "migrations_at_wake" => "migrations",
                "wasted" | "wasted_s" | "idle_wasted_s" => "wasted time",
                "overloaded_s" => "overloaded CPUs",
                "queue_mean" | "queue_max" => "lengths of queues",
                "sleep_s" | "iowait_s" | "uninterruptible_s" | "blocked" => "sleeps",
                "preempted" | "preemptions" => "preemptions",
                "yielded" => "yields",
                "wakers" => "wakers",
                "chains" => "wake-up chains",
                "guests" => "phantom time",
                "picture" => "pictures of threads on CPUs",
                "timelines" => "timelines",
                "recording" | "events_lost" => "events",
                "switches" => "switches",
                other => panic!("{other} is empty, and nothing is known of that"),
            };
            assert!(missing.contains(name), "{field}: no {name:?} in {missing}");
        }
    }

    /// Those beyond the rows were left out without a word.
    #[test]
    fn threads_without_a_row_are_added_up() {
        let found = result(
            &looks(ROWS as u32 + 5),
            Duration::from_secs(1),
            String::new(),
        );
        assert_eq!(found.threads.len(), ROWS);
        let expected = Elsewhere {
            threads: 5,
            run_s: 5.0,
            wait_s: 5.0,
        };
        assert_eq!(found.threads_elsewhere, expected);
    }
}
