//! `amdahl phantom`: how near to the truth its figures are, and what they cost.

mod busy;
mod cost;
mod truth;

use std::time::Duration;

use amdahl_figures::{Figure, Target, Unit};
use serde::Serialize;

use crate::stage::Stage;
use truth::{LOADS, Source, TOLERANCE_CPUS, Watcher, Windows};

/// Its name in `--only`.
pub const NAME: &str = "phantom";

/// A load by a source, as JSON.
#[derive(Serialize)]
pub struct RawLoad {
    load: &'static str,
    source: &'static str,
    windows: u32,
    good: u32,
    worst_cpus: f64,
}

/// All rows, and all loads.
pub fn run(stage: &Stage, is_quick: bool) -> (Vec<Figure>, Vec<RawLoad>) {
    let windows = if is_quick { 10 } else { 50 };
    let length = Duration::from_secs(if is_quick { 2 } else { 10 });
    // Why a source cannot be used; one that can is tried on ourselves.
    let refused = Source::ALL.map(|source| {
        let tried = Watcher::new(source, std::process::id());
        tried.err().map(|error| error.to_string())
    });
    let usable: Vec<Source> = Source::ALL
        .into_iter()
        .zip(&refused)
        .filter_map(|(source, refused)| refused.is_none().then_some(source))
        .collect();
    let (raw, left_out) = compare(stage, &usable, windows);
    let mut figures = Vec::new();
    for (source, refused) in Source::ALL.into_iter().zip(&refused) {
        figures.push(of_windows(source, &raw, &left_out, refused.as_deref()));
    }
    for (source, refused) in Source::ALL.into_iter().zip(&refused) {
        let value = match refused {
            Some(why) => Err(why.clone()),
            None => cost::of_looking(stage, source, length).map_err(|error| error.to_string()),
        };
        let programs = match source {
            Source::Bpf => " and of the programs in the kernel",
            Source::Proc => "",
        };
        figures.push(Figure {
            name: format!("phantom: CPU time of looking, {}", source.name()),
            value,
            unit: Unit::OneCpu,
            target: Target::Below(0.005),
            versus: format!(
                "CPU time of the thread that looks, as --serve does{programs} / time, in {} s beside 4 busy threads and 2 busy processes",
                length.as_secs()
            ),
        });
    }
    figures.extend(of_page(is_quick));
    (figures, raw)
}

/// Each load by each source, and the loads that were not run, with the reason.
fn compare(stage: &Stage, sources: &[Source], windows: u32) -> (Vec<RawLoad>, Vec<String>) {
    let (mut raw, mut left_out) = (Vec::new(), Vec::new());
    for load in LOADS {
        match truth::run(stage, load, sources, windows) {
            Ok(found) => raw.extend(sources.iter().zip(found).map(|(source, found)| RawLoad {
                load: load.name,
                source: source.name(),
                windows: found.all,
                good: found.good,
                worst_cpus: found.worst_cpus,
            })),
            Err(error) => left_out.push(format!("{}: {error}", load.name)),
        }
        eprintln!("{NAME}: {}", load.name);
    }
    (raw, left_out)
}

fn of_windows(
    source: Source,
    raw: &[RawLoad],
    left_out: &[String],
    refused: Option<&str>,
) -> Figure {
    let mine = || raw.iter().filter(|row| row.source == source.name());
    let all = mine().fold(Windows::default(), |all, row| {
        all.and(Windows {
            all: row.windows,
            good: row.good,
            worst_cpus: row.worst_cpus,
        })
    });
    let value = match refused {
        Some(why) => Err(why.to_owned()),
        None if all.all == 0 => Err(left_out.join("; ")),
        None => Ok(all.share()),
    };
    let loads: Vec<String> = mine()
        .map(|row| {
            let share = f64::from(row.good) / f64::from(row.windows.max(1));
            format!("{} {share:.2}", row.load)
        })
        .collect();
    let left_out = match left_out {
        [] => String::new(),
        some => format!("; not run: {}", some.join(", ")),
    };
    let target = match source {
        Source::Bpf => 0.95,
        Source::Proc => 0.90,
    };
    Figure {
        name: format!(
            "phantom: runnable_cpus within {TOLERANCE_CPUS}, {}",
            source.name()
        ),
        value,
        unit: Unit::Ratio,
        target: Target::AtLeast(target),
        versus: format!(
            "share of {} windows of 100 ms whose runnable_cpus is within {TOLERANCE_CPUS} CPUs of what CPU clocks say, worst {:.2} off: {}{left_out}",
            all.all,
            all.worst_cpus,
            loads.join(", ")
        ),
    }
}

fn of_page(is_quick: bool) -> [Figure; 2] {
    let reads = if is_quick { 100_000 } else { 1_000_000 };
    let measured = cost::of_reading(reads);
    let row = |at: usize, what: &str, target| Figure {
        name: format!("phantom: {what}"),
        value: measured.clone().map(|both| both[at]),
        unit: Unit::Ns,
        target,
        versus: format!("each of {reads} in a row, the least of 5 rounds"),
    };
    [
        row(0, "a read of the page", Target::Below(20.0)),
        row(
            1,
            "a read of the page and a look whether it is fresh",
            Target::Stated,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(source: Source, windows: u32, good: u32) -> RawLoad {
        RawLoad {
            load: "alone",
            source: source.name(),
            windows,
            good,
            worst_cpus: 0.3,
        }
    }

    #[test]
    fn each_source_has_its_own_share_and_target() {
        let raw = [row(Source::Bpf, 50, 46), row(Source::Proc, 50, 46)];
        let bpf = of_windows(Source::Bpf, &raw, &[], None);
        assert_eq!(bpf.value, Ok(0.92));
        assert!(!bpf.is_ok());
        let proc = of_windows(Source::Proc, &raw, &["quota: none".to_owned()], None);
        assert!(proc.is_ok());
        assert!(proc.versus.ends_with("alone 0.92; not run: quota: none"));
    }

    #[test]
    fn a_source_that_may_not_be_used_has_no_share() {
        let figure = of_windows(Source::Bpf, &[], &[], Some("no rights"));
        assert_eq!(figure.value, Err("no rights".to_owned()));
    }
}
