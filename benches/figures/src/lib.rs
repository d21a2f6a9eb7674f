//! The figures of the benchmarks: what was measured beside what it should be, as a table and as JSON.

mod random;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

pub use random::Random;

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Share of the capacity `cpus x wall`.
    Capacity,
    /// A quotient of two times.
    Ratio,
    /// Mebibytes.
    MiB,
    /// How far two numbers are apart, in relation to the second.
    Difference,
    /// CPU time in relation to time.
    OneCpu,
    /// Nanoseconds.
    Ns,
    /// How many in a second.
    PerSecond,
    /// How many.
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Capacity => "fraction of capacity",
            Unit::Ratio => "ratio",
            Unit::MiB => "MiB",
            Unit::Difference => "relative difference",
            Unit::OneCpu => "fraction of one CPU",
            Unit::Ns => "ns",
            Unit::PerSecond => "1/s",
            Unit::Count => "count",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Unit::Capacity | Unit::Difference | Unit::OneCpu => {
                format!("{:.2} %", value * 100.0)
            }
            Unit::Ratio => format!("{value:.3}"),
            Unit::MiB => format!("{value:.0} MiB"),
            Unit::Ns if value >= 1e6 => format!("{:.2} ms", value / 1e6),
            Unit::Ns if value >= 1e3 => format!("{:.2} us", value / 1e3),
            Unit::Ns => format!("{value:.2} ns"),
            Unit::PerSecond => format!("{:.2} million/s", value / 1e6),
            Unit::Count => format!("{value:.0}"),
        }
    }
}

/// What a number should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Less than this.
    Below(f64),
    /// This or less.
    AtMost(f64),
    /// This or less, or what cannot be told from it: a median whose interval holds the limit, and that is hardly above it.
    NotAbove {
        /// Upper limit.
        limit: f64,
        /// Lower end of the interval of the median.
        low: f64,
        /// How far above the limit the median may still be.
        resolution: f64,
    },
    /// This or more.
    AtLeast(f64),
    /// Nothing is demanded; the number is stated.
    Stated,
}

impl Target {
    fn limit(self) -> Option<f64> {
        match self {
            Target::Below(limit)
            | Target::AtMost(limit)
            | Target::NotAbove { limit, .. }
            | Target::AtLeast(limit) => Some(limit),
            Target::Stated => None,
        }
    }

    /// Whether a number is as it should be.
    pub fn is_reached(self, value: f64) -> bool {
        match self {
            Target::Below(limit) => value < limit,
            Target::AtMost(limit) => value <= limit,
            Target::NotAbove {
                limit,
                low,
                resolution,
            } => value <= limit || (low <= limit && value <= limit + resolution),
            Target::AtLeast(limit) => value >= limit,
            Target::Stated => true,
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Target::Below(limit) => format!("< {}", unit.show(limit)),
            Target::AtMost(limit) | Target::NotAbove { limit, .. } => {
                format!("<= {}", unit.show(limit))
            }
            Target::AtLeast(limit) => format!(">= {}", unit.show(limit)),
            Target::Stated => "stated".to_owned(),
        }
    }
}

/// One row.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What is measured, on what.
    pub name: String,
    /// The measured number, or why there is none.
    pub value: Result<f64, String>,
    /// What the number means.
    pub unit: Unit,
    /// What it should be.
    pub target: Target,
    /// What it was compared with, and how.
    pub versus: String,
}

impl Figure {
    /// Measured, and as it should be.
    pub fn is_ok(&self) -> bool {
        matches!(self.value, Ok(value) if self.target.is_reached(value))
    }

    fn verdict(&self) -> String {
        match &self.value {
            Ok(_) if self.is_ok() => "ok".to_owned(),
            Ok(_) => "short".to_owned(),
            Err(why) => format!("SKIPPED: {why}"),
        }
    }
}

/// The file's form.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    value: Option<f64>,
    unit: &'static str,
    target: Option<f64>,
    ok: bool,
    versus: String,
}

#[derive(Serialize)]
struct Rows<'a> {
    figures: Vec<Row<'a>>,
}

/// Lines of text: a heading, a row for each figure, a closing line.
pub fn table(figures: &[Figure]) -> String {
    let heading = ["name", "value", "target", ""].map(str::to_owned);
    let mut rows = vec![heading];
    rows.extend(figures.iter().map(|figure| {
        let value = figure.value.as_ref();
        [
            figure.name.clone(),
            value.map_or_else(|_| "-".to_owned(), |value| figure.unit.show(*value)),
            figure.target.show(figure.unit),
            figure.verdict(),
        ]
    }));
    let width = |at: usize| rows.iter().map(|row| row[at].width()).max().unwrap_or(0);
    let (name, value, target) = (width(0), width(1), width(2));
    let mut text: String = rows
        .iter()
        .map(|row| {
            let line = format!(
                "{:name$}  {:>value$}  {:>target$}  {}",
                row[0], row[1], row[2], row[3]
            );
            format!("{}\n", line.trim_end())
        })
        .collect();
    let ok = figures.iter().filter(|figure| figure.is_ok()).count();
    let skipped = figures
        .iter()
        .filter(|figure| figure.value.is_err())
        .count();
    let short = figures.len() - ok - skipped;
    text.push_str(&format!("{ok} ok, {short} short, {skipped} SKIPPED\n"));
    text
}

/// Writes the same as JSON.
pub fn write(figures: &[Figure], path: &Path) -> io::Result<()> {
    let rows = Rows {
        figures: figures
            .iter()
            .map(|figure| Row {
                name: &figure.name,
                value: figure.value.as_ref().ok().copied(),
                unit: figure.unit.name(),
                target: figure.target.limit(),
                ok: figure.is_ok(),
                versus: match &figure.value {
                    Ok(_) => figure.versus.clone(),
                    Err(_) => figure.verdict(),
                },
            })
            .collect(),
    };
    let mut text = serde_json::to_string_pretty(&rows)?;
    text.push('\n');
    fs::write(path, text)
}

/// What all benches are told on the command line.
#[derive(clap::Args, Debug)]
pub struct Output {
    /// Folder for the figures as JSON [default: bench/ beside the folder of this program]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Exit with 1 unless all figures are ok
    #[arg(long)]
    strict: bool,
}

impl Output {
    /// Shows the figures and writes them to `AREA.json` in the folder. Whether all are ok.
    ///
    /// # Errors
    /// The folder or the file cannot be written; the figures have been shown then.
    pub fn finish(&self, area: &str, figures: &[Figure]) -> Result<bool, String> {
        print!("{}", table(figures));
        let folder = self.folder()?;
        let failed = |path: &Path, error| format!("{}: {error}", path.display());
        fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
        let table = folder.join(format!("{area}.json"));
        write(figures, &table).map_err(|error| failed(&table, error))?;
        eprintln!("Written to {}", table.display());
        Ok(figures.iter().all(Figure::is_ok))
    }

    /// Where the figures are written to, for what else belongs there.
    ///
    /// # Errors
    /// This program's own place is not known.
    pub fn folder(&self) -> Result<PathBuf, String> {
        match &self.out {
            Some(folder) => Ok(folder.clone()),
            None => default_folder(),
        }
    }

    /// The end of a bench's `main`: fails where it could not measure, and with `--strict` where a figure is short.
    pub fn exit_code(&self, program: &str, all_ok: Result<bool, String>) -> ExitCode {
        match all_ok {
            Ok(all_ok) => ExitCode::from(u8::from(self.strict && !all_ok)),
            Err(why) => {
                eprintln!("{program}: {why}");
                ExitCode::FAILURE
            }
        }
    }
}

/// The middle one of values, of an even number the mean of both; NaN of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Whether a figure is asked for: its name contains one of the words, or there are none.
pub fn is_wanted(words: &[String], name: &str) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}

fn default_folder() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.parent().and_then(Path::parent);
    Ok(target
        .ok_or("this program lies in no folder")?
        .join("bench"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: Result<f64, String>) -> Figure {
        Figure {
            name: "unexplained: sort".to_owned(),
            value,
            unit: Unit::Capacity,
            target: Target::Below(0.05),
            versus: "cpus x wall".to_owned(),
        }
    }

    #[test]
    fn what_was_not_measured_is_listed_and_not_ok() {
        let figures = [
            figure(Ok(0.01)),
            figure(Ok(0.05)),
            figure(Err("no sort".to_owned())),
        ];
        let text = table(&figures);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert!(rows[0].ends_with("1.00 %  < 5.00 %  ok"), "{text}");
        assert!(rows[1].ends_with("short"), "below is not at most: {text}");
        assert!(rows[2].ends_with("-  < 5.00 %  SKIPPED: no sort"), "{text}");
        assert_eq!(rows[3], "1 ok, 1 short, 1 SKIPPED");
    }

    #[test]
    fn what_cannot_be_told_from_the_limit_is_hardly_above_it() {
        let reached = |value, low| {
            let limit = 1.0;
            let resolution = 0.01;
            Target::NotAbove {
                limit,
                low,
                resolution,
            }
            .is_reached(value)
        };
        assert!(reached(0.99, 0.98) && reached(1.005, 0.99));
        assert!(!reached(1.005, 1.001), "that is told apart");
        assert!(!reached(1.02, 0.9), "that was not measured well enough");
    }

    #[test]
    fn the_file_tells_what_the_table_tells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scale.json");
        write(
            &[figure(Ok(0.01)), figure(Err("no sort".to_owned()))],
            &path,
        )
        .unwrap();
        let found: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let expected = serde_json::json!({"figures": [
            {"name": "unexplained: sort", "value": 0.01, "unit": "fraction of capacity",
             "target": 0.05, "ok": true, "versus": "cpus x wall"},
            {"name": "unexplained: sort", "value": null, "unit": "fraction of capacity",
             "target": 0.05, "ok": false, "versus": "SKIPPED: no sort"},
        ]});
        assert_eq!(found, expected);
    }
}
