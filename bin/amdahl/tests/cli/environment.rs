//! How the number of CPUs reaches the program.

use std::collections::BTreeMap;

use crate::tool::{Place, alone, cpus};

/// Variables that a run with `{cpus}` replaced by `count` has left in `env.COUNT.*`, once per run.
fn environments(place: &Place, count: usize) -> Vec<BTreeMap<String, String>> {
    let prefix = format!("env.{count}.");
    let files = place
        .names()
        .into_iter()
        .filter(|name| name.starts_with(&prefix));
    let parse = |name: String| {
        let text = place.read(&name);
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    files.map(parse).collect()
}

const DUMP: [&str; 3] = ["sh", "-c", "env > env.{cpus}.$$"];

const KNOBS: [&str; 14] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "JULIA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "GOMAXPROCS",
    "CARGO_BUILD_JOBS",
    "CMAKE_BUILD_PARALLEL_LEVEL",
    "DOTNET_PROCESSOR_COUNT",
];

#[test]
fn the_usual_variables_hold_the_number_of_cpus() {
    let _alone = alone();
    for probe in ["auto", "proc"] {
        let place = Place::new();
        let args = ["scale", "--probe", probe, "--runs", "1", "--json", "--"];
        let mut command = place.tool(args.iter().chain(&DUMP));
        command
            .env("OMP_NUM_THREADS", "17")
            .env("JAVA_TOOL_OPTIONS", "-Xmx1g")
            .env("MINE", "kept");
        let result = place.run(command).ends_with(0).result();
        let mut counts: Vec<usize> = result
            .points
            .iter()
            .map(|point| point.cpus as usize)
            .collect();
        counts.dedup();
        assert_eq!(counts.last(), Some(&cpus()));
        for count in counts {
            let environments = environments(&place, count);
            assert!(environments.len() >= 2, "with and without the probe");
            for environment in environments {
                for knob in KNOBS {
                    assert_eq!(environment.get(knob), Some(&count.to_string()), "{knob}");
                }
                let java =
                    format!("-Xmx1g -XX:ActiveProcessorCount={count} -XX:+PreserveFramePointer");
                // A run that is looked into asks for more.
                let given = &environment["JAVA_TOOL_OPTIONS"];
                assert!(given.starts_with(&java), "{given}");
                assert_eq!(environment.get("MINE").map(String::as_str), Some("kept"));
            }
        }
        // What the user gave Java is nobody else's business.
        let java = &result.settings.env["JAVA_TOOL_OPTIONS"];
        assert!(java.starts_with("$JAVA_TOOL_OPTIONS -XX:"), "{java}");
        for knob in KNOBS {
            assert_eq!(
                result.settings.env.get(knob).map(String::as_str),
                Some("{cpus}"),
                "{knob}"
            );
        }
    }
}

#[test]
fn keep_env_keeps_it() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--keep-env",
        "--json",
        "--",
    ];
    let mut command = place.tool(args.iter().chain(&DUMP));
    command
        .env("OMP_NUM_THREADS", "17")
        .env_remove("GOMAXPROCS");
    let result = place.run(command).ends_with(0).result();
    let environments = environments(&place, 1);
    assert!(!environments.is_empty());
    for environment in environments {
        assert_eq!(
            environment.get("OMP_NUM_THREADS").map(String::as_str),
            Some("17")
        );
        assert_eq!(environment.get("GOMAXPROCS"), None);
        assert_eq!(environment.get("JAVA_TOOL_OPTIONS"), None);
    }
    assert!(result.settings.env.is_empty());
}

#[test]
fn the_placeholder_is_replaced_wherever_it_stands() {
    let _alone = alone();
    let place = Place::new();
    let script = r#"printf '%s\n' "$@" >> args.$0"#;
    let words = [
        "-j{cpus}",
        "{cpus}x{cpus}",
        "{cpu}",
        "{ cpus }",
        "$HOME {cpus}",
    ];
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--oversubscribe",
        "3",
        "-q",
        "--json",
        "--",
    ];
    let command = ["sh", "-c", script, "{cpus}"];
    let result = place
        .amdahl(args.iter().chain(&command).chain(&words))
        .ends_with(0)
        .result();
    // Recorded as typed.
    assert_eq!(result.command[..4], command);
    assert_eq!(result.command[4..], words);
    for threads in ["1", "3"] {
        let text = place.read(&format!("args.{threads}"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() >= 2 * words.len(), "{lines:?}");
        for run in lines.chunks(words.len()) {
            let wanted = words.map(|word| word.replace("{cpus}", threads));
            assert_eq!(run, wanted);
        }
    }
    let threads: Vec<_> = result
        .points
        .iter()
        .map(|point| (point.cpus, point.threads))
        .collect();
    assert_eq!(threads, [(1, 1), (1, 3)]);
}

#[test]
fn the_program_may_use_only_its_cpus() {
    let _alone = alone();
    let place = Place::new();
    let script = "grep Cpus_allowed_list /proc/self/status >> cpus.{cpus}";
    let args = ["scale", "--runs", "1", "--json", "--", "sh", "-c", script];
    let result = place.amdahl(args).ends_with(0).result();
    for point in &result.points {
        let list: amdahl_topology::CpuSet = point.cpu_list.iter().copied().collect();
        assert_eq!(list.len(), point.cpus as usize);
        let text = place.read(&format!("cpus.{}", point.cpus));
        assert!(!text.is_empty());
        for line in text.lines() {
            let (_, allowed) = line.split_once('\t').expect("a tab");
            assert_eq!(allowed.parse(), Ok(list.clone()));
        }
    }
}
