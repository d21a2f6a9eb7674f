//! The table of expected against found: aligned text, Markdown and JSON.

use std::fmt::Write;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::check::{Comparison, Judgement, NamedBy, percent};

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// One case with all its tries.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub case: String,
    pub lang: String,
    pub cause: String,
    pub note: String,
    pub verdict: Verdict,
    /// Why it was skipped, or why there is no result.
    pub reason: Option<String>,
    /// The last one counts.
    pub tries: Vec<Judgement>,
}

impl Entry {
    /// Adds what came of measuring it once more, which counts.
    pub fn again(&mut self, later: Entry) {
        if let Some(last) = self.tries.last_mut() {
            let failures = || last.failures.join("; ");
            last.noise = last.noise.take().or_else(|| Some(failures()));
        }
        self.tries.extend(later.tries);
        (self.verdict, self.reason) = (later.verdict, later.reason);
    }
}

/// Everything.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    pub amdahl_version: String,
    pub kernel: String,
    pub cpu_model: String,
    pub topology: String,
    /// When the first case began, RFC 3339.
    pub started: String,
    pub runs: u32,
    pub probe: String,
    /// The tool was run as an unprivileged user.
    pub is_unprivileged: bool,
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub cases: Vec<Entry>,
}

const HEAD: [&str; 10] = [
    "case",
    "language",
    "cause expected",
    "found",
    "size computed",
    "size measured",
    "size found",
    "function found",
    "unexplained",
    "verdict",
];

impl Table {
    /// Adds a case.
    pub fn push(&mut self, entry: Entry) {
        match entry.verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed => self.failed += 1,
            Verdict::Skipped => self.skipped += 1,
        }
        self.cases.push(entry);
    }

    /// `N passed, N failed, N skipped`.
    pub fn closing_line(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        let rows = self.rows();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| &*row[column]).chain([HEAD[column]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(HEAD.map(str::to_owned)).chain(rows) {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for (case, why) in self.reasons() {
            let _ = writeln!(text, "{case}: {why}");
        }
        text
    }

    /// For a file that people read.
    pub fn markdown(&self) -> String {
        let escape = |text: &str| text.replace('|', "\\|");
        let mut text = String::from("# Planted causes: expected against found\n\n");
        let user = if self.is_unprivileged {
            ", as an unprivileged user"
        } else {
            ""
        };
        let _ = write!(
            text,
            "amdahl {}, `--probe {}`{user}, runs per CPU count: {}, {}\n\nLinux {}, {}, {}\n\n\
             Sizes are fractions of the capacity of 2 CPUs: computed from the program's shape, measured by \
             the program itself, found by the tool.\n\n",
            self.amdahl_version,
            self.probe,
            self.runs,
            self.started,
            self.kernel,
            self.cpu_model,
            self.topology,
        );
        let _ = writeln!(text, "| {} |", HEAD.join(" | "));
        let _ = writeln!(text, "|{}", " --- |".repeat(HEAD.len()));
        for row in self.rows() {
            let _ = writeln!(text, "| {} |", row.map(|cell| escape(&cell)).join(" | "));
        }
        text.push('\n');
        for (case, why) in self.reasons() {
            let _ = writeln!(text, "- `{case}`: {}", escape(&why));
        }
        let _ = writeln!(text, "\n{}", self.closing_line());
        text
    }

    /// Writes `NAME.md` and `NAME.json`.
    pub fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(format!("{name}.md")), self.markdown())?;
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(folder.join(format!("{name}.json")), json + "\n")
    }

    fn rows(&self) -> Vec<[String; 10]> {
        self.cases.iter().flat_map(Entry::rows).collect()
    }

    fn reasons(&self) -> Vec<(&str, String)> {
        self.cases.iter().flat_map(Entry::reasons).collect()
    }
}

impl Entry {
    /// How many tries were followed by another one, which may have had no result.
    fn repeated(&self) -> usize {
        if self.reason.is_some() {
            self.tries.len()
        } else {
            self.tries.len().saturating_sub(1)
        }
    }

    fn rows(&self) -> Vec<[String; 10]> {
        let verdict = match self.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "SKIPPED",
        };
        let mut rows = Vec::new();
        for (at, judgement) in self.tries.iter().enumerate() {
            let verdict = match &judgement.noise {
                Some(noise) if at < self.repeated() => format!("again: {noise}"),
                _ => verdict.to_owned(),
            };
            for (place, comparison) in judgement.comparisons.iter().enumerate() {
                let [mut name, mut lang] = [self.case.clone(), self.lang.clone()];
                let [mut unexplained, mut verdict] =
                    [percent(judgement.unexplained), verdict.clone()];
                if place > 0 {
                    // The second cause of the same try.
                    [name, lang, unexplained, verdict] = std::array::from_fn(|_| String::new());
                }
                let [expected, found, computed, measured, size, function] = cells(comparison);
                rows.push([
                    name,
                    lang,
                    expected,
                    found,
                    computed,
                    measured,
                    size,
                    function,
                    unexplained,
                    verdict,
                ]);
            }
        }
        // A try that got no further than its shape, or none at all.
        let is_shown = self
            .tries
            .last()
            .is_some_and(|last| !last.comparisons.is_empty());
        if !is_shown || self.reason.is_some() {
            let mut row: [String; 10] = std::array::from_fn(|_| "-".to_owned());
            row[..3].clone_from_slice(&[self.case.clone(), self.lang.clone(), self.cause.clone()]);
            row[9] = verdict.to_owned();
            rows.push(row);
        }
        rows
    }

    fn reasons(&self) -> Vec<(&str, String)> {
        let mut all = Vec::new();
        let disturbed = self.tries.iter().take(self.repeated());
        for judgement in disturbed {
            all.push((
                &*self.case,
                format!("earlier try: {}", judgement.failures.join("; ")),
            ));
        }
        let last = self.tries.last().map_or(&[][..], |last| &last.failures);
        if let (None, [_, ..]) = (&self.reason, last) {
            all.push((&*self.case, last.join("; ")));
        }
        all.extend(
            self.reason
                .iter()
                .map(|reason| (&*self.case, reason.clone())),
        );
        all
    }
}

fn cells(comparison: &Comparison) -> [String; 6] {
    let size = |size: Option<f64>| size.map_or_else(|| "-".to_owned(), percent);
    let function = match (&comparison.function_found, comparison.function_by) {
        (Some(function), Some(NamedBy::Stack)) => format!("{function} (in the stack)"),
        (Some(function), _) => function.clone(),
        _ if comparison.functions_expected.is_empty() => "-".to_owned(),
        _ => "none".to_owned(),
    };
    [
        comparison.cause_expected.clone(),
        comparison
            .cause_found
            .clone()
            .unwrap_or_else(|| "-".to_owned()),
        size(comparison.size_computed),
        size(comparison.size_measured),
        size(comparison.size_found),
        function,
    ]
}
