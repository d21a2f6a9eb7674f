//! `amdahl run`: remedies for unmodified programs.
//!
//! `look` finds out what is known (files, environment, machine), `plan` asks each `remedy` what to do
//! about it, and here it is told and done. All that is done is to set variables of the program's
//! environment, and the program takes our place.

mod facts;
mod inherit;
pub mod look;
mod plan;
mod python;
pub mod remedy;
mod runtimes;
mod script;
mod started;

use std::io::Write;
use std::os::unix::process::CommandExt as _;

use crate::cli::Run;
use crate::failure::Failure;

use plan::{Choice, Plan};

/// amdahl itself refuses or fails: as of `env`, `nohup` and `timeout`.
const REFUSED: u8 = 125;
/// The program is there and cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
const NOT_FOUND: u8 = 127;

fn refusal(message: String) -> Failure {
    Failure {
        message,
        code: REFUSED,
    }
}

pub fn main(args: &Run) -> Result<u8, Failure> {
    let choice = Choice {
        with: args.with.iter().cloned().collect(),
        without: args.without.iter().cloned().collect(),
    };
    let facts = look::facts(args, &choice)?;
    if let Some(why) = &facts.program.privileged {
        return Err(refusal(format!(
            "{}: {why}. The loader takes no library from the environment of such a program, and \
             nothing is tried around that; run it without amdahl, or a copy of it without the rights",
            facts.program.path.display()
        )));
    }
    let plan = Plan::new(&facts, &choice);
    if args.dry_run {
        let text = if args.json {
            let json = serde_json::to_string_pretty(&plan).expect("a plan is JSON");
            format!("{json}\n")
        } else {
            plan.text()
        };
        return match anstream::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(refusal(format!("standard output: {error}")))
            }
            _ => Ok(0),
        };
    }
    if let Some(verdict) = plan.refused(&choice) {
        return Err(refusal(format!(
            "{} was asked for and is impossible: {}",
            verdict.remedy, verdict.why
        )));
    }
    if args.explain {
        for line in plan.text().lines() {
            say(line);
        }
    } else if !args.quiet {
        say(&plan.line());
    }
    let failed = become_program(&facts.program.path, args, &plan);
    let code = match failed.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    Err(Failure {
        message: format!("cannot run {}: {failed}", facts.program.path.display()),
        code,
    })
}

/// A line on standard error, which may be closed. Names of files may have control characters.
fn say(line: &str) {
    let line: String = line
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    let _ = writeln!(anstream::stderr(), "amdahl run: {line}");
}

/// Does not return where it works.
fn become_program(path: &std::path::Path, args: &Run, plan: &Plan) -> std::io::Error {
    let mut command = std::process::Command::new(path);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    for change in plan.changes() {
        command.env(&change.variable, &change.value);
    }
    inherit::exec(&mut command)
}
