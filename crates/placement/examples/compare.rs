//! What each policy does with the same load: as many tasks as asked for, all woken by CPU 0, then half of the CPUs
//! finish theirs.
//!
//! `cargo run -p amdahl-placement --example compare -- "2 node x 8 core x 2 thread" 40`

use std::error::Error;

use amdahl_placement::testing::{Toy, ToyTask};
use amdahl_placement::{Conserving, Machine, POLICIES, policy};
use amdahl_topology::Topology;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let machine = arguments
        .next()
        .unwrap_or("2 node x 4 core x 2 thread".into());
    let tasks: u64 = arguments.next().unwrap_or("24".into()).parse()?;
    let topology = Topology::synthetic(&machine)?;
    println!("{}, {tasks} tasks", topology.describe());
    println!(
        "{:<18}{:>9}{:>9}{:>9}  keeps CPUs busy",
        "policy", "running", "then", "idle"
    );
    let rows = POLICIES.iter().filter(|row| row.is_policy());
    let more = ["steal=machine", "linux=4", "linux=4+steal"];
    for name in rows.map(|row| row.name).chain(more) {
        let machine = Machine::new(&topology);
        let policy = policy(name)?;
        let promise = match policy.work_conserving(&machine) {
            Conserving::Yes => "everywhere".into(),
            Conserving::Within { distance, when } => format!("within the {distance:?}: {when}"),
            Conserving::No { when } => format!("no: {when}"),
        };
        let cpus = machine.cpus();
        let mut toy = Toy::new(machine, policy);
        for id in 0..tasks {
            toy.wake(Some(0), ToyTask::new(id));
        }
        let running = |toy: &Toy| (0..cpus).filter(|&cpu| toy.running(cpu).is_some()).count();
        let before = running(&toy);
        for cpu in (0..cpus).step_by(2) {
            toy.stop(cpu);
        }
        let after = running(&toy);
        let idle = cpus as usize - after;
        println!("{name:<18}{before:>9}{after:>9}{idle:>9}  {promise}");
    }
    Ok(())
}
