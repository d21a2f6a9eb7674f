//! From what was measured to costs: what a program took, less what the simulator charges for the same program besides.
//!
//! A switch between two threads is measured by two threads that send each other a byte. Simulated, they pay for system calls,
//! pipes, run queues and searches as well; so the program is simulated with a switch that costs nothing, and the switch gets
//! what is left of the time. So whatever the simulator charges, simulating the program again takes as long as it took.

use std::collections::BTreeMap;
use std::time::Duration;

use amdahl_des::time::Ns;
use amdahl_des::{Costs, Limits, Simulation, workload};
use amdahl_topology::Topology;

/// How long programs took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// A byte, and 32 KiB, written to a pipe and read again by the same thread.
    pub pipe_round: Option<(Ns, Ns)>,
    /// A byte there and back between two threads of one CPU.
    pub ping_pong: Option<Ns>,
    /// A byte to a reader who has slept on another CPU, for a short and for a long time.
    pub woken: Option<[Woken; 2]>,
    /// A thread that is made, ends and is waited for.
    pub thread_round: Option<Ns>,
    /// What a timer that wakes a thread takes from who computes on that CPU.
    pub timer: Option<Ns>,
}

/// A reader on another CPU that is woken.
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    /// How long it has slept.
    pub gap: Duration,
    /// What the write takes.
    pub write: Ns,
    /// From the end of the write until the reader has its byte.
    pub late: Ns,
}

/// Fills in what follows from the times, given all other costs. `home` and `other` are the CPUs that were measured on, by the
/// kernel's numbers. The parts that were, in words.
pub fn solve(
    costs: &mut Costs,
    measured: &Measured,
    topology: &Topology,
    home: u32,
    other: Option<u32>,
) -> Vec<&'static str> {
    let mut parts = vec![];
    if let Some((byte, block)) = measured.pipe_round {
        // A round is a write and a read.
        costs.copy_kib = (block.saturating_sub(byte) / 64).max(1);
        let own = pipe_round(
            &Costs {
                pipe: 0,
                ..costs.clone()
            },
            topology,
            home,
        );
        costs.pipe = byte.saturating_sub(own) / 2;
        parts.push("pipe, copy_kib");
    }
    if let Some(round) = measured.ping_pong {
        let free = Costs {
            wake: 0,
            context_switch: 0,
            ..costs.clone()
        };
        let own = ping_pong(&free, topology, home);
        let both = (round.saturating_sub(own) / 2).max(2);
        // Only the sum of a wake-up and a switch can be told from outside; the ratio is the assumed one.
        costs.wake = both * costs.wake / (costs.wake + costs.context_switch);
        costs.context_switch = both - costs.wake;
        parts.push("wake + context_switch");
    }
    if let (Some([shallow, deep]), Some(other)) = (measured.woken, other) {
        let free = Costs {
            ipi: 0,
            ..costs.clone()
        };
        let (write, _) = woken(&free, topology, home, other, shallow.gap);
        costs.ipi = shallow.write.saturating_sub(write);
        let exit = |costs: &Costs, measured: &Woken| {
            let (_, late) = woken(costs, topology, home, other, measured.gap);
            measured.late.saturating_add_signed(-late).max(1)
        };
        costs.idle_exit = exit(costs, &shallow);
        costs.deep_idle_exit = exit(costs, &deep).max(costs.idle_exit);
        parts.push("ipi, idle_exit, deep_idle_exit");
    }
    if let Some(round) = measured.thread_round {
        let free = Costs {
            exit: 0,
            ..costs.clone()
        };
        costs.exit = round.saturating_sub(thread_round(&free, topology, home));
        parts.push("exit");
    }
    if let Some(taken) = measured.timer {
        let free = Costs {
            interrupt: 0,
            ..costs.clone()
        };
        costs.interrupt = taken.saturating_sub(timer(&free, topology, home));
        parts.push("interrupt");
    }
    parts
}

/// So many rounds, less a few: what begins and ends the run does not count.
const ROUNDS: [u64; 2] = [100, 1_100];

fn pipe_round(costs: &Costs, topology: &Topology, cpu: u32) -> Ns {
    each(costs, topology, |rounds| {
        format!(
            "name = 'round'\n[pipes.p]\n[[tasks]]\nname = 'one'\ncpus = '{cpu}'\n\
             program = 'loop {rounds} {{ write p 1; read p 1 }}'"
        )
    })
}

fn thread_round(costs: &Costs, topology: &Topology, cpu: u32) -> Ns {
    each(costs, topology, |rounds| {
        format!(
            "name = 'threads'\n\
             [[tasks]]\nname = 'maker'\ncpus = '{cpu}'\nprogram = 'loop {rounds} {{ spawn short; join }}'\n\
             [[tasks]]\nname = 'short'\ncount = 0\ncpus = '{cpu}'\nprogram = 'exit'"
        )
    })
}

/// What a timer that wakes a thread takes from who computes beside it.
fn timer(costs: &Costs, topology: &Topology, cpu: u32) -> Ns {
    // What begins and ends the run does not count.
    let [few, many] = [10_000_000, 110_000_000].map(|compute: Ns| {
        let text = format!(
            "name = 'timer'\n\
             [[tasks]]\nname = 'computes'\ncpus = '{cpu}'\nprogram = 'compute {compute}ns'\n\
             [[tasks]]\nname = 'sleeper'\ncpus = '{cpu}'\ndaemon = true\n\
             program = 'forever {{ sleep 200us; tally slept }}'"
        );
        let result = simulate(costs, topology, &text).result;
        (result.makespan_ns - compute, result.counters["slept"])
    });
    (many.0 - few.0) / (many.1 - few.1).max(1)
}

/// A round of the two threads as the simulator has it.
pub fn ping_pong(costs: &Costs, topology: &Topology, cpu: u32) -> Ns {
    each(costs, topology, |rounds| {
        format!(
            "name = 'ping-pong'\n[pipes.there]\n[pipes.back]\n\
             [[tasks]]\nname = 'ping'\ncpus = '{cpu}'\n\
             program = 'loop {rounds} {{ write there 1; read back 1 }}'\n\
             [[tasks]]\nname = 'echo'\ncpus = '{cpu}'\n\
             program = 'loop {rounds} {{ read there 1; write back 1 }}'"
        )
    })
}

fn each(costs: &Costs, topology: &Topology, text: impl Fn(u64) -> String) -> Ns {
    let [few, many] = ROUNDS.map(|rounds| {
        let outcome = simulate(costs, topology, &text(rounds));
        outcome.result.makespan_ns
    });
    (many - few) / (ROUNDS[1] - ROUNDS[0])
}

/// What the write takes, and how much later than its end and the exit from idleness the reader goes on: negative if it does
/// so before the write has ended.
pub fn woken(costs: &Costs, topology: &Topology, from: u32, to: u32, gap: Duration) -> (Ns, i64) {
    // So long that the reader surely goes on after the write.
    const EXIT: Ns = 10_000_000;
    let costs = Costs {
        idle_exit: EXIT,
        deep_idle_exit: EXIT,
        deep_idle_after: costs.deep_idle_after + EXIT,
        // The writer's last stretch is to end with what is measured.
        exit: 0,
        ..costs.clone()
    };
    let gap = EXIT * 2 + gap.as_nanos() as u64;
    let text = format!(
        "name = 'woken'\n[pipes.p]\n\
         [[tasks]]\nname = 'writer'\ncpus = '{from}'\n\
         program = 'compute {gap}ns; start write; write p 1; stop write'\n\
         [[tasks]]\nname = 'reader'\ncpus = '{to}'\nprogram = 'read p 1; compute 1us'"
    );
    let outcome = simulate(&costs, topology, &text);
    let last = |template| {
        let mut slices = outcome.slices.iter().rev();
        *slices
            .find(|slice| slice.template == template)
            .expect("both run")
    };
    let late = last(1).start as i64 - last(0).end as i64 - EXIT as i64;
    (outcome.result.histograms["write"].max, late)
}

fn simulate(costs: &Costs, topology: &Topology, text: &str) -> amdahl_des::Outcome {
    let workload = workload::parse(text, &BTreeMap::new()).expect("it is ours");
    // Ticks are not in medians of rounds.
    let costs = Costs {
        tick: 0,
        ..costs.clone()
    };
    let policy = amdahl_placement::policy("linux").expect("it is one of the names");
    let simulation = Simulation {
        workload: &workload,
        topology,
        costs: &costs,
        policy: &*policy,
        seed: 0,
        limits: Limits {
            slices: 100,
            ..Limits::default()
        },
    };
    simulation.run().expect("the machine has these CPUs")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The costs of run queues and of searches were not subtracted, and charged again by each simulated switch.
    #[test]
    fn what_was_measured_takes_as_long_when_it_is_simulated() {
        for machine in ["2 core", "2 node x 8 core x 2 thread"] {
            let topology = Topology::synthetic(machine).unwrap();
            let gaps = [Duration::from_micros(100), Duration::from_millis(2)];
            let measured = Measured {
                pipe_round: Some((900, 9_000)),
                ping_pong: Some(4_400),
                woken: Some(
                    [(gaps[0], 2_400, 5_000), (gaps[1], 2_500, 48_000)]
                        .map(|(gap, write, late)| Woken { gap, write, late }),
                ),
                thread_round: Some(31_000),
                timer: Some(6_000),
            };
            let mut costs = Costs::default();
            let parts = solve(&mut costs, &measured, &topology, 0, Some(1));
            assert_eq!(parts.len(), 5);
            let near = |simulated: Ns, measured: Ns| simulated.abs_diff(measured) <= 5;
            let round = pipe_round(&costs, &topology, 0);
            assert!(near(round, 900), "{machine}: pipe {round}");
            let round = ping_pong(&costs, &topology, 0);
            assert!(near(round, 4_400), "{machine}: ping-pong {round}");
            let (write, late) = woken(&costs, &topology, 0, 1, gaps[0]);
            assert!(near(write, 2_400), "{machine}: write {write}");
            let late = |exit: Ns| exit.saturating_add_signed(late);
            let (short, long) = (late(costs.idle_exit), late(costs.deep_idle_exit));
            assert!(near(short, 5_000) && near(long, 48_000), "{short} {long}");
            let round = thread_round(&costs, &topology, 0);
            assert!(near(round, 31_000), "{machine}: thread {round}");
            let taken = timer(&costs, &topology, 0);
            assert!(near(taken, 6_000), "{machine}: timer {taken}");
            assert!(costs.exit > 1_000 && costs.interrupt > 100, "{costs:?}");
        }
    }

    #[test]
    fn what_was_not_measured_stays() {
        let mut costs = Costs::default();
        let topology = Topology::synthetic("1 core").unwrap();
        assert!(solve(&mut costs, &Measured::default(), &topology, 0, None).is_empty());
        assert_eq!(costs, Costs::default());
    }
}
