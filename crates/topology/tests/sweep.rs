//! The order and the number of CPUs in a sweep.

use std::collections::{BTreeMap, BTreeSet};

use amdahl_topology::{Cpu, CpuSet, Order, Topology, sweep_counts};
use proptest::prelude::*;

fn machine(description: &str) -> Topology {
    Topology::synthetic(description).unwrap()
}

fn order(machine: &Topology, order: Order) -> Vec<u32> {
    machine.sweep_order(order, &machine.cpu_set())
}

#[test]
fn compact_fills_what_is_near() {
    let machine = machine("2 node x 2 llc x 2 core x 2 thread");
    assert_eq!(
        order(&machine, Order::Compact),
        (0..16).collect::<Vec<u32>>()
    );
}

#[test]
fn spread_keeps_apart() {
    let machine = machine("2 node x 2 llc x 2 core x 2 thread");
    assert_eq!(
        order(&machine, Order::Spread),
        [0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15]
    );
}

#[test]
fn spread_visits_packages_before_their_nodes() {
    let machine = machine("2 package x 2 node x 2 core");
    assert_eq!(order(&machine, Order::Spread), [0, 4, 2, 6, 1, 5, 3, 7]);
}

#[test]
fn big_cores_first_and_siblings_last() {
    let hybrid = machine("1 llc x 2 core@600 + 1 llc x 2 core x 2 thread");
    for each in [Order::Compact, Order::Spread] {
        assert_eq!(order(&hybrid, each), [2, 3, 0, 1, 4, 5]);
    }
}

#[test]
fn the_first_allowed_thread_of_a_core_counts_as_its_first() {
    let machine = machine("2 core x 2 thread");
    let allowed: CpuSet = "1-2".parse().unwrap();
    // 2 is the second thread of core 0, whose first is not allowed.
    assert_eq!(machine.sweep_order(Order::Compact, &allowed), [2, 1]);
}

#[test]
fn unknown_cpus_come_last() {
    let machine = machine("2 core");
    let allowed: CpuSet = "1,7,9".parse().unwrap();
    assert_eq!(machine.sweep_order(Order::Compact, &allowed), [1, 7, 9]);
}

#[test]
fn counts() {
    let counts = |max, description| sweep_counts(max, &machine(description));
    assert_eq!(counts(0, "8 core"), [0; 0]);
    assert_eq!(counts(1, "8 core"), [1]);
    assert_eq!(counts(2, "2 core"), [1, 2]);
    assert_eq!(counts(6, "6 core"), [1, 2, 4, 6]);
    assert_eq!(counts(12, "2 llc x 6 core"), [1, 2, 4, 6, 8, 12]);
    // Bends where the big cores end, and where the second threads begin.
    assert_eq!(
        counts(24, "6 core x 2 thread + 12 core@600"),
        [1, 2, 4, 6, 8, 16, 18, 24]
    );
    assert_eq!(
        counts(96, "2 node x 3 llc x 8 core x 2 thread"),
        [1, 2, 4, 8, 16, 24, 48, 64, 96]
    );
}

#[test]
fn thousands_of_cpus() {
    let big = machine("8 node x 16 llc x 16 core x 2 thread");
    for each in [Order::Compact, Order::Spread] {
        assert_eq!(order(&big, each).len(), 4096);
    }
    let counts = sweep_counts(4096, &big);
    assert_eq!(counts.len(), 9);
    for bend in [1, 16, 256, 2048, 4096] {
        assert!(counts.contains(&bend), "{bend} in {counts:?}");
    }
}

/// Machines with unequal nodes, LLCs, cores, and capacities.
fn any_machine() -> impl Strategy<Value = Topology> {
    let core = (1u32..3, prop::sample::select(vec![400u32, 1024]));
    let llc = prop::collection::vec(core, 1..4);
    let node = prop::collection::vec(llc, 1..4);
    let package = prop::collection::vec(node, 1..3);
    prop::collection::vec(package, 1..3).prop_map(|packages| {
        let sum = |parts: Vec<String>| format!("({})", parts.join(" + "));
        let text = sum(packages
            .iter()
            .map(|nodes| {
                let nodes = nodes.iter().map(|llcs| {
                    let llcs = llcs.iter().map(|cores| {
                        let cores = cores.iter().map(|(threads, capacity)| {
                            format!("1 core@{capacity} x {threads} thread")
                        });
                        format!("1 llc x {}", sum(cores.collect()))
                    });
                    format!("1 node x {}", sum(llcs.collect()))
                });
                format!("1 package x {}", sum(nodes.collect()))
            })
            .collect());
        machine(&text[1..text.len() - 1])
    })
}

fn any_case() -> impl Strategy<Value = (Topology, CpuSet)> {
    any_machine().prop_flat_map(|machine| {
        let ids: Vec<u32> = machine.cpu_set().iter().collect();
        let len = ids.len();
        (Just(machine), prop::sample::subsequence(ids, 1..=len))
            .prop_map(|(machine, ids)| (machine, ids.into_iter().collect()))
    })
}

type GroupOf = fn(&Cpu) -> u32;

/// The CPUs of an order, cut where the rank among the allowed threads of a core
/// or the capacity changes.
fn phases(machine: &Topology, order: &[u32]) -> Vec<((u32, u32), Vec<Cpu>)> {
    let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
    let mut phases: Vec<((u32, u32), Vec<Cpu>)> = Vec::new();
    for &id in order {
        let cpu = *machine.cpu(id).unwrap();
        let rank = taken.entry(cpu.core).or_default();
        let phase = (*rank, 1024 - cpu.capacity);
        *rank += 1;
        match phases.last_mut() {
            Some((last, cpus)) if *last == phase => cpus.push(cpu),
            _ => phases.push((phase, vec![cpu])),
        }
    }
    phases
}

proptest! {
    #[test]
    fn an_order_is_a_permutation_in_phases((machine, allowed) in any_case()) {
        for each in [Order::Compact, Order::Spread] {
            let order = machine.sweep_order(each, &allowed);
            prop_assert_eq!(order.len(), allowed.len());
            prop_assert_eq!(order.iter().copied().collect::<CpuSet>(), allowed.clone());
            // Siblings after all cores, little after big: each phase once, in rising order.
            let phases: Vec<_> = phases(&machine, &order).into_iter().map(|(phase, _)| phase).collect();
            prop_assert!(phases.is_sorted(), "{:?}", phases);
            prop_assert!(phases.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn compact_never_returns_to_a_group_it_left((machine, allowed) in any_case()) {
        let order = machine.sweep_order(Order::Compact, &allowed);
        for (_, cpus) in phases(&machine, &order) {
            for group_of in [|cpu: &Cpu| cpu.llc, |cpu: &Cpu| cpu.node, |cpu: &Cpu| cpu.package] {
                let mut visits: Vec<u32> = cpus.iter().map(group_of).collect();
                visits.dedup();
                prop_assert_eq!(visits.iter().collect::<BTreeSet<_>>().len(), visits.len());
            }
        }
    }

    #[test]
    fn spread_loads_equal_parts_equally((machine, allowed) in any_case()) {
        // What is dealt among what: packages of the machine, nodes of a package, LLCs of a node.
        let levels: [(GroupOf, GroupOf); 3] = [
            (|_| 0, |cpu| cpu.package),
            (|cpu| cpu.package, |cpu| cpu.node),
            (|cpu| cpu.node, |cpu| cpu.llc),
        ];
        let order = machine.sweep_order(Order::Spread, &allowed);
        for (_, cpus) in phases(&machine, &order) {
            for (outer, inner) in levels {
                for len in 0..=cpus.len() {
                    let (taken, left) = cpus.split_at(len);
                    let mut used: BTreeMap<(u32, u32), u32> = BTreeMap::new();
                    for cpu in &cpus {
                        used.entry((outer(cpu), inner(cpu))).or_default();
                    }
                    for cpu in taken {
                        *used.get_mut(&(outer(cpu), inner(cpu))).unwrap() += 1;
                    }
                    for (&(a_outer, _), a) in &used {
                        for (&(b_outer, b_inner), b) in &used {
                            let has_more = left.iter().any(|cpu| inner(cpu) == b_inner);
                            prop_assert!(a_outer != b_outer || !has_more || *a <= b + 1);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn counts_rise_from_one_to_the_most(machine in any_machine(), max in 1u32..5000) {
        let counts = sweep_counts(max, &machine);
        prop_assert!(counts.is_sorted_by(|a, b| a < b), "{:?}", counts);
        prop_assert!(counts.len() <= 9);
        prop_assert_eq!(counts[0], 1);
        prop_assert_eq!(counts[counts.len() - 1], max);
    }
}
