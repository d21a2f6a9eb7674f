//! The grammar of machines, and that descriptions come back.

use amdahl_topology::{Level, ParseTopologyError, Topology};
use proptest::prelude::*;

fn machine(description: &str) -> Topology {
    Topology::synthetic(description).unwrap_or_else(|error| panic!("{description}: {error}"))
}

#[test]
fn a_regular_machine() {
    let machine = machine("2 node x 2 llc x 8 core x 2 thread");
    assert_eq!(machine.cpus().len(), 64);
    assert_eq!(
        (
            machine.packages(),
            machine.nodes(),
            machine.llcs(),
            machine.cores()
        ),
        (2, 2, 4, 32)
    );
    // First the first threads of all cores, then the second ones.
    for (cpu, id) in machine.cpus().iter().zip(0u32..) {
        assert_eq!(cpu.id, id);
        assert_eq!(cpu.thread, id / 32);
        assert_eq!(cpu.core, id % 32);
        assert_eq!(cpu.llc, id % 32 / 8);
        assert_eq!(cpu.node, id % 32 / 16);
        assert_eq!(cpu.package, cpu.node);
        assert_eq!(cpu.capacity, 1024);
    }
    assert_eq!(machine.kernel_node(1), Some(1));
    assert_eq!(machine.kernel_node(2), None);
}

#[test]
fn forgives() {
    let plain = machine("2 node x 1 llc x 4 core x 2 thread");
    for same in [
        "2 nodes x 4 cores x 2 threads",
        " 2NODE*4core*2thread ",
        "2 sockets x 4 cores x 2 threads",
        "2 node × (1 llc x (4 core x 2 thread))",
        "1 node x 4 core x 2 thread + 1 node x 4 core x 2 thread",
        "2 node x (3 core x 2 thread + 1 core@1024 x 2 thread)",
    ] {
        assert_eq!(machine(same), plain, "{same}");
    }
    assert_eq!(machine("1 thread").cpus().len(), 1);
    assert_eq!(machine("3 llc").cores(), 3);
}

#[test]
fn unequal_cores() {
    let hybrid = machine("1 llc x (2 core x 2 thread + 3 core@600)");
    assert_eq!(hybrid.cpus().len(), 7);
    assert_eq!(hybrid.cores(), 5);
    let capacities: Vec<u32> = hybrid.cpus().iter().map(|cpu| cpu.capacity).collect();
    assert_eq!(capacities, [1024, 1024, 600, 600, 600, 1024, 1024]);
    assert_eq!(
        hybrid.describe(),
        "1 node x 1 llc x (2 core x 2 thread + 3 core@600 x 1 thread)"
    );
    // A core that is not written is a whole one.
    let capacities: Vec<u32> = machine("1 llc x 1 core@512 + 1 llc")
        .cpus()
        .iter()
        .map(|cpu| cpu.capacity)
        .collect();
    assert_eq!(capacities, [512, 1024]);
}

#[test]
fn packages_are_named_where_they_are_not_nodes() {
    assert_eq!(
        machine("2 package x 4 node x 2 core").describe(),
        "2 package x 4 node x 1 llc x 2 core x 1 thread"
    );
    assert_eq!(
        machine("2 package x 2 core").describe(),
        "2 node x 1 llc x 2 core x 1 thread"
    );
}

#[test]
fn says_what_is_wrong() {
    use ParseTopologyError::{Number, Order, Sum, TooManyCpus, Unexpected};
    let error = |text: &str| Topology::synthetic(text).unwrap_err();
    assert_eq!(
        error("2 core x 2 node"),
        Order {
            inner: Level::Node,
            outer: Level::Core
        }
    );
    assert!(matches!(error("2 core x 2 core"), Order { .. }));
    assert!(matches!(error("2 core + 1 llc"), Sum { .. }));
    assert!(matches!(
        error("4294967296 core"),
        Number { max: 65536, .. }
    ));
    assert!(matches!(error("0 core"), Number { .. }));
    assert!(matches!(error("1 core@1025"), Number { max: 1024, .. }));
    assert_eq!(
        error("65536 node x 65536 llc x 65536 core x 65536 thread"),
        TooManyCpus { max: 65536 }
    );
    for (text, place) in [
        ("", 0),
        ("core", 0),
        ("2 cor", 2),
        ("2 node 3 core", 7),
        ("2 node x", 8),
        ("2 node x (3 core", 16),
        ("2 node@5", 6),
        ("2 core)", 6),
        ("2 ×", 2),
    ] {
        assert!(
            matches!(error(text), Unexpected { at, .. } if at == place),
            "{text:?}: {:?}",
            error(text)
        );
    }
}

#[test]
fn nesting_does_not_exhaust_the_stack() {
    let deep = "1 node x (".repeat(100_000);
    assert!(Topology::synthetic(&deep).is_err());
    assert!(Topology::synthetic(&"(".repeat(100_000)).is_err());
}

#[test]
fn too_irregular_for_one_line() {
    // Capacities that differ from core to core cannot be counted together.
    let text: Vec<String> = (1..=40).map(|i| format!("1 core@{}", i * 20)).collect();
    assert_eq!(
        machine(&text.join(" + ")).describe(),
        "irregular: 1 node, 1 llc, 40 cores, 40 threads"
    );
}

#[test]
fn thousands_of_cpus() {
    let text = "8 node x 16 llc x 16 core x 2 thread";
    let big = machine(text);
    assert_eq!(big.cpus().len(), 4096);
    assert_eq!(big.describe(), text);
    assert_eq!(machine("65536 core").cpus().len(), 65536);
}

proptest! {
    #[test]
    fn regular_machines_come_back(
        packages in 1u32..4, nodes in 1u32..4, llcs in 1u32..4, cores in 1u32..5, threads in 1u32..4,
        capacity in 1u32..=1024,
    ) {
        let text = format!(
            "{packages} package x {nodes} node x {llcs} llc x {cores} core@{capacity} x {threads} thread"
        );
        let first = machine(&text);
        prop_assert_eq!(first.cpus().len() as u32, packages * nodes * llcs * cores * threads);
        prop_assert_eq!(machine(&first.describe()), first);
    }

    #[test]
    fn irregular_machines_come_back_or_are_summed_up(
        nodes in prop::collection::vec(
            prop::collection::vec(
                prop::collection::vec((1u32..3, prop::sample::select(vec![512u32, 1024])), 1..4),
            1..3),
        1..3),
    ) {
        let join = |parts: Vec<String>| parts.join(" + ");
        let text = join(nodes.iter().map(|llcs| format!("1 node x ({})", join(llcs.iter().map(|cores| {
            let cores = cores.iter().map(|(threads, capacity)| format!("1 core@{capacity} x {threads} thread"));
            format!("1 llc x ({})", join(cores.collect()))
        }).collect()))).collect());
        let first = machine(&text);
        let described = first.describe();
        if described.starts_with("irregular: ") {
            prop_assert!(Topology::synthetic(&described).is_err());
        } else {
            prop_assert_eq!(machine(&described), first);
        }
    }

    #[test]
    fn any_text_gives_a_machine_or_an_error(
        text in "([0-9]{1,3} ?(node|llc|core|thread|x|\\+|\\(|\\)|@)s? ?x? ?){0,6}|\\PC{0,30}"
    ) {
        if let Ok(machine) = Topology::synthetic(&text) {
            prop_assert!(!machine.cpus().is_empty());
        }
    }
}
