//! A machine that nobody here has: 96 virtual CPUs of ours on 96 CPUs beside neighbours that come and go, by the simulator.

use std::collections::BTreeMap;

use amdahl_des::{Costs, Limits, Simulation, Slice, workload};
use amdahl_phantom::{Estimator, Event, Reading, Settings, Tally};
use amdahl_topology::Topology;

const OURS: u32 = 96;
const CPUS: u32 = 96;
const MS: u64 = 1_000_000;

/// Ours could always run: whoever does not is a phantom.
const LOAD: &str = r#"
name = "overcommitted"
duration = "600ms"

[[tasks]]
name = "ours"
count = 96
program = 'loop 1000000 { compute 1ms }'

[[tasks]]
name = "neighbour"
count = 64
program = 'loop 1000000 { compute uniform(1ms, 30ms); sleep exp(20ms) }'
"#;

fn slices() -> Vec<Slice> {
    let workload = workload::parse(LOAD, &BTreeMap::new()).expect("a workload");
    let topology = Topology::synthetic("2 node x 48 core").expect("a machine");
    let policy = amdahl_placement::policy("linux").expect("a policy");
    let costs = Costs::default();
    let simulation = Simulation {
        workload: &workload,
        topology: &topology,
        costs: &costs,
        policy: &*policy,
        seed: 1,
        limits: Limits {
            slices: 1 << 20,
            ..Limits::default()
        },
    };
    simulation.run().expect("it runs").slices
}

/// What a scheduler would have told: who left each CPU for whom. Threads are numbered from 1.
fn events(slices: &[Slice]) -> Vec<(u64, Event)> {
    let mut by_cpu: BTreeMap<u32, Vec<&Slice>> = BTreeMap::new();
    for slice in slices {
        by_cpu.entry(slice.cpu).or_default().push(slice);
    }
    let mut events = Vec::new();
    for (cpu, mut slices) in by_cpu {
        slices.sort_by_key(|slice| slice.start);
        let mut who = 0;
        for (i, slice) in slices.iter().enumerate() {
            let mut switch = |ts: u64, next: u32| {
                let event = Event::Switch {
                    cpu,
                    prev: std::mem::replace(&mut who, next),
                    is_runnable: true,
                    next,
                };
                // Nothing is told at 0, which stands for "never".
                events.push((ts + 1, event));
            };
            switch(slice.start, slice.task + 1);
            if slices.get(i + 1).is_none_or(|next| next.start > slice.end) {
                switch(slice.end, 0);
            }
        }
    }
    events.sort_by_key(|(ts, event)| {
        // Who leaves one CPU and comes to another at the same time leaves first.
        (
            *ts,
            matches!(event, Event::Switch { next, .. } if *next != 0),
        )
    });
    events
}

#[test]
fn phantoms_of_96_virtual_cpus_are_found() {
    let slices = slices();
    let ours: Vec<&Slice> = slices.iter().filter(|slice| slice.template == 0).collect();
    let mut tally = Tally::new(CPUS);
    for slice in &ours {
        tally.add(slice.task + 1);
    }
    for slice in &ours {
        let tid = slice.task + 1;
        tally.take(1, Event::Wake { cpu: 0, tid });
    }
    let end = slices.iter().map(|slice| slice.end).max().expect("slices");
    let mut events = events(&slices).into_iter().peekable();
    let mut estimator = Estimator::new(Settings { window_ns: 20 * MS });
    let mut seen = 0;
    for tick in 1..end / (20 * MS) {
        let now = tick * 20 * MS + 1;
        while let Some((ts, event)) = events.next_if(|(ts, _)| *ts <= now) {
            tally.take(ts, event);
        }
        let totals = tally.totals(now, |_| true);
        let estimate = estimator.tick(Reading {
            at_ns: now,
            run_ns: totals.run_ns,
            wait_ns: Some(totals.wait_ns),
            idle_ns: totals.idle_ns,
            allowed: CPUS,
            ..Reading::default()
        });
        let Some(estimate) = estimate else { continue };
        let (from, to) = ((tick - 1) * 20 * MS, tick * 20 * MS);
        let within = |slice: &&Slice| slice.end.min(to).saturating_sub(slice.start.max(from));
        let ran: u64 = ours.iter().map(within).sum();
        let running = ran as f64 / (20 * MS) as f64;
        assert!(
            (estimate.window.running - running).abs() < 1e-3,
            "{tick}: {estimate:?} {running}"
        );
        let phantoms = f64::from(OURS) - running;
        assert!(
            (estimate.phantom_avg() - phantoms).abs() < 1e-3,
            "{tick}: {estimate:?} {phantoms}"
        );
        assert!(estimate.runnable_cpus() >= running - 1e-3);
        seen += u32::from(phantoms > 1.0);
    }
    assert!(seen > 5, "the neighbours take CPUs");
}
