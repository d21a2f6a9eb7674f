//! `trace.json.gz`: of each way to measure, as importers read it.

use std::collections::BTreeSet;

use amdahl_speedup::cause::Cause;

use crate::chrome_trace::{self, Trace};
use crate::tool::{Place, alone, bpf, cpus, has_notice, notice, skipped};
use crate::workload::{CROWDED, compiled, in_some_try};

/// Of the process that has the tracks of the CPUs.
fn of_cpus(trace: &Trace) -> (u64, &str) {
    let found = trace.processes.iter().next_back();
    let (&pid, name) = found.expect("a process of the CPUs");
    (pid, name)
}

/// Without BPF it was empty, and announced all the same.
#[test]
fn threads_that_wait_for_each_other_are_drawn_whoever_measures() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "crowded", CROWDED, &["-g"]) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    let count = cpus().min(2).to_string();
    for probe in ["bpf", "proc"] {
        if let (Err(reason), "bpf") = (bpf(), probe) {
            skipped(reason);
            continue;
        }
        in_some_try(|| {
            let args = ["scale", "--probe", probe, "--cpus", &count, "--runs", "1"];
            let more = ["--no-warmup", "--json", "-o", "r", "--", program, "3"];
            let result = place
                .amdahl([&args[..], &more].concat())
                .ends_with(0)
                .result();
            let file = std::fs::read(place.join("r/trace.json.gz")).expect("a trace");
            let trace = chrome_trace::read(&file).unwrap_or_else(|what| panic!("{what}"));
            for code in ["trace-empty", "trace-cut"] {
                assert_eq!(has_notice(&result, code), None);
            }

            let (of_cpus, name) = of_cpus(&trace);
            assert_eq!(name.contains("polls"), probe == "proc", "{name}");
            let of = |is_cpu: bool| {
                let tracks = trace.tracks.iter();
                tracks.filter(move |((pid, _), _)| (*pid == of_cpus) == is_cpu)
            };
            assert!(
                of(true).count() <= cpus().min(2),
                "a track for each CPU that was used"
            );
            let labels: BTreeSet<&str> = of(false)
                .flat_map(|(_, slices)| slices.iter().map(|slice| &*slice.name))
                .collect();
            let causes: Vec<&str> = Cause::ALL.iter().map(|cause| cause.id()).collect();
            for label in &labels {
                assert!(
                    causes.contains(label) || ["running", "futex"].contains(label),
                    "{label}"
                );
            }
            // All of it lies within the run.
            let wall_ns = (result.points[0].probed_wall_s.max * 1e9) as u64;
            let slices = trace.tracks.values().flatten();
            assert!(
                slices
                    .clone()
                    .all(|slice| slice.end <= wall_ns + 1_000_000_000)
            );
            let busy: u64 = of(true)
                .flat_map(|(_, slices)| slices.iter().map(|slice| slice.end - slice.start))
                .sum();
            if busy == 0 || !labels.contains("running") || labels.len() < 2 {
                return Err(format!("{busy} ns on CPUs, {labels:?}"));
            }
            Ok(())
        });
    }
}

#[test]
fn a_run_that_nobody_saw_leaves_an_empty_trace_and_says_so() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "scale", "--probe", "proc", "--cpus", "1", "--runs", "1", "--json",
    ];
    let result = place
        .amdahl([&args[..], &["-o", "r", "--", "true"]].concat())
        .ends_with(0)
        .result();
    let file = std::fs::read(place.join("r/trace.json.gz")).expect("a trace");
    let trace = chrome_trace::read(&file).unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(
        trace.tracks.is_empty(),
        has_notice(&result, "trace-empty").is_some(),
        "{:?}",
        trace.tracks
    );
    if trace.tracks.is_empty() {
        assert!(notice(&result, "trace-empty").contains("trace.json.gz"));
    }
    // There is no trace to tell of without a folder.
    let args = [&args[..], &["--", "true"]].concat();
    let result = place.amdahl(args).ends_with(0).result();
    assert_eq!(has_notice(&result, "trace-empty"), None);
}
