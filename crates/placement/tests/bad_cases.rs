//! Each policy that leaves CPUs idle beside waiting tasks, caught doing it: its documented bad case.

use std::sync::Arc;

use amdahl_placement::testing::{Toy, ToyTask};
use amdahl_placement::{Conserving, Distance, Machine, POLICIES, policy};
use amdahl_spread::CpuMask;
use amdahl_topology::Topology;

fn toy(name: &str, machine: &str) -> Toy {
    let machine = Machine::new(&Topology::synthetic(machine).unwrap());
    Toy::new(machine, policy(name).unwrap())
}

/// A task that ran on `last`.
fn task(id: u64, last: u32) -> ToyTask {
    ToyTask {
        last: Some(last),
        ..ToyTask::new(id)
    }
}

/// A task of its own for each CPU.
fn fill(toy: &mut Toy, cpus: std::ops::Range<u32>) {
    for cpu in cpus {
        toy.wake(Some(cpu), task(1000 + u64::from(cpu), cpu));
        assert!(toy.running(cpu).is_some());
    }
}

/// The load that leaves a CPU idle, and how far from the task that waits.
fn bad_case(name: &str) -> Option<(Toy, Distance)> {
    let mut bad;
    let distance = match name {
        "single" | "groups" | "groups-round" => return None,
        "groups-apart" => {
            // One program begins on CPU 0; its three tasks share the two CPUs of the group.
            bad = toy("groups-apart=2", "1 llc x 4 core");
            (1..=3).for_each(|id| bad.wake(Some(0), ToyTask::new(id)));
            Distance::Llc
        }
        "dispatcher" => {
            // As many tasks as CPUs.
            bad = toy(name, "1 llc x 4 core");
            (1..=4).for_each(|id| bad.wake(None, ToyTask::new(id)));
            Distance::Llc
        }
        "steal" => {
            // One cache has more tasks than CPUs, and the other none.
            bad = toy(name, "2 llc x 2 core");
            (1..=3).for_each(|id| bad.wake(Some(0), task(id, 0)));
            Distance::Node
        }
        "bounded" => {
            // Of 16 cores only one is idle, on the other side of the cursor.
            bad = toy("bounded=no-idle-core", "1 llc x 16 core");
            fill(&mut bad, 0..16);
            bad.stop(9);
            bad.wake(Some(0), task(1, 0));
            Distance::Llc
        }
        "linux" => {
            // The cache was fully used until just now.
            bad = toy(name, "1 llc x 8 core x 2 thread");
            fill(&mut bad, 0..16);
            bad.view_mut().utilisation = Some(1024);
            bad.stop(9);
            bad.wake(Some(0), task(1, 0));
            Distance::Llc
        }
        "numa" => {
            // All memory is on the first node.
            bad = toy(name, "2 node x 2 core");
            for id in 1..=3 {
                let home_node = Some(0);
                bad.wake(
                    Some(0),
                    ToyTask {
                        home_node,
                        ..task(id, 0)
                    },
                );
            }
            Distance::Remote
        }
        "wake" => {
            // Nobody looks for what waits on another CPU.
            bad = toy(name, "1 llc x 4 core");
            fill(&mut bad, 0..4);
            bad.wake(Some(0), task(1, 0));
            bad.stop(3);
            Distance::Llc
        }
        other => panic!("{other} needs its bad case here, or must keep CPUs busy everywhere"),
    };
    Some((bad, distance))
}

#[test]
fn every_policy_keeps_cpus_busy_or_shows_where_it_does_not() {
    let mut shown = 0;
    for row in POLICIES.iter().filter(|row| row.is_policy()) {
        let large =
            Machine::new(&Topology::synthetic("4 node x 2 llc x 4 core x 2 thread").unwrap());
        let promise = policy(row.name).unwrap().work_conserving(&large);
        match bad_case(row.name) {
            None => assert_eq!(promise, Conserving::Yes, "{} without a bad case", row.name),
            Some((toy, distance)) => {
                shown += 1;
                assert_ne!(promise, Conserving::Yes, "{} has a bad case", row.name);
                let left = toy.left_waiting(distance);
                assert!(left.is_some(), "{}: nobody is left waiting", row.name);
                // Nor is the promise as large as the distance at which it was broken.
                assert!(
                    promise.distance() < Some(distance),
                    "{}: {promise:?}",
                    row.name
                );
            }
        }
    }
    assert_eq!(shown, 7);
}

#[test]
fn stealing_mends_what_the_search_misses_as_soon_as_a_cpu_becomes_idle() {
    for name in ["bounded=no-idle-core", "linux", "linux=4"] {
        let load = |name: &str| {
            let mut toy = toy(name, "1 llc x 16 core");
            fill(&mut toy, 0..16);
            toy.view_mut().utilisation = Some(1024);
            // Idle periods too short for an ordinary pull.
            for _ in 0..100 {
                let task = toy.stop(9).unwrap();
                toy.view_mut().now_ns += 1000;
                toy.wake(Some(9), task);
            }
            toy.wake(Some(0), task(1, 0));
            toy.stop(9);
            toy
        };
        assert_eq!(
            load(name).left_waiting(Distance::Llc),
            Some((9, 1)),
            "{name}"
        );
        let with = load(&format!("{name}+steal"));
        assert_eq!(with.left_waiting(Distance::Llc), None, "{name}");
        assert_eq!(with.running(9).map(|task| task.id), Some(1));
    }
}

#[test]
fn a_tick_mends_what_the_search_missed() {
    let (mut linux, _) = bad_case("linux").unwrap();
    assert_eq!(linux.left_waiting(Distance::Llc), Some((9, 1)));
    linux.tick(0, 1_000_000);
    assert_eq!(linux.left_waiting(Distance::Llc), None);
}

#[test]
fn an_idle_cpu_of_another_node_that_is_told_takes_what_waits() {
    let mut toy = toy("linux", "2 node x 4 core");
    fill(&mut toy, 0..8);
    toy.view_mut().utilisation = Some(1024);
    // Idle periods too short for a search: CPU 6 does not look.
    for _ in 0..100 {
        let task = toy.stop(6).unwrap();
        toy.view_mut().now_ns += 1000;
        toy.wake(Some(6), task);
    }
    toy.wake(Some(0), task(1, 0));
    toy.stop(6);
    assert_eq!(toy.left_waiting(Distance::Remote), Some((6, 1)));
    for _ in 0..3 {
        toy.view_mut().now_ns += 1_000_000;
        for cpu in 0..6 {
            toy.tick(cpu, 1_000_000);
        }
    }
    assert_eq!(toy.left_waiting(Distance::Remote), None);
}

#[test]
fn who_may_not_run_on_the_idle_cpu_still_has_its_turn() {
    let mut toy = toy("linux", "1 llc x 8 core");
    fill(&mut toy, 0..7);
    let only = CpuMask::new(8).unwrap();
    only.set(3).unwrap();
    let mut pinned = task(99, 3);
    pinned.allowed = Some(only.into());
    toy.wake(Some(3), pinned);
    for _ in 0..8 {
        toy.view_mut().now_ns += 4_000_000;
        toy.tick(3, 30_000_000);
    }
    // Whoever ran there was preempted at least once, and 99 is the only one who may run nowhere else.
    assert_eq!(toy.running(3).map(|task| task.id), Some(99));
}

#[test]
fn on_many_nodes_the_patches_do_not_steal() {
    let load = |machine: &str| {
        let mut toy = toy("linux=4+steal", machine);
        fill(&mut toy, 0..2);
        for _ in 0..100 {
            let task = toy.stop(1).unwrap();
            toy.wake(Some(1), task);
        }
        toy.wake(Some(0), task(1, 0));
        toy.stop(1);
        toy.left_waiting(Distance::Llc)
    };
    assert_eq!(load("2 node x 2 core"), None);
    assert_eq!(load("3 node x 2 core"), Some((1, 1)));
}

#[test]
fn a_mask_without_an_online_cpu_keeps_its_task_until_one_comes() {
    for row in POLICIES.iter().filter(|row| row.is_policy()) {
        let mut toy = toy(row.name, "1 llc x 4 core");
        let allowed = CpuMask::new(4).unwrap();
        allowed.set(2).unwrap();
        toy.set_online(2, false);
        let allowed = Some(Arc::new(allowed));
        toy.wake(
            Some(0),
            ToyTask {
                allowed,
                ..task(1, 2)
            },
        );
        assert!((0..4).all(|cpu| toy.running(cpu).is_none()), "{}", row.name);
        toy.set_online(2, true);
        assert_eq!(toy.running(2).map(|task| task.id), Some(1), "{}", row.name);
    }
}
