//! Policies made of parts: where woken tasks go, where idle CPUs look for work, what a tick does, how long to spin.

use crate::answer::{Conserving, Cost, Idle, IdleAction, Tick, TickAction, Waking, Woken};
use crate::policy::{Assigned, Lookout, Policy};
use crate::state::{IDLE_NS_MAX, Search, averaged};
use crate::{CpuId, CpuState, Distance, Machine, Partner, Queues, Spin, SpinFacts, View};

/// Where woken tasks go. It decides on the queues.
pub trait WakePart: Send + Sync {
    /// The queues that it fills.
    fn queues(&self, machine: &Machine) -> Queues;

    /// As [`Policy::wake`].
    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken;

    /// As [`Policy::dispatch`].
    fn dispatch(&self, _state: &mut CpuState, _view: &dyn View, _task: &Waking) -> Assigned {
        Assigned {
            cpu: None,
            cost: Cost::default(),
        }
    }

    /// Whether it sends tasks only to idle CPUs: without any they stay where they are. See [`Policy::may_keep`].
    fn may_keep(&self) -> bool {
        false
    }

    /// How far it finds every idle CPU.
    fn reach(&self, machine: &Machine) -> Reach;
}

/// Where an idle CPU looks for work when its own queue has none.
pub trait IdlePart: Send + Sync {
    /// The work to try after the first `named` ones of this search have failed.
    fn pull(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, named: u32) -> Pull;

    /// How far it finds every queue in which a task waits.
    fn reach(&self, machine: &Machine) -> Reach;

    /// As [`Policy::lookout`].
    fn lookout(&self) -> Lookout {
        Lookout::Own
    }
}

/// What happens at a tick.
pub trait TickPart: Send + Sync {
    /// As [`Policy::tick`].
    fn tick(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, ran_ns: Option<u64>) -> Tick;
}

/// What an [`IdlePart`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// [`IdleAction::Take`], [`IdleAction::Steal`] or [`IdleAction::Ask`]; `None`: nothing, or nothing more.
    pub action: Option<IdleAction>,
    /// What the search took.
    pub cost: Cost,
}

/// How far a search misses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Everything as near as this is found; `None`: not even that on the CPU itself.
    pub distance: Option<Distance>,
    /// What it misses beyond.
    pub misses: &'static str,
}

/// A policy made of parts.
pub struct Composed {
    name: String,
    wake: Box<dyn WakePart>,
    idle: Vec<Box<dyn IdlePart>>,
    tick: Box<dyn TickPart>,
    spin: Spin,
}

impl Composed {
    /// Woken tasks go where `wake` says; idle CPUs look into their own queue only; ticks let the tasks of a queue
    /// take turns of [`RoundRobin::SLICE_NS`]; nobody spins.
    pub fn new(name: impl Into<String>, wake: impl WakePart + 'static) -> Self {
        Composed {
            name: name.into(),
            wake: Box::new(wake),
            idle: vec![],
            tick: Box::new(RoundRobin::default()),
            spin: Spin::Never,
        }
    }

    /// Idle CPUs look there too, after what was added before has found nothing.
    #[must_use]
    pub fn idle(mut self, part: impl IdlePart + 'static) -> Self {
        self.idle.push(Box::new(part));
        self
    }

    /// Ticks do this instead.
    #[must_use]
    pub fn tick(mut self, part: impl TickPart + 'static) -> Self {
        self.tick = Box::new(part);
        self
    }

    /// Idle CPUs spin before they sleep.
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = spin;
        self
    }

    /// Another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    fn spin_ns(&self, state: &CpuState, view: &dyn View, cpu: CpuId) -> u64 {
        if self.spin == Spin::Never {
            return 0;
        }
        // Only who runs can make work for an idle CPU; what comes from outside of the machine is rare.
        let runs = view.idle().count() < view.online().count();
        let facts = SpinFacts {
            partner: if runs {
                Partner::Unknown
            } else {
                Partner::Asleep
            },
            wanted: !view.may_spin(cpu),
        };
        self.spin.ns(&state.spin, facts)
    }
}

impl Policy for Composed {
    fn name(&self) -> &str {
        &self.name
    }

    fn queues(&self, machine: &Machine) -> Queues {
        self.wake.queues(machine)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        self.wake.wake(state, view, task)
    }

    fn idle(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, attempt: u32) -> Idle {
        if attempt == 0 {
            state.search = Search::default();
            state.idle_since_ns.get_or_insert(view.now());
            let own = view.queues().of(cpu);
            if view.waiting(own) > 0 {
                return Idle {
                    action: IdleAction::Take(own),
                    cost: Cost::default(),
                };
            }
        }
        let mut cost = Cost::default();
        while let Some(part) = self.idle.get(state.search.part) {
            let named = state.search.named;
            let pull = part.pull(state, view, cpu, named);
            cost += pull.cost;
            match pull.action {
                Some(IdleAction::Ask { dispatcher, .. }) => {
                    let spin_ns = self.spin_ns(state, view, cpu);
                    let action = IdleAction::Ask {
                        dispatcher,
                        spin_ns,
                    };
                    return Idle { action, cost };
                }
                Some(action) => {
                    state.search.named += 1;
                    return Idle { action, cost };
                }
                None => {
                    state.search = Search {
                        part: state.search.part + 1,
                        named: 0,
                    }
                }
            }
        }
        let spin_ns = self.spin_ns(state, view, cpu);
        Idle {
            action: IdleAction::Sleep { spin_ns },
            cost,
        }
    }

    fn ran(&self, state: &mut CpuState, now_ns: u64, woken_ns: u64) {
        let Some(since) = state.idle_since_ns.take() else {
            return;
        };
        let idle = now_ns.saturating_sub(since);
        state.idle_ns = averaged(state.idle_ns, idle).min(IDLE_NS_MAX);
        state.spin.waited(idle.saturating_sub(woken_ns));
        if woken_ns > 0 {
            state.spin.woke(woken_ns);
        }
    }

    fn tick(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, ran_ns: Option<u64>) -> Tick {
        self.tick.tick(state, view, cpu, ran_ns)
    }

    fn dispatch(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Assigned {
        self.wake.dispatch(state, view, task)
    }

    fn may_keep(&self, machine: &Machine) -> bool {
        self.wake.may_keep() && self.work_conserving(machine) == Conserving::Yes
    }

    fn lookout(&self) -> Lookout {
        let parts = self.idle.iter().map(|part| part.lookout());
        parts.max().unwrap_or_default()
    }

    fn work_conserving(&self, machine: &Machine) -> Conserving {
        let own = Reach {
            distance: Some(own_queue_reach(&self.queues(machine), machine)),
            misses: "idle CPUs look only into their own queue",
        };
        let idle = self.idle.iter().map(|part| part.reach(machine));
        let idle = idle.chain([own]).max_by_key(|reach| reach.distance);
        let wake = self.wake.reach(machine);
        let least = match idle {
            Some(idle) if idle.distance < wake.distance => idle,
            _ => wake,
        };
        let widest = machine.distance(0, machine.cpus() - 1);
        match least.distance {
            None => Conserving::No { when: least.misses },
            Some(distance) if distance >= widest => Conserving::Yes,
            // An idle CPU that finds only what is in its own queue.
            Some(Distance::Same) => Conserving::No { when: least.misses },
            Some(distance) => Conserving::Within {
                distance,
                when: least.misses,
            },
        }
    }
}

/// How far apart CPUs are that surely have one queue.
fn own_queue_reach(queues: &Queues, machine: &Machine) -> Distance {
    use Distance::{Core, Llc, Node, Remote, Same};
    let shared = |&distance: &Distance| {
        (0..machine.cpus()).all(|cpu| {
            let (near, own) = (
                machine.cpus_within(cpu, distance),
                queues.cpus(queues.of(cpu)),
            );
            own.start <= near.start && near.end <= own.end
        })
    };
    let widest_first = [Remote, Node, Llc, Core].into_iter();
    widest_first.clone().find(shared).unwrap_or(Same)
}

/// The tasks of a queue take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundRobin {
    /// How long a turn is.
    pub slice_ns: u64,
}

impl RoundRobin {
    /// The usual turn: 4 ms, a tick of most kernels.
    pub const SLICE_NS: u64 = 4_000_000;
}

impl Default for RoundRobin {
    fn default() -> Self {
        RoundRobin {
            slice_ns: Self::SLICE_NS,
        }
    }
}

impl TickPart for RoundRobin {
    fn tick(&self, _: &mut CpuState, view: &dyn View, cpu: CpuId, ran_ns: Option<u64>) -> Tick {
        let over = ran_ns.is_some_and(|ran| ran >= self.slice_ns);
        let queue = view.queues().inbox().unwrap_or(view.queues().of(cpu));
        let action = match over && view.waiting(queue) > 0 {
            true => TickAction::Preempt,
            false => TickAction::Keep,
        };
        Tick {
            action,
            cost: Cost::default(),
        }
    }
}
