//! `amdahl sched`: what is recorded, what survives, what is told apart.

use std::collections::BTreeSet;

use amdahl_report::sched::schema::SchedResult;
use rustix::process::Signal;

use crate::processes::until_catches;
use crate::tool::{Place, Ran, alone, bpf, cpus, names, skipped, until};
use crate::workload::compiled;

/// Two threads that compute for as long; with an argument both on the first CPU that is allowed.
const TWO: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <time.h>
static void *churn(void *arg) {
    struct timespec at;
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    while (at.tv_nsec < 300000000 && !at.tv_sec);
    return arg;
}
int main(int argc, char **argv) {
    cpu_set_t all, one;
    pthread_t thread[2];
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) { CPU_SET(cpu, &one); break; }
    if (argc > 1) sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], 0, churn, argv);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], 0);
    return 0;
}
"#;

fn can_record() -> bool {
    bpf().map_err(skipped).is_ok()
}

#[track_caller]
fn result(ran: &Ran) -> SchedResult {
    amdahl_report::sched::load::parse(ran.out.as_bytes(), "standard output".into())
        .unwrap_or_else(|error| panic!("{}\n{error}\n{}", ran.what, ran.out))
}

fn record(place: &Place, command: &[&str]) -> SchedResult {
    let mut args = vec!["sched", "record", "--json", "--quiet", "--"];
    args.extend(command);
    result(&place.amdahl(args).ends_with(0))
}

#[test]
fn idle_while_overloaded_is_seen_and_blamed_on_the_affinity() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    if cpus() < 2 {
        return skipped("there is one CPU only");
    }
    let place = Place::new();
    let Some(two) = compiled(&place, "two", TWO, &[]) else {
        return;
    };
    let two = two.to_str().expect("a path");
    let pinned = record(&place, &[two, "pinned"]);
    let wasted = &pinned.wasted;
    let idle: f64 = pinned.cpus.iter().map(|cpu| cpu.idle_s).sum();
    if idle < 0.1 * pinned.wall_s {
        return skipped("somebody else keeps the other CPUs busy");
    }
    assert!(wasted.affinity_s > 0.0, "{wasted:?}");
    // Until the program has bound itself anything may happen to it.
    let rest = wasted.placement_s + wasted.balancing_s + wasted.transient_s;
    assert!(rest < wasted.affinity_s, "{wasted:?}");
    assert!(wasted.total_s() <= idle, "{wasted:?} {idle}");
    let busy: BTreeSet<u32> = wasted
        .pairs
        .iter()
        .filter(|pair| pair.reason == "affinity")
        .map(|pair| pair.busy_cpu)
        .collect();
    assert_eq!(busy.len(), 1, "{wasted:?}");
    let waiting: f64 = pinned.threads.iter().map(|thread| thread.wait_s).sum();
    assert!(
        wasted.total_s() <= waiting,
        "{} {waiting}",
        wasted.total_s()
    );
    assert!(pinned.preempt_latency.count > 0);

    let free = record(&place, &[two]);
    assert_eq!(free.wasted.affinity_s, 0.0, "{:?}", free.wasted);
}

#[test]
fn every_thread_of_a_fork_heavy_program_is_counted() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let ran = record(
        &place,
        &[
            "sh",
            "-c",
            "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done",
        ],
    );
    let totals = &ran.totals;
    if totals.events_lost > 0 {
        return skipped("events were lost");
    }
    // The shell was there before.
    assert_eq!((totals.forks, totals.exits), (200, 201), "{totals:?}");
    let threads: u64 = ran.threads.iter().map(|row| row.threads).sum();
    assert_eq!(threads, 201);
    assert!(
        ran.threads.iter().any(|row| row.name == "true"),
        "{:?}",
        ran.threads
    );
}

#[test]
fn a_recording_is_read_again_alike() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    place
        .amdahl([
            "sched",
            "record",
            "--quiet",
            "--",
            "sh",
            "-c",
            "/bin/true; /bin/true",
        ])
        .ends_with(0);
    let files: Vec<String> = names(&place.join("amdahl-sched"));
    let expected = [
        "events",
        "report.html",
        "result.json",
        "threads-on-cpus.svg",
        "trace.json.gz",
    ];
    assert_eq!(files, expected);
    let saved = result(
        &place
            .amdahl(["sched", "show", "--json", "amdahl-sched"])
            .ends_with(0),
    );
    let again = result(
        &place
            .amdahl(["sched", "show", "--json", "amdahl-sched/events"])
            .ends_with(0),
    );
    assert_eq!(saved.totals.switches, again.totals.switches);
    assert_eq!(saved.wake_latency, again.wake_latency);
    assert_eq!(saved.wasted, again.wasted);
    assert_eq!(
        saved.recording.as_ref().map(|kept| kept.events),
        Some(saved.totals.events)
    );
    place
        .amdahl(["report", "amdahl-sched"])
        .ends_with(0)
        .says("Run queue latency");
    place
        .amdahl(["sched", "show", "--svg", "a.svg", "amdahl-sched"])
        .ends_with(0);
    place
        .amdahl([
            "sched",
            "show",
            "--trace",
            "a.json.gz",
            "amdahl-sched/events",
        ])
        .ends_with(0);
    assert!(place.read("a.svg").starts_with("<svg") && place.join("a.json.gz").exists());
}

#[test]
fn what_was_on_disk_survives_a_kill() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    // The result of an earlier recording was once shown for the one that was killed.
    place
        .amdahl(["sched", "record", "--quiet", "--", "true"])
        .ends_with(0);
    let tool = place.start(place.tool(["sched", "record", "--system", "--for", "1h", "--quiet"]));
    until("the first part", || {
        let is_new = !place.join("amdahl-sched/result.json").exists();
        let first = place.join("amdahl-sched/events/000001.parquet");
        (is_new && first.exists()).then_some(())
    });
    tool.signal(Signal::KILL);
    drop(tool);
    let shown = result(
        &place
            .amdahl(["sched", "show", "--json", "amdahl-sched"])
            .ends_with(0),
    );
    assert!(shown.totals.switches > 0 && shown.wall_s > 0.0);
    // It was once refused here, for want of a `result.json`.
    for path in ["amdahl-sched", "amdahl-sched/events"] {
        place
            .amdahl(["report", path])
            .ends_with(0)
            .says("Run queue latency")
            .says("events-alone");
    }
    // The next recording goes to the same place.
    place
        .amdahl(["sched", "record", "--quiet", "--", "true"])
        .ends_with(0);
    assert!(
        !place.names().iter().any(|name| name.starts_with('.')),
        "{:?}",
        place.names()
    );
}

#[test]
fn two_record_at_once_but_not_into_one_folder() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let args = [
        "sched", "record", "--system", "--for", "1h", "--quiet", "-o", "a",
    ];
    let first = place.start(place.tool(args));
    until_catches(first.pid(), Signal::INT);
    let refused = place.amdahl(["sched", "record", "-o", "a", "--", "true"]);
    assert!(refused.message().contains("already"), "{}", refused.err);
    let second = record(&place, &["sh", "-c", "/bin/true"]);
    assert_eq!(second.totals.forks + 1, second.totals.exits);
    first.signal(Signal::INT);
    first.ended().ends_with(5).says("Who wakes whom");
}

#[test]
fn recording_ends_with_the_process() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let mut sleep = std::process::Command::new("sleep");
    sleep.arg("1000");
    let process = place.start(place.here(sleep));
    let pid = process.pid().to_string();
    let tool = place.start(place.tool(["sched", "record", "--json", "--pid", &pid, "--for", "1h"]));
    until_catches(tool.pid(), Signal::INT);
    drop(process);
    let ended = result(&tool.ended().ends_with(0));
    assert!(ended.totals.exits <= 1);
}

#[test]
fn without_bpf_there_are_sums_and_what_is_missing() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "sched",
        "record",
        "--json",
        "--quiet",
        "--probe",
        "proc",
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done",
    ];
    let ran = result(&place.amdahl(args).ends_with(0));
    assert!(
        ran.threads
            .iter()
            .any(|row| row.name == "sh" && row.run_s > 0.0),
        "{:?}",
        ran.threads
    );
    assert!(!ran.sources[0].missing.is_empty() && ran.picture.is_none());
}

#[test]
fn what_is_no_recording_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.join("empty")).expect("a folder");
    std::fs::write(place.join("000001.parquet"), b"PAR1 nonsense PAR1").expect("a file");
    std::fs::write(
        place.join("result.json"),
        b"{\"schema\":\"amdahl.sched/1\",\"wall_s\":-1}",
    )
    .expect("a file");
    for path in ["nothing", "empty", "000001.parquet", "result.json"] {
        let ran = place.amdahl(["sched", "show", path]);
        assert!(matches!(ran.status.code(), Some(1..=9)), "{ran:?}");
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
}

#[test]
fn parts_are_parquet_to_others() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let libraries = crate::parquet::libraries(&place);
    if libraries.is_empty() {
        return;
    }
    place
        .amdahl(["sched", "record", "--quiet", "--", "true"])
        .ends_with(0);
    for library in libraries {
        let rows = crate::parquet::rows(&place, library, "amdahl-sched/events");
        assert!(!rows.is_empty(), "{library}");
    }
}
