//! Runs of workloads given as text.
#![allow(dead_code)]

use std::collections::BTreeMap;

use amdahl_des::program::Workload;
use amdahl_des::{Costs, Limits, RunResult, Simulation, workload};
use amdahl_topology::Topology;

pub fn parse(text: &str) -> Workload {
    workload::parse(text, &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub fn built_in(name: &str, set: &[(&str, &str)]) -> Workload {
    let (_, text) = workload::BUILT_IN
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a name of the list");
    let set = set
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    workload::parse(text, &set).unwrap_or_else(|error| panic!("{error}"))
}

pub struct Run<'a> {
    pub machine: &'a str,
    pub policy: &'a str,
    pub costs: Costs,
    pub seed: u64,
    pub limits: Limits,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Run {
            machine: "4 core",
            policy: "steal",
            costs: Costs::default(),
            seed: 1,
            limits: Limits::default(),
        }
    }
}

impl Run<'_> {
    pub fn of(&self, workload: &Workload) -> RunResult {
        let topology = Topology::synthetic(self.machine).unwrap();
        let policy = amdahl_placement::policy(self.policy).unwrap();
        let Run {
            costs,
            seed,
            limits,
            ..
        } = self;
        let simulation = Simulation {
            workload,
            topology: &topology,
            costs,
            policy: &*policy,
            seed: *seed,
            limits: *limits,
        };
        simulation
            .run()
            .unwrap_or_else(|error| panic!("{error}"))
            .result
    }

    pub fn text(&self, text: &str) -> RunResult {
        self.of(&parse(text))
    }
}

/// What must hold of every run, whatever it did.
pub fn check(result: &RunResult) {
    check_beside(result, &[]);
}

/// The same where the run does not wait for some kinds of tasks.
pub fn check_beside(result: &RunResult, daemons: &[&str]) {
    for row in &result.cpu_rows {
        let used: u64 = row.used_ns.values().sum();
        assert_eq!(
            used, result.makespan_ns,
            "CPU {}: {:?}",
            row.cpu, row.used_ns
        );
    }
    let sched = &result.sched;
    if result.end == "done" {
        for task in &result.tasks {
            let is_daemon = daemons.contains(&task.name.as_str());
            assert!(is_daemon || task.count == task.ended, "{}", task.name);
        }
    }
    assert!(sched.wakeups_delivered <= sched.wakeups);
    if result.end == "done" && daemons.is_empty() {
        assert_eq!(sched.wakeups, sched.wakeups_delivered);
    }
    assert_eq!(result.wakeup_ns.count, sched.wakeups_delivered);
    let on_cpus: u64 = result.tasks.iter().map(|task| task.ran_ns).sum();
    let busy: u64 = [
        "user",
        "system",
        "stall",
        "spin",
        "interrupt",
        "search",
        "switch",
    ]
    .iter()
    .filter_map(|name| result.used_ns.get(*name))
    .sum();
    assert!(
        on_cpus <= busy,
        "tasks ran {on_cpus} ns, CPUs were busy for {busy}"
    );
}
