//! What the library adds to a lock that nobody contends for.
//!
//! ```text
//! cargo build --release -p amdahl-preload
//! cargo run --release -p amdahl-preload --example overhead
//! ```
//!
//! Runs a C program in turns with and without the library and prints the medians.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use amdahl_probe::unprivileged::preload;

const PAIRS: usize = 7;

fn main() {
    let library =
        preload::library().expect("build the library first, or name it by AMDAHL_PRELOAD");
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("uncontended");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/uncontended.c");
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cc builds {}",
        source.display()
    );
    let mut times: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
    for _ in 0..PAIRS {
        for with in [0, 1] {
            let mut command = Command::new(&program);
            if with == 1 {
                command
                    .env("LD_PRELOAD", &library)
                    .env(preload::DIR_VARIABLE, dir.path());
            }
            let output = command.output().expect("it runs");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                if let Some((kind, ns)) = line.split_once(' ')
                    && let Ok(ns) = ns.parse()
                {
                    times.entry(kind.to_owned()).or_default()[with].push(ns);
                }
            }
        }
    }
    println!(
        "{:14} {:>10} {:>10} {:>8}",
        "ns per pair", "without", "with", "ratio"
    );
    for (kind, [without, with]) in times {
        let [without, with] = [median(without), median(with)];
        println!(
            "{kind:14} {without:10.1} {with:10.1} {:8.2}",
            with / without
        );
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
