//! The runs of a sweep to a result.

use std::collections::BTreeMap;

use amdahl_report::point::PointId;
use amdahl_report::schema::{
    Fit, Machine, Models, NO_SPEEDUP, Notice, Point, ProbeCost, SCHEMA, SampleRow, ScaleResult,
    Settings, Spread,
};
use amdahl_speedup::cause::Cause;
use amdahl_speedup::model::{self, Observation};
use amdahl_speedup::stack::{Measured, Stack, UserGrowth, speedup_stack};

use super::plan::{self, PlannedPoint};
use super::run::{Bare, Probed};
use super::{PointRuns, Sweep, explain, noise, unnamed};
use crate::child::Ended;
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

/// What is compared between CPU counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpeedupOf {
    /// The same work takes less time.
    Wall,
    /// Work per second, as the program tells it.
    Rate,
    /// Nothing: how much runs do that were ended, or a process that was attached to, is unknown.
    Nothing,
}

impl SpeedupOf {
    fn of(sweep: &Sweep, scale: &Scale) -> SpeedupOf {
        let mut probed = sweep.points.iter().flat_map(|runs| &runs.probed);
        let mut bare = sweep.points.iter().flat_map(|runs| &runs.bare);
        let is_cut = probed.any(|run| run.ended.timed_out) || bare.any(|run| run.ended.timed_out);
        // All have one then: those that have none were left out.
        let has_rates = sweep.points.iter().any(PointRuns::has_rate);
        if scale.pid.is_some() || is_cut && !has_rates {
            SpeedupOf::Nothing
        } else if has_rates {
            SpeedupOf::Rate
        } else {
            SpeedupOf::Wall
        }
    }

    fn id(self) -> &'static str {
        match self {
            SpeedupOf::Wall => "wall",
            SpeedupOf::Rate => "rate",
            SpeedupOf::Nothing => NO_SPEEDUP,
        }
    }
}

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

fn probed_rates(runs: &PointRuns) -> Option<Vec<f64>> {
    let rates: Option<Vec<f64>> = runs.probed.iter().map(|run| run.rate).collect();
    rates.filter(|rates| !rates.is_empty())
}

fn rates(runs: &PointRuns) -> Option<Vec<f64>> {
    if runs.bare.is_empty() {
        return probed_rates(runs);
    }
    runs.bare.iter().map(|run| run.rate).collect()
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
    let speedup_of = SpeedupOf::of(sweep, scale);
    let mut result = ScaleResult {
        schema: SCHEMA.to_owned(),
        amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: match scale.pid {
            Some(pid) => vec!["--pid".to_owned(), pid.to_string()],
            None => scale.command.clone(),
        },
        started: machine::now(),
        machine: machine(sweep),
        settings: settings(sweep, scale, speedup_of),
        sources: sweep.sources.clone(),
        warnings: sweep.notices.clone(),
        failures: sweep.failures.clone(),
        partial: sweep.partial,
        ..ScaleResult::default()
    };
    if speedup_of == SpeedupOf::Rate {
        set_work(sweep);
    }
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
    let base_for = |at: usize| {
        let is_compared = Some(at) != base_at && speedup_of != SpeedupOf::Nothing;
        base.as_ref().filter(|_| is_compared)
    };
    let first = sweep.points.iter().position(|runs| !walls(runs).is_empty());
    let mut stacks = Vec::new();
    // Of the points of the plan, those that are in the result.
    let mut measured = Vec::new();
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
        if let (Some(first), false) = (first, speedup_of == SpeedupOf::Nothing) {
            let reference = &sweep.points[first];
            let scale_to = sweep.plan.points[first].cpus.len() as f64;
            set_speedup(&mut point, reference, runs, scale_to, speedup_of);
        }
        stacks.push(stack);
        measured.push(at);
        result.points.push(point);
    }
    result.models = models(sweep, speedup_of);
    result.probe_cost = probe_cost(sweep, speedup_of);
    warn(&mut result, sweep, speedup_of, scale);

    let main = main_point(&sweep.plan.points, &measured, |at| stacks[at].is_some());
    let index = measured.iter().position(|&at| Some(at) == main);
    result.causes_point = index.map(|index| index as u32);
    let mut rows = Vec::new();
    let mut shown = None;
    let points = std::mem::take(&mut sweep.points);
    for (at, runs) in points.iter().enumerate() {
        let Some(stack) = stacks.get(at).and_then(Option::as_ref) else {
            continue;
        };
        let median_at = typical_run(&runs.probed);
        let on = sweep.plan.points[at].id();
        if Some(at) == main {
            let run = &runs.probed[median_at];
            result.causes = explain::causes(run, &mut sweep.decoder, &stack.growth, &stack.mean);
            result.profile = explain::profile(run, &stack.growth);
            result.warnings.extend(unnamed::notices(&result.causes));
            shown = Some((at, median_at));
        }
        for (number, run) in runs.probed.iter().enumerate() {
            let full = shown == Some((at, number));
            rows.extend(explain::rows(
                run,
                &mut sweep.decoder,
                &stack.growth,
                &stack.mean,
                on,
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

/// The point that the causes are about, of those that were `measured`: the largest number of CPUs with a thread for
/// each; what has a stack goes before what has none.
fn main_point(
    planned: &[PlannedPoint],
    measured: &[usize],
    has_stack: impl Fn(usize) -> bool,
) -> Option<usize> {
    let rank = |&at: &usize| (has_stack(at), !planned[at].id().is_oversubscribed(), at);
    measured.iter().copied().max_by_key(rank)
}

/// The run nearest to the median of those that can be drawn, if any can.
fn typical_run(runs: &[Probed]) -> usize {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|&at| runs[at].ended.wall);
    let middle = runs[order[(order.len() - 1) / 2]].ended.wall;
    order
        .into_iter()
        .min_by_key(|&at| {
            let run = &runs[at];
            (
                run.partition.stretches.is_empty(),
                run.ended.wall.abs_diff(middle),
            )
        })
        .expect("there are runs")
}

/// With a rate, work differs between the counts: what was done is rate x time.
fn set_work(sweep: &mut Sweep) {
    for run in sweep.points.iter_mut().flat_map(|runs| &mut runs.probed) {
        run.measured.work = run.rate.unwrap_or(0.0) * run.ended.wall.as_secs_f64();
    }
}

fn set_speedup(
    point: &mut Point,
    reference: &PointRuns,
    runs: &PointRuns,
    base_cpus: f64,
    speedup_of: SpeedupOf,
) {
    let ratio = |faster: f64, slower: f64| {
        if slower > 0.0 {
            base_cpus * faster / slower
        } else {
            0.0
        }
    };
    match (speedup_of, rates(reference), rates(runs)) {
        (SpeedupOf::Rate, Some(before), Some(now)) => {
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

fn models(sweep: &Sweep, speedup_of: SpeedupOf) -> Models {
    if speedup_of == SpeedupOf::Nothing {
        return Models {
            note: "Without a speedup there is nothing to fit a model to.".to_owned(),
            ..Models::default()
        };
    }
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
                Some(rates) if speedup_of == SpeedupOf::Rate => {
                    rates.iter().map(|rate| 1.0 / rate.max(1e-300)).collect()
                }
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

/// Runs of the same rounds, which were made one after the other.
fn same_rounds(runs: &PointRuns) -> impl Iterator<Item = (&Probed, &Bare)> {
    runs.probed.iter().filter_map(|probed| {
        let bare = runs.bare.iter().find(|bare| bare.round == probed.round)?;
        Some((probed, bare))
    })
}

/// How much longer the same work takes with the probe.
fn probe_cost(sweep: &Sweep, speedup_of: SpeedupOf) -> Option<ProbeCost> {
    let wall = |ended: &Ended| ended.wall.as_secs_f64().max(1e-9);
    let ratio = |(probed, bare): (&Probed, &Bare)| match speedup_of {
        SpeedupOf::Wall => Some(wall(&probed.ended) / wall(&bare.ended)),
        SpeedupOf::Rate => Some(bare.rate? / probed.rate?),
        SpeedupOf::Nothing => None,
    };
    let ratios: Vec<f64> = sweep
        .points
        .iter()
        .flat_map(same_rounds)
        .filter_map(ratio)
        // A rate of zero tells nothing.
        .filter(|ratio| ratio.is_finite())
        .collect();
    let pairs = ratios.len() as u32;
    let spread = spread(ratios);
    (pairs > 0).then_some(ProbeCost {
        wall_ratio: spread.median,
        range: [spread.min, spread.max],
        pairs,
    })
}

/// What the runs of a point are told apart by: all that speedups are made of, and those with the probe
/// where they are others.
fn told_apart(runs: &PointRuns, speedup_of: SpeedupOf) -> Option<noise::Runs> {
    let has_bare = !runs.bare.is_empty();
    let with = |what, counted, probed: Vec<f64>| noise::Runs {
        what,
        counted: spread(counted),
        probed: has_bare.then(|| spread(probed)),
    };
    match (speedup_of, rates(runs)) {
        (SpeedupOf::Nothing, _) => None,
        (SpeedupOf::Rate, Some(rates)) => Some(with(
            "rates of the runs",
            rates,
            probed_rates(runs).unwrap_or_default(),
        )),
        _ => Some(with("runs", walls(runs), probed_walls(runs))),
    }
}

fn warn(result: &mut ScaleResult, sweep: &Sweep, speedup_of: SpeedupOf, scale: &Scale) {
    let mut found = Vec::new();
    let mut add = |code: &str, text: String| {
        found.push(Notice {
            code: code.to_owned(),
            text,
        });
    };
    for point in &result.points {
        let spread = &point.wall_s;
        if spread.median < 0.02 && !spread.runs.is_empty() {
            add(
                "short",
                format!(
                    "On {} a run takes only {:.1} ms: starting the program dominates. Give it more work.",
                    PointId::from(point),
                    spread.median * 1e3
                ),
            );
        }
        if point.events_lost > 0 {
            add(
                "lost",
                format!(
                    "On {} {} of {} events were lost; what they would have told is unexplained.",
                    PointId::from(point),
                    point.events_lost,
                    point.events + point.events_lost
                ),
            );
        }
    }
    if speedup_of == SpeedupOf::Nothing && scale.pid.is_none() {
        add(
            "fixed-time",
            "Runs that --for ended have done an unknown amount of work: there is no speedup, and \
             no comparison with one CPU. Give --rate if the program prints its work per second."
                .to_owned(),
        );
    }
    for (planned, runs) in sweep.plan.points.iter().zip(&sweep.points) {
        let noise = told_apart(runs, speedup_of).and_then(|runs| runs.noise());
        if let Some(noise) = noise {
            add("noise", format!("On {} {noise}", planned.id()));
        }
        let covered = runs.probed.iter().map(|run| run.cut).fold(1.0, f64::min);
        if let (Some(share), EventBudget::Percent(percent)) = (recorded(runs), scale.budget) {
            add(
                "budget",
                format!(
                    "On {} scheduler events were recorded {:.0} % of the time, in windows that stand for the rest: \
                     with samples, all of them would have cost more than {percent} % of the CPU time. --budget none records all.",
                    planned.id(),
                    share * 100.0
                ),
            );
        }
        if covered < 1.0 {
            add(
                "cut",
                format!(
                    "On {} the events of a run did not fit into memory: its first {:.0} % \
                     stand for all of it. Give it more with --memory.",
                    planned.id(),
                    covered * 100.0
                ),
            );
        }
        if let Some(why) = runs.probed.iter().find_map(|run| run.unsampled.as_ref()) {
            add(
                "unsampled",
                format!(
                    "On {} there are runs without on-CPU samples ({why}): what their threads \
                     ran is only known from polls. Where there are too many open files, raise the \
                     limit (ulimit -n).",
                    planned.id()
                ),
            );
        }
        let left_out = runs.probed.iter().map(|run| &run.left_out);
        if let Some(left_out) = left_out.into_iter().find(|left_out| !left_out.is_empty()) {
            add(
                "partly-unsampled",
                format!(
                    "On {} there are runs in which no samples were taken of {}. Allow more open files: ulimit -n \
                     65536, or as root sysctl fs.file-max where all of the machine are used up.",
                    planned.id(),
                    left_out.join(", ")
                ),
            );
        }
        if scale.rate.is_some() && !runs.is_empty() && !runs.has_rate() {
            let then = match speedup_of {
                SpeedupOf::Nothing => "--for ended runs, so there is no speedup without it",
                _ => "the speedup is that of the wall time",
            };
            add(
                "no-rate",
                format!(
                    "On {} no run printed a number above 0 that --rate matches: {then}.",
                    planned.id()
                ),
            );
        }
        let left: usize = runs.probed.iter().map(|run| run.left).sum();
        if left > 0 {
            add(
                "left",
                format!(
                    "On {} {left} processes were still there when the program ended; they were ended.",
                    planned.id()
                ),
            );
        }
    }
    result.warnings.extend(found);
}

fn settings(sweep: &Sweep, scale: &Scale, speedup_of: SpeedupOf) -> Settings {
    if scale.pid.is_some() {
        return Settings {
            runs: 1,
            confinement: "not confined (a running process)".to_owned(),
            speedup_of: speedup_of.id().to_owned(),
            ..Settings::default()
        };
    }
    let runs = scale.planned_runs();
    let group = sweep
        .points
        .iter()
        .flat_map(|runs| &runs.probed)
        .find_map(|run| run.group);
    Settings {
        runs: runs.probed,
        bare_runs: runs.bare,
        confinement: match group {
            Some(version) => format!("affinity and a cpuset control group ({version})"),
            None => "affinity".to_owned(),
        },
        env: sweep.env.iter().cloned().map(plan::told).collect(),
        speedup_of: speedup_of.id().to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_point_has_a_thread_for_each_of_most_cpus() {
        let planned = [(1, 1), (2, 2), (2, 4), (2, 8)].map(|(cpus, threads)| PlannedPoint {
            cpus: (0..cpus).collect(),
            threads,
        });
        let all = [0, 1, 2, 3];
        assert_eq!(main_point(&planned, &all, |_| true), Some(1));
        // Its runs with the probe failed; all of its runs did.
        assert_eq!(main_point(&planned, &all, |at| at != 1), Some(0));
        assert_eq!(main_point(&planned, &[0, 2, 3], |_| true), Some(0));
        assert_eq!(main_point(&planned, &[2, 3], |_| true), Some(3));
        assert_eq!(main_point(&planned, &all, |at| at == 2), Some(2));
        assert_eq!(main_point(&planned, &all, |_| false), Some(1));
        assert_eq!(main_point(&planned, &[], |_| true), None);
    }
}
