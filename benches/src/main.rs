//! `amdahl-bench`: measures the figures that the tool promises, on real programs.

mod inputs;
mod postgres;
mod process;
mod programs;
mod replay;
mod rounds;
mod scale;
mod spread;
mod stage;
mod timed;
mod views;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures the figures that the tool promises, on real programs.
#[derive(Parser)]
#[command(name = "amdahl-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What `amdahl scale` explains and what it costs
    Scale(scale::Arguments),
    /// What the deep views cost, and whether they are true
    Views(views::Arguments),
    /// Hours of a large machine, made up, through what a view does with them
    #[command(hide = true)]
    Replay(replay::Arguments),
    /// Run a command and append its times to a file
    #[command(hide = true)]
    Time(timed::Arguments),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Scale(arguments) => scale::main(&arguments),
        Command::Views(arguments) => views::main(&arguments),
        Command::Replay(arguments) => replay::main(&arguments),
        Command::Time(arguments) => timed::main(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("amdahl-bench: {why}");
            ExitCode::FAILURE
        }
    }
}
