//! Compares a result with what was planted. Pure: a case, what the program said, a result.

use amdahl_report::schema::{CauseReport, Point, ScaleResult};
use amdahl_speedup::cause::Cause;
use serde::Serialize;

use crate::cases::{Case, Expect, Expectation, Line, NONE, Plant};

/// CPU counts of the sweep.
pub const CPUS: [u32; 2] = [1, 2];
const LARGEST: u32 = 2;

/// Largest error of a size, in fractions of capacity.
const WITHIN: f64 = 0.10;
/// The same where the size is known to be rough.
const ROUGHLY_WITHIN: f64 = 0.20;
const UNEXPLAINED_BELOW: f64 = 0.05;
/// The parts of a stack add up to 1 within this.
const SUM_WITHIN: f64 = 1e-6;
/// What others may take before a run counts as disturbed.
const STOLEN_BELOW: f64 = 0.05;

/// What is demanded of a result.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Causes that are as good an answer as the planted one.
    instead: Vec<String>,
    /// The planted cause and `instead` are taken together, whichever of them comes first.
    is_merged: bool,
    within: f64,
    must_name: bool,
    unexplained_below: f64,
}

impl Demand {
    /// With all privileges.
    pub fn full(case: &Case, result: &ScaleResult) -> Demand {
        let has_counters = result
            .points
            .iter()
            .all(|point| point.instructions.is_some());
        Demand {
            instead: if has_counters {
                Vec::new()
            } else {
                case.merged_without_counters.clone()
            },
            is_merged: false,
            within: WITHIN,
            must_name: true,
            unexplained_below: UNEXPLAINED_BELOW,
        }
    }

    /// Without privileges.
    pub fn of(expectation: &Expectation) -> Demand {
        let is_found = expectation.expect == Expect::Found;
        let is_merged = expectation.expect == Expect::Merged;
        Demand {
            instead: if is_merged {
                expectation.into.clone()
            } else {
                Vec::new()
            },
            is_merged,
            within: expectation
                .within
                .unwrap_or(if is_found { WITHIN } else { ROUGHLY_WITHIN }),
            must_name: expectation.function.unwrap_or(is_found),
            unexplained_below: expectation.unexplained_below.unwrap_or(UNEXPLAINED_BELOW),
        }
    }

    fn accepts(&self, planted: &str, found: &str) -> bool {
        planted == found || self.instead.iter().any(|id| id == found)
    }
}

/// Expected against found, for one planted cause.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    pub cause_expected: String,
    /// Comes at this place of the report; `None` where it ends before.
    pub cause_found: Option<String>,
    /// Size by arithmetic.
    pub size_computed: Option<f64>,
    /// Size as the program measured itself in these runs.
    pub size_measured: Option<f64>,
    pub size_found: Option<f64>,
    pub functions_expected: Vec<String>,
    pub function_found: Option<String>,
    /// How the cause's top site names it.
    pub function_by: Option<NamedBy>,
}

/// How a site names a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NamedBy {
    /// It is the site.
    Symbol,
    /// It called the site: what it does itself is inlined into it, or a runtime's.
    Stack,
}

/// What came out for a case.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Judgement {
    pub comparisons: Vec<Comparison>,
    pub unexplained: f64,
    /// Everything that is wrong; empty: passed.
    pub failures: Vec<String>,
    /// Disturbance from outside that the result itself reports.
    pub noise: Option<String>,
}

/// What the hypervisor took at the largest point, as far as that can be told: that is nobody's fault.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Share of capacity.
    share: f64,
    /// It is most of what the result calls stolen, and so much that it may come before what was planted.
    is_most: bool,
}

impl Taken {
    /// The result's own word, but no more than `taken_s`, what the kernel counted on all CPUs while the tool ran: a tool that
    /// takes its own mistakes for stolen time is not believed.
    fn of(case: &Case, largest: &Point, runs: u32, taken_s: f64) -> Taken {
        let stolen = share(largest, Cause::Stolen.id());
        let capacity_s = f64::from(largest.cpus) * f64::from(runs) * largest.probed_wall_s.median;
        let counted = if capacity_s > 0.0 {
            taken_s / capacity_s
        } else {
            0.0
        };
        let share = if case.plants(Cause::Stolen) {
            0.0
        } else {
            stolen.min(counted)
        };
        Taken {
            share,
            is_most: stolen > STOLEN_BELOW && share > stolen / 2.0,
        }
    }

    /// The causes in their order, without what was taken.
    fn others(self, result: &ScaleResult) -> Vec<&CauseReport> {
        let is_taken = |report: &CauseReport| self.is_most && report.id == Cause::Stolen.id();
        let reports = result.causes.iter();
        reports.filter(|report| !is_taken(report)).collect()
    }

    /// A cause is as large as expected. While a CPU is taken away from who waits for it or works on it, by its own account it
    /// waits or works, and by arithmetic it gets as much of the whole as without.
    fn explains(self, size: f64, expected: f64, within: f64) -> bool {
        size >= expected - within - self.share && size <= expected + within
    }
}

/// Judges a result of `runs` runs per CPU count. `demand_of` says what is asked of a cause; `taken_s` is the CPU time that the
/// hypervisor took while the tool ran, in seconds.
pub fn judge(
    case: &Case,
    demand_of: impl Fn(&str) -> Demand,
    lines: &[Line],
    runs: u32,
    taken_s: f64,
    result: &ScaleResult,
) -> Judgement {
    let mut judgement = Judgement {
        noise: noise(case, result),
        ..Judgement::default()
    };
    let wrong = &mut judgement.failures;
    wrong.extend(result.failures.iter().map(|run| {
        format!(
            "run {} with {} CPUs failed: {}",
            run.run, run.cpus, run.what
        )
    }));
    if result.partial {
        wrong.push("the result is partial".to_owned());
    }
    for point in &result.points {
        well_formed(point, wrong);
    }
    let counts: Vec<u32> = result.points.iter().map(|point| point.cpus).collect();
    let Some(largest) = result.points.last().filter(|_| counts == CPUS) else {
        wrong.push(format!(
            "there are points for {counts:?} CPUs, not for {CPUS:?}"
        ));
        return judgement;
    };
    judgement.unexplained = share(largest, Cause::Unexplained.id());
    let demand = demand_of(&case.cause);
    if judgement.unexplained >= demand.unexplained_below {
        wrong.push(format!("{} unexplained", percent(judgement.unexplained)));
    }
    said_as_often_as_run(&case.cause, lines, runs, wrong);
    let taken = Taken::of(case, largest, runs, taken_s);
    let found = Found {
        lines,
        largest,
        reports: taken.others(result),
        taken,
    };
    let is_disturbed = judgement.noise.is_some();
    if case.first().is_none() && demand.must_name && !is_disturbed {
        says_nothing_is_to_blame(result, wrong);
    }
    judgement.comparisons.push(match case.first() {
        Some(plant) => found.compare(plant, &demand, 0, wrong),
        None => found.blameless(&demand, wrong),
    });
    if let Some(plant) = case.second() {
        said_as_often_as_run(plant.cause, lines, runs, wrong);
        let demand = demand_of(plant.cause);
        judgement
            .comparisons
            .push(found.compare(plant, &demand, 1, wrong));
    }
    judgement
}

fn noise(case: &Case, result: &ScaleResult) -> Option<String> {
    if case.plants(Cause::Stolen) {
        return None;
    }
    let of = |point: &Point| share(point, Cause::Stolen.id());
    let point = result
        .points
        .iter()
        .max_by(|a, b| of(a).total_cmp(&of(b)))?;
    (of(point) > STOLEN_BELOW)
        .then(|| format!("{} stolen with {} CPUs", percent(of(point)), point.cpus))
}

fn well_formed(point: &Point, wrong: &mut Vec<String>) {
    let sum: f64 = point.stack.values().sum();
    if !is_near(sum, 1.0, SUM_WITHIN) {
        wrong.push(format!("the stack of {} CPUs adds up to {sum}", point.cpus));
    }
    if let Some((id, part)) = point
        .stack
        .iter()
        .find(|(_, part)| part.is_nan() || **part < -SUM_WITHIN)
    {
        wrong.push(format!("with {} CPUs {id} is {part}", point.cpus));
    }
}

/// Each run says exactly once what was planted: otherwise what it said is not of these runs.
fn said_as_often_as_run(cause: &str, lines: &[Line], runs: u32, wrong: &mut Vec<String>) {
    for cpus in CPUS {
        let said = lines
            .iter()
            .filter(|line| line.cpus == cpus && line.cause == cause)
            .count();
        if said != runs as usize {
            wrong.push(format!(
                "{runs} runs with {cpus} CPUs, but the program told of {cause} {said} times"
            ));
        }
    }
}

/// Share of capacity by the program's own account.
fn measured(plant: Plant<'_>, lines: &[Line]) -> Option<f64> {
    let mean = |cpus: u32, value: fn(&Line) -> f64| {
        let values: Vec<f64> = lines
            .iter()
            .filter(|line| line.cpus == cpus && line.cause == plant.cause)
            .map(value)
            .collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let alone = if plant.is_relative {
        mean(1, |line| line.seconds)?
    } else {
        0.0
    };
    Some(
        (mean(LARGEST, |line| line.seconds)? - alone)
            / (f64::from(LARGEST) * mean(LARGEST, |line| line.wall)?),
    )
}

/// What a result says, and what the program said itself.
struct Found<'a> {
    lines: &'a [Line],
    largest: &'a Point,
    /// In falling order, without what was taken.
    reports: Vec<&'a CauseReport>,
    taken: Taken,
}

impl Found<'_> {
    fn compare(
        &self,
        plant: Plant<'_>,
        demand: &Demand,
        place: usize,
        wrong: &mut Vec<String>,
    ) -> Comparison {
        let report = self.reports.get(place).copied();
        let mut comparison = Comparison {
            cause_expected: plant.cause.to_owned(),
            cause_found: report.map(|report| report.id.clone()),
            size_computed: plant.fraction_at_2,
            size_measured: measured(plant, self.lines),
            functions_expected: plant.functions.to_vec(),
            ..Comparison::default()
        };
        let ordinal = ["first", "second"][place];
        let report = match report.filter(|report| demand.accepts(plant.cause, &report.id)) {
            // What a second cause is merged into may be as large as anything.
            None if demand.is_merged && place > 0 => {
                let mut reports = self.reports.iter().copied();
                reports.find(|report| demand.accepts(plant.cause, &report.id))
            }
            report => report,
        };
        match (&comparison.cause_found, report) {
            (_, Some(_)) => {}
            (Some(found), None) => wrong.push(format!(
                "the {ordinal} cause is {found}, not {}",
                plant.cause
            )),
            (None, None) => wrong.push(format!(
                "there is no {ordinal} cause, {} is missing",
                plant.cause
            )),
        }
        // The size says something of its own even where another cause came first.
        let size = if demand.is_merged {
            let all = std::iter::once(plant.cause).chain(demand.instead.iter().map(String::as_str));
            all.map(|id| share(self.largest, id)).sum()
        } else {
            share(
                self.largest,
                report.map_or(plant.cause, |report| &report.id),
            )
        };
        comparison.size_found = Some(size);
        let expected = [
            ("by arithmetic", comparison.size_computed),
            ("by its own account", comparison.size_measured),
        ];
        if expected.iter().all(|(_, size)| size.is_none()) {
            wrong.push(format!("nothing says how large {} is", plant.cause));
        }
        for (how, expected) in expected {
            let Some(expected) = expected else { continue };
            if !self.taken.explains(size, expected, demand.within) {
                wrong.push(format!(
                    "{} {}, expected {} {how}",
                    plant.cause,
                    percent(size),
                    percent(expected)
                ));
            }
        }
        if let Some((function, by)) = report.and_then(|report| named(report, plant.functions)) {
            comparison.function_found = Some(function);
            comparison.function_by = Some(by);
        } else if demand.must_name && report.is_some() && !plant.functions.is_empty() {
            wrong.push(format!("{} is not named", plant.functions.join(" or ")));
        }
        comparison
    }

    /// Nothing is planted: nothing of size may be blamed.
    fn blameless(&self, demand: &Demand, wrong: &mut Vec<String>) -> Comparison {
        let mut reports = self.reports.iter();
        let worst = reports.find(|report| report.fraction > demand.within);
        if let Some(worst) = worst {
            wrong.push(format!(
                "blames {} for {}",
                worst.id,
                percent(worst.fraction)
            ));
        }
        let work = share(self.largest, Cause::Work.id());
        // 85 % where 10 % are the limit for a single cause.
        if work <= 1.0 - 1.5 * demand.within - self.taken.share {
            wrong.push(format!("only {} is work", percent(work)));
        }
        Comparison {
            cause_expected: NONE.to_owned(),
            cause_found: Some(worst.map_or(NONE, |worst| &worst.id).to_owned()),
            size_computed: Some(0.0),
            size_found: Some(self.reports.first().map_or(0.0, |report| report.fraction)),
            ..Comparison::default()
        }
    }
}

/// What the machine does by itself to who runs on it: others take the CPU away, or use the core, its caches and memory.
const OF_THE_MACHINE: [Cause; 2] = [Cause::Stolen, Cause::SlowWork];

/// In its first sentence, which is all that many read, unless it is of something small, or of the machine.
fn says_nothing_is_to_blame(result: &ScaleResult, wrong: &mut Vec<String>) {
    let is_of_the_machine =
        |report: &CauseReport| OF_THE_MACHINE.iter().any(|cause| report.id == cause.id());
    let first = result.causes.first();
    let is_large = first.is_some_and(|first| first.fraction > 0.05 && !is_of_the_machine(first));
    // The sentence names the first cause of this size.
    if is_large {
        wrong.push(format!(
            "it says: {}",
            amdahl_report::headline::text(result)
        ));
    }
}

/// The function that the top site names, by its symbol rather than by its stack.
fn named(report: &CauseReport, functions: &[String]) -> Option<(String, NamedBy)> {
    let site = report.sites.first()?;
    let is_symbol = |function: &&String| site.symbol.contains(*function);
    let is_caller = |function: &&String| {
        let mut frames = site.stack.iter();
        frames.any(|frame| frame.contains(*function))
    };
    let by = |named: Option<&String>, by| named.map(|function| (function.clone(), by));
    by(functions.iter().find(is_symbol), NamedBy::Symbol)
        .or_else(|| by(functions.iter().find(is_caller), NamedBy::Stack))
}

fn share(point: &Point, id: &str) -> f64 {
    point.stack.get(id).copied().unwrap_or(0.0)
}

/// False for what is no number.
fn is_near(value: f64, expected: f64, within: f64) -> bool {
    (value - expected).abs() <= within
}

/// `33.3 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}
