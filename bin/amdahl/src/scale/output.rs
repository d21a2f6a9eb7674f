//! The result folder and what is printed.

use std::io::Write;
use std::path::{Path, PathBuf};

use amdahl_report::samples::SAMPLES_FILE;
use amdahl_report::schema::{ScaleResult, Slice};
use amdahl_report::{html, save, terminal, trace};

use super::Sweep;
use super::summary::Summary;
use crate::cli::Scale;
use crate::failure::Failure;
use crate::screen;

/// Where the results go.
pub struct Target {
    folder: Option<save::Folder>,
}

fn program(scale: &Scale) -> String {
    let name = scale.command.first().map_or("pid", String::as_str);
    let name = name.rsplit('/').next().unwrap_or(name);
    name.chars()
        .map(|c| {
            if c.is_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

impl Target {
    /// Decided, and tried, before anything is measured: a run of an hour must not end in
    /// "permission denied".
    pub fn new(scale: &Scale) -> Result<Target, Failure> {
        if scale.no_output || (scale.json && scale.output.is_none()) {
            return Ok(Target { folder: None });
        }
        let folder = scale
            .output
            .clone()
            .unwrap_or_else(|| format!("amdahl-{}", program(scale)).into());
        let folder = save::Folder::create(&folder).map_err(|error| {
            Failure::result(format!(
                "{error} (another folder: --output FOLDER; none: --no-output)"
            ))
        })?;
        Ok(Target {
            folder: Some(folder),
        })
    }

    /// Writes all files. Returns the folder.
    pub fn write(self, summary: &Summary, sweep: &Sweep) -> Result<Option<PathBuf>, Failure> {
        let Some(folder) = self.folder else {
            return Ok(None);
        };
        let destination = folder.destination().to_owned();
        let failed = |error: save::SaveError| Failure::result(error.to_string());
        folder.result(&summary.result).map_err(failed)?;
        let page = html::render(&summary.result, &summary.rows);
        folder
            .write(html::REPORT_FILE, page.as_bytes())
            .map_err(failed)?;
        let rows = summary.rows.iter().cloned();
        folder.samples(rows).map_err(failed)?;
        let (slices, names) = slices(summary, sweep);
        let file = folder.file(trace::TRACE_FILE).map_err(failed)?;
        trace::write(slices, &names, file)
            .and_then(|mut file| file.flush())
            .map_err(|error| failed(folder.write_error(trace::TRACE_FILE, error)))?;
        folder.commit().map_err(failed)?;
        Ok(Some(destination))
    }
}

fn slices(summary: &Summary, sweep: &Sweep) -> (Vec<Slice>, trace::Names) {
    let mut names = trace::Names::default();
    let Some((point, run)) = summary.shown else {
        return (Vec::new(), names);
    };
    let run = &sweep.points[point].probed[run];
    let threads = &run.decoded.threads;
    let mut slices = Vec::with_capacity(run.partition.stretches.len());
    for stretch in &run.partition.stretches {
        let pid = run
            .partition
            .processes
            .get(&stretch.tid)
            .copied()
            .unwrap_or(0);
        let name = |tid| threads.get(&tid).map(|thread| thread.name.clone());
        let label = match (stretch.cpu, stretch.tid) {
            (Some(_), 0) => continue,
            (Some(_), tid) => name(tid)
                .or_else(|| {
                    run.decoded
                        .others
                        .get(&tid)
                        .map(|other| format!("({other})"))
                })
                .unwrap_or_else(|| tid.to_string()),
            (None, _) => match stretch.cause {
                Some(cause) => cause.id().to_owned(),
                None => "futex".to_owned(),
            },
        };
        if pid != 0
            && let (Some(thread), Some(process)) = (name(stretch.tid), name(pid))
        {
            names.threads.insert((pid, stretch.tid), thread);
            names.processes.insert(pid, process);
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
pub fn show(scale: &Scale, result: &ScaleResult, folder: Option<&Path>) -> Result<(), Failure> {
    let text = if scale.json {
        serde_json::to_string_pretty(result).expect("plain data") + "\n"
    } else {
        let mut text = terminal::render(result, screen::width(), screen::style());
        if let Some(folder) = folder {
            text += &format!(
                "\nWritten to {}/: result.json, report.html, {SAMPLES_FILE}, {}\n",
                folder.display(),
                trace::TRACE_FILE
            );
        }
        text
    };
    screen::print(&text).map(drop)
}
