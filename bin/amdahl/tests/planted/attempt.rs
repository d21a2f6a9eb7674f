//! Runs the tool on one planted program and collects what both of them say.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use amdahl_report::load::load;
use amdahl_report::schema::ScaleResult;
use amdahl_sched::proc;
use tempfile::TempDir;

use crate::cases::{Case, Line};
use crate::check::CPUS;
use crate::processes;
use crate::stage::{NOBODY, Stage};

/// A case that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// What a wrapper exits with where it cannot do its part.
const CANNOT: i32 = 77;
/// What the tool exits with where the machine does not let it measure.
const NOT_ALLOWED: i32 = 6;

/// How a case is run.
#[derive(Debug)]
pub struct Settings {
    /// Folder of `cases.toml`.
    pub source: PathBuf,
    /// Counted runs per CPU count.
    pub runs: u32,
    /// Value for `--probe`.
    pub probe: String,
    /// CPU that the largest point uses last.
    pub last_cpu: u32,
}

/// What came of it.
#[derive(Debug)]
pub enum Attempt {
    /// The tool's result, the program's own account, and the seconds that the hypervisor took from all CPUs meanwhile.
    Measured(Box<ScaleResult>, Vec<Line>, f64),
    /// It cannot be done here, and why.
    Skipped(String),
    /// There is no result, and why.
    Failed(String),
}

/// Runs the case once.
pub fn run(case: &Case, settings: &Settings, stage: &Stage) -> Attempt {
    let attempt = run_in(case, settings, stage);
    let ended = processes::end_left_behind();
    match (attempt, ended) {
        (Ok(attempt), Ok(())) => attempt,
        (Err(why), _) => Attempt::Failed(why),
        (_, Err(error)) => Attempt::Failed(format!("cannot end what it left behind: {error}")),
    }
}

fn run_in(case: &Case, settings: &Settings, stage: &Stage) -> Result<Attempt, String> {
    let scratch = stage
        .scratch()
        .map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    if case.needs_disk {
        // What was written before, by a compiler for example, must not be on the way to the disk.
        rustix::fs::sync();
    }
    let fill = |text: &str| {
        text.replace("{bin}", &stage.planted.join(case.bin()).to_string_lossy())
            .replace("{tool}", &stage.tool.to_string_lossy())
            .replace("{planted}", &stage.planted.to_string_lossy())
            .replace("{source}", &settings.source.to_string_lossy())
            .replace("{last_cpu}", &settings.last_cpu.to_string())
    };
    let mut stranger = case
        .beside
        .as_deref()
        .map(|line| start_beside(&fill(line)))
        .transpose()?;
    let ran = run_tool(case, settings, stage, &scratch, fill);
    if let Some(stranger) = &mut stranger {
        let failed = |error| format!("the program beside it: {error}");
        if let Some(status) = stranger.try_wait().map_err(failed)? {
            return Err(format!("the program beside it ended by itself: {status}"));
        }
        stranger.kill().map_err(failed)?;
        stranger.wait().map_err(failed)?;
    }
    ran
}

fn start_beside(line: &str) -> Result<std::process::Child, String> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command beside it")?;
    Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start {program}: {error}"))
}

fn run_tool(
    case: &Case,
    settings: &Settings,
    stage: &Stage,
    scratch: &TempDir,
    fill: impl Fn(&str) -> String,
) -> Result<Attempt, String> {
    let result_path = scratch.path().join("result.json");
    let said_path = scratch.path().join("said.jsonl");
    let errors_path = scratch.path().join("errors.txt");
    let mut words: Vec<String> = case.around.iter().map(|word| fill(word)).collect();
    words.extend(scale_command(settings, stage, &CPUS, settings.runs));
    words.extend(case.command.iter().map(|word| fill(word)));
    let create = |path: &Path| {
        File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    let taken_before = taken_s();
    let mut tool = Command::new(&words[0])
        .args(&words[1..])
        .envs(&case.env)
        .env("PLANTED_OUT", &said_path)
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .stdout(create(&result_path)?)
        .stderr(create(&errors_path)?)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", words[0]))?;
    let failed = |error| format!("cannot wait for the tool: {error}");
    let Some(status) = processes::wait(&mut tool, LIMIT).map_err(failed)? else {
        processes::end(&mut tool, !case.around.is_empty()).map_err(failed)?;
        return Ok(Attempt::Failed(format!(
            "took more than {} s",
            LIMIT.as_secs()
        )));
    };
    let taken = taken_s() - taken_before;
    let errors = std::fs::read_to_string(&errors_path).unwrap_or_default();
    let last = errors
        .trim_end()
        .lines()
        .last()
        .unwrap_or("nothing on standard error")
        .to_owned();
    if status.code() == Some(CANNOT) && !case.around.is_empty() {
        return Ok(Attempt::Skipped(
            last.trim_start_matches("SKIPPED: ").to_owned(),
        ));
    }
    // Where single runs failed there is a result nevertheless, which says so.
    let result = match load(&result_path) {
        Ok(result) => result,
        Err(_) if !status.success() => return Ok(Attempt::Failed(format!("{status}: {last}"))),
        Err(error) => return Ok(Attempt::Failed(error.to_string())),
    };
    if !status.success() && result.failures.is_empty() && !result.partial {
        return Ok(Attempt::Failed(format!(
            "{status} though the result tells of no failure: {last}"
        )));
    }
    let said = std::fs::read_to_string(&said_path).unwrap_or_default();
    let lines = said
        .lines()
        .map(serde_json::from_str::<Line>)
        .collect::<Result<Vec<_>, _>>();
    let lines =
        lines.map_err(|error| format!("what the program said of itself: {error}: {said}"))?;
    Ok(Attempt::Measured(Box::new(result), lines, taken))
}

/// CPU time that the hypervisor has taken from all CPUs so far, in seconds; 0 where the kernel does not count it.
fn taken_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    proc::stolen_s(&stat, rustix::param::clock_ticks_per_second())
}

/// The tool and its arguments up to the command to measure, as another user where asked for.
fn scale_command(settings: &Settings, stage: &Stage, cpus: &[u32], runs: u32) -> Vec<String> {
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let mut words = Vec::new();
    if stage.drops_privileges() {
        let nobody = NOBODY.to_string();
        words.extend(
            [
                "setpriv",
                "--reuid",
                &nobody,
                "--regid",
                &nobody,
                "--clear-groups",
            ]
            .map(str::to_owned),
        );
    }
    words.push(stage.tool.to_string_lossy().into_owned());
    words.extend(["scale", "--json", "--no-warmup", "-q", "--bare-runs", "0"].map(str::to_owned));
    words.extend([
        "--runs".to_owned(),
        runs.to_string(),
        "--cpus".to_owned(),
        cpus.join(","),
    ]);
    words.extend([
        "--probe".to_owned(),
        settings.probe.clone(),
        "--".to_owned(),
    ]);
    words
}

/// Whether the tool can measure here at all. The inner error says why the machine does not let it;
/// any other failure is one of the tool's own.
pub fn rehearse(settings: &Settings, stage: &Stage) -> Result<Result<(), String>, String> {
    let words = scale_command(settings, stage, &[1], 1);
    let output = Command::new(&words[0])
        .args(&words[1..])
        .arg("true")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start {}: {error}", words[0]))?;
    let errors = String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned();
    match output.status.code() {
        Some(0) => Ok(Ok(())),
        Some(NOT_ALLOWED) => Ok(Err(errors)),
        // setpriv's: the folders above are closed to others.
        Some(126 | 127) if stage.drops_privileges() => Ok(Err(errors)),
        _ => Err(format!("{}: {}: {errors}", words.join(" "), output.status)),
    }
}
