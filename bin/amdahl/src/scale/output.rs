//! The result folder and what is printed.

use std::io::Write;
use std::path::{Path, PathBuf};

use amdahl_report::samples::SAMPLES_FILE;
use amdahl_report::schema::{Notice, ScaleResult, Slice};
use amdahl_report::{html, save, terminal, trace};
use amdahl_speedup::partition::Stretch;

use super::run::Probed;
use super::summary::Summary;
use super::{STRETCHES_MAX, Sweep};
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

    /// There is a folder.
    pub fn writes(&self) -> bool {
        self.folder.is_some()
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

/// The run that the trace shows.
fn shown<'a>(summary: &Summary, sweep: &'a Sweep) -> Option<&'a Probed> {
    let (point, run) = summary.shown?;
    Some(&sweep.points[point].probed[run])
}

/// Idle CPUs are not drawn.
fn is_drawn(stretch: &Stretch) -> bool {
    stretch.cpu.is_none() || stretch.tid != 0
}

fn slices(summary: &Summary, sweep: &Sweep) -> (Vec<Slice>, trace::Names) {
    let mut names = trace::Names::default();
    let Some(run) = shown(summary, sweep) else {
        return (Vec::new(), names);
    };
    if run.seen.is_some() {
        names.cpus = polled(run);
    }
    let threads = &run.decoded.threads;
    let mut slices = Vec::with_capacity(run.partition.stretches.len());
    for stretch in run.partition.stretches.iter().filter(|s| is_drawn(s)) {
        let tid = stretch.tid;
        let name = |tid| threads.get(&tid).map(|thread| thread.name.clone());
        let other = run.decoded.others.get(&tid);
        let pid = match run.partition.processes.get(&tid) {
            Some(&pid) => pid,
            // A wait is one of the workload, if need be of a process of its own.
            None if stretch.cpu.is_none() => tid,
            None => 0,
        };
        let label = match (stretch.cpu, stretch.cause) {
            (Some(_), _) => name(tid)
                .or_else(|| other.map(|other| format!("({other})")))
                .unwrap_or_else(|| tid.to_string()),
            (None, Some(cause)) => cause.id().to_owned(),
            (None, None) => "futex".to_owned(),
        };
        if pid != 0 {
            let named = |tid: u32| name(tid).unwrap_or_else(|| tid.to_string());
            names
                .threads
                .entry((pid, tid))
                .or_insert_with(|| named(tid));
            names.processes.entry(pid).or_insert_with(|| named(pid));
        }
        slices.push(Slice {
            cpu: stretch.cpu,
            pid,
            tid,
            start_ns: stretch.from.saturating_sub(run.partition.from),
            len_ns: stretch.to - stretch.from,
            label,
        });
    }
    (slices, names)
}

/// How fine a polled trace is.
fn polled(run: &Probed) -> String {
    let wall = run.partition.to.saturating_sub(run.partition.from);
    let apart = wall as f64 * 1e-6 / run.partition.events.max(1) as f64;
    format!("CPUs (what took most of the time between polls, {apart:.1} ms apart)")
}

/// What somebody who opens the trace must know.
pub fn told_of_the_trace(summary: &Summary, sweep: &Sweep) -> Option<Notice> {
    let notice = |code: &str, text: String| Notice {
        code: code.to_owned(),
        text,
    };
    let file = trace::TRACE_FILE;
    let Some(run) = shown(summary, sweep) else {
        let text = format!("{file} is empty: no recorded run came to its end.");
        return Some(notice("trace-empty", text));
    };
    let partition = &run.partition;
    if !partition.stretches.iter().any(is_drawn) {
        let text = format!(
            "{file} is empty: the run was over before anything of it was seen. Give the program more work."
        );
        return Some(notice("trace-empty", text));
    }
    let until = partition.stretches_until?;
    let wall = partition.to.saturating_sub(partition.from).max(1);
    let share = until.saturating_sub(partition.from) as f64 / wall as f64 * run.cut;
    // Rounded down: all of it would not be worth a word.
    let percent = (share.min(1.0) * 1000.0).floor() / 10.0;
    let text = format!(
        "{file} shows the first {percent:.1} % of the run: it has {STRETCHES_MAX} stretches at most. amdahl sched record \
         keeps the whole of a run."
    );
    Some(notice("trace-cut", text))
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
