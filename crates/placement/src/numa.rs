//! Tasks stay where their memory is, unless that costs more than it saves.

use crate::answer::{Cost, IdleAction, Waking, Woken};
use crate::compose::{IdlePart, Pull, Reach, WakePart};
use crate::find::{home, idle_for, idle_outward, idle_within, to_cpu, usable};
use crate::{CpuId, CpuState, Distance, Machine, Queues, View};

/// A task runs on the node of its memory. It leaves only when [`patience`](Self::patience) tasks or more wait
/// there for the CPU it would get; an idle CPU takes tasks from other nodes that belong to its own, and others only
/// from queues where that many wait and one more.
///
/// # Source
/// The preferred node of Linux' NUMA balancing (`numa_preferred_nid`, M. Gorman and R. van Riel, Linux 3.13);
/// NIX notes (lsub, January 2012): memory of the own node helps below 5 CPUs and not above.
///
/// # Cost model
/// A wake-up is O(node / 64), O(CPUs / 64) when the node is busy. An idle CPU looks at O(CPUs / 8) lines when it
/// finds nothing on its node.
///
/// # Known bad case
/// A node with one task waiting for each CPU beside an idle node: they wait at home, although the program's memory
/// may not matter. With memory on one node only, the others get work late.
#[derive(Clone, Copy, Debug)]
pub struct Numa {
    /// How many tasks may wait for a CPU of the home node before another node is worth it.
    pub patience: u32,
}

impl Default for Numa {
    fn default() -> Self {
        Numa { patience: 1 }
    }
}

impl WakePart for Numa {
    fn queues(&self, machine: &Machine) -> Queues {
        Queues::per_cpu(machine)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        let Some(near) = home(state, view, task) else {
            return Woken::Nowhere;
        };
        let machine = view.machine();
        let node = task.home_node.filter(|&node| node < machine.nodes());
        let cpus = machine.node_cpus(node.unwrap_or(machine.node(near)));
        let mut cost = Cost {
            examined: 1,
            ..Cost::default()
        };
        if cpus.contains(&near) && idle_for(view, task, near) {
            return to_cpu(view, near, cost);
        }
        let idle = match cpus.contains(&near) {
            true => idle_outward(view, task, near, Distance::Node, &mut cost),
            false => idle_within(view, task, cpus.clone(), state.cursor, &mut cost),
        };
        if let Some(idle) = idle {
            return to_cpu(view, idle, cost);
        }
        // Nobody is idle at home: the shorter queue of two, the task's own and one by turns.
        let turn = cpus.start + state.cursor % (cpus.end - cpus.start);
        state.cursor = state.cursor.wrapping_add(1);
        let waiting = |cpu: CpuId| view.waiting(view.queues().of(cpu));
        let stay = [near, turn]
            .into_iter()
            .filter(|&cpu| cpus.contains(&cpu) && usable(view, task, cpu))
            .min_by_key(|&cpu| waiting(cpu));
        let patient = stay.filter(|&stay| waiting(stay) < self.patience);
        let away = match patient {
            Some(stay) => return to_cpu(view, stay, cost),
            None => idle_outward(view, task, near, Distance::Remote, &mut cost),
        };
        to_cpu(view, away.or(stay).unwrap_or(near), cost)
    }

    fn reach(&self, machine: &Machine) -> Reach {
        Reach {
            distance: Some(if machine.nodes() == 1 {
                Distance::Remote
            } else {
                Distance::Node
            }),
            misses: "a task waits at its home node while another node is idle",
        }
    }
}

impl IdlePart for Numa {
    fn pull(&self, _: &mut CpuState, view: &dyn View, cpu: CpuId, named: u32) -> Pull {
        let machine = view.machine();
        let (node, own_llc) = (machine.node(cpu), machine.llc(cpu));
        let mut cost = Cost::default();
        let mut left = named;
        // First everything of the own node, then what belongs here, then what waits in long queues.
        for (remote, home) in [(false, None), (true, Some(node)), (true, None)] {
            let llcs = machine.llcs_outward(cpu);
            for llc in llcs.filter(|&llc| (machine.node_of_llc(llc) != node) == remote) {
                let cpus = machine.llc_cpus(llc);
                cost.words += (cpus.end - cpus.start).div_ceil(view.overloaded().bits_per_word());
                for victim in view.overloaded().iter_within(cpus) {
                    cost.examined += 1;
                    cost.remote += u32::from(llc != own_llc);
                    let from = view.queues().of(victim);
                    let short = remote && home.is_none() && view.waiting(from) <= self.patience;
                    if victim == cpu || short {
                        continue;
                    }
                    if left > 0 {
                        left -= 1;
                        continue;
                    }
                    let action = Some(IdleAction::Steal {
                        from,
                        count: 1,
                        home,
                    });
                    return Pull { action, cost };
                }
            }
        }
        Pull { action: None, cost }
    }

    fn reach(&self, machine: &Machine) -> Reach {
        WakePart::reach(self, machine)
    }
}
