//! `amdahl sched`: what is recorded, what survives, what is told apart.

mod churn;
mod guests;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use amdahl_report::sched::schema::SchedResult;
use amdahl_sched::event::{Event, Off};
use amdahl_sched::recording::{Meta, PartWriter};
use amdahl_topology::Topology;
use rustix::process::Signal;

use crate::processes::until_catches;
use crate::tool::{Place, Ran, alone, bpf, cpus, names, skipped, until, until_it_watches};
use crate::workload::{TRIES, compiled, in_some_try, watched};

/// Two threads that compute for as long; with an argument both on the first CPU that is allowed, with two the first one is
/// called as the CPU of a guest. It tells for how long each of them did not run.
const TWO: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double waited[2];
static int has_guest;
static double at(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}
static void *churn(void *arg) {
    double begun = at(CLOCK_MONOTONIC), ran;
    if (has_guest && arg == &waited[0]) pthread_setname_np(pthread_self(), "CPU 0/TCG");
    do ran = at(CLOCK_THREAD_CPUTIME_ID);
    while (ran < 0.3);
    *(double *)arg = at(CLOCK_MONOTONIC) - begun - ran;
    return arg;
}
int main(int argc, char **argv) {
    cpu_set_t all, one;
    pthread_t thread[2];
    FILE *out = fopen(getenv("PLANTED_OUT"), "w");
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) { CPU_SET(cpu, &one); break; }
    if (argc > 1) sched_setaffinity(0, sizeof one, &one);
    has_guest = argc > 2;
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], 0, churn, &waited[i]);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], 0);
    return fprintf(out, "{\"waited\": [%f, %f]}\n", waited[0], waited[1]) < 0 || fclose(out);
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

/// Runs [`TWO`], built as `two`. For how long its threads did not run by what they say, and what the tool says.
fn watched_two(place: &Place, two: &Path, how: &[&str]) -> ([f64; 2], SchedResult) {
    let how = how.iter().map(OsStr::new);
    let command: Vec<&OsStr> = [two.as_os_str()].into_iter().chain(how).collect();
    let (said, ran) = watched(place, "sched record", &[], &command);
    let waited = [0, 1].map(|i| said["waited"][i].as_f64().expect("seconds"));
    (waited, result(&ran))
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
    let mut busy = 0;
    in_some_try(|| {
        let (waited, pinned) = watched_two(&place, &two, &["pinned"]);
        let wasted = &pinned.wasted;
        let idle: f64 = pinned.cpus.iter().map(|cpu| cpu.idle_s).sum();
        if idle < 0.1 * pinned.wall_s {
            busy += 1;
            if busy < TRIES {
                return Err("somebody else keeps the other CPUs busy".to_owned());
            }
            skipped("somebody else keeps the other CPUs busy");
            return Ok(());
        }
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
        // Always one of the two waited; the other CPUs had nothing to do but for what others did there.
        let planted = idle.min(waited.iter().sum());
        if wasted.affinity_s >= 0.8 * planted {
            return Ok(());
        }
        Err(format!(
            "{wasted:?} of {planted} s, idle {idle}, {waited:?}"
        ))
    });

    in_some_try(|| {
        let (_, free) = watched_two(&place, &two, &[]);
        assert_eq!(free.wasted.affinity_s, 0.0, "{:?}", free.wasted);
        if free.wasted.lasting_s() <= 0.1 * free.wall_s {
            return Ok(());
        }
        Err(format!("{:?} of {} s", free.wasted, free.wall_s))
    });
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
        "threads-over-time.svg",
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
    parts_of_the_time_are_shown(&place, &saved, again.wall_s);
    place
        .amdahl(["report", "amdahl-sched"])
        .ends_with(0)
        .says("Run queue latency");
    let csv = place
        .amdahl(["sched", "show", "--csv", "amdahl-sched"])
        .ends_with(0)
        .out;
    assert!(csv.starts_with("table,name,"), "{csv}");
    // One row for each chain.
    let chains = csv.lines().filter(|row| row.starts_with("chain,"));
    assert_eq!(chains.count(), saved.chains.len(), "{csv}");
    for table in [
        "thread",
        "cpu",
        "latency",
        "wasted",
        "waker",
        "migration",
        "chain-link",
    ] {
        let mut rows = csv.lines();
        assert!(
            rows.any(|row| row.starts_with(&format!("{table},"))),
            "{table}: {csv}"
        );
    }
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
    let drawn = saved.timelines.expect("timelines");
    assert!(
        drawn.threads.iter().any(|thread| thread.name == "sh"),
        "{drawn:?}"
    );
    place
        .amdahl(["sched", "show", "--timelines", "b.svg", "amdahl-sched"])
        .ends_with(0);
    let written = place.read("amdahl-sched/threads-over-time.svg");
    assert!(written.starts_with("<svg") && written == place.read("b.svg"));
}

/// Of a recording that is in `place`, whose last event came `last_s` after its first.
fn parts_of_the_time_are_shown(place: &Place, saved: &SchedResult, last_s: f64) {
    let show = |window: &[&str]| {
        let words = ["sched", "show", "--json", "amdahl-sched"];
        place.amdahl([&words[..], window].concat())
    };
    let switches = |window: &[&str]| {
        let found = result(&show(window).ends_with(0));
        assert!(found.warnings.iter().any(|notice| notice.code == "window"));
        found.totals.switches
    };
    assert_eq!(switches(&["--to", "1h"]), saved.totals.switches);
    // It begins with its first event, not when the tool began to get ready.
    let last = format!("{:.6}s", last_s + 1e-6);
    assert_eq!(switches(&["--to", &last]), saved.totals.switches);
    let until = format!("{:.6}s", last_s / 2.0);
    let halves = switches(&["--to", &until]) + switches(&["--from", &until]);
    assert_eq!(halves, saved.totals.switches);
    for (window, code, message) in [
        (&["--from", "1h"][..], 1, "holds no events from 3600 s on"),
        (
            &["--from", "2s", "--to", "1s"],
            2,
            "--from must be before --to",
        ),
    ] {
        let ran = show(window).ends_with(code);
        assert!(ran.message().contains(message), "{}", ran.err);
    }
    place
        .amdahl([
            "sched",
            "show",
            "--trace",
            "half.json.gz",
            "--to",
            &until,
            "amdahl-sched",
        ])
        .ends_with(0);
}

/// A part of a recording of all of a machine with two CPUs, in which nothing has happened yet.
fn part_of_two_cores() -> PartWriter {
    PartWriter::new(Meta {
        topology: Topology::synthetic("2 core").expect("a machine"),
        tick_ns: 4_000_000,
        begin: 0,
        is_everyone: true,
    })
}

/// `sched show` took every Parquet file for a part, `report` those that are named as one, and `record` removed all of them.
#[test]
fn files_beside_the_parts_are_nobodys_parts() {
    let place = Place::new();
    let mut writer = part_of_two_cores();
    writer.add(Event::Switch {
        ts: 1_000_000,
        cpu: 0,
        prev: 7,
        off: Off::Preempted,
        next: 8,
    });
    let part = writer.write(Vec::new()).expect("a part");
    for (file, bytes) in [
        ("mixed/000001.parquet", &part[..]),
        ("mixed/mine.parquet", b"PAR1 nonsense PAR1"),
        ("mine/mine.parquet", &part),
    ] {
        let file = place.join(file);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, bytes).expect("a file");
    }
    for (path, is_recording) in [
        ("mixed", true),
        ("mixed/000001.parquet", true),
        ("mixed/mine.parquet", false),
        ("mine", false),
        ("mine/mine.parquet", false),
    ] {
        let shown = place.amdahl(["sched", "show", path]);
        let reported = place.amdahl(["report", path]);
        assert_eq!(shown.status, reported.status, "{shown:?} {reported:?}");
        assert_eq!(shown.out, reported.out);
        assert_eq!(shown.status.success(), is_recording, "{shown:?}");
    }
    std::fs::create_dir_all(place.join("amdahl-sched/events")).expect("a folder");
    for name in ["000007.parquet", "mine.parquet"] {
        std::fs::write(place.join("amdahl-sched/events").join(name), b"x").expect("a file");
    }
    let record = [
        "sched", "record", "--quiet", "--probe", "proc", "--", "true",
    ];
    place.amdahl(record).ends_with(0);
    assert_eq!(names(&place.join("amdahl-sched/events")), ["mine.parquet"]);
}

/// What could not be written to its end stayed, under the name of what it was to replace.
#[test]
fn a_file_that_cannot_be_written_to_its_end_is_not_there() {
    let place = Place::new();
    let mut writer = part_of_two_cores();
    let mut random: u64 = 1;
    for tid in 1..5_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        writer.add(Event::Switch {
            ts: u64::from(tid) * 1_000_000 + (random >> 44),
            cpu: 0,
            prev: tid,
            off: Off::Preempted,
            next: tid + 1,
        });
    }
    std::fs::create_dir(place.join("events")).expect("a folder");
    let part = writer.write(Vec::new()).expect("a part");
    std::fs::write(place.join("events/000001.parquet"), &part).expect("a file");
    let show = ["sched", "show", "--trace", "a.json.gz", "events"];
    let limited = || {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_amdahl")).args(show);
        place.run(place.here(shell))
    };
    let refused = limited().ends_with(1);
    assert!(
        refused.message().contains("cannot write a.json.gz"),
        "{refused:?}"
    );
    assert_eq!(names(place.path()), ["events"]);
    place.amdahl(show).ends_with(0);
    let whole = std::fs::read(place.join("a.json.gz")).expect("a trace");
    assert!(whole.len() > 4096);
    limited().ends_with(1);
    assert_eq!(
        std::fs::read(place.join("a.json.gz")).expect("a trace"),
        whole
    );
    assert_eq!(names(place.path()), ["a.json.gz", "events"]);
}

/// The earlier recording was removed before it was known that another one could begin.
#[test]
fn a_recording_that_cannot_begin_costs_no_earlier_one() {
    let place = Place::new();
    let old = [
        "events/000001.parquet",
        "events/000002.parquet",
        "result.json",
    ];
    std::fs::create_dir_all(place.join("amdahl-sched/events")).expect("a folder");
    for file in old {
        std::fs::write(place.join("amdahl-sched").join(file), file).expect("a file");
    }
    std::fs::write(place.join("script"), "#!/no/such/shell\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.join("script"), mode).expect("a mode");
    // No process has this id: it is above the largest that the kernel gives.
    let nobody = ["--pid", "4194305"];
    for probe in ["auto", "proc", "bpf"] {
        for whom in [&nobody[..], &["--", "./typo"], &["--", "./script"]] {
            let args = [&["sched", "record", "--quiet", "--probe", probe], whom].concat();
            let ran = place.amdahl(args);
            assert!(matches!(ran.status.code(), Some(1..=9)), "{ran:?}");
            for file in old {
                let kept = place.read(&format!("amdahl-sched/{file}"));
                assert_eq!(kept, file, "{ran:?}");
            }
            let all = names(&place.join("amdahl-sched"));
            assert_eq!(all, ["events", "result.json"], "{ran:?}");
        }
    }
    let args = [
        "sched", "record", "--quiet", "--probe", "proc", "--", "true",
    ];
    place.amdahl(args).ends_with(0);
    assert!(names(&place.join("amdahl-sched/events")).is_empty());
}

/// They sleep as those do whom no signal ends, so that the kernel does not count them as load only by another bit of their state.
#[test]
fn idle_threads_of_the_kernel_are_not_blocked() {
    let _alone = alone();
    if !can_record() {
        return;
    }
    let place = Place::new();
    let args = [
        "sched", "record", "--json", "--quiet", "--system", "--for", "1s",
    ];
    let ran = result(&place.amdahl(args).ends_with(0));
    let workers = ran.threads.iter();
    let workers = workers.filter(|row| row.is_kernel && row.name.starts_with("kworker"));
    let (asleep, blocked) = workers.fold((0.0, 0.0), |(asleep, blocked), row| {
        (asleep + row.sleep_s, blocked + row.uninterruptible_s)
    });
    if asleep == 0.0 {
        return skipped("no kworker had anything to do");
    }
    assert!(blocked < asleep / 2.0, "{blocked} of {asleep}");
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
    let args = ["sched", "record", "--json", "--pid", &pid, "--for", "1h"];
    let tool = place.start(place.tool(args));
    until_it_watches(&tool);
    drop(process);
    let ended = result(&tool.ended().ends_with(0));
    let names: Vec<&str> = ended.threads.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["sleep"]);
    // Who waits for the end of a process hears of it before its last switch.
    assert_eq!((ended.totals.forks, ended.totals.exits), (0, 1));
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
    assert!(ran.sources[0].missing.contains("phantom time") && ran.picture.is_none());
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
