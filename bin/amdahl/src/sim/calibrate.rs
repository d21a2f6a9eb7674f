//! `amdahl sim calibrate`: what things cost on this machine.

mod measure;
mod solve;

use std::io::Write;
use std::time::Duration;

use amdahl_des::Costs;
use amdahl_placement::{Distance, Machine};
use amdahl_topology::{CpuSet, Topology, allowed};

use crate::cli::SimCalibrate;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;
use measure::Bench;
use solve::{Measured, Woken, solve};

/// What is measured by itself where the machine has it: other hardware threads, caches and nodes. The rest is assumed.
pub const MEASURED: [&str; 22] = [
    "copy_kib",
    "deep_idle_exit",
    "exit",
    "fault",
    "idle_exit",
    "interrupt",
    "ipi",
    "line.core",
    "line.llc",
    "line.node",
    "line.remote",
    "line.same",
    "migration.core",
    "migration.llc",
    "migration.node",
    "migration.remote",
    "pipe",
    "smt_permille",
    "spawn",
    "syscall",
    "tick",
    "tick_period",
];
/// Of these only the sums can be told from outside.
pub const SUMS: [(&str, &str); 2] = [("wake", "context_switch"), ("fork", "exec")];

/// How long a CPU has idled when it is woken: within `deep_idle_after`, and beyond.
const SHALLOW: Duration = Duration::from_micros(100);
const DEEP: Duration = Duration::from_millis(2);

/// What interrupts for longer is another thread: the machine is busy, and nothing is known.
const INTERRUPT_MAX: u64 = 100_000;

/// Measures and writes.
pub fn main(args: &SimCalibrate) -> Result<u8, Failure> {
    if let Some(path) = &args.output {
        // Tried before anything is measured.
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| {
                Failure::result(format!("cannot write {}: {error}", path.display()))
            })?;
    }
    let topology = Topology::read().map_err(|error| {
        Failure::machine(format!("cannot read this machine's topology: {error}"))
    })?;
    let ours = allowed().map_err(|error| Failure::machine(error.to_string()))?;
    let interrupt = Interrupt::catch();
    let mut costs = measure(args, &topology, &ours, &interrupt)
        .map_err(|error| Failure::machine(format!("cannot measure: {error}")))?;
    if interrupt.asked() {
        costs.source += ", interrupted: the rest is assumed";
    }
    let json = serde_json::to_string_pretty(&costs)
        .map_err(|error| Failure::result(error.to_string()))?
        + "\n";
    match &args.output {
        Some(path) => std::fs::write(path, json).map_err(|error| {
            Failure::result(format!("cannot write {}: {error}", path.display()))
        })?,
        None => drop(screen::print(&json)?),
    }
    Ok(if interrupt.asked() { 5 } else { 0 })
}

fn measure(
    args: &SimCalibrate,
    topology: &Topology,
    ours: &CpuSet,
    interrupt: &Interrupt,
) -> std::io::Result<Costs> {
    let tell = |what: &str| {
        if !args.quiet {
            // Nobody may be reading.
            let _ = writeln!(anstream::stderr(), "measuring {what}");
        }
        !interrupt.asked()
    };
    let bench = Bench::new(args.duration);
    let machine = Machine::new(topology);
    let cpus: Vec<u32> = (0..machine.cpus())
        .filter(|&cpu| ours.contains(machine.kernel_cpu(cpu)))
        .collect();
    let kernel = |cpu: u32| machine.kernel_cpu(cpu);
    let mut costs = Costs::default();
    let mut measured: Vec<&str> = vec![];
    let Some(&first) = cpus.first() else {
        return Ok(costs);
    };
    let home = kernel(first);
    let mut times = Measured::default();
    if tell("system calls and pipes") {
        costs.syscall = bench.syscall(home)?;
        times.pipe_round = Some((
            bench.pipe_round(home, 1)?,
            bench.pipe_round(home, 32 << 10)?,
        ));
        measured.push("syscall");
    }
    if tell("context switches") {
        times.ping_pong = Some(bench.ping_pong(home)?);
    }
    let woken = cpus
        .iter()
        .find(|&&cpu| cpu != first)
        .map(|&cpu| kernel(cpu));
    if let Some(other) = woken
        && tell("wake-ups of an idle CPU")
    {
        let after = |gap| {
            let (write, late) = bench.wake_up(home, other, gap)?;
            std::io::Result::Ok(Woken { gap, write, late })
        };
        times.woken = Some([after(SHALLOW)?, after(DEEP)?]);
    }
    for distance in [
        Distance::Core,
        Distance::Llc,
        Distance::Node,
        Distance::Remote,
    ] {
        let Some(&other) = cpus
            .iter()
            .find(|&&cpu| machine.distance(first, cpu) == distance)
        else {
            continue;
        };
        let other = kernel(other);
        if !tell(&format!(
            "cache lines and migration between CPUs {home} and {other}"
        )) {
            break;
        }
        let (line, lost) = (bench.line(home, other)?, bench.migration(home, other)?);
        let (lines, losses) = (&mut costs.line, &mut costs.migration);
        let (line_at, lost_at, name) = match distance {
            Distance::Core => (
                &mut lines.core,
                &mut losses.core,
                "line.core, migration.core",
            ),
            Distance::Llc => (&mut lines.llc, &mut losses.llc, "line.llc, migration.llc"),
            Distance::Node => (
                &mut lines.node,
                &mut losses.node,
                "line.node, migration.node",
            ),
            _ => (
                &mut lines.remote,
                &mut losses.remote,
                "line.remote, migration.remote",
            ),
        };
        (*line_at, *lost_at) = (line, lost);
        measured.push(name);
    }
    if tell("atomic operations") {
        costs.line.same = bench.atomic(home)?;
        measured.push("line.same");
    }
    if let Some(&other) = cpus
        .iter()
        .find(|&&cpu| machine.distance(first, cpu) == Distance::Core)
        && tell("hardware threads of one core")
    {
        costs.smt_permille = bench.smt(home, kernel(other))?;
        measured.push("smt_permille");
    }
    if tell("threads, processes and page faults") {
        costs.spawn = bench.spawn(home)?;
        times.thread_round = Some(bench.thread_round(home)?);
        let (fork, exec) = (Costs::default().fork, Costs::default().exec);
        let both = bench.process(home)?;
        // Only their sum can be told from outside; the ratio is the assumed one.
        costs.fork = both * fork / (fork + exec);
        costs.exec = both - costs.fork;
        costs.fault = bench.fault(home)?;
        measured.push("spawn, fork + exec, fault");
    }
    if tell("ticks and timers") {
        let (period, tick) = bench.tick(home)?;
        if period > 0 {
            costs.tick_period = period;
            measured.push("tick_period");
            if tick < INTERRUPT_MAX {
                costs.tick = tick;
                measured.push("tick");
            }
        }
        times.timer = Some(bench.timer(home)?).filter(|&taken| taken < INTERRUPT_MAX);
    }
    // With the lines' costs, which all of these have in them.
    measured.extend(solve(&mut costs, &times, topology, home, woken));
    costs.source = format!(
        "measured on {}: {}; the rest is assumed",
        topology.describe(),
        measured.join(", ")
    );
    for ns in [
        &mut costs.idle_exit,
        &mut costs.deep_idle_exit,
        &mut costs.fork,
        &mut costs.exec,
        &mut costs.exit,
        &mut costs.interrupt,
        &mut costs.tick,
    ] {
        *ns = (*ns).min(1_000_000_000);
    }
    Ok(costs)
}
