//! What searches look at: never more than they promise, and in the long run everything.

use std::collections::BTreeSet;

use amdahl_placement::testing::{Toy, ToyTask};
use amdahl_placement::{
    Bounded, Cost, Distance, IdleAction, IdlePart, Machine, Newidle, Scan, Search, Steal, View,
    Waking, policy,
};
use amdahl_topology::Topology;
use proptest::prelude::*;

fn machine(nodes: u32, llcs: u32, cores: u32, threads: u32) -> Machine {
    let text = format!("{nodes} node x {llcs} llc x {cores} core x {threads} thread");
    Machine::new(&Topology::synthetic(&text).unwrap())
}

/// CPUs run a task each where `busy` says so, and `more` more tasks wait on those that it names.
fn loaded(machine: Machine, busy: &[bool], more: &[u32]) -> Toy {
    let cpus = machine.cpus();
    let mut toy = Toy::new(machine, policy("groups-apart=1").unwrap());
    let mut id = 0;
    let mut wake = |toy: &mut Toy, cpu| {
        id += 1;
        let last = Some(cpu);
        toy.wake(
            None,
            ToyTask {
                last,
                ..ToyTask::new(id)
            },
        );
    };
    for cpu in 0..cpus {
        if busy[cpu as usize % busy.len()] {
            wake(&mut toy, cpu);
        }
    }
    for cpu in more {
        let cpu = cpu % cpus;
        wake(&mut toy, cpu);
        wake(&mut toy, cpu);
    }
    toy
}

prop_compose! {
    fn toys()(
        nodes in 1..=2u32, llcs in 1..=2u32, cores in prop_oneof![1..=6u32, Just(64)], threads in 1..=2u32,
        busy in prop::collection::vec(prop::bool::weighted(0.8), 1..200),
        more in prop::collection::vec(0..512u32, 0..20),
    ) -> Toy {
        loaded(machine(nodes, llcs, cores, threads), &busy, &more)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn a_bounded_search_stays_in_its_window(mut toy in toys(), targets in prop::collection::vec(0..512u32, 1..30)) {
        let search = Bounded { idle_core: false };
        for target in targets {
            let cpus = view_cpus(&toy);
            let (state, view) = toy.state_mut(target % cpus);
            let machine = view.machine();
            let target = target % machine.cpus();
            let (floor, limit) = Bounded::window(machine.siblings(target).len() as u32);
            let llc = machine.llc_cpus(machine.llc(target));
            let mut cost = Cost::default();
            let found = search.search(state, view, &Waking::default(), target, &mut cost);
            prop_assert!(cost.examined <= limit && cost.remote == 0);
            match found {
                Some(cpu) => prop_assert!(view.idle().test(cpu) && llc.contains(&cpu)),
                None => prop_assert!(cost.examined >= floor.min(llc.len() as u32)),
            }
        }
    }

    /// Whoever the toy's state may be, the whole cache at most.
    #[test]
    fn no_search_leaves_the_cache(mut toy in toys(), target in 0..512u32, used in 0..=1024u32) {
        toy.view_mut().utilisation = Some(used);
        let searches: [&dyn Search; 4] = [
            &Bounded { idle_core: true }, &Bounded { idle_core: false }, &Scan::Utilisation, &Scan::Proportional,
        ];
        for search in searches {
            let cpus = view_cpus(&toy);
            let (state, view) = toy.state_mut(target % cpus);
            let machine = view.machine();
            let target = target % machine.cpus();
            let llc = machine.llc_cpus(machine.llc(target));
            let mut cost = Cost::default();
            let found = search.search(state, view, &Waking::default(), target, &mut cost);
            let siblings = machine.siblings(target).len();
            prop_assert!(cost.examined as usize <= llc.len() + siblings && cost.remote == 0);
            prop_assert!(found.is_none_or(|cpu| view.idle().test(cpu) && llc.contains(&cpu)));
        }
    }

    /// All overloaded CPUs of the cache, each once, those of the own core first, and no other.
    #[test]
    fn stealing_names_the_overloaded_of_the_cache(mut toy in toys(), thief in 0..512u32) {
        let thief = thief % view_cpus(&toy);
        let (state, view) = toy.state_mut(thief);
        let machine = view.machine();
        let llc = machine.llc_cpus(machine.llc(thief));
        let mut victims = vec![];
        for named in 0.. {
            let pull = Steal::PATCHES.pull(state, view, thief, named);
            prop_assert!(pull.cost.remote == 0 && pull.cost.examined as usize <= llc.len() + machine.siblings(thief).len());
            match pull.action {
                Some(IdleAction::Steal { from, count: 1, home: None }) => victims.push(from.0),
                other => {
                    prop_assert_eq!(other, None);
                    break;
                }
            }
        }
        let expected: BTreeSet<u32> = llc.filter(|&cpu| cpu != thief && view.overloaded().test(cpu)).collect();
        prop_assert_eq!(victims.len(), expected.len());
        prop_assert_eq!(BTreeSet::from_iter(victims.iter().copied()), expected);
        let distances: Vec<_> = victims.iter().map(|&cpu| machine.distance(thief, cpu)).collect();
        prop_assert!(distances.is_sorted());
        for &cpu in &victims {
            prop_assert!(view.waiting(view.queues().of(cpu)) > 0);
        }
    }

    /// As far as it reaches, the nearest cache first, no CPU twice.
    #[test]
    fn stealing_from_anywhere_goes_outward(mut toy in toys(), thief in 0..512u32) {
        let thief = thief % view_cpus(&toy);
        let (state, view) = toy.state_mut(thief);
        let pulls = (0..).map(|named| Steal::ANYWHERE.pull(state, view, thief, named).action);
        let victims = pulls.map_while(|action| match action {
            Some(IdleAction::Steal { from, .. }) => Some(from.0),
            _ => None,
        });
        let victims: Vec<u32> = victims.collect();
        let all: BTreeSet<u32> = victims.iter().copied().collect();
        prop_assert_eq!(all.len(), victims.len());
        prop_assert_eq!(all.len() as u32, view.overloaded().count() - u32::from(view.overloaded().test(thief)));
        let distances: Vec<_> = victims.iter().map(|&cpu| view.machine().distance(thief, cpu)).collect();
        prop_assert!(distances.is_sorted());
    }

    #[test]
    fn a_pull_stops_when_it_costs_more_than_the_idle_time(mut toy in toys(), cpu in 0..512u32) {
        let cpu = cpu % view_cpus(&toy);
        let (state, view) = toy.state_mut(cpu);
        let pull = Newidle::NEW.pull(state, view, cpu, 0);
        // A millisecond, the longest average, pays for all CPUs there are here.
        let waits = (0..view.machine().cpus()).any(|other| {
            other != cpu && view.running(other) && view.waiting(view.queues().of(other)) > 0
        });
        prop_assert_eq!(pull.action.is_some(), waits);
        let never = Newidle { idle_ns_min: 1_000_001 };
        prop_assert_eq!(never.pull(state, view, cpu, 0).cost, Cost::default());
    }
}

fn view_cpus(toy: &Toy) -> u32 {
    toy.view().machine().cpus()
}

/// How often each CPU is found when all of a cache are idle: the cursor goes round.
#[test]
fn the_cursor_treats_all_cpus_alike() {
    for (cores, threads) in [(1, 1), (3, 1), (7, 2), (44, 2), (256, 2)] {
        let mut toy = loaded(machine(1, 1, cores, threads), &[false], &[]);
        let cpus = cores * threads;
        let mut found = vec![0; cpus as usize];
        let (state, view) = toy.state_mut(0);
        for _ in 0..cpus * 10 {
            let mut cost = Cost::default();
            let search = Bounded { idle_core: false };
            let cpu = search.search(state, view, &Waking::default(), 0, &mut cost);
            found[cpu.expect("all are idle") as usize] += 1;
        }
        assert!(found.iter().all(|&times| times == 10), "{found:?}");
    }
}

/// The only idle CPU of a busy cache is found after as many searches as windows cover the cache.
#[test]
fn the_cursor_comes_by_everywhere() {
    for idle in 0..88 {
        let mut toy = loaded(machine(1, 1, 44, 2), &[true], &[]);
        toy.stop(idle);
        let (state, view) = toy.state_mut(0);
        let mut searches = (0..).map(|_| {
            let mut cost = Cost::default();
            Bounded { idle_core: false }.search(state, view, &Waking::default(), 0, &mut cost)
        });
        let tries = searches.position(|found| found == Some(idle)).unwrap();
        assert!(tries < 88_usize.div_ceil(2), "CPU {idle} after {tries}");
    }
}

/// With both switches: a whole core rather than a thread beside a busy one.
#[test]
fn an_idle_core_is_preferred() {
    let mut toy = loaded(machine(1, 1, 4, 2), &[true], &[]);
    for cpu in [1, 4, 5] {
        toy.stop(cpu);
    }
    let (state, view) = toy.state_mut(0);
    let searches: [&dyn Search; 2] = [&Bounded { idle_core: true }, &Scan::Utilisation];
    for search in searches {
        let found = search.search(state, view, &Waking::default(), 0, &mut Cost::default());
        assert_eq!(found, Some(4));
    }
    assert_eq!(view.machine().distance(4, 5), Distance::Core);
}
