//! Policies that are named by their parts.

use amdahl_placement::testing::{Toy, ToyTask};
use amdahl_placement::{Machine, View, policy};
use amdahl_topology::Topology;
use proptest::prelude::*;

/// A row of the table, and the same by its parts.
const PAIRS: [(&str, &str); 7] = [
    ("linux", "wake=linux+newidle+balance"),
    ("linux=4", "wake=linux=4+newidle=4+balance"),
    ("bounded", "wake=bounded+newidle=4+balance"),
    (
        "bounded=no-idle-core",
        "wake=bounded=no-idle-core+newidle=4+balance",
    ),
    ("steal", "wake=steal+steal"),
    ("steal=machine", "wake=steal=machine+steal=machine"),
    ("numa=2", "wake=numa=2+numa=2"),
];

fn toy(name: &str, machine: &str) -> Toy {
    let machine = Machine::new(&Topology::synthetic(machine).unwrap());
    Toy::new(machine, policy(name).unwrap())
}

proptest! {
    #[test]
    fn a_policy_does_what_its_parts_do(
        pair in prop::sample::select(&PAIRS[..]),
        machine in prop::sample::select(&["1 llc x 8 core", "2 node x 2 llc x 2 core x 2 thread"][..]),
        events in prop::collection::vec((0u32..4, 0u32..16, 0u32..16, 0u64..1_000_000), 0..200),
    ) {
        let mut toys = [toy(pair.0, machine), toy(pair.1, machine)];
        let cpus = toys[0].view().machine().cpus();
        for toy in &mut toys {
            for (id, &(what, cpu, other, ns)) in (0..).zip(&events) {
                let (cpu, other) = (cpu % cpus, other % cpus);
                toy.view_mut().now_ns += ns;
                match what {
                    0 => drop(toy.stop(cpu)),
                    1 => toy.tick(cpu, ns * 10),
                    _ => toy.wake(Some(cpu), ToyTask {
                        last: Some(other),
                        home_node: Some(other % 2).filter(|_| cpus == 16),
                        ..ToyTask::new(id)
                    }),
                }
            }
        }
        let runs = |toy: &Toy| -> Vec<Option<u64>> {
            (0..cpus).map(|cpu| toy.running(cpu).map(|task| task.id)).collect()
        };
        prop_assert_eq!(runs(&toys[0]), runs(&toys[1]));
        let promise = |name| policy(name).unwrap().work_conserving(toys[0].view().machine());
        prop_assert_eq!(promise(pair.0), promise(pair.1));
    }
}

/// Only the idle CPU that pulls takes what its waker's search has missed.
#[test]
fn parts_do_what_they_say_and_nothing_else() {
    let left = |name: &str| {
        let mut toy = toy(name, "1 llc x 4 core");
        for cpu in 0..4 {
            let last = Some(cpu);
            toy.wake(
                Some(cpu),
                ToyTask {
                    last,
                    ..ToyTask::new(u64::from(cpu))
                },
            );
        }
        let last = Some(0);
        toy.wake(
            Some(0),
            ToyTask {
                last,
                ..ToyTask::new(9)
            },
        );
        toy.stop(3);
        toy.running(3).map(|task| task.id)
    };
    assert_eq!(left("wake=bounded"), None);
    assert_eq!(left("wake=bounded+newidle"), Some(9));
    assert_eq!(left("wake=bounded+steal"), Some(9));
}
