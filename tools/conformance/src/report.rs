//! What was found, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::program::Outcome;
use crate::runtime::Runtime;

/// All results of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// What compiled the tests.
    pub compiler: String,
    /// Library of each runtime.
    pub runtimes: BTreeMap<String, String>,
    /// Tests by name.
    pub tests: BTreeMap<String, TestReport>,
}

/// One test.
#[derive(Debug, Default, Serialize)]
pub struct TestReport {
    /// Why it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// By runtime.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub outcomes: BTreeMap<String, Outcome>,
    /// Runtimes with which it failed first, in its time, and passed when it ran alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flaky: Vec<String>,
    /// Runtimes with which its time was up at first, and which passed when it ran alone. A wait that sometimes never ends looks
    /// like that, so that it is a failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<String>,
}

impl TestReport {
    fn is_late(&self, runtime: &str) -> bool {
        self.late.iter().any(|late| late == runtime)
    }

    /// It passed each time, or failed for want of CPUs alone.
    fn is_passed(&self, runtime: &str) -> bool {
        let outcome = self.outcomes.get(runtime);
        outcome.is_some_and(|outcome| outcome.passed) && !self.is_late(runtime)
    }

    /// It is the same with the reference.
    fn is_excused(&self, runtime: &str, reference: Option<&str>) -> bool {
        let reference = reference.filter(|&reference| reference != runtime);
        reference.is_some_and(|reference| {
            self.outcomes.contains_key(reference) && !self.is_passed(reference)
        })
    }
}

impl Report {
    /// Tests that were not run.
    pub fn skipped(&self) -> usize {
        self.tests
            .values()
            .filter(|test| test.skipped.is_some())
            .count()
    }

    fn of<'a>(
        &'a self,
        runtime: &str,
    ) -> impl Iterator<Item = (&'a str, &'a TestReport, &'a Outcome)> {
        self.tests.iter().filter_map(move |(name, test)| {
            Some((name.as_str(), test, test.outcomes.get(runtime)?))
        })
    }

    /// How many tests pass with `runtime`.
    pub fn passed(&self, runtime: &str) -> usize {
        self.of(runtime)
            .filter(|(_, test, _)| test.is_passed(runtime))
            .count()
    }

    /// Names of tests that fail with `runtime`, except those that fail with `reference` too.
    pub fn failed(&self, runtime: &str, reference: Option<&str>) -> Vec<&str> {
        self.of(runtime)
            .filter(|(_, test, _)| !test.is_passed(runtime) && !test.is_excused(runtime, reference))
            .map(|(name, ..)| name)
            .collect()
    }

    /// Tests that pass with some runtimes and fail with others, a line for each.
    pub fn differences(&self) -> String {
        let mut text = String::new();
        for (name, test) in &self.tests {
            let is_passed = |runtime: &&String| test.is_passed(runtime);
            let (passed, failed): (Vec<_>, Vec<_>) = test.outcomes.keys().partition(is_passed);
            if !passed.is_empty() && !failed.is_empty() {
                let names = |runtimes: Vec<&String>| {
                    runtimes
                        .iter()
                        .map(|name| name.as_str())
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                let _ = writeln!(
                    text,
                    "DIFFERENT {name}: passes with {}, fails with {}",
                    names(passed),
                    names(failed)
                );
            }
        }
        text
    }

    /// Those whose time was up at first, a line for each: the end of what a person reads.
    pub fn late(&self, reference: Option<&str>) -> String {
        let mut text = String::new();
        for (name, test) in &self.tests {
            for runtime in &test.late {
                let wall_s = test
                    .outcomes
                    .get(runtime)
                    .map_or(f64::NAN, |outcome| outcome.wall_s);
                let counts = match () {
                    () if Some(runtime.as_str()) == reference => "the reference",
                    () if test.is_excused(runtime, reference) => {
                        "no failure, since it is the same with the reference"
                    }
                    () => "a failure",
                };
                let _ = writeln!(
                    text,
                    "LATE {name} with {runtime}: its time was up at first, {wall_s:.2} s when it ran alone; {counts}"
                );
            }
        }
        text
    }

    /// For a person.
    pub fn text(&self, runtimes: &[Runtime], slowest: usize) -> String {
        let mut text = String::new();
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, test) in &self.tests {
            if let Some(reason) = &test.skipped {
                reasons.entry(reason).or_default().push(name);
            }
        }
        for (reason, names) in &reasons {
            let example = names[0];
            let _ = match names.len() {
                1 => writeln!(text, "SKIPPED {example}: {reason}"),
                count => writeln!(text, "SKIPPED {example} and {} more: {reason}", count - 1),
            };
        }
        for runtime in runtimes {
            let all = || self.of(&runtime.name);
            let passed = self.passed(&runtime.name);
            let wall_s: f64 = all().map(|(.., outcome)| outcome.wall_s).sum();
            let _ = writeln!(
                text,
                "\n{} ({}): {passed} passed, {} failed, {wall_s:.0} s of tests",
                runtime.name,
                runtime.library.display(),
                all().count() - passed,
            );
            for (name, test, outcome) in all() {
                if !outcome.passed {
                    let _ = writeln!(text, "  FAILED {name}: {}", outcome.why);
                } else if test.is_late(&runtime.name) {
                    let _ = writeln!(
                        text,
                        "  FAILED {name}: its time was up at first, though it passed when it ran alone"
                    );
                } else if test.flaky.contains(&runtime.name) {
                    let _ = writeln!(text, "  {name}: failed once, passed when it ran alone");
                }
            }
            let mut times: Vec<_> = all()
                .map(|(name, _, outcome)| (outcome.wall_s, name))
                .collect();
            times.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (wall_s, name) in times.iter().take(slowest) {
                let _ = writeln!(text, "  {wall_s:7.2} s  {name}");
            }
        }
        text
    }
}
