//! Runs a workload file: `cargo run --release -p amdahl-des --example workload -- FILE MACHINE POLICY [param=value...]`.

use std::collections::BTreeMap;
use std::time::Instant;

use amdahl_des::{Costs, Limits, Simulation, workload};
use amdahl_topology::Topology;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, file, machine, policy, set @ ..] = args.as_slice() else {
        return Err("usage: workload FILE MACHINE POLICY [param=value...]".into());
    };
    let set: BTreeMap<String, String> = set
        .iter()
        .filter_map(|set| set.split_once('='))
        .map(|(a, b)| (a.into(), b.into()))
        .collect();
    let workload = workload::parse(&std::fs::read_to_string(file)?, &set)?;
    let topology = Topology::synthetic(machine)?;
    for name in policy.split(',') {
        let policy = amdahl_placement::policy(name)?;
        let (costs, limits) = (Costs::default(), Limits::default());
        let simulation = Simulation {
            workload: &workload,
            topology: &topology,
            costs: &costs,
            policy: &*policy,
            seed: 1,
            limits,
        };
        let begin = Instant::now();
        let result = simulation.run()?.result;
        let took = begin.elapsed().as_secs_f64();
        println!(
            "{name}: {} after {:.6} s, busy {:.2} %, search {:.2} %, {} events, {:.2} million/s",
            result.end,
            result.makespan_ns as f64 / 1e9,
            result.busy * 100.0,
            result.search * 100.0,
            result.events,
            result.events as f64 / took / 1e6
        );
        println!(
            "  {:?}\n  {:?}\n  {:?} {:?}",
            result.used_ns, result.sched, result.wakeup_ns, result.counters
        );
        println!("  {:?} {:?}", result.locks, result.histograms);
        result.why.iter().for_each(|line| println!("  {line}"));
    }
    Ok(())
}
