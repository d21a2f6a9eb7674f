//! `amdahl sched record` without privileges: sums from `/proc`.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_report::sched::schema::{
    CpuEntry, Latency, SCHEMA, SchedResult, StealEntry, ThreadEntry,
};
use amdahl_report::schema::Source;
use amdahl_sched::proc::{Looks, ThreadLook, thread_look};
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

/// Records sums per thread and CPU. `remedy` is what would give more.
pub fn record(
    args: &SchedRecord,
    cpus: &CpuSet,
    interrupt: &Interrupt,
    remedy: String,
) -> Result<(SchedResult, Option<Ended>), Failure> {
    let selection = &args.selection;
    let child = watch::start(selection, cpus, &[])?;
    let root = selection.pid.or(child.as_ref().map(Child::pid));
    let begun = Instant::now();
    let started = machine::now();
    let stop = AtomicBool::new(false);
    let (looks, ended) = std::thread::scope(|scope| {
        let looking = std::thread::Builder::new()
            .name("amdahl-look".into())
            .spawn_scoped(scope, || look(selection, root, &stop))
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        let ended = watch::run(selection, child, interrupt, || ());
        stop.store(true, Ordering::Relaxed);
        looking.thread().unpark();
        let looks = looking.join().expect("looking does not panic");
        Ok((looks, ended?))
    })?;
    let mut result = result(&looks, begun.elapsed(), remedy);
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
    let threads = looks.threads();
    let cpus = looks.cpus();
    let s = |ns: u64| ns as f64 / 1e9;
    SchedResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        wall_s: wall.as_secs_f64(),
        sources: vec![Source {
            what: "scheduling".to_owned(),
            how: "/proc".to_owned(),
            missing: "Sums of run time and run queue latency per thread only: no distributions, no wake-ups, no migrations, no wasted time, no picture; threads that lived less than 0.1 s may be missing.".to_owned(),
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
            .map(|cpu| StealEntry { cpu: cpu.cpu, steal_s: cpu.steal_ticks as f64 * tick_s })
            .collect(),
        threads: threads
            .iter()
            .filter(|row| row.run_ns + row.wait_ns > 0)
            .take(ROWS)
            .map(|row| ThreadEntry {
                tid: row.tid,
                pid: row.pid,
                name: row.name.clone(),
                threads: 1,
                last_cpu: Some(row.cpu),
                run_s: s(row.run_ns),
                wait_s: s(row.wait_ns),
                slices: Latency {
                    count: row.slices,
                    total_s: s(row.run_ns),
                    mean_s: s(row.run_ns) / row.slices.max(1) as f64,
                    ..Latency::default()
                },
                ..ThreadEntry::default()
            })
            .collect(),
        ..SchedResult::default()
    }
}
