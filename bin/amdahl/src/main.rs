//! `amdahl`: finds what keeps a program from scaling and says how much each cause costs.

mod child;
mod cli;
mod descriptors;
mod doctor;
mod failure;
mod interrupt;
mod java;
mod knobs;
mod locks;
mod mem;
mod pager;
mod phantom;
mod results;
mod run;
mod scale;
mod sched;
mod scratch;
mod screen;
mod sim;
mod top;
mod watch;
mod whole_file;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if let Some(code) = child::guard::main().or_else(pager::offload_guard) {
        return code;
    }
    let command = cli::Cli::parse().command;
    if command.records() {
        descriptors::allow_many();
    }
    let done = match command {
        cli::Command::Scale(scale) => scale::main(&scale),
        cli::Command::Mem(args) => mem::main(&args),
        cli::Command::Compare(args) => results::compare_main(&args),
        cli::Command::Report(args) => results::report_main(&args),
        cli::Command::Locks(args) => locks::main(&args),
        cli::Command::Sched(args) => sched::main(&args),
        cli::Command::Sim(args) => sim::main(&args),
        cli::Command::Pager(args) => pager::main(&args),
        cli::Command::Phantom(args) => phantom::main(&args),
        cli::Command::Run(args) => run::main(&args),
        cli::Command::Top(args) => top::main(&args),
        cli::Command::Doctor(args) => doctor::main(&args),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // It may quote what the program said. Not eprintln, which panics when nobody reads.
            let harmless = |c: char| {
                if c.is_control() && c != '\n' {
                    '\u{fffd}'
                } else {
                    c
                }
            };
            let message: String = failure.message.chars().map(harmless).collect();
            let _ = writeln!(anstream::stderr(), "amdahl: {message}");
            ExitCode::from(failure.code)
        }
    }
}
