//! The orders of policies that were published, on small versions of the workloads of
//! experiments/2026-11-22-published-schedulers: they must survive changes of the policies and of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use amdahl_des::{Costs, Limits, RunResult, Simulation, workload};
use amdahl_topology::Topology;

fn run(name: &str, machine: &str, policy: &str, costs: &Costs, set: &[(&str, u64)]) -> RunResult {
    let folder = "../../experiments/2026-11-22-published-schedulers/workloads";
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(folder)
        .join(name)
        .with_extension("toml");
    let set: BTreeMap<String, String> = set
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let workload = workload::parse(&fs::read_to_string(path).unwrap(), &set).unwrap();
    let policy = amdahl_placement::policy(policy).unwrap();
    let result = Simulation {
        workload: &workload,
        topology: &Topology::synthetic(machine).unwrap(),
        costs,
        policy: &*policy,
        seed: 1,
        limits: Limits::default(),
    }
    .run()
    .unwrap()
    .result;
    assert_eq!(result.end, "done", "{:?}", result.why);
    result
}

#[test]
fn stealing_keeps_cpus_busy_that_the_search_missed() {
    let of = |policy| {
        let set = [("loops", 150)];
        run(
            "hackbench",
            "10 core x 2 thread",
            policy,
            &Costs::default(),
            &set,
        )
    };
    let (base, stealing) = (of("linux=4"), of("linux=4+steal"));
    assert!(stealing.makespan_ns < base.makespan_ns);
    assert!(stealing.busy > base.busy && stealing.sched.steals > base.sched.steals);
}

#[test]
fn a_bounded_search_looks_at_less_and_gains_when_all_are_busy() {
    let of = |policy| {
        let set = [("pairs", 64), ("rounds", 200)];
        run(
            "uperf",
            "1 node x 22 core x 2 thread",
            policy,
            &Costs::default(),
            &set,
        )
    };
    let (base, bounded) = (of("linux=4"), of("bounded"));
    assert!(bounded.sched.examined < base.sched.examined);
    assert!(bounded.makespan_ns < base.makespan_ns);
}

#[test]
fn one_queue_with_many_pollers_loses_to_four_cores_and_a_dispatcher_loses_little() {
    let costs = Costs {
        queue_poller: 600,
        assign: 12_000,
        ..Costs::default()
    };
    let of = |machine, policy, cpus| {
        let set = [
            ("cpus", cpus),
            ("at_once", cpus),
            ("jobs", 30),
            ("calls", 400),
            ("link_calls", 300),
        ];
        run("mk", machine, policy, &costs, &set).makespan_ns
    };
    let four = of("1 node x 4 core", "single+spin=10s", 4);
    let all = of("8 node x 4 core", "single+spin=10s", 32);
    let dispatcher = of("8 node x 4 core", "dispatcher+spin=10s", 32);
    assert!(all > four && all > dispatcher, "{four} {all} {dispatcher}");
}

#[test]
fn a_dispatcher_loses_storms_of_wake_ups() {
    let of = |policy| {
        let set = [("pairs", 64), ("rounds", 50)];
        run(
            "pipes",
            "4 llc x 8 core x 2 thread",
            policy,
            &Costs::default(),
            &set,
        )
        .makespan_ns
    };
    let (own, one, dispatcher) = (of("linux"), of("single"), of("dispatcher"));
    assert!(own < one && one < dispatcher, "{own} {one} {dispatcher}");
}

#[test]
fn lending_priority_ends_a_job_earlier() {
    let of = |lend| {
        let set = [("lend", lend), ("chunks", 64)];
        run("lending", "8 core", "linux+steal", &Costs::default(), &set).makespan_ns
    };
    assert!(of(1) < of(0));
}

/// A published set and the experiment's costs of that machine, with what was fitted, are one: so what is simulated with the set
/// is what results.md shows.
#[test]
fn published_sets_are_those_of_the_experiment() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../experiments/2026-11-22-published-schedulers");
    let json = |path: &Path| -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let fitted = json(&folder.join("fitted.json"));
    let published: BTreeMap<String, Costs> = amdahl_des::published().into_iter().collect();
    let names = [
        ("e5-2630v4", "e5-2630-v4"),
        ("e5-2699v4", "e5-2699-v4"),
        ("xeon-56", "xeon-56-core"),
        ("opteron-6128", "nix-opteron-6128"),
    ];
    let mut used = BTreeSet::new();
    for page in fs::read_dir(folder.join("rows")).unwrap() {
        let text = fs::read_to_string(page.unwrap().path()).unwrap();
        let page: toml::Table = text.parse().unwrap();
        let machines = page.get("machines").and_then(toml::Value::as_table);
        for (machine, spec) in machines.into_iter().flatten() {
            let Some(name) = spec.get("costs").and_then(toml::Value::as_str) else {
                continue;
            };
            let mut costs = json(&folder.join("costs").join(name).with_extension("json"));
            let with = spec.get("with").and_then(toml::Value::as_table);
            for (cost, constant) in with.into_iter().flatten() {
                let value = fitted[constant.as_str().unwrap()].as_f64().unwrap();
                costs.insert(cost.clone(), (value.round() as u64).into());
            }
            let (_, set) = names.iter().find(|(file, _)| *file == name).unwrap();
            let mut expected: Costs = serde_json::from_value(costs.into()).unwrap();
            expected.source.clone_from(&published[*set].source);
            assert_eq!(published[*set], expected, "{set}, machine {machine}");
            used.insert(*set);
        }
    }
    assert_eq!(used, names.map(|(_, set)| set).into());
}

#[test]
fn published_sets_are_sound() {
    for (name, costs) in amdahl_des::published() {
        assert_eq!(costs.check(), Ok(()), "{name}");
        assert_ne!(
            costs.source,
            Costs::default().source,
            "{name} names a source"
        );
    }
}
