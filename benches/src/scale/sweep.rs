//! One call of `amdahl scale`, watched from outside.

use std::process::Command;

use amdahl_report::load::load;
use amdahl_report::schema::{CauseReport, ScaleResult};
use serde::Serialize;

use super::stage::Stage;
use crate::process::RunError;

/// What the tool says and what it took to say it.
#[derive(Serialize)]
pub struct Sweep {
    /// The tool's command line.
    pub command: Vec<String>,
    /// From the start of the tool to its end.
    pub wall_s: f64,
    /// Largest resident set of the tool. The workload's processes count as well if they are
    /// larger, so that this is an upper bound.
    pub resident_bytes_max: u64,
    /// `result.json`.
    pub result: ScaleResult,
}

/// How to call the tool.
pub struct Options<'a> {
    /// Value for `--cpus`.
    pub cpus: &'a str,
    /// Counted runs per CPU count.
    pub runs: u32,
}

/// Why there is no sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The tool ended badly.
    #[error(transparent)]
    Run(#[from] RunError),
    /// What it wrote cannot be read.
    #[error("{0}")]
    Result(String),
}

impl Sweep {
    /// Runs the tool with everything that it writes by default; it makes no run that is not in
    /// its result.
    pub fn run(
        stage: &Stage,
        options: &Options<'_>,
        workload: &[String],
    ) -> Result<Sweep, SweepError> {
        let folder = stage.scratch().join("result");
        let tool = stage.tool.to_string_lossy();
        let (runs, place) = (options.runs.to_string(), folder.to_string_lossy());
        let mut words: Vec<String> = [&*tool, "scale", "--probe", "bpf", "--no-warmup", "-q"]
            .into_iter()
            .chain([
                "--cpus",
                options.cpus,
                "--runs",
                &runs,
                "--bare-runs",
                "0",
                "-o",
                &place,
                "--",
            ])
            .map(str::to_owned)
            .collect();
        words.extend_from_slice(workload);
        let ended = stage.run(&mut quiet(stage, &words))?;
        let loaded = load(&folder).map_err(|error| SweepError::Result(error.to_string()))?;
        std::fs::remove_dir_all(&folder)
            .map_err(|error| SweepError::Result(format!("{place}: {error}")))?;
        Ok(Sweep {
            command: words,
            wall_s: ended.wall_s,
            resident_bytes_max: ended.usage.resident_bytes_max,
            result: loaded,
        })
    }

    /// Unexplained share of the capacity of the largest CPU count.
    pub fn unexplained(&self) -> Option<f64> {
        self.result.points.last()?.stack.get("unexplained").copied()
    }

    /// Where most of it is, in words.
    pub fn unexplained_most(&self) -> String {
        let is_it = |cause: &&CauseReport| cause.id == "unexplained";
        let cause = self.result.causes.iter().find(is_it);
        match cause.and_then(|cause| cause.sites.first()) {
            Some(site) => format!(
                "; {:.2} % at {} in {}",
                site.fraction * 100.0,
                site.symbol,
                site.process
            ),
            None => String::new(),
        }
    }

    /// Wall times of all runs.
    pub fn runs_s(&self) -> f64 {
        let points = self.result.points.iter();
        points.flat_map(|point| &point.probed_wall_s.runs).sum()
    }

    /// What the tool took besides the runs, in relation to them: start, analysis, names, files.
    pub fn besides_runs(&self) -> Option<f64> {
        let runs_s = self.runs_s();
        (runs_s > 0.0).then(|| (self.wall_s - runs_s) / runs_s)
    }

    /// Analysis of the events alone, as the tool reports it, in relation to the runs.
    pub fn analysis(&self) -> f64 {
        let analysis_s: f64 = self
            .result
            .points
            .iter()
            .map(|point| point.analysis_s)
            .sum();
        analysis_s / self.runs_s().max(f64::MIN_POSITIVE)
    }
}

/// The tool as it is, `{cpus}` for it to replace.
fn quiet(stage: &Stage, words: &[String]) -> Command {
    let mut command = stage.command(&words[0]);
    command.args(&words[1..]);
    command
}
