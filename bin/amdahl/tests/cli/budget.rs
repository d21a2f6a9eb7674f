//! `--budget`: what is recorded a part of the time is divided like what is recorded all the time.

use std::collections::BTreeMap;
use std::path::Path;

use amdahl_report::schema::{Point, ScaleResult};

use crate::tool::{Place, alone, bpf, cpus, skipped};
use crate::workload::{RELAY, compiled, in_some_try, planted};

fn two_cpus_and_bpf() -> Result<(), String> {
    bpf()?;
    (cpus() > 1)
        .then_some(())
        .ok_or("there is one CPU".to_owned())
}

/// The one point of `runs` runs of `program` on two CPUs.
fn measure(place: &Place, program: &Path, args: &[&str], budget: &str, runs: u32) -> ScaleResult {
    let flags = ["--cpus", "2", "--bare-runs", "0", "--json", "--runs"];
    let mut tool = place.tool(["scale", "--no-output", "--budget", budget]);
    tool.args(flags).arg(runs.to_string());
    tool.arg("--").arg(program).args(args);
    place.run(tool).ends_with(0).result()
}

/// How the time is divided that nobody else took: how much others take differs between two runs.
fn division(point: &Point) -> BTreeMap<&str, f64> {
    let ours = 1.0 - point.stack["stolen"];
    let parts = point.stack.iter().filter(|(id, _)| *id != "stolen");
    parts.map(|(id, part)| (id.as_str(), part / ours)).collect()
}

/// The largest cause that is a loss.
fn first_cause<'a>(division: &BTreeMap<&'a str, f64>) -> (&'a str, f64) {
    let losses = division.iter().filter(|(id, _)| **id != "work");
    let first = losses.max_by(|one, other| one.1.total_cmp(other.1));
    first.map_or(("", 0.0), |(id, part)| (*id, *part))
}

fn same_division(all: &ScaleResult, part: &ScaleResult) -> Result<(), String> {
    let (all, part) = (division(&all.points[0]), division(&part.points[0]));
    if first_cause(&all).0 != first_cause(&part).0 {
        return Err(format!("{:?}, {:?}", first_cause(&all), first_cause(&part)));
    }
    for (id, of_all) in &all {
        if (of_all - part[id]).abs() > 0.10 {
            return Err(format!("{id}: {of_all}, {}", part[id]));
        }
    }
    Ok(())
}

#[test]
fn what_is_recorded_a_part_of_the_time_is_divided_like_the_whole() {
    let _alone = alone();
    if let Err(why) = two_cpus_and_bpf() {
        return skipped(why);
    }
    let place = Place::new();
    let relay = compiled(&place, "relay", RELAY, &[]).map(|program| (program, &[][..]));
    let planted = ["c-pipes", "c-semaphore", "rust-mpsc"].map(|name| {
        let compiler = if name.starts_with('c') {
            "gcc"
        } else {
            "rustc"
        };
        planted(&place, name, compiler).map(|program| (program, &["2"][..]))
    });
    for (program, args) in [relay].into_iter().chain(planted).flatten() {
        // Who runs where may differ between two runs, and between the few windows of one.
        let mut runs = (1..).step_by(2);
        in_some_try(|| {
            let runs = runs.next().expect("a number");
            let all = measure(&place, &program, args, "none", runs);
            assert_eq!(all.points[0].recorded, None);
            let part = measure(&place, &program, args, "0", runs);
            let recorded = part.points[0].recorded;
            let recorded = recorded.ok_or("all of it was recorded")?;
            if !(0.05..0.6).contains(&recorded) {
                return Err(format!("{recorded} of it was recorded"));
            }
            let sum: f64 = part.points[0].stack.values().sum();
            assert!((sum - 1.0).abs() < 1e-6, "{sum}");
            let told = part.warnings.iter().find(|told| told.code == "budget");
            let told = told.map_or("", |told| told.text.as_str());
            let share = format!("{:.0} % of the time", recorded * 100.0);
            assert!(told.contains(&share), "{told}");
            let same = same_division(&all, &part);
            same.map_err(|miss| format!("{}: {miss}", program.display()))
        });
    }
}

#[test]
fn few_events_are_all_recorded() {
    let _alone = alone();
    if let Err(why) = two_cpus_and_bpf() {
        return skipped(why);
    }
    let place = Place::new();
    // Enough for what others do meanwhile.
    let result = measure(&place, Path::new("sleep"), &["0.3"], "100", 1);
    assert_eq!(result.points[0].recorded, None);
    assert!(result.warnings.iter().all(|told| told.code != "budget"));
}

#[test]
fn what_is_no_budget_is_refused() {
    let place = Place::new();
    for wrong in ["-1", "101", "much", "NaN", "inf", ""] {
        let budget = format!("--budget={wrong}");
        let ran = place.amdahl(["scale", &budget, "--", "true"]).ends_with(2);
        assert!(ran.err.contains("give a percentage"), "{}", ran.err);
    }
}
