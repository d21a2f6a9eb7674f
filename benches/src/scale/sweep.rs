//! One call of `amdahl scale`, watched from outside.

use std::fs;

use amdahl_report::load::load;
use amdahl_report::schema::{CauseReport, ScaleResult};
use serde::Serialize;

use crate::stage::Stage;

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
pub struct Options {
    /// CPU counts.
    pub cpus: Vec<u32>,
    /// Counted runs per CPU count.
    pub runs: u32,
}

impl Sweep {
    /// Runs the tool with everything that it writes by default; it makes no run that is not in
    /// its result.
    pub fn run(stage: &Stage, options: &Options, workload: &[String]) -> Result<Sweep, String> {
        let folder = stage.scratch().join("result");
        let tool = stage.tool.to_string_lossy();
        let (runs, place) = (options.runs.to_string(), folder.to_string_lossy());
        let cpus: Vec<String> = options.cpus.iter().map(u32::to_string).collect();
        let cpus = cpus.join(",");
        let mut words: Vec<String> = [&*tool, "scale", "--probe", "bpf", "--no-warmup", "-q"]
            .into_iter()
            .chain([
                "--cpus",
                &cpus,
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
        let ended = stage
            .run(&mut stage.unfilled(&words))
            .map_err(|error| error.to_string())?;
        let result = load(&folder).map_err(|error| error.to_string())?;
        fs::remove_dir_all(&folder).map_err(|error| format!("{place}: {error}"))?;
        Ok(Sweep {
            command: words,
            wall_s: ended.wall_s,
            resident_bytes_max: ended.usage.resident_bytes_max,
            result,
        })
    }

    fn share(&self, cause: &str) -> Option<f64> {
        self.result.points.last()?.stack.get(cause).copied()
    }

    /// Share of the capacity of the largest CPU count that others took.
    pub fn stolen(&self) -> Option<f64> {
        self.share("stolen")
    }

    /// Unexplained share of the capacity of the largest CPU count.
    pub fn unexplained(&self) -> Option<f64> {
        self.share("unexplained")
    }

    /// CPU time that the causes do not account for, or account for twice, by the kernel's own
    /// account of the workload: a share of the capacity of the largest CPU count. A tool that
    /// hides what it cannot explain shows here.
    pub fn unaccounted(&self) -> Option<f64> {
        const RUNNING: [&str; 6] = [
            "work",
            "extra-work",
            "slow-work",
            "extra-kernel",
            "page-fault",
            "user-spin",
        ];
        // Spinning or sleeping.
        const EITHER: [&str; 2] = ["kernel-lock", "mmap-lock"];
        let sum = |causes: &[&str]| {
            causes
                .iter()
                .filter_map(|cause| self.share(cause))
                .sum::<f64>()
        };
        let (least, most) = (sum(&RUNNING), sum(&RUNNING) + sum(&EITHER));
        let point = self.result.points.last()?;
        let used = (point.user_s + point.system_s) / point.capacity_s;
        used.is_finite().then(|| used - used.clamp(least, most))
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
