//! Stealing on idle.

use crate::answer::{Cost, IdleAction, Waking, Woken};
use crate::compose::{IdlePart, Pull, Reach, WakePart};
use crate::find::{around, home, idle_for, idle_outward, to_cpu};
use crate::{CpuId, CpuState, Distance, Machine, Queues, View};

/// An idle CPU takes one task from an overloaded CPU: a hardware thread of its own core first, then any CPU of
/// its last-level cache, found through the sparse mask of overloaded CPUs.
///
/// # Source
/// S. Sistare, "steal tasks to improve CPU utilization" (linux-kernel, version 4, December 2018).
///
/// # Cost model
/// O(LLC / 8) loads of lines that hardly anybody writes, 1 to 2 us in the kernel; so it is never cut short.
///
/// # Known bad case
/// With the reach of an LLC, one LLC may be overloaded while another is idle: that is left to the periodic balance. On
/// machines of many nodes the evener load makes wakers pull tasks across nodes more often; beyond
/// [`node_limit`](Self::node_limit) nodes nothing is stolen at all.
#[derive(Clone, Copy, Debug)]
pub struct Steal {
    /// How far away a CPU may be that is stolen from: [`Distance::Llc`] in the patches; farther for programs
    /// whose tasks are not balanced otherwise.
    pub reach: Distance,
    /// Machines with more nodes do not steal.
    pub node_limit: u32,
}

impl Steal {
    /// As in the patches: within the LLC, on machines of up to two nodes.
    pub const PATCHES: Steal = Steal {
        reach: Distance::Llc,
        node_limit: 2,
    };

    /// From anywhere, the nearest first.
    pub const ANYWHERE: Steal = Steal {
        reach: Distance::Remote,
        node_limit: u32::MAX,
    };
}

impl IdlePart for Steal {
    fn pull(&self, _: &mut CpuState, view: &dyn View, cpu: CpuId, named: u32) -> Pull {
        let machine = view.machine();
        let mut cost = Cost::default();
        if machine.nodes() > self.node_limit {
            return Pull { action: None, cost };
        }
        let mut left = named;
        let limit = machine.cpus_within(cpu, self.reach);
        let own = machine.siblings(cpu);
        let overloaded = view.overloaded();
        let mut steal = |victim: CpuId, cost: &mut Cost| {
            cost.examined += 1;
            if machine.llc(victim) != machine.llc(cpu) {
                cost.remote += 1;
            }
            let taken = victim != cpu && left == 0;
            left -= u32::from(victim != cpu && !taken);
            taken.then_some(IdleAction::Steal {
                from: view.queues().of(victim),
                count: 1,
                home: None,
            })
        };
        let mut siblings = overloaded.iter_within(own.clone());
        cost.words += 1;
        let mut action = siblings.find_map(|victim| steal(victim, &mut cost));
        for llc in machine.llcs_outward(cpu) {
            let cpus = machine.llc_cpus(llc);
            // Near ones come first: after the first that is too far all are.
            if action.is_some() || self.reach < Distance::Llc || !limit.contains(&cpus.start) {
                break;
            }
            cost.words += (cpus.end - cpus.start).div_ceil(overloaded.bits_per_word());
            // From behind the own core on, so that thieves begin at different places.
            let spans = around(cpus, own.end).into_iter();
            let mut victims = spans
                .flat_map(|span| overloaded.iter_within(span))
                .filter(|victim| !own.contains(victim));
            action = victims.find_map(|victim| steal(victim, &mut cost));
        }
        Pull { action, cost }
    }

    fn reach(&self, machine: &Machine) -> Reach {
        match machine.nodes() > self.node_limit {
            true => Reach {
                distance: Some(Distance::Same),
                misses: "the machine has more nodes than the limit for stealing",
            },
            false => Reach {
                distance: Some(self.reach),
                misses: "one last-level cache has more tasks than CPUs while another has idle ones",
            },
        }
    }
}

/// A woken task goes to an idle CPU if there is one: where it ran, then near to that, then near to its waker. Found
/// through the mask of idle CPUs, so every one is seen.
///
/// # Source
/// The search of a whole idle mask, as sched_ext's default does it (`scx_select_cpu_dfl`, Linux 6.12).
///
/// # Cost model
/// O(1) if the CPU where the task ran is idle, else O(CPUs within reach / 64).
///
/// # Known bad case
/// All wake-ups of a cache read one or two lines that its CPUs write whenever they become idle or busy.
#[derive(Clone, Copy, Debug)]
pub struct Idlest {
    /// How far away the task may go.
    pub reach: Distance,
}

impl WakePart for Idlest {
    fn queues(&self, machine: &Machine) -> Queues {
        Queues::per_cpu(machine)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        let Some(home) = home(state, view, task) else {
            return Woken::Nowhere;
        };
        let mut cost = Cost {
            examined: 1,
            ..Cost::default()
        };
        if idle_for(view, task, home) {
            return to_cpu(view, home, cost);
        }
        let mut found = idle_outward(view, task, home, self.reach, &mut cost);
        if let Some(waker) = task.waker.filter(|_| found.is_none())
            && waker < view.machine().cpus()
            && view.machine().distance(waker, home) > self.reach
        {
            found = idle_outward(view, task, waker, self.reach, &mut cost);
        }
        to_cpu(view, found.unwrap_or(home), cost)
    }

    fn may_keep(&self) -> bool {
        true
    }

    fn reach(&self, _: &Machine) -> Reach {
        Reach {
            distance: Some(self.reach),
            misses: "the caches of the task and of its waker are busy while another is idle",
        }
    }
}
