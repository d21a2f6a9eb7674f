//! A queue for each few CPUs.

use crate::answer::{Cost, IdleAction, Waking, Woken};
use crate::compose::{IdlePart, Pull, Reach, WakePart};
use crate::find::{home, idle_outward, idle_within};
use crate::policy::Lookout;
use crate::{CpuId, CpuState, Distance, Machine, QueueId, Queues, View};

/// How many CPUs share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSize {
    /// So many, or fewer where a last-level cache ends. 0 counts as 1.
    Cpus(u32),
    /// Those of a last-level cache.
    Llc,
}

/// Each group of CPUs has a queue; tasks stay in the group in which they were made.
///
/// # Source
/// NIX notes (lsub, January 2012): 8 groups of 4 of 32 CPUs, with stealing and without. With
/// [`GroupSize::Llc`] it is the queue per LLC of D. Vernet's patches "shared_runq" (linux-kernel, 2023).
///
/// # Cost model
/// O(group / 64) for a wake-up, with stealing O(CPUs / 64) when the group is busy; stealing looks at an eighth of the lines that
/// a byte per CPU would take. The queue's lock is shared by the group alone.
///
/// # Known bad case
/// Without stealing one program has no more than one group, whatever else is idle (NIX used 4 CPUs of 32, and won
/// by it). With large groups, as [`Single`](crate::Single).
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// How many CPUs share a queue.
    pub size: GroupSize,
    /// Whether idle CPUs take tasks of other groups: says whom a wake-up may notify. To be used with
    /// [`StealGroups`].
    pub steal: bool,
}

impl WakePart for Groups {
    fn queues(&self, machine: &Machine) -> Queues {
        let size = match self.size {
            GroupSize::Cpus(size) => size,
            GroupSize::Llc => u32::MAX,
        };
        Queues::groups(machine, size)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        let Some(home) = home(state, view, task) else {
            return Woken::Nowhere;
        };
        let queue = view.queues().of(home);
        let group = view.queues().cpus(queue);
        let mut cost = Cost::default();
        let mut notify = idle_within(view, task, group, home, &mut cost);
        if notify.is_none() && self.steal {
            notify = idle_outward(view, task, home, Distance::Remote, &mut cost);
        }
        Woken::Queue {
            queue,
            notify,
            cost,
        }
    }

    fn reach(&self, machine: &Machine) -> Reach {
        Reach {
            distance: Some(match (self.steal, self.size) {
                (true, _) => Distance::Remote,
                (false, GroupSize::Llc) => Distance::Llc,
                (false, GroupSize::Cpus(size)) if size >= machine.cpus() => Distance::Llc,
                (false, GroupSize::Cpus(_)) => Distance::Same,
            }),
            misses: "all tasks are in one group and the others are idle",
        }
    }
}

/// An idle CPU takes a task from another group: of its own cache first, then of others, the nearest first.
///
/// # Source
/// As NIX's idle CPUs did it, round all queues. The mask of overloaded queues is S. Sistare's (linux-kernel, 2018).
///
/// # Cost model
/// With the mask O(CPUs / 8) words and the groups that are named; round, each queue, whether or not anybody waits there.
///
/// # Known bad case
/// Round: all idle CPUs take the lines of the few queues that are used away from who uses them.
#[derive(Clone, Copy, Debug, Default)]
pub struct StealGroups {
    /// Looks into each queue, instead of at the mask of overloaded ones.
    pub round: bool,
}

impl IdlePart for StealGroups {
    fn pull(&self, _: &mut CpuState, view: &dyn View, cpu: CpuId, named: u32) -> Pull {
        let (machine, queues) = (view.machine(), view.queues());
        let mut cost = Cost::default();
        let own = queues.of(cpu);
        let mut left = named;
        for llc in machine.llcs_outward(cpu) {
            let cpus = machine.llc_cpus(llc);
            let (mut named, mut all) = (None, None);
            match self.round {
                true => all = Some(cpus),
                false => {
                    let words = (cpus.end - cpus.start).div_ceil(view.overloaded().bits_per_word());
                    cost.words += words;
                    named = Some(view.overloaded().iter_within(cpus));
                }
            }
            let remote = u32::from(llc != machine.llc(cpu));
            let leads = named.into_iter().flatten().chain(all.into_iter().flatten());
            for lead in leads {
                let queue = queues.of(lead);
                let is_lead = queues.lead(queue) == Some(lead);
                if self.round && !is_lead {
                    continue;
                }
                cost.examined += 1;
                cost.remote += remote;
                if queue == own || !is_lead || (self.round && view.waiting(queue) == 0) {
                    continue;
                }
                match left {
                    0 => return found(queue, cost),
                    _ => left -= 1,
                }
            }
        }
        Pull { action: None, cost }
    }

    fn lookout(&self) -> Lookout {
        match self.round {
            true => Lookout::All,
            false => Lookout::Own,
        }
    }

    fn reach(&self, _: &Machine) -> Reach {
        Reach {
            distance: Some(Distance::Remote),
            misses: "nothing",
        }
    }
}

fn found(from: QueueId, cost: Cost) -> Pull {
    Pull {
        action: Some(IdleAction::Steal {
            from,
            count: 1,
            home: None,
        }),
        cost,
    }
}

#[cfg(test)]
mod tests {
    use amdahl_topology::Topology;

    use super::*;
    use crate::policy;
    use crate::testing::{Toy, ToyTask};

    #[test]
    fn who_goes_round_looks_into_every_queue_and_the_mask_names_the_overloaded() {
        let machine = Machine::new(&Topology::synthetic("4 node x 4 core").unwrap());
        let mut toy = Toy::new(machine, policy("groups-apart=4").unwrap());
        let pull = |toy: &mut Toy, round| {
            let (state, view) = toy.state_mut(0);
            StealGroups { round }.pull(state, view, 0, 0)
        };
        let (masked, round) = (pull(&mut toy, false), pull(&mut toy, true));
        assert_eq!((masked.cost.examined, round.cost.examined), (0, 4));
        assert_eq!((masked.action, round.action), (None, None));
        for id in 0..5 {
            let last = Some(9);
            toy.wake(
                None,
                ToyTask {
                    last,
                    ..ToyTask::new(id)
                },
            );
        }
        let from = Some(QueueId(2));
        for is_round in [false, true] {
            match pull(&mut toy, is_round).action {
                Some(IdleAction::Steal { from: named, .. }) => assert_eq!(Some(named), from),
                other => panic!("{other:?}"),
            }
        }
        let lookout = |name: &str| policy(name).unwrap().lookout();
        assert_eq!(lookout("groups-round+spin"), Lookout::All);
        assert_eq!(lookout("groups+spin"), Lookout::Own);
    }
}
