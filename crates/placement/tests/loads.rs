//! Every policy under random load on random machines: answers are legal (the toy checks each), nothing is lost, and
//! who says that it keeps CPUs busy does.

use std::sync::Arc;

use amdahl_placement::testing::{Toy, ToyTask};
use amdahl_placement::{Conserving, Machine, policy};
use amdahl_spread::CpuMask;
use amdahl_topology::Topology;
use proptest::prelude::*;

/// All kinds of first parts, with additions.
const NAMES: &[&str] = &[
    "single",
    "single+spin",
    "groups",
    "groups=3",
    "groups=llc",
    "groups-round",
    "groups-round=3",
    "groups-apart=2",
    "groups-apart=llc",
    "dispatcher",
    "dispatcher+spin=5us",
    "steal",
    "steal=llc",
    "steal=node",
    "steal=machine+spin=20us",
    "bounded",
    "bounded=no-idle-core",
    "bounded+steal",
    "linux",
    "linux=4",
    "linux+steal=machine",
    "linux=4+steal+spin",
    "numa",
    "numa=0",
    "numa=3+steal=machine",
];

#[derive(Clone, Debug)]
enum Op {
    /// A new task, woken by a CPU or from outside, with a mask of CPUs and a node.
    Spawn(Option<u32>, Option<Vec<u32>>, Option<u32>),
    /// The task of a CPU blocks, and is woken by another one later.
    Block(u32),
    Wake(Option<u32>, usize),
    Exit(u32),
    Tick(u32, u64),
    Online(u32, bool),
    Time(u64),
}

fn machines() -> impl Strategy<Value = Machine> {
    let small = (1..=3u32, 1..=3u32, 1..=4u32, 1..=2u32).prop_map(|(node, llc, core, thread)| {
        format!("{node} node x {llc} llc x {core} core x {thread} thread")
    });
    let odd = prop_oneof![
        Just("1 core".to_string()),
        Just(
            "1 node x (1 llc x 3 core x 2 thread + 1 llc x 2 core) + 1 node x 1 llc x 1 core"
                .into()
        ),
        Just("2 node x 2 llc x 32 core x 2 thread".into()),
        Just("8 node x 2 llc x 16 core x 2 thread".into()),
    ];
    prop_oneof![6 => small, 1 => odd]
        .prop_map(|text| Machine::new(&Topology::synthetic(&text).unwrap()))
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Numbers are taken modulo what there is, and small ones are frequent.
    let cpu = || prop_oneof![3 => 0..8u32, 1 => 0..512u32];
    let waker = || prop::option::weighted(0.8, cpu());
    let mask = prop::option::weighted(0.25, prop::collection::vec(cpu(), 1..4));
    let op = prop_oneof![
        8 => (waker(), mask, prop::option::of(0..4u32)).prop_map(|(w, m, n)| Op::Spawn(w, m, n)),
        6 => cpu().prop_map(Op::Block),
        6 => (waker(), 0..64usize).prop_map(|(waker, which)| Op::Wake(waker, which)),
        3 => cpu().prop_map(Op::Exit),
        4 => (cpu(), 0..40_000_000u64).prop_map(|(cpu, ran)| Op::Tick(cpu, ran)),
        1 => (cpu(), any::<bool>()).prop_map(|(cpu, on)| Op::Online(cpu, on)),
        2 => (0..100_000_000u64).prop_map(Op::Time),
    ];
    prop::collection::vec(op, 0..120)
}

/// Carries the operations out; what is left waiting after each must be what the policy admits.
fn run(name: &str, machine: Machine, ops: &[Op]) {
    let policy = policy(name).unwrap();
    let promise = policy.work_conserving(&machine).distance();
    let cpus = machine.cpus();
    let mut toy = Toy::new(machine, policy);
    let (mut blocked, mut next, mut expected) = (vec![], 0, 0);
    for op in ops {
        match op.clone() {
            Op::Spawn(waker, mask, node) => {
                let allowed = mask.map(|mask| {
                    let allowed = CpuMask::new(cpus).unwrap();
                    mask.iter().for_each(|cpu| {
                        allowed.set(cpu % cpus).unwrap();
                    });
                    Arc::new(allowed)
                });
                next += 1;
                expected += 1;
                let task = ToyTask {
                    allowed,
                    home_node: node,
                    ..ToyTask::new(next)
                };
                toy.wake(waker.map(|cpu| cpu % cpus), task);
            }
            Op::Block(cpu) => {
                let task = toy.stop(cpu % cpus);
                expected -= usize::from(task.is_some());
                blocked.extend(task);
            }
            Op::Wake(waker, which) if !blocked.is_empty() => {
                expected += 1;
                let task = blocked.swap_remove(which % blocked.len());
                toy.wake(waker.map(|cpu| cpu % cpus), task);
            }
            Op::Wake(..) => (),
            Op::Exit(cpu) => expected -= usize::from(toy.stop(cpu % cpus).is_some()),
            Op::Tick(cpu, ran) => toy.tick(cpu % cpus, ran),
            Op::Online(cpu, on) => toy.set_online(cpu % cpus, on),
            Op::Time(ns) => {
                toy.view_mut().now_ns += ns;
                toy.view_mut().utilisation = Some((ns % 1025) as u32);
            }
        }
        assert_eq!(toy.tasks(), expected, "{name}: after {op:?}");
        if let Some(distance) = promise {
            let left = toy.left_waiting(distance);
            assert_eq!(left, None, "{name}: CPU and task after {op:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn answers_are_legal_and_promises_kept(machine in machines(), ops in ops(), at in 0..NAMES.len()) {
        run(NAMES[at], machine, &ops);
    }
}

#[test]
fn promises_are_as_expected() {
    let promise = |name: &str, machine: &str| {
        let machine = Machine::new(&Topology::synthetic(machine).unwrap());
        policy(name).unwrap().work_conserving(&machine)
    };
    let (small, large) = ("1 llc x 4 core x 2 thread", "4 node x 2 llc x 8 core");
    for name in [
        "single",
        "groups",
        "groups=llc",
        "groups-round",
        "steal=machine",
        "steal=machine+spin",
    ] {
        for machine in [small, large] {
            assert_eq!(promise(name, machine), Conserving::Yes, "{name}, {machine}");
        }
    }
    for name in ["steal", "numa", "groups-apart=llc"] {
        assert_eq!(promise(name, small), Conserving::Yes, "{name}");
        assert_ne!(promise(name, large), Conserving::Yes, "{name}");
    }
    for name in [
        "linux",
        "linux=4",
        "linux+steal=machine",
        "bounded",
        "groups-apart",
        "dispatcher",
    ] {
        for machine in [small, large] {
            let no = matches!(promise(name, machine), Conserving::No { .. });
            assert!(no, "{name}, {machine}");
        }
    }
}
