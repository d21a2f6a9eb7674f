//! `amdahl sim run`.

use std::io::Write;
use std::time::Instant;

use amdahl_des::{Document, HostRow, Limits, Outcome, Simulation, report};
use amdahl_placement::Machine;

use super::{input, plain_lines, runs, trace};
use crate::cli::SimRun;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;
use crate::whole_file::WholeFile;

/// Runs and shows.
pub fn main(args: &SimRun) -> Result<u8, Failure> {
    let workload = input::source(&args.workload)?.workload(&input::set(&args.set)?)?;
    let topology = input::machine(args.machine.as_deref())?;
    let costs = input::costs(args.costs.as_deref())?;
    // A wrong name is told before anything runs.
    for name in &args.policy {
        input::policy(name)?;
    }
    let mut limits = Limits {
        events: args.events,
        ..Limits::default()
    };
    if let Some(limit) = args.limit {
        limits.time = limit.as_nanos() as u64;
    }
    // So is a place where the trace cannot be.
    let trace_file = args.trace.as_deref().map(WholeFile::create).transpose()?;
    let interrupt = Interrupt::catch();
    let count = args.policy.len() * args.runs as usize;
    let made = runs::all(count, args.quiet, &interrupt, |at| {
        let policy = input::policy(&args.policy[at / args.runs as usize])?;
        let slices = if at == 0 && args.trace.is_some() {
            trace::SLICES_MAX
        } else {
            0
        };
        let simulation = Simulation {
            workload: &workload,
            topology: &topology,
            costs: &costs,
            policy: &*policy,
            seed: args.seed.wrapping_add((at % args.runs as usize) as u64),
            limits: Limits { slices, ..limits },
        };
        let begin = Instant::now();
        let outcome = simulation
            .run_until(&mut || interrupt.asked())
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok((outcome, begin.elapsed().as_secs_f64()))
    });
    let made: Vec<(Outcome, f64)> = made.into_iter().flatten().collect::<Result<_, Failure>>()?;
    if let (Some(path), Some(file), Some((outcome, _))) = (&args.trace, trace_file, made.first()) {
        trace::write(file, outcome, &workload, &Machine::new(&topology))?;
        if outcome.is_cut {
            note(
                args,
                &format!("the trace holds the first {} stretches", trace::SLICES_MAX),
            );
        }
        note(args, &format!("wrote {}", path.display()));
    }
    let hosts = made
        .iter()
        .map(|(outcome, wall_s)| HostRow::new(&outcome.result, *wall_s))
        .collect();
    let document = Document::new(
        env!("CARGO_PKG_VERSION"),
        made.into_iter()
            .map(|(outcome, _)| outcome.result)
            .collect(),
        hosts,
    );
    let text = match args.json {
        true => {
            serde_json::to_string_pretty(&document)
                .map_err(|error| Failure::result(error.to_string()))?
                + "\n"
        }
        false => plain_lines(&report(&document)),
    };
    screen::print(&text)?;
    code(&document, &interrupt)
}

fn note(args: &SimRun, text: &str) {
    if !args.quiet {
        // Nobody may be reading.
        let _ = writeln!(anstream::stderr(), "amdahl: {text}");
    }
}

/// As documented: a run that got stuck has failed.
fn code(document: &Document, interrupt: &Interrupt) -> Result<u8, Failure> {
    if interrupt.asked() {
        return Ok(5);
    }
    let failed = document
        .runs
        .iter()
        .filter(|run| !run.is_complete())
        .count();
    Ok(match failed {
        0 => 0,
        _ if failed == document.runs.len() => 3,
        _ => 4,
    })
}
