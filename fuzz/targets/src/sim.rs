//! Workloads of the simulator: what is read runs, ends within its limits, and its times add up.

use std::collections::BTreeMap;

use amdahl_des::program::Workload;
use amdahl_des::workload::{WorkloadError, parse, rt_app as read_rt_app};
use amdahl_des::{Costs, Limits, Simulation};
use amdahl_topology::Topology;

/// More than this is read but not run: it would take the fuzzer's time.
const TASKS_MAX: u32 = 300;

pub fn workload(bytes: &[u8]) {
    check(bytes, |text| parse(text, &BTreeMap::new()));
}

pub fn rt_app(bytes: &[u8]) {
    check(bytes, |text| read_rt_app(text, &BTreeMap::new()));
}

fn check(bytes: &[u8], read: impl Fn(&str) -> Result<Workload, WorkloadError>) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match read(text) {
        Ok(workload) => run(&workload),
        Err(error) => {
            assert!(!error.message.is_empty());
            let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error} of {lines} lines");
        }
    }
}

fn run(workload: &Workload) {
    let topology = Topology::synthetic("2 llc x 2 core x 2 thread").expect("it is a machine");
    let policy = amdahl_placement::policy("steal").expect("it is a policy");
    let limits = Limits { time: 10_000_000_000, events: 1, tasks: TASKS_MAX, slices: 100 };
    let costs = Costs::default();
    let simulation = Simulation { workload, topology: &topology, costs: &costs, policy: &*policy, seed: 1, limits };
    let Ok(outcome) = simulation.run() else {
        return;
    };
    for row in &outcome.result.cpu_rows {
        assert_eq!(row.used_ns.values().sum::<u64>(), outcome.result.makespan_ns, "CPU {}", row.cpu);
    }
}
