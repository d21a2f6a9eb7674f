//! The code of the largest CPU count that costs more or less than before.
//!
//! Results divide a cause among its code as one run does, so that there are no ranges: whether a change is more than
//! noise is for the cause that it belongs to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::point::PointId;
use crate::schema::{ScaleResult, Site};

/// Changes that are kept of each kind, the largest.
const CHANGES_MAX: usize = 50;
/// Smaller changes, in parts of the capacity, are left out. Results list no smaller ones of the profile either.
const CHANGE_MIN: f64 = 0.002;

/// The change of what a cause costs in one function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeChange {
    /// Cause id.
    pub cause: String,
    /// The function.
    pub symbol: String,
    /// Its source file in the second result, else in the first, if known.
    pub file: Option<String>,
    /// The line there.
    pub line: Option<u32>,
    /// Fraction of capacity before; 0 where the first result does not list it.
    pub before: f64,
    /// Fraction of capacity after; 0 where the second result does not list it.
    pub after: f64,
    /// `after - before`.
    pub change: f64,
    /// CPU-seconds before.
    pub before_s: f64,
    /// CPU-seconds after.
    pub after_s: f64,
}

/// The change of how much a function's user time grows from the smallest CPU count to the largest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrowthChange {
    /// The function.
    pub symbol: String,
    /// Growth before, a fraction of capacity; 0 where the first result does not list it.
    pub before: f64,
    /// Growth after; 0 where the second result does not list it.
    pub after: f64,
    /// `after - before`.
    pub change: f64,
    /// User CPU-seconds on the largest count before, where listed.
    pub before_user_s: Option<f64>,
    /// The same after.
    pub after_user_s: Option<f64>,
}

/// What one result says of a function.
#[derive(Default)]
struct Cost<'a> {
    fraction: f64,
    seconds: f64,
    place: Option<(&'a str, Option<u32>)>,
}

impl<'a> Cost<'a> {
    fn add(&mut self, site: &'a Site) {
        self.fraction += site.fraction;
        self.seconds += site.seconds;
        let place = site.file.as_deref().map(|file| (file, site.line));
        // Sites come in falling order: the first line is where most is.
        self.place = self.place.or(place);
    }
}

/// By cause and symbol: processes, threads and objects have other numbers in each run.
fn costs(result: &ScaleResult) -> BTreeMap<(&str, &str), Cost<'_>> {
    let mut costs: BTreeMap<_, Cost<'_>> = BTreeMap::new();
    for cause in &result.causes {
        // Where no code is known, the object stands in its place.
        let is_code = |site: &&Site| !site.symbol.is_empty() && site.symbol != site.object;
        for site in cause.sites.iter().filter(is_code) {
            let name = (cause.id.as_str(), site.symbol.as_str());
            costs.entry(name).or_default().add(site);
        }
    }
    costs
}

/// Growth, a fraction of capacity, and user CPU-seconds.
fn growth(result: &ScaleResult) -> BTreeMap<&str, (f64, f64)> {
    let mut growth: BTreeMap<_, (f64, f64)> = BTreeMap::new();
    for entry in &result.profile {
        let sums = growth.entry(entry.symbol.as_str()).or_default();
        sums.0 += entry.extra_work + entry.slow_work;
        sums.1 += entry.user_s;
    }
    growth
}

/// The functions whose cost has changed, largest change first.
pub(super) fn code_changes(before: &ScaleResult, after: &ScaleResult) -> Vec<CodeChange> {
    if !have_one_main(before, after) {
        return Vec::new();
    }
    let pairs = paired(costs(before), costs(after)).into_iter();
    let changes = pairs.map(|((cause, symbol), b, a)| {
        let (b, a) = (b.unwrap_or_default(), a.unwrap_or_default());
        let (file, line) = a.place.or(b.place).unzip();
        CodeChange {
            cause: cause.to_owned(),
            symbol: symbol.to_owned(),
            file: file.map(str::to_owned),
            line: line.flatten(),
            before: b.fraction,
            after: a.fraction,
            change: a.fraction - b.fraction,
            before_s: b.seconds,
            after_s: a.seconds,
        }
    });
    largest(changes, |change| change.change)
}

/// The functions whose growth has changed, largest change first. It is over the smallest CPU count, which has to be the
/// same in both.
pub(super) fn growth_changes(before: &ScaleResult, after: &ScaleResult) -> Vec<GrowthChange> {
    let smallest = |result: &ScaleResult| result.points.first().map(PointId::from);
    let have_growth = before.has_speedup() && after.has_speedup();
    if !have_one_main(before, after) || smallest(before) != smallest(after) || !have_growth {
        return Vec::new();
    }
    let pairs = paired(growth(before), growth(after)).into_iter();
    let changes = pairs.map(|(symbol, b, a)| {
        let (before, after) = (b.map_or(0.0, |b| b.0), a.map_or(0.0, |a| a.0));
        GrowthChange {
            symbol: symbol.to_owned(),
            before,
            after,
            change: after - before,
            before_user_s: b.map(|b| b.1),
            after_user_s: a.map(|a| a.1),
        }
    });
    largest(changes, |change| change.change)
}

/// Both results have looked into runs of the same main point.
fn have_one_main(before: &ScaleResult, after: &ScaleResult) -> bool {
    let main = |result: &ScaleResult| {
        let (_, main) = result.main_point()?;
        (!main.stack.is_empty()).then(|| PointId::from(main))
    };
    main(before).is_some_and(|before| main(after) == Some(before))
}

/// What each side has under a name, in the order of names.
fn paired<K: Ord + Copy, V>(
    before: BTreeMap<K, V>,
    mut after: BTreeMap<K, V>,
) -> Vec<(K, Option<V>, Option<V>)> {
    let mut pairs: Vec<_> = before
        .into_iter()
        .map(|(name, value)| (name, Some(value), after.remove(&name)))
        .collect();
    pairs.extend(
        after
            .into_iter()
            .map(|(name, value)| (name, None, Some(value))),
    );
    pairs
}

fn largest<T>(changes: impl Iterator<Item = T>, change: impl Fn(&T) -> f64) -> Vec<T> {
    let is_worth_telling = |entry: &T| change(entry).abs() >= CHANGE_MIN;
    let mut changes: Vec<T> = changes.filter(is_worth_telling).collect();
    changes.sort_by(|x, y| change(y).abs().total_cmp(&change(x).abs()));
    changes.truncate(CHANGES_MAX);
    changes
}
