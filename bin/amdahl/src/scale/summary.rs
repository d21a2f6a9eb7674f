//! The runs of a sweep to a result.

use std::collections::BTreeMap;

use amdahl_report::schema::{
    Fit, Machine, Models, Notice, Point, ProbeCost, SCHEMA, SampleRow, ScaleResult, Settings,
    Spread,
};
use amdahl_speedup::cause::Cause;
use amdahl_speedup::model::{self, Observation};
use amdahl_speedup::stack::{Measured, Stack, UserGrowth, speedup_stack};

use super::run::Probed;
use super::{PointRuns, Sweep, explain};
use crate::cli::{EventBudget, Scale};
use crate::watch::machine;

/// Everything that is shown and written.
pub struct Summary {
    /// `result.json`.
    pub result: ScaleResult,
    /// Rows of the Parquet file.
    pub rows: Vec<SampleRow>,
    /// Index of the point and of the run that the causes and the trace come from.
    pub shown: Option<(usize, usize)>,
}

const NOISE: f64 = 0.10;

fn spread(mut values: Vec<f64>) -> Spread {
    let runs = values.clone();
    values.sort_by(f64::total_cmp);
    let median = match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    };
    Spread {
        median,
        min: values.first().copied().unwrap_or(0.0),
        max: values.last().copied().unwrap_or(0.0),
        runs,
    }
}

fn probed_walls(runs: &PointRuns) -> Vec<f64> {
    runs.probed
        .iter()
        .map(|run| run.ended.wall.as_secs_f64())
        .collect()
}

/// Wall times that speedups are made of: without the probe where there are such runs.
fn walls(runs: &PointRuns) -> Vec<f64> {
    if runs.bare.is_empty() {
        return probed_walls(runs);
    }
    runs.bare
        .iter()
        .map(|run| run.ended.wall.as_secs_f64())
        .collect()
}

fn rates(runs: &PointRuns) -> Option<Vec<f64>> {
    let bare: Option<Vec<f64>> = runs.bare.iter().map(|run| run.rate).collect();
    let probed: Option<Vec<f64>> = runs.probed.iter().map(|run| run.rate).collect();
    if runs.bare.is_empty() { probed } else { bare }.filter(|rates| !rates.is_empty())
}

/// User instructions outside spin loops, where all runs counted them.
fn counted(runs: &PointRuns) -> Option<f64> {
    let counts: Option<Vec<f64>> = runs
        .probed
        .iter()
        .map(|run| run.measured.instructions)
        .collect();
    counts
        .filter(|counts| !counts.is_empty())
        .map(|counts| mean(counts.into_iter()))
}

/// Share of the time in which scheduler events were recorded, where that is not all of it.
fn recorded(runs: &PointRuns) -> Option<f64> {
    let shares = runs.probed.iter().map(|run| run.recorded);
    Some(mean(shares)).filter(|&share| !runs.probed.is_empty() && share < 1.0)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    values.sum::<f64>() / n
}

/// Stack of a point: the mean over its runs, with the range of single runs.
struct PointStack {
    mean: Stack,
    growth: UserGrowth,
    range: BTreeMap<String, [f64; 2]>,
}

fn point_stack(runs: &PointRuns, base: Option<&Measured>) -> Option<PointStack> {
    let measured: Vec<Measured> = runs.probed.iter().map(|run| run.measured.clone()).collect();
    if measured.is_empty() {
        return None;
    }
    let (mean, growth) = speedup_stack(&Measured::mean(&measured), base);
    // The mean is divided as a whole, so that it can lie outside of what single runs give.
    let stacks = measured.iter().map(|run| speedup_stack(run, base).0);
    let mut range: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for stack in stacks.chain([mean.clone()]) {
        for cause in Cause::ALL {
            let value = stack.get(cause);
            let range = range.entry(cause.id().to_owned()).or_insert([value, value]);
            *range = [range[0].min(value), range[1].max(value)];
        }
    }
    Some(PointStack {
        mean,
        growth,
        range,
    })
}

/// Makes the result.
pub fn summarise(sweep: &mut Sweep, scale: &Scale) -> Summary {
    let mut result = ScaleResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: match scale.pid {
            Some(pid) => vec!["--pid".to_owned(), pid.to_string()],
            None => scale.command.clone(),
        },
        started: machine::now(),
        machine: machine(sweep),
        settings: settings(sweep, scale),
        sources: sweep.sources.clone(),
        warnings: sweep.notices.clone(),
        failures: sweep.failures.clone(),
        partial: sweep.partial,
        ..ScaleResult::default()
    };
    let by_rate = scale.rate.is_some();
    set_work(sweep, by_rate);
    let base_at = sweep.points.iter().position(|runs| !runs.probed.is_empty());
    let base: Option<Measured> = base_at.map(|at| {
        Measured::mean(
            &sweep.points[at]
                .probed
                .iter()
                .map(|run| run.measured.clone())
                .collect::<Vec<_>>(),
        )
    });
    let fixed_time = scale.duration.is_some() && !by_rate && scale.pid.is_none();
    let base_for = |at: usize| {
        // A run of fixed length without a rate does unknown work: nothing to compare with.
        base.as_ref().filter(|_| Some(at) != base_at && !fixed_time)
    };
    let first = sweep.points.iter().position(|runs| !walls(runs).is_empty());
    let mut stacks = Vec::new();
    for (at, (planned, runs)) in sweep.plan.points.iter().zip(&sweep.points).enumerate() {
        if walls(runs).is_empty() {
            stacks.push(None);
            continue;
        }
        let stack = point_stack(runs, base_for(at));
        let mut point = Point {
            cpus: planned.cpus.len() as u32,
            threads: planned.threads,
            cpu_list: planned.cpus.iter().collect(),
            wall_s: spread(walls(runs)),
            probed_wall_s: spread(probed_walls(runs)),
            user_s: mean(runs.probed.iter().map(|run| run.ended.user_s)),
            system_s: mean(runs.probed.iter().map(|run| run.ended.system_s)),
            capacity_s: mean(
                runs.probed
                    .iter()
                    .map(|run| run.measured.capacity_ns * 1e-9),
            ),
            rate: rates(runs).map(spread),
            instructions: counted(runs),
            events: runs.probed.iter().map(|run| run.partition.events).sum(),
            events_lost: runs.probed.iter().map(|run| run.partition.lost).sum(),
            analysis_s: runs.probed.iter().map(|run| run.analysis_s).sum(),
            recorded: recorded(runs),
            ..Point::default()
        };
        if runs.probed.is_empty() {
            point.user_s = mean(runs.bare.iter().map(|run| run.ended.user_s));
            point.system_s = mean(runs.bare.iter().map(|run| run.ended.system_s));
            point.capacity_s = f64::from(point.cpus) * point.wall_s.median;
        }
        if let Some(stack) = &stack {
            for cause in Cause::ALL {
                point
                    .stack
                    .insert(cause.id().to_owned(), stack.mean.get(cause));
            }
            point.stack_range = stack.range.clone();
        }
        if let Some(first) = first {
            let reference = &sweep.points[first];
            let scale_to = sweep.plan.points[first].cpus.len() as f64;
            set_speedup(&mut point, reference, runs, scale_to, by_rate);
        }
        stacks.push(stack);
        result.points.push(point);
    }
    result.models = models(sweep, by_rate);
    result.probe_cost = probe_cost(sweep);
    warn(&mut result, sweep, fixed_time, scale.budget);

    let mut rows = Vec::new();
    let mut shown = None;
    let points = std::mem::take(&mut sweep.points);
    for (at, runs) in points.iter().enumerate() {
        let Some(stack) = stacks.get(at).and_then(Option::as_ref) else {
            continue;
        };
        let median_at = median_run(&runs.probed);
        let cpus = sweep.plan.points[at].cpus.len() as u32;
        if at + 1 == points.len() || points[at + 1..].iter().all(|later| later.probed.is_empty()) {
            let run = &runs.probed[median_at];
            result.causes = explain::causes(run, &mut sweep.decoder, &stack.growth, &stack.mean);
            result.profile = explain::profile(run, &stack.growth);
            shown = Some((at, median_at));
        }
        for (number, run) in runs.probed.iter().enumerate() {
            let full = shown == Some((at, number));
            rows.extend(explain::rows(
                run,
                &mut sweep.decoder,
                &stack.growth,
                &stack.mean,
                cpus,
                number as u32 + 1,
                full,
            ));
        }
    }
    sweep.points = points;
    Summary {
        result,
        rows,
        shown,
    }
}

fn median_run(runs: &[Probed]) -> usize {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|&a, &b| runs[a].ended.wall.cmp(&runs[b].ended.wall));
    order[(order.len() - 1) / 2]
}

/// With a rate, work differs between the counts: what was done is rate x time.
fn set_work(sweep: &mut Sweep, by_rate: bool) {
    for run in sweep.points.iter_mut().flat_map(|runs| &mut runs.probed) {
        if let (true, Some(rate)) = (by_rate, run.rate) {
            run.measured.work = rate * run.ended.wall.as_secs_f64();
        }
    }
}

fn set_speedup(
    point: &mut Point,
    reference: &PointRuns,
    runs: &PointRuns,
    base_cpus: f64,
    by_rate: bool,
) {
    let ratio = |faster: f64, slower: f64| {
        if slower > 0.0 {
            base_cpus * faster / slower
        } else {
            0.0
        }
    };
    match (by_rate, rates(reference), rates(runs)) {
        (true, Some(before), Some(now)) => {
            let (before, now) = (spread(before), spread(now));
            point.speedup = ratio(now.median, before.median);
            point.speedup_range = [ratio(now.min, before.max), ratio(now.max, before.min)];
        }
        _ => {
            let before = spread(walls(reference));
            point.speedup = ratio(before.median, point.wall_s.median);
            point.speedup_range = [
                ratio(before.min, point.wall_s.max),
                ratio(before.max, point.wall_s.min),
            ];
        }
    }
    point.efficiency = point.speedup / f64::from(point.cpus.max(1));
}

fn models(sweep: &Sweep, by_rate: bool) -> Models {
    let observations: Vec<Observation> = sweep
        .plan
        .points
        .iter()
        .zip(&sweep.points)
        .filter(|(planned, runs)| {
            planned.threads == planned.cpus.len() as u32 && !walls(runs).is_empty()
        })
        .map(|(planned, runs)| Observation {
            cpus: planned.cpus.len() as u32,
            wall_s: match rates(runs) {
                Some(rates) if by_rate => rates.iter().map(|rate| 1.0 / rate.max(1e-300)).collect(),
                _ => walls(runs),
            },
        })
        .collect();
    let mut models = Models::default();
    let mut notes: Vec<String> = Vec::new();
    match model::fit_amdahl(&observations) {
        Ok(fit) => {
            models.amdahl = Some(Fit {
                parameters: [("serial_fraction".to_owned(), fit.serial_fraction)].into(),
                confidence: [("serial_fraction".to_owned(), fit.serial_fraction_ci)].into(),
                relative_rmse: fit.relative_rmse,
                points: fit.points,
            });
        }
        Err(why) => notes.push(format!("Amdahl's law: {why}.")),
    }
    match model::fit_usl(&observations) {
        Ok(fit) => {
            let mut parameters: BTreeMap<String, f64> = [
                ("contention".to_owned(), fit.contention),
                ("coherence".to_owned(), fit.coherence),
            ]
            .into();
            if let model::Peak::At { cpus: peak } = fit.peak {
                parameters.insert("peak_cpus".to_owned(), peak);
            }
            models.usl = Some(Fit {
                parameters,
                confidence: [
                    ("contention".to_owned(), fit.contention_ci),
                    ("coherence".to_owned(), fit.coherence_ci),
                ]
                .into(),
                relative_rmse: fit.relative_rmse,
                points: fit.points,
            });
        }
        Err(why) => notes.push(format!("Universal Scalability Law: {why}.")),
    }
    models.note = notes.join(" ");
    models
}

fn probe_cost(sweep: &Sweep) -> Option<ProbeCost> {
    let ratios: Vec<f64> = sweep
        .points
        .iter()
        .flat_map(|runs| runs.probed.iter().zip(&runs.bare))
        .map(|(probed, bare)| {
            probed.ended.wall.as_secs_f64() / bare.ended.wall.as_secs_f64().max(1e-9)
        })
        .collect();
    let pairs = ratios.len() as u32;
    let spread = spread(ratios);
    (pairs > 0).then_some(ProbeCost {
        wall_ratio: spread.median,
        range: [spread.min, spread.max],
        pairs,
    })
}

fn warn(result: &mut ScaleResult, sweep: &Sweep, fixed_time: bool, budget: EventBudget) {
    let mut found = Vec::new();
    let mut add = |code: &str, text: String| {
        found.push(Notice {
            code: code.to_owned(),
            text,
        });
    };
    for point in &result.points {
        let spread = &point.wall_s;
        if spread.runs.len() > 1 && spread.max - spread.min > NOISE * spread.median && !fixed_time {
            add(
                "noise",
                format!(
                    "With {} CPUs the runs differ by {:.0} %: the machine is noisy. Use more --runs, stop \
                 other work, or make the runs longer.",
                    point.cpus,
                    (spread.max - spread.min) / spread.median * 100.0
                ),
            );
        }
        if spread.median < 0.02 && !spread.runs.is_empty() {
            add(
                "short",
                format!(
                    "With {} CPUs a run takes only {:.1} ms: starting the program dominates. Give it more work.",
                    point.cpus,
                    spread.median * 1e3
                ),
            );
        }
        if point.events_lost > 0 {
            add(
                "lost",
                format!(
                    "With {} CPUs {} of {} events were lost; what they would have told is unexplained.",
                    point.cpus,
                    point.events_lost,
                    point.events + point.events_lost
                ),
            );
        }
    }
    if fixed_time {
        add(
            "fixed-time",
            "Runs of a fixed length do an unknown amount of work: there is no speedup, and \
             no comparison with one CPU. Give --rate if the program prints its work per second."
                .to_owned(),
        );
    }
    for (planned, runs) in sweep.plan.points.iter().zip(&sweep.points) {
        let covered = runs.probed.iter().map(|run| run.cut).fold(1.0, f64::min);
        if let (Some(share), EventBudget::Percent(percent)) = (recorded(runs), budget) {
            add(
                "budget",
                format!(
                    "With {} CPUs scheduler events were recorded {:.0} % of the time, in windows that stand for the rest: \
                     all of them would have cost more than {percent} % of the CPU time. --budget none records all.",
                    planned.cpus.len(),
                    share * 100.0
                ),
            );
        }
        if covered < 1.0 {
            add(
                "cut",
                format!(
                    "With {} CPUs the events of a run did not fit into memory: its first {:.0} % \
                     stand for all of it. Give it more with --memory.",
                    planned.cpus.len(),
                    covered * 100.0
                ),
            );
        }
        if let Some(why) = runs.probed.iter().find_map(|run| run.unsampled.as_ref()) {
            add(
                "unsampled",
                format!(
                    "With {} CPUs there are runs without on-CPU samples ({why}): what their threads \
                     ran is only known from polls. Where there are too many open files, raise the \
                     limit (ulimit -n).",
                    planned.cpus.len()
                ),
            );
        }
        let silent = runs.probed.iter().map(|run| run.rate);
        let silent = silent.chain(runs.bare.iter().map(|run| run.rate));
        let silent = silent.filter(Option::is_none).count();
        if result.settings.speedup_of == "rate" && silent > 0 {
            add(
                "no-rate",
                format!(
                    "With {} CPUs {silent} runs printed no number that --rate matches: the speedup \
                     is that of the wall time where a rate is missing.",
                    planned.cpus.len()
                ),
            );
        }
        let left: usize = runs.probed.iter().map(|run| run.left).sum();
        if left > 0 {
            add(
                "left",
                format!(
                    "With {} CPUs {left} processes were still there when the program ended; they were ended.",
                    planned.cpus.len()
                ),
            );
        }
    }
    result.warnings.extend(found);
}

fn settings(sweep: &Sweep, scale: &Scale) -> Settings {
    let group = sweep
        .points
        .iter()
        .flat_map(|runs| &runs.probed)
        .find_map(|run| run.group);
    Settings {
        runs: scale.runs,
        bare_runs: scale.bare_runs.unwrap_or(scale.runs),
        confinement: match group {
            Some(version) => format!("affinity and a cpuset control group ({version})"),
            None => "affinity".to_owned(),
        },
        env: sweep.env.iter().cloned().collect(),
        speedup_of: if scale.rate.is_some() { "rate" } else { "wall" }.to_owned(),
    }
}

fn machine(sweep: &Sweep) -> Machine {
    Machine {
        cpus_allowed: sweep.plan.allowed.len() as u32,
        quota_cpus: sweep.plan.quota.as_ref().map(|quota| quota.cpus),
        topology: sweep.plan.topology.describe(),
        ..machine::describe()
    }
}
