//! What each cost is paid for: a cost that grows by so much makes a run longer by that, as often as it is on the way
//! to the run's end.

mod common;

use std::collections::BTreeSet;

use amdahl_des::{Costs, RunResult};
use common::{Run, check, parse};
use serde_json::Value;

/// A run in which a cost is paid so many times one after the other, everything else being free.
struct Case {
    /// As in a file of costs; members of a group behind a dot.
    cost: &'static str,
    paid: u64,
    machine: &'static str,
    policy: &'static str,
    /// Other costs that are not 0.
    with: &'static [(&'static str, u64)],
    text: String,
}

fn case(cost: &'static str, paid: u64, machine: &'static str, text: &str) -> Case {
    Case {
        cost,
        paid,
        machine,
        policy: "steal",
        with: &[],
        text: format!("name = 'case'\n{text}"),
    }
}

fn set(costs: &mut Value, name: &str, ns: u64) {
    let pointer = format!("/{}", name.replace('.', "/"));
    let cost = costs.pointer_mut(&pointer);
    *cost.unwrap_or_else(|| panic!("no cost `{name}`")) = ns.into();
}

/// What a workload comes to, with what this costs.
fn on(machine: &str, costs: Costs, text: &str) -> RunResult {
    let run = Run {
        machine,
        costs,
        ..Run::default()
    };
    let result = run.text(text);
    check(&result);
    result
}

impl Case {
    fn makespan(&self, ns: u64) -> u64 {
        let mut costs = serde_json::to_value(Costs::free()).unwrap();
        for &(name, ns) in self.with {
            set(&mut costs, name, ns);
        }
        set(&mut costs, self.cost, ns);
        let run = Run {
            machine: self.machine,
            policy: self.policy,
            costs: serde_json::from_value(costs).unwrap(),
            ..Run::default()
        };
        let result = run.of(&parse(&self.text));
        check(&result);
        assert_eq!(result.end, "done", "{:?}\n{}", result.why, self.text);
        result.makespan_ns
    }

    fn check(&self) {
        let free = self.makespan(0);
        for ns in [1_000, 3_000] {
            assert_eq!(
                self.makespan(ns) - free,
                self.paid * ns,
                "{} of {ns} ns, on {} with {}:\n{}",
                self.cost,
                self.machine,
                self.policy,
                self.text
            );
        }
    }
}

/// A task alone.
fn alone(program: &str) -> String {
    format!(
        "[pipes.p]
        [devices.d]
        service = '1us'
        [locks.l]
        kind = 'queued'
        [[tasks]]
        name = 'one'
        program = '{program}'
        [[tasks]]
        name = 'child'
        count = 0
        program = ''"
    )
}

/// Two tasks on two CPUs, of which each wakes the other ten times, and nothing else happens meanwhile.
const IN_TURN: &str = "
    [notices.there]
    [notices.back]
    [[tasks]]
    name = 'first'
    cpus = '0'
    program = 'loop 10 { compute 100us; resume there; suspend back }'
    [[tasks]]
    name = 'second'
    cpus = '1'
    program = 'loop 10 { suspend there; compute 100us; resume back }'";

/// Five tasks on five CPUs, four of which wait when the first one gives the lock back.
fn five(lock: &str) -> String {
    format!(
        "[locks.l]
        {lock}
        [[tasks]]
        name = 'holder'
        program = 'lock l; compute 1ms; unlock l'
        [[tasks]]
        name = 'waiter'
        count = 4
        program = 'compute 100us; lock l; compute 1ms; unlock l'"
    )
}

/// Two tasks on two CPUs that take a lock in turn: it is handed over 19 times.
const HANDED: &str = "
    [locks.l]
    kind = 'queued'
    [[tasks]]
    name = 'one'
    cpus = '0'
    program = 'loop 10 { lock l; compute 100us; unlock l }'
    [[tasks]]
    name = 'two'
    cpus = '1'
    program = 'loop 10 { lock l; compute 100us; unlock l }'";

/// A task whose CPU goes away, and so does the other one when the first is back: it moves three times.
const MOVED: &str = "
    [[tasks]]
    name = 'one'
    program = 'compute 10ms'
    [[changes]]
    at = '1ms'
    offline = '0'
    [[changes]]
    at = '2ms'
    online = '0'
    [[changes]]
    at = '3ms'
    offline = '1'
    [[changes]]
    at = '4ms'
    online = '1'
    [[changes]]
    at = '5ms'
    offline = '0'";

/// A task waits behind its maker until CPU 1 has nothing to do and takes it.
const STOLEN: &str = "
    [[tasks]]
    name = 'maker'
    program = 'compute 1us; spawn child; compute 300us'
    [[tasks]]
    name = 'busy'
    cpus = '1'
    program = 'compute 100us'
    [[tasks]]
    name = 'child'
    count = 0
    program = 'compute 300us'";

fn tasks_and_calls() -> Vec<Case> {
    vec![
        case("fork", 10, "1 core", &alone("loop 10 { fork child; join }")),
        case("fork", 10, "1 core", &alone("fork child 10; join")),
        case(
            "spawn",
            10,
            "1 core",
            &alone("loop 10 { spawn child; join }"),
        ),
        case("exec", 10, "1 core", &alone("loop 10 { exec }")),
        // Ten children, and the task itself.
        case(
            "exit",
            11,
            "1 core",
            &alone("loop 10 { spawn child; join }"),
        ),
        case("fault", 10, "1 core", &alone("fault 10")),
        case(
            "syscall",
            50,
            "1 core",
            &alone("loop 10 { sleep 1us; io d; yield; write p 1; read p 1 }"),
        ),
        case(
            "pipe",
            20,
            "1 core",
            &alone("loop 10 { write p 1; read p 1 }"),
        ),
        // Two KiB in, two out.
        case(
            "copy_kib",
            40,
            "1 core",
            &alone("loop 10 { write p 2048; read p 2048 }"),
        ),
    ]
}

fn switches_and_wake_ups() -> Vec<Case> {
    let children = alone("loop 10 { spawn child; join }");
    let naps = alone("loop 10 { sleep 1us }");
    vec![
        // To the task, then to each child and back.
        case("context_switch", 21, "1 core", &children),
        // Each child is woken by its maker, whom it wakes by its end.
        case("wake", 20, "1 core", &children),
        case("wake", 20, "2 core", IN_TURN),
        case("ipi", 20, "2 core", IN_TURN),
        case("ipi", 0, "1 core", &children),
        // At its beginning, too.
        case("idle_exit", 11, "1 core", &naps),
        case(
            "deep_idle_exit",
            10,
            "1 core",
            &alone("loop 10 { sleep 1ms }"),
        ),
        case("deep_idle_exit", 0, "1 core", &naps),
        // Of timers that fire while another task runs.
        Case {
            with: &[("wakeup_granularity", 0)],
            ..case(
                "interrupt",
                20,
                "1 core",
                "[devices.d]
                service = '10us'
                [[tasks]]
                name = 'busy'
                program = 'compute 10ms'
                [[tasks]]
                name = 'sleeper'
                program = 'loop 10 { sleep 100us; io d }'",
            )
        },
        // An idle CPU has the time.
        case("interrupt", 0, "1 core", &naps),
        case("tick", 10, "1 core", &alone("compute 42ms")),
        Case {
            with: &[("tick_period", 1_000_000)],
            ..case("tick", 42, "1 core", &alone("compute 42500us"))
        },
    ]
}

fn queues_and_searches() -> Vec<Case> {
    vec![
        // By the waker and by the CPU that takes the task, and for the first task at its beginning.
        case("queue_hold", 41, "2 core", IN_TURN),
        // The second one waits for one, the third for two, the fourth for three; half of the cost for each.
        Case {
            policy: "single",
            with: &[("queue_hold", 100_000)],
            ..case(
                "queue_waiter",
                3,
                "4 core",
                "[[tasks]]
                name = 'one'
                count = 4
                program = ''",
            )
        },
        // Ten times the task is taken while three other CPUs look out for work.
        Case {
            policy: "single+spin=10s",
            ..case(
                "queue_poller",
                30,
                "4 core",
                "[[tasks]]
                name = 'short'
                count = 3
                program = 'compute 1us'
                [[tasks]]
                name = 'long'
                program = 'compute 1ms; loop 10 { sleep 100us }'",
            )
        },
        Case {
            policy: "dispatcher",
            ..case("assign", 11, "3 core", &alone("loop 10 { sleep 1us }"))
        },
        Case {
            policy: "dispatcher",
            ..case("assign", 0, "1 core", &alone("compute 1ms"))
        },
        case("pull", 1, "2 core", STOLEN),
        // Waking looks at the CPU where the task ran.
        case("examine", 20, "2 core", IN_TURN),
        // A steal looks at its own core's word and cache's, then at the other one's word and its CPU, which is far.
        Case {
            policy: "steal=machine",
            ..case("examine", 4, "2 llc x 1 core", STOLEN)
        },
        Case {
            policy: "steal=machine",
            ..case("examine_remote", 1, "2 llc x 1 core", STOLEN)
        },
        case("examine_remote", 0, "2 core", STOLEN),
    ]
}

fn lines_and_moves() -> Vec<Case> {
    let mut cases = vec![
        // The lock's, and the run queue's when it begins.
        case(
            "line.same",
            21,
            "1 core",
            &alone("loop 10 { lock l; unlock l }"),
        ),
    ];
    for (line, migration, machine) in [
        ("line.core", "migration.core", "1 core x 2 thread"),
        ("line.llc", "migration.llc", "2 core"),
        ("line.node", "migration.node", "2 llc x 1 core"),
        ("line.remote", "migration.remote", "2 node x 1 core"),
    ] {
        cases.push(case(line, 19, machine, HANDED));
        cases.push(case(migration, 3, machine, MOVED));
    }
    cases
}

fn locks() -> Vec<Case> {
    let handed = |paid, lock: &str| case("line.llc", paid, "5 core", &five(lock));
    let mut cases = vec![
        handed(4, "kind = 'queued'"),
        // And half a transfer for each other one who waits: 3, 2, 1, 0.
        handed(4 + 3, "kind = 'ticket'"),
        // And half a transfer for each who spins, the next holder included: 4, 3, 2, 1.
        handed(4 + 5, "kind = 'test-and-set'"),
        handed(4, "kind = 'reader-writer'"),
        handed(4, "kind = 'mutex'\nspin = '10ms'"),
        // The first release takes the lock's line from who came last; then the waker takes the line of the next one's run
        // queue, that one takes it back, and takes the lock's line.
        handed(1 + 4 * 3, "kind = 'mutex'"),
        // The lock's line goes with the lock.
        handed(1 + 4 * 2, "kind = 'semaphore'"),
    ];
    for kind in ["mutex", "semaphore"] {
        let text = five(&format!("kind = '{kind}'"));
        cases.push(case("wake", 4, "5 core", &text));
        cases.push(case("ipi", 4, "5 core", &text));
        // At the beginning, too.
        cases.push(case("context_switch", 5, "5 core", &text));
        cases.push(Case {
            with: &[("deep_idle_after", 1_000_000_000)],
            ..case("idle_exit", 5, "5 core", &text)
        });
    }
    for kind in ["queued", "ticket", "test-and-set", "reader-writer"] {
        let text = five(&format!("kind = '{kind}'"));
        cases.push(case("wake", 0, "5 core", &text));
    }
    cases
}

#[test]
fn tasks_and_calls_cost_what_they_are_said_to() {
    tasks_and_calls().iter().for_each(Case::check);
}

#[test]
fn switches_and_wake_ups_cost_what_they_are_said_to() {
    switches_and_wake_ups().iter().for_each(Case::check);
}

#[test]
fn queues_and_searches_cost_what_they_are_said_to() {
    queues_and_searches().iter().for_each(Case::check);
}

#[test]
fn lines_and_moves_cost_what_they_are_said_to() {
    lines_and_moves().iter().for_each(Case::check);
}

#[test]
fn locks_are_handed_over_at_the_cost_of_their_kind() {
    locks().iter().for_each(Case::check);
}

/// Members of a file of costs that are times or shares, those of groups behind a dot.
fn names() -> BTreeSet<String> {
    let Value::Object(all) = serde_json::to_value(Costs::default()).unwrap() else {
        unreachable!("a struct is an object");
    };
    let mut names = BTreeSet::new();
    for (name, value) in all {
        match value {
            Value::Object(parts) => names.extend(parts.keys().map(|part| format!("{name}.{part}"))),
            Value::Number(_) => drop(names.insert(name)),
            _ => {}
        }
    }
    names
}

/// Those that no run pays by itself; what they do is tested below, and of the shares in `theory.rs`.
const OTHERS: [&str; 8] = [
    "deep_idle_after",
    "frequency_permille",
    // Nothing moves from a CPU to itself.
    "migration.same",
    "remote_memory_permille",
    "slice",
    "smt_permille",
    "tick_period",
    "wakeup_granularity",
];

#[test]
fn no_cost_is_without_a_case() {
    let cases = [
        tasks_and_calls(),
        switches_and_wake_ups(),
        queues_and_searches(),
        lines_and_moves(),
        locks(),
    ];
    let mut tested: BTreeSet<String> = cases
        .iter()
        .flatten()
        .filter(|case| case.paid > 0)
        .map(|case| case.cost.to_owned())
        .collect();
    tested.extend(OTHERS.map(str::to_owned));
    assert_eq!(tested, names());
}

/// Who maps keeps all others of its process from their faults, and nobody else.
#[test]
fn faults_wait_for_who_maps() {
    let costs = Costs {
        fault: 1_000,
        ..Costs::free()
    };
    let makespan = |is_process: bool| {
        let kind = if is_process { "fork" } else { "spawn" };
        let text = format!(
            "name = 'space'
            [[tasks]]
            name = 'mapper'
            program = '{kind} toucher; map 1ms; join'
            [[tasks]]
            name = 'toucher'
            count = 0
            program = 'compute 10us; fault 2'"
        );
        on("2 core", costs.clone(), &text).makespan_ns
    };
    assert_eq!((makespan(false), makespan(true)), (1_002_000, 1_000_000));
}

#[test]
fn a_cpu_sleeps_deeply_when_it_has_idled_for_long_enough() {
    let text = format!("name = 'naps'\n{}", alone("loop 10 { sleep 600us }"));
    let naps = |after: u64| {
        let costs = Costs {
            deep_idle_exit: 5_000,
            deep_idle_after: after,
            ..Costs::free()
        };
        on("1 core", costs, &text).makespan_ns
    };
    assert_eq!((naps(600_001), naps(600_000)), (6_000_000, 6_050_000));
}

#[test]
fn a_slow_clock_slows_programs_and_not_calls() {
    let costs = Costs {
        frequency_permille: 500,
        syscall: 1_000,
        ..Costs::free()
    };
    let text = format!("name = 'slow'\n{}", alone("compute 5ms; yield"));
    assert_eq!(on("1 core", costs, &text).makespan_ns, 10_001_000);
}

/// Who sleeps has the CPU at once if it is behind by more than the granularity.
#[test]
fn the_granularity_says_who_is_preempted() {
    let preemptions = |wakeup_granularity| {
        let costs = Costs {
            wakeup_granularity,
            tick_period: 100_000_000,
            ..Costs::free()
        };
        let text = "name = 'granularity'
            [[tasks]]
            name = 'sleeper'
            program = 'loop 5 { sleep 1ms }'
            [[tasks]]
            name = 'busy'
            program = 'compute 12ms'";
        on("1 core", costs, text).sched.preemptions
    };
    assert_eq!((preemptions(0), preemptions(100_000_000)), (5, 0));
}

/// Who gives way goes behind by a slice. With a short one its next turn comes after one of the other's, of 4 ms by the policy, and
/// is as long; with a long one the other ends first.
#[test]
fn who_gives_way_is_behind_by_a_slice() {
    let waited = |slice| {
        let costs = Costs {
            slice,
            tick_period: 1_000_000,
            ..Costs::free()
        };
        let text = "name = 'yield'
            [[tasks]]
            name = 'polite'
            program = 'compute 1ms; yield; compute 5ms'
            [[tasks]]
            name = 'other'
            program = 'compute 5ms'";
        on("1 core", costs, text).tasks[1].waited_ns
    };
    assert_eq!(
        (waited(1_000_000), waited(24_000_000)),
        (5_000_000, 1_000_000)
    );
}
