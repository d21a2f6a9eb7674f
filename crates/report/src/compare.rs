//! Two results: what changed, and is it more than noise?

mod code;
mod rank;

use serde::{Deserialize, Serialize};

use crate::number::{change, factor_digits, percent_coarse};
use crate::plain::{elide, plain};
use crate::point::PointId;
use crate::schema::{NO_SPEEDUP, Notice, Point, ScaleResult, Spread};

pub use code::{CodeChange, GrowthChange};

/// Name and version of the format.
pub const SCHEMA: &str = "amdahl.compare/2";

/// Changes of causes below this are not in the summary.
const WORTH_TELLING: f64 = 0.01;

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
    /// Code that costs more or less on the largest count, largest change first; empty unless that is the same in both.
    pub code: Vec<CodeChange>,
    /// User code whose growth from the smallest count to the largest has changed, largest change first; empty unless both
    /// counts are the same in both results.
    pub growth: Vec<GrowthChange>,
    /// CPU counts, with their threads, that only the first result has.
    pub only_before: Vec<PointId>,
    /// CPU counts, with their threads, that only the second result has.
    pub only_after: Vec<PointId>,
    /// Why the results may not be comparable.
    pub warnings: Vec<Notice>,
}

impl Comparison {
    /// Where scaling shows: the largest CPU count with a thread for each, or, where there is none, the
    /// last point.
    pub fn main_point(&self) -> Option<&PointChange> {
        let mut ordinary = self.points.iter().rev();
        let main = ordinary.find(|&point| !PointId::from(point).is_oversubscribed());
        main.or(self.points.last())
    }
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
    /// Nothing: wall times are there, but say nothing about speed in one of the results.
    None,
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
    /// The results have no measure of speed in common.
    NotComparable,
}

impl Verdict {
    /// The name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no-difference",
            Verdict::TooFewRuns => "too-few-runs",
            Verdict::NotComparable => "not-comparable",
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
    /// The ranges over the runs overlap, so the change may be noise; unknown where one run has to be the range.
    pub ranges_overlap: Option<bool>,
}

/// Compares two results.
pub fn compare(before: &ScaleResult, after: &ScaleResult) -> Comparison {
    let key = |p: &Point| PointId::from(p);
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
    let only = |ours: &ScaleResult, theirs: &ScaleResult| -> Vec<PointId> {
        let alone = ours
            .points
            .iter()
            .filter(|p| find(&theirs.points, key(p)).is_none());
        alone.map(key).collect()
    };
    let mut comparison = Comparison {
        schema: SCHEMA.to_owned(),
        before: before.command.clone(),
        after: after.command.clone(),
        method: METHOD.to_owned(),
        summary: String::new(),
        only_before: only(before, after),
        only_after: only(after, before),
        warnings: warnings(before, after),
        growth: code::growth_changes(before, after),
        code: code::code_changes(before, after),
        points,
    };
    comparison.summary = summary(comparison.main_point(), &comparison.code);
    comparison
}

/// Rates are compared where both results have them, wall times where they tell how fast the program is: not where a run
/// was ended after a fixed time, or may have had one of its own because its speed is a rate.
fn measure(before: &ScaleResult, after: &ScaleResult) -> Measure {
    let is_of = |r: &ScaleResult, what: &str| r.settings.speedup_of == what;
    let has_rate = |r: &ScaleResult| {
        (is_of(r, "rate") || is_of(r, NO_SPEEDUP)) && r.points.iter().all(|p| p.rate.is_some())
    };
    let has_none = is_of(before, NO_SPEEDUP) || is_of(after, NO_SPEEDUP);
    if has_rate(before) && has_rate(after) {
        Measure::Rate
    } else if has_none || is_of(before, "rate") != is_of(after, "rate") {
        Measure::None
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
    let has_measure = measure != Measure::None;
    let interval = rank::factor_interval(&b.runs, &a.runs).filter(|_| has_measure);
    let verdict = match interval {
        _ if !has_measure => Verdict::NotComparable,
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
        ratio: (has_measure && b.median > 0.0)
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
    let have_ranges = [before, after].map(|p| p.probed_wall_s.runs.len() > 1) == [true; 2];
    let mut changes: Vec<CauseChange> = ids
        .into_iter()
        .map(|id| {
            let part = |p: &Point| p.stack.get(id).copied().unwrap_or(0.0);
            let (b, a) = (part(before), part(after));
            let ranges = before.stack_range.get(id).zip(after.stack_range.get(id));
            let ranges = ranges.filter(|_| have_ranges);
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
fn summary(point: Option<&PointChange>, code: &[CodeChange]) -> String {
    let Some(point) = point else {
        return "The results have no CPU count in common.".to_owned();
    };
    let outcome = outcome(point);
    match cause_in_words(point, code) {
        Some(cause) => format!("{outcome} {cause}"),
        None => outcome,
    }
}

/// What became of the speed.
fn outcome(point: &PointChange) -> String {
    let on = PointId::from(point).joined();
    if point.verdict == Verdict::NotComparable {
        return format!(
            "How fast it is on {on} cannot be compared: the results do not both have a rate, and how long a run takes that \
             is ended after a fixed time, or a look at a process that runs, says nothing about speed."
        );
    }
    let Some(ratio) = point.ratio else {
        return format!("On {on} there is no time to compare.");
    };
    let speed = if point.measure == Measure::Wall {
        1.0 / ratio
    } else {
        ratio
    };
    match point.verdict {
        Verdict::Faster | Verdict::Slower if speed.is_finite() => {
            format!(
                "On {on} it is {}× as fast as before, more than noise.",
                factor_digits(speed)
            )
        }
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
        _ => format!("On {on} it differs by more than noise."),
    }
}

/// The cause that has surely changed most. Where speed cannot be compared the stacks are all there is, so that a
/// change which may be noise is told as such.
fn cause_in_words(point: &PointChange, code: &[CodeChange]) -> Option<String> {
    let mut changed = point
        .causes
        .iter()
        .filter(|c| c.id != "work" && c.change.abs() >= WORTH_TELLING);
    let is_sure = |c: &&CauseChange| c.ranges_overlap == Some(false);
    let (c, doubt) = match changed.clone().find(is_sure) {
        Some(c) => (c, ""),
        None if point.verdict == Verdict::NotComparable && !point.causes.is_empty() => {
            match changed.next() {
                Some(c) => (c, "; that may be noise"),
                None => {
                    let least = percent_coarse(WORTH_TELLING);
                    return Some(format!("No cause changed by {least} of the CPU time."));
                }
            }
        }
        None => return None,
    };
    let most = code
        .iter()
        .find(|code| code.cause == c.id && code.change / c.change >= 0.5);
    let place = most.map_or(String::new(), |code| {
        format!(", most of it in `{}`", elide(&plain(&code.symbol), 60, "…"))
    });
    Some(format!(
        "The cause that changed most: {}, from {} to {} of the CPU time{place}{doubt}.",
        c.id,
        percent_coarse(c.before),
        percent_coarse(c.after)
    ))
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
