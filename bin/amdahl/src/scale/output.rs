//! The result folder and what is printed.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use amdahl_report::schema::{ScaleResult, Slice};
use amdahl_report::terminal::{self, Style};
use amdahl_report::{html, samples, save, trace};

use super::Sweep;
use super::summary::Summary;
use crate::cli::Scale;
use crate::failure::Failure;

const SAMPLES_FILE: &str = "samples.parquet";

/// Where the results go.
pub struct Target {
    folder: Option<save::Folder>,
}

fn program(scale: &Scale) -> String {
    let name = scale.command.first().map_or("pid", String::as_str);
    let name = name.rsplit('/').next().unwrap_or(name);
    name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

impl Target {
    /// Decided, and tried, before anything is measured: a run of an hour must not end in
    /// "permission denied".
    pub fn new(scale: &Scale) -> Result<Target, Failure> {
        if scale.no_output || (scale.json && scale.output.is_none()) {
            return Ok(Target { folder: None });
        }
        let folder = scale.output.clone().unwrap_or_else(|| format!("amdahl-{}", program(scale)).into());
        let folder = save::Folder::create(&folder).map_err(|error| {
            Failure::result(format!("{error} (another folder: --output FOLDER; none: --no-output)"))
        })?;
        Ok(Target { folder: Some(folder) })
    }

    /// Writes all files. Returns the folder.
    pub fn write(self, summary: &Summary, sweep: &Sweep) -> Result<Option<PathBuf>, Failure> {
        let Some(folder) = self.folder else { return Ok(None) };
        let destination = folder.destination().to_owned();
        let failed = |error: save::SaveError| Failure::result(error.to_string());
        folder.result(&summary.result).map_err(failed)?;
        let page = html::render(&summary.result, &summary.rows);
        folder.write(html::REPORT_FILE, page.as_bytes()).map_err(failed)?;
        let write_error = |name: &'static str| {
            let folder = &folder;
            move |error| failed(folder.write_error(name, error))
        };
        let file = folder.file(SAMPLES_FILE).map_err(failed)?;
        samples::write(summary.rows.iter().cloned(), file)
            .map_err(std::io::Error::other)
            .and_then(|mut file| file.flush())
            .map_err(write_error(SAMPLES_FILE))?;
        let (slices, names) = slices(summary, sweep);
        let file = folder.file(trace::TRACE_FILE).map_err(failed)?;
        trace::write(slices, &names, file)
            .and_then(|mut file| file.flush())
            .map_err(write_error(trace::TRACE_FILE))?;
        folder.commit().map_err(failed)?;
        Ok(Some(destination))
    }
}

fn slices(summary: &Summary, sweep: &Sweep) -> (Vec<Slice>, trace::Names) {
    let mut names = trace::Names::default();
    let Some((point, run)) = summary.shown else { return (Vec::new(), names) };
    let run = &sweep.points[point].probed[run];
    let threads = &run.decoded.threads;
    let mut slices = Vec::with_capacity(run.partition.stretches.len());
    for stretch in &run.partition.stretches {
        let pid = run.partition.processes.get(&stretch.tid).copied().unwrap_or(0);
        let name = |tid| threads.get(&tid).map(|thread| thread.name.clone());
        let label = match (stretch.cpu, stretch.tid) {
            (Some(_), 0) => continue,
            (Some(_), tid) => name(tid)
                .or_else(|| run.decoded.others.get(&tid).map(|other| format!("({other})")))
                .unwrap_or_else(|| tid.to_string()),
            (None, _) => match stretch.cause {
                Some(cause) => cause.id().to_owned(),
                None => "futex".to_owned(),
            },
        };
        if pid != 0 {
            if let (Some(thread), Some(process)) = (name(stretch.tid), name(pid)) {
                names.threads.insert((pid, stretch.tid), thread);
                names.processes.insert(pid, process);
            }
        }
        slices.push(Slice {
            cpu: stretch.cpu,
            pid,
            tid: stretch.tid,
            start_ns: stretch.from.saturating_sub(run.partition.from),
            len_ns: stretch.to - stretch.from,
            label,
        });
    }
    (slices, names)
}

/// Prints the report, or `result.json`.
pub fn show(scale: &Scale, result: &ScaleResult, folder: Option<&Path>) {
    let mut out = anstream::stdout().lock();
    if scale.json {
        let text = serde_json::to_string_pretty(result).expect("plain data");
        let _ = writeln!(out, "{text}");
        return;
    }
    let _ = write!(out, "{}", terminal::render(result, width(), style()));
    if let Some(folder) = folder {
        let _ = writeln!(out, "\nWritten to {0}/: result.json, report.html, samples.parquet, trace.json.gz", folder.display());
    }
}

/// Columns of the terminal.
pub fn width() -> usize {
    terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0)).clamp(40, 200)
}

/// Colour only on a terminal and without NO_COLOR.
pub fn style() -> Style {
    let color = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default();
    let unicode = locale.to_ascii_lowercase().replace('-', "").contains("utf8");
    Style { color, unicode }
}
