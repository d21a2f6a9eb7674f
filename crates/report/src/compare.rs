//! Two results: what changed, and is it more than noise?

mod rank;

use serde::{Deserialize, Serialize};

use crate::headline::cpus;
use crate::number::{change, factor_digits, percent_coarse};
use crate::schema::{Notice, Point, ScaleResult, Spread};

/// Name and version of the format.
pub const SCHEMA: &str = "amdahl.compare/1";

const METHOD: &str = "ratio of medians; 95 % interval of the factor between runs by the inverted Mann-Whitney test (Hodges-Lehmann), exact for up to 30 runs";

/// The difference between two results, `before` and `after`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: String,
    /// Command of the first result.
    pub before: Vec<String>,
    /// Command of the second result.
    pub after: Vec<String>,
    /// How intervals and verdicts are made.
    pub method: String,
    /// The outcome in one or two sentences.
    pub summary: String,
    /// CPU counts that both results have, in rising order.
    pub points: Vec<PointChange>,
    /// CPU counts that only the first result has.
    pub only_before: Vec<u32>,
    /// CPU counts that only the second result has.
    pub only_after: Vec<u32>,
    /// Why the results may not be comparable.
    pub warnings: Vec<Notice>,
}

/// The change at one CPU count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PointChange {
    /// Number of CPUs.
    pub cpus: u32,
    /// Threads, when there were more than CPUs; else as in the results.
    pub threads: u32,
    /// What is compared.
    pub measure: Measure,
    /// The first result.
    pub before: Spread,
    /// The second result.
    pub after: Spread,
    /// Median after, divided by median before; absent when there is nothing to divide by.
    pub ratio: Option<f64>,
    /// 95 % interval of the factor; absent with too few runs.
    pub interval: Option<[f64; 2]>,
    /// What it comes to.
    pub verdict: Verdict,
    /// Causes that either stack has, largest change first.
    pub causes: Vec<CauseChange>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Measure {
    /// Wall time in seconds: less is better.
    #[default]
    Wall,
    /// Work per second: more is better.
    Rate,
}

/// What the change comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verdict {
    /// The interval lies wholly on the better side.
    Faster,
    /// The interval lies wholly on the worse side.
    Slower,
    /// The interval holds 1: noise alone could look like this.
    NoDifference,
    /// No number of runs this small can tell a difference from noise.
    #[default]
    TooFewRuns,
}

impl Verdict {
    /// The name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no-difference",
            Verdict::TooFewRuns => "too-few-runs",
        }
    }
}

/// The change of one cause at one CPU count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseChange {
    /// Cause id.
    pub id: String,
    /// Fraction of capacity before.
    pub before: f64,
    /// Fraction of capacity after.
    pub after: f64,
    /// `after - before`.
    pub change: f64,
    /// CPU-seconds before; a fraction may grow only because the rest shrank.
    pub before_s: f64,
    /// CPU-seconds after.
    pub after_s: f64,
    /// The ranges over the runs overlap, so the change may be noise; unknown without ranges.
    pub ranges_overlap: Option<bool>,
}

/// Compares two results.
pub fn compare(before: &ScaleResult, after: &ScaleResult) -> Comparison {
    let key = |p: &Point| (p.cpus, p.threads.max(p.cpus));
    let measure = measure(before, after);
    let find = |points: &[Point], wanted| points.iter().position(|p| key(p) == wanted);
    let points: Vec<PointChange> = before
        .points
        .iter()
        .filter_map(|b| {
            let a = find(&after.points, key(b))?;
            Some(point_change(b, &after.points[a], measure))
        })
        .collect();
    let only = |ours: &ScaleResult, theirs: &ScaleResult| -> Vec<u32> {
        let alone = ours
            .points
            .iter()
            .filter(|p| find(&theirs.points, key(p)).is_none());
        alone.map(|p| p.cpus).collect()
    };
    Comparison {
        schema: SCHEMA.to_owned(),
        before: before.command.clone(),
        after: after.command.clone(),
        method: METHOD.to_owned(),
        summary: summary(&points),
        only_before: only(before, after),
        only_after: only(after, before),
        warnings: warnings(before, after),
        points,
    }
}

/// Rates are compared where both results have them for the purpose of speedup.
fn measure(before: &ScaleResult, after: &ScaleResult) -> Measure {
    let has_rate = |r: &ScaleResult| {
        r.settings.speedup_of == "rate" && r.points.iter().all(|p| p.rate.is_some())
    };
    if has_rate(before) && has_rate(after) {
        Measure::Rate
    } else {
        Measure::Wall
    }
}

fn point_change(before: &Point, after: &Point, measure: Measure) -> PointChange {
    let spread = |p: &Point| match (&p.rate, measure) {
        (Some(rate), Measure::Rate) => rate.clone(),
        _ => p.wall_s.clone(),
    };
    let (b, a) = (spread(before), spread(after));
    let interval = rank::factor_interval(&b.runs, &a.runs);
    let verdict = match interval {
        None => Verdict::TooFewRuns,
        Some([low, high]) => match (measure, high < 1.0, low > 1.0) {
            (Measure::Wall, true, _) | (Measure::Rate, _, true) => Verdict::Faster,
            (Measure::Wall, _, true) | (Measure::Rate, true, _) => Verdict::Slower,
            _ => Verdict::NoDifference,
        },
    };
    PointChange {
        cpus: before.cpus,
        threads: before.threads.max(before.cpus),
        measure,
        ratio: (b.median > 0.0)
            .then(|| a.median / b.median)
            .filter(|ratio| ratio.is_finite()),
        interval,
        verdict,
        causes: cause_changes(before, after),
        before: b,
        after: a,
    }
}

fn cause_changes(before: &Point, after: &Point) -> Vec<CauseChange> {
    if before.stack.is_empty() || after.stack.is_empty() {
        return Vec::new();
    }
    let ids = crate::palette::in_order(before.stack.keys().chain(after.stack.keys()));
    let mut changes: Vec<CauseChange> = ids
        .into_iter()
        .map(|id| {
            let part = |p: &Point| p.stack.get(id).copied().unwrap_or(0.0);
            let (b, a) = (part(before), part(after));
            let ranges = before.stack_range.get(id).zip(after.stack_range.get(id));
            CauseChange {
                id: id.to_owned(),
                before: b,
                after: a,
                change: a - b,
                before_s: b * before.capacity_s,
                after_s: a * after.capacity_s,
                ranges_overlap: ranges.map(|(b, a)| b[0] <= a[1] && a[0] <= b[1]),
            }
        })
        .collect();
    changes.sort_by(|x, y| y.change.abs().total_cmp(&x.change.abs()));
    changes
}

/// The largest common CPU count speaks, because that is where scaling shows.
fn summary(points: &[PointChange]) -> String {
    let Some(point) = points.last() else {
        return "The results have no CPU count in common.".to_owned();
    };
    let on = cpus(point.cpus);
    let Some(ratio) = point.ratio else {
        return format!("On {on} there is no time to compare.");
    };
    let speed = if point.measure == Measure::Wall {
        1.0 / ratio
    } else {
        ratio
    };
    let outcome = match point.verdict {
        Verdict::Faster | Verdict::Slower if speed.is_finite() => {
            format!(
                "On {on} it is {}× as fast as before, more than noise.",
                factor_digits(speed)
            )
        }
        Verdict::Faster | Verdict::Slower => format!("On {on} it differs by more than noise."),
        Verdict::NoDifference => {
            format!(
                "On {on} there is no difference beyond noise ({}).",
                change(ratio)
            )
        }
        Verdict::TooFewRuns => format!(
            "On {on} the median changed by {}, but {} and {} runs are too few to tell that from noise; take at least 4 each.",
            change(ratio),
            point.before.runs.len(),
            point.after.runs.len()
        ),
    };
    let sure = point
        .causes
        .iter()
        .find(|c| c.ranges_overlap == Some(false) && c.id != "work");
    match sure.filter(|c| c.change.abs() >= 0.01) {
        Some(c) => format!(
            "{outcome} The cause that changed most: {}, from {} to {} of the CPU time.",
            c.id,
            percent_coarse(c.before),
            percent_coarse(c.after)
        ),
        None => outcome,
    }
}

fn warnings(before: &ScaleResult, after: &ScaleResult) -> Vec<Notice> {
    let mut warnings = Vec::new();
    let mut warn = |is_off: bool, code: &str, text: &str| {
        if is_off {
            warnings.push(Notice {
                code: code.to_owned(),
                text: text.to_owned(),
            });
        }
    };
    let (b, a) = (&before.machine, &after.machine);
    warn(
        before.command != after.command,
        "command",
        "The commands differ; a change may come from that.",
    );
    warn(
        (&b.cpu_model, &b.topology, b.is_virtual) != (&a.cpu_model, &a.topology, a.is_virtual),
        "machine",
        "The machines differ; times of different machines say nothing about the program.",
    );
    warn(
        b.kernel != a.kernel,
        "kernel",
        "The kernels differ; a change may come from that.",
    );
    warn(
        (b.cpus_allowed, b.quota_cpus) != (a.cpus_allowed, a.quota_cpus),
        "limits",
        "The CPUs allowed or the quota differ; measure both under the same limits.",
    );
    let (b, a) = (&before.settings, &after.settings);
    warn(
        (&b.confinement, &b.env, &b.speedup_of) != (&a.confinement, &a.env, &a.speedup_of),
        "settings",
        "Confinement, environment or what speedup means differ between the results.",
    );
    warn(
        before.partial || after.partial,
        "partial",
        "A result was interrupted and may lack runs.",
    );
    warnings
}
