//! `amdahl sim`: workloads on machines that nobody here has.

mod calibrate;
mod costs;
mod input;
mod points;
mod policies;
mod recorded;
mod run;
mod runs;
mod slurm;
mod sweep;
mod trace;

use crate::cli::{Sim, SimCommand};
use crate::failure::Failure;

/// Runs, sweeps, measures costs, or lists policies or costs.
pub fn main(sim: &Sim) -> Result<u8, Failure> {
    match &sim.command {
        SimCommand::Run(args) => run::main(args),
        SimCommand::Sweep(args) => sweep::main(args),
        SimCommand::Calibrate(args) => calibrate::main(args),
        SimCommand::Policies(args) => policies::main(args),
        SimCommand::Costs(args) => costs::main(args),
    }
}

/// Names in workloads and recordings are foreign: nothing in them steers the terminal.
fn plain_lines(text: &str) -> String {
    text.split('\n')
        .map(amdahl_report::plain::plain)
        .collect::<Vec<_>>()
        .join("\n")
}
