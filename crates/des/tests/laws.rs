//! Conservation and reproducibility, on generated workloads, machines and policies.

mod common;

use amdahl_des::Limits;
use amdahl_des::program::{Level, Workload};
use common::{Run, check, check_beside, parse};
use proptest::prelude::*;

const MACHINES: [&str; 6] = [
    "1 core",
    "2 core x 2 thread",
    "10 core x 2 thread",
    "2 llc x 3 core",
    "2 node x 2 llc x 2 core x 2 thread",
    "1 llc x (2 core + 3 core@600)",
];
const POLICIES: [&str; 11] = [
    "single",
    "groups=2",
    "dispatcher",
    "steal",
    "bounded",
    "linux",
    "numa",
    "steal+spin=20us",
    "steal=machine+spin",
    "linux+steal",
    "wake=bounded+newidle+balance",
];
const STATEMENTS: [&str; 22] = [
    "compute exp(20us)",
    "compute 3us",
    "occupy 5us",
    "sleep uniform(1us, 300us)",
    "period 50us",
    "lock spin[index]; compute 500; unlock spin[index]",
    "lock queued; compute 1us; unlock queued",
    "lock tas; compute 100; unlock tas",
    "lock sleeping; compute 2us; unlock sleeping",
    "share rw; compute 3us; unlock rw",
    "lock rw; compute 1us; unlock rw",
    "share sem; compute 3us; unlock sem",
    "lock sem; sleep 10us; unlock sem",
    "io disk",
    "touch line; touch line",
    "spawn child; compute 1us; join",
    "fork child 2; join",
    "fault 3",
    "map 2us",
    "yield",
    "choose { 1 { compute 1us } 2 { tally hits } }",
    "set x random(4); if x < 2 { compute x * 100 } else { nice 5 }",
];

/// Tasks that do such things in a loop, and meet at a barrier and in pipes.
fn workload(picks: &[usize], tasks: u32, loops: u32) -> String {
    let body: Vec<&str> = picks.iter().map(|&pick| STATEMENTS[pick]).collect();
    format!(
        "name = 'generated'
        [locks]
        spin = {{ kind = 'ticket', count = 2 }}
        queued = {{ kind = 'queued' }}
        tas = {{ kind = 'test-and-set' }}
        sleeping = {{ kind = 'mutex', spin = '2us' }}
        rw = {{ kind = 'reader-writer' }}
        sem = {{ kind = 'semaphore' }}
        [barriers.all]
        parties = {tasks}
        spin = '1us'
        [pipes.ring]
        count = {tasks}
        capacity = 150
        [devices.disk]
        service = 'exp(20us)'
        [lines.line]
        [[tasks]]
        name = 'worker'
        count = {tasks}
        program = '''
        loop {loops} {{
            {}
            write ring[index] 100
            read ring[index + 1] 100
            barrier all
        }}
        '''
        [[tasks]]
        name = 'child'
        count = 0
        program = 'compute 2us'
        ",
        body.join("\n            ")
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn time_adds_up_and_nobody_is_lost(
        picks in prop::collection::vec(0..STATEMENTS.len(), 1..8),
        tasks in 1u32..12,
        loops in 1u32..8,
        machine in prop::sample::select(&MACHINES[..]),
        policy in prop::sample::select(&POLICIES[..]),
        seed in 0u64..1000,
        level in prop::sample::select(&[Level::Threads, Level::Jobs][..]),
    ) {
        let text = workload(&picks, tasks, loops);
        let workload = Workload { level, ..parse(&text) };
        let run = Run { machine, policy, seed, ..Run::default() };
        let result = run.of(&workload);
        prop_assert_eq!(&result.end, "done", "{:?}\n{}", result.why, text);
        check(&result);
        let again = serde_json::to_string(&run.of(&workload)).unwrap();
        prop_assert_eq!(serde_json::to_string(&result).unwrap(), again);
    }

    /// CPUs come and go; whatever is cut off still adds up.
    #[test]
    fn tasks_survive_hot_unplug(
        picks in prop::collection::vec(0..STATEMENTS.len(), 1..5),
        changes in prop::collection::vec((0u32..20_000, 0u32..8, any::<bool>()), 1..20),
        policy in prop::sample::select(&POLICIES[..]),
        events in prop::option::of(1u64..50),
        level in prop::sample::select(&[Level::Threads, Level::Jobs][..]),
    ) {
        let mut text = workload(&picks, 6, 6);
        for (at, cpu, is_offline) in &changes {
            let what = if *is_offline { "offline" } else { "online" };
            text += &format!("[[changes]]\nat = '{}us'\n{what} = '{cpu}'\n", at / 10);
        }
        let limits = Limits { events: events.map_or(u64::MAX, |events| events << 16), ..Limits::default() };
        let result = Run { machine: "2 llc x 2 core x 2 thread", policy, limits, ..Run::default() }
            .of(&Workload { level, ..parse(&text) });
        prop_assert!(result.end == "done" || events.is_some(), "{} {:?}\n{}", result.end, result.why, text);
        check(&result);
    }
}

#[test]
fn all_built_in_workloads_end_under_all_policies() {
    let short: [(&str, &[(&str, &str)]); 6] = [
        ("barrier", &[("loops", "50")]),
        ("build", &[("objects", "40"), ("pages", "20")]),
        ("hackbench", &[("loops", "5")]),
        ("lock-storm", &[("loops", "50")]),
        (
            "paging",
            &[("vcpus", "20"), ("descriptors", "3"), ("readers", "4")],
        ),
        ("ping-pong", &[("rounds", "100"), ("pairs", "3")]),
    ];
    for (name, set) in short {
        let workload = common::built_in(name, set);
        for policy in POLICIES {
            let result = Run {
                machine: "2 llc x 4 core x 2 thread",
                policy,
                ..Run::default()
            }
            .of(&workload);
            assert_eq!(
                result.end, "done",
                "{name} under {policy}: {:?}",
                result.why
            );
            check_beside(&result, if name == "paging" { &["reader"] } else { &[] });
        }
    }
}

/// One descriptor and one reader serve 160 vCPUs hardly faster than 4, also with more readers of that descriptor; a descriptor and a reader for every four, or vCPUs
/// that bring pages themselves, go on growing.
#[test]
fn one_descriptor_is_flat_from_four_vcpus_on_and_shards_are_not() {
    let pages_per_s = |vcpus: &str, set: &[(&str, &str)]| {
        let set = [&[("vcpus", vcpus)][..], set].concat();
        let result = Run {
            machine: "4 node x 80 core",
            policy: "linux",
            ..Run::default()
        }
        .of(&common::built_in("paging", &set));
        assert_eq!(result.end, "done", "{set:?}: {:?}", result.why);
        vcpus.parse::<f64>().unwrap() / result.makespan_ns as f64
    };
    let growth = |few: &[(&str, &str)], many: &[(&str, &str)]| {
        pages_per_s("160", many) / pages_per_s("4", few)
    };
    for readers in ["1", "4"] {
        let plain = [("readers", readers)];
        let growth = growth(&plain, &plain);
        assert!(growth < 1.5, "{readers} readers: {growth}");
    }
    let sharded = growth(&[], &[("descriptors", "40")]);
    assert!(sharded > 10.0, "{sharded}");
    let alone = growth(&[("alone", "1")], &[("alone", "1")]);
    assert!(alone > 10.0, "{alone}");
}

/// The numbers of a seed, on a machine with distances of all kinds but nodes.
fn pin(name: &str, workload: &amdahl_des::program::Workload) -> (u64, u64) {
    let result = Run {
        machine: "2 llc x 2 core x 2 thread",
        policy: "steal",
        ..Run::default()
    }
    .of(workload);
    assert_eq!(result.end, "done", "{name}: {:?}", result.why);
    (result.makespan_ns, result.events)
}

/// Results name their seed, so the numbers of a seed must stay. If this fails and nothing but speed was to change,
/// something else did.
#[test]
fn results_are_pinned() {
    let mut found = vec![];
    for (name, set, _) in PINNED {
        found.push((*name, *set, pin(name, &common::built_in(name, set))));
    }
    assert_eq!(found, PINNED);
}

/// The storm that is built in has a ticket lock.
#[test]
fn results_of_all_kinds_of_locks_are_pinned() {
    let (_, storm) = amdahl_des::workload::BUILT_IN
        .iter()
        .find(|(name, _)| *name == "lock-storm")
        .expect("a name of the list");
    let mut found = vec![];
    for (kind, _) in STORMS {
        let text = storm.replace("kind = \"ticket\"", kind);
        assert_eq!(text.matches(kind).count(), 1, "{text}");
        let set = [("loops".to_owned(), "100".to_owned())].into();
        let workload = amdahl_des::workload::parse(&text, &set).unwrap();
        found.push((*kind, pin(kind, &workload)));
    }
    assert_eq!(found, STORMS);
}

type Pin = (
    &'static str,
    &'static [(&'static str, &'static str)],
    (u64, u64),
);

const PINNED: &[Pin] = &[
    ("lock-storm", &[("loops", "100")], (1_651_683, 3_695)),
    ("barrier", &[("loops", "50")], (16_801_104, 1_147)),
    (
        "build",
        &[("objects", "40"), ("pages", "20")],
        (6_801_899_407, 10_933),
    ),
    ("hackbench", &[("loops", "5")], (601_045, 4_114)),
    (
        "openmp",
        &[("vcpus", "8"), ("regions", "3")],
        (2_541_018_240, 6_922),
    ),
    (
        "paging",
        &[("vcpus", "20"), ("readers", "4")],
        (4_644_275, 11_592),
    ),
    (
        "ping-pong",
        &[("rounds", "100"), ("pairs", "3")],
        (794_528, 2_992),
    ),
];

const STORMS: &[(&str, (u64, u64))] = &[
    ("kind = \"ticket\"", (1_651_683, 3_695)),
    ("kind = \"test-and-set\"", (1_656_517, 3_712)),
    ("kind = \"queued\"", (1_650_493, 3_693)),
    ("kind = \"reader-writer\"", (1_650_493, 3_693)),
    ("kind = \"mutex\"", (1_963_335, 3_866)),
    ("kind = \"mutex\"\nspin = \"5us\"", (1_650_493, 3_693)),
    ("kind = \"semaphore\"", (6_357_297, 8_044)),
];
