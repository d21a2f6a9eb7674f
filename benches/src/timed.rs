//! `amdahl-bench time`: the clock that every measured run carries inside, whatever measures it
//! from outside, so that no tool's own start and end count.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::process::{Usage, end_with_parent, reap};

/// Flags of `amdahl-bench time`.
#[derive(clap::Args)]
pub struct Arguments {
    /// File that gets a line of JSON
    #[arg(long)]
    to: PathBuf,
    /// Command to run
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// What one run took.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Timed {
    /// From its start to its end.
    pub wall_s: f64,
    /// User CPU seconds of it and its waited-for descendants.
    pub user_s: f64,
    /// Kernel CPU seconds of the same.
    pub system_s: f64,
}

/// Runs the command; exits as it does.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let (program, rest) = arguments.command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    end_with_parent(&mut command);
    let begun = Instant::now();
    let child = command
        .spawn()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let failed = |error| format!("cannot wait for {program}: {error}");
    let (
        status,
        Usage {
            user_s, system_s, ..
        },
    ) = reap(child).map_err(failed)?;
    let timed = Timed {
        wall_s: begun.elapsed().as_secs_f64(),
        user_s,
        system_s,
    };
    let line = serde_json::to_string(&timed).map_err(|error| error.to_string())?;
    File::options()
        .create(true)
        .append(true)
        .open(&arguments.to)
        .and_then(|mut file| writeln!(file, "{line}"))
        .map_err(|error| format!("cannot write {}: {error}", arguments.to.display()))?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Reads the only line of `file` and removes it.
pub fn take(file: &Path) -> Result<Timed, String> {
    let failed = |error: &dyn std::fmt::Display| format!("times in {}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    fs::remove_file(file).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}
