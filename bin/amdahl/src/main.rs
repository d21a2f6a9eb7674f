//! `amdahl`: finds what keeps a program from scaling and says how much each cause costs.

mod cli;
mod failure;
mod scale;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let done = match cli::Cli::parse().command {
        cli::Command::Scale(scale) => scale::main(&scale),
        _ => todo!(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            anstream::eprintln!("amdahl: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
