//! Linux' pulling: when a CPU becomes idle, and at ticks.

use std::ops::Range;

use crate::answer::{Cost, IdleAction, Tick, TickAction};
use crate::compose::{IdlePart, Pull, Reach, TickPart};
use crate::state::LEVELS;
use crate::{CpuId, CpuState, Distance, Machine, QueueId, View};

const DISTANCES: [Distance; LEVELS] = [
    Distance::Core,
    Distance::Llc,
    Distance::Node,
    Distance::Remote,
];

/// The levels that have more CPUs than the one below, with their CPUs.
fn levels(machine: &Machine, cpu: CpuId) -> impl Iterator<Item = (usize, Range<CpuId>)> + '_ {
    let mut before = 1;
    let spans = DISTANCES.map(|distance| machine.cpus_within(cpu, distance));
    spans.into_iter().enumerate().filter(move |(_, span)| {
        let more = span.len() > before;
        before = span.len();
        more
    })
}

/// The CPU of `span` with the longest queue, and how many wait in it. O(span).
fn busiest(
    view: &dyn View,
    cpu: CpuId,
    span: Range<CpuId>,
    cost: &mut Cost,
) -> Option<(CpuId, u32)> {
    let machine = view.machine();
    let own = machine.llc_cpus(machine.llc(cpu));
    cost.examined += span.len() as u32;
    if span.len() > own.len() {
        cost.remote += (span.len() - own.len()) as u32;
    }
    let others = span.filter(|&other| other != cpu && view.running(other));
    others
        .map(|other| (other, view.waiting(view.queues().of(other))))
        .filter(|&(_, waiting)| waiting > 0)
        .max_by_key(|&(other, waiting)| (waiting, u32::MAX - other))
}

/// A CPU about to be idle pulls a task from the busiest CPU of its core, its cache, its node, the machine, one after
/// another, as long as the search so far and the expected one are shorter than the CPU's average idle time.
///
/// # Source
/// `newidle_balance` of Linux, and `idle_balance` before 5.10. The cost of a level is the most that it took
/// lately, forgotten by 1 % a second.
///
/// # Cost model
/// O(CPUs of the level), [`Newidle::EXAMINE_NS`] each by its own estimate: tens of microseconds on large machines.
///
/// # Known bad case
/// Many short idle periods, as with pipes: the search is never begun while tasks wait on other CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Newidle {
    /// Not even begun when the average idle time is shorter. `sched_migration_cost`, 500 us, before Linux 5.16
    /// or so; 0 after.
    pub idle_ns_min: u64,
}

impl Newidle {
    /// As in Linux before 5.16 or so.
    pub const OLD: Newidle = Newidle {
        idle_ns_min: 500_000,
    };

    /// As in newer ones.
    pub const NEW: Newidle = Newidle { idle_ns_min: 0 };

    /// What looking at the run queue of another CPU is estimated to take: a cache miss and some additions.
    pub const EXAMINE_NS: u64 = 100;

    /// The same behind another last-level cache.
    pub const EXAMINE_REMOTE_NS: u64 = 300;

    const DECAY_NS: u64 = 1_000_000_000;
}

fn estimate_ns(cost: Cost) -> u64 {
    u64::from(cost.examined - cost.remote) * Newidle::EXAMINE_NS
        + u64::from(cost.remote) * Newidle::EXAMINE_REMOTE_NS
}

impl CpuState {
    /// Notes that a search for an idle CPU looked at `seen` ones.
    pub(crate) fn note_scan(&mut self, seen: u32) {
        let ns = u64::from(seen) * Newidle::EXAMINE_NS;
        self.scan_ns = crate::state::averaged(self.scan_ns, ns);
    }

    /// How many of `cpus` CPUs the average idle time pays for looking at, as `SIS_PROP` reckons.
    pub(crate) fn scan_worth(&self, cpus: u32) -> u64 {
        u64::from(cpus) * (self.idle_ns / 512) / (self.scan_ns + 1)
    }
}

impl IdlePart for Newidle {
    fn pull(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, named: u32) -> Pull {
        let mut cost = Cost::default();
        let nothing = |cost| Pull { action: None, cost };
        if state.idle_ns < self.idle_ns_min {
            return nothing(cost);
        }
        let now = view.now();
        let seconds = now.saturating_sub(state.pull_decayed_ns) / Self::DECAY_NS;
        if seconds > 0 {
            state.pull_decayed_ns = now;
            let kept = 1.0 - 0.01 * seconds.min(100) as f64;
            let decay = |ns: &mut u64| *ns = (*ns as f64 * kept) as u64;
            state.pull_ns.iter_mut().for_each(decay);
        }
        let mut left = named;
        for (level, span) in levels(view.machine(), cpu) {
            let spent_ns = estimate_ns(cost);
            if state.idle_ns < spent_ns + state.pull_ns[level] {
                break;
            }
            let found = busiest(view, cpu, span, &mut cost);
            let took = estimate_ns(cost) - spent_ns;
            state.pull_ns[level] = state.pull_ns[level].max(took);
            match (found, left) {
                (Some((from, _)), 0) => {
                    let action = Some(IdleAction::Steal {
                        from: view.queues().of(from),
                        count: 1,
                        home: None,
                    });
                    return Pull { action, cost };
                }
                (Some(_), _) => left -= 1,
                (None, _) => (),
            }
        }
        nothing(cost)
    }

    fn reach(&self, _: &Machine) -> Reach {
        Reach {
            distance: Some(Distance::Same),
            misses: "idle periods are shorter than a search, so that idle CPUs do not look for work",
        }
    }
}

/// Takes turns in a CPU's queue, evens out queues from time to time, and has an idle CPU do so while tasks wait.
///
/// # Source
/// `check_preempt_tick`, `load_balance` and `nohz_balancer_kick` of Linux, in outline: loads are numbers of tasks. The
/// kernel wakes an idle CPU to balance once in a millisecond at most (`nohz.next_balance`), whoever sees tasks waiting; as no
/// state is shared here, each CPU does so once in as many milliseconds as there are CPUs. Idle hardware threads of a core look at
/// each other once in as many milliseconds as the core has threads, the interval of that domain.
///
/// # Cost model
/// O(CPUs of a level), for each level once in an interval of a millisecond for each of its CPUs, 16 times longer
/// while the CPU is busy. Beyond the cache one CPU of each balances.
///
/// # Known bad case
/// What waits less than such an interval is not seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Periodic;

impl Periodic {
    const BUSY_FACTOR: u64 = 16;
    const NS_PER_CPU: u64 = 1_000_000;

    /// How long a turn is when `waiting` others want the CPU: `sched_latency` divided among them, not less than
    /// `sched_min_granularity`, both scaled as for at least 8 CPUs.
    pub fn slice_ns(cpus: u32, waiting: u32) -> u64 {
        let scale = u64::from(cpus.min(8).ilog2()) + 1;
        (6_000_000 * scale / (u64::from(waiting) + 1)).max(750_000 * scale)
    }

    fn balance(
        &self,
        state: &mut CpuState,
        view: &dyn View,
        cpu: CpuId,
        idle: bool,
        cost: &mut Cost,
    ) -> Option<(QueueId, u32)> {
        let machine = view.machine();
        let now = view.now();
        for (level, span) in levels(machine, cpu) {
            if !idle && now < state.balance_ns[level] {
                continue;
            }
            let factor = if idle { 1 } else { Self::BUSY_FACTOR };
            state.balance_ns[level] = now + span.len() as u64 * Self::NS_PER_CPU * factor;
            if DISTANCES[level] > Distance::Llc && !is_deputy(view, cpu, idle) {
                break;
            }
            let own = view.waiting(view.queues().of(cpu)) + u32::from(!idle);
            if let Some((from, waiting)) = busiest(view, cpu, span, cost)
                && waiting + 1 >= own + 2 - u32::from(idle)
            {
                let count = ((waiting + 1 - own) / 2).clamp(1, waiting);
                return Some((view.queues().of(from), count));
            }
        }
        None
    }
}

/// Whether `cpu` balances for its cache: the first idle one of it, or the first of all. One that was kicked has
/// `idle` set, and need not be among the idle ones any more.
fn is_deputy(view: &dyn View, cpu: CpuId, idle: bool) -> bool {
    let machine = view.machine();
    let cpus = machine.llc_cpus(machine.llc(cpu));
    match view.idle().iter_within(cpus.clone()).next() {
        Some(first) => cpu == first || (idle && cpu < first),
        None => idle || cpu == cpus.start,
    }
}

impl TickPart for Periodic {
    fn tick(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, ran_ns: Option<u64>) -> Tick {
        let mut cost = Cost::default();
        let own = view.queues().of(cpu);
        let waiting = view.waiting(own);
        if let Some((from, count)) = self.balance(state, view, cpu, ran_ns.is_none(), &mut cost) {
            let action = TickAction::Balance {
                from,
                count,
                home: None,
            };
            return Tick { action, cost };
        }
        let mut action = TickAction::Keep;
        if let Some(ran) = ran_ns.filter(|_| waiting > 0) {
            let machine = view.machine();
            cost.words += 1;
            let near = machine.llc_cpus(machine.llc(cpu));
            let mut idle = view.idle().iter_within(near).chain(view.idle().iter());
            let is_over = ran >= Self::slice_ns(machine.cpus(), waiting);
            let now = view.now();
            let mut threads = machine.siblings(cpu);
            let interval = |cpus: u32| u64::from(cpus) * Self::NS_PER_CPU;
            let core_interval = interval(threads.len() as u32);
            let sibling = threads.find(|&thread| thread != cpu && view.idle().test(thread));
            let sibling = sibling.filter(|_| now >= state.kick_core_ns);
            let kicked = sibling.or_else(|| idle.next().filter(|_| now >= state.kick_ns));
            match kicked {
                // What waits may not be allowed there: who is told in vain must not keep it from its turn here.
                Some(idle) if !(is_over && state.has_kicked) => {
                    match sibling {
                        Some(_) => state.kick_core_ns = now + core_interval,
                        None => state.kick_ns = now + interval(machine.cpus()),
                    }
                    action = TickAction::Kick(idle);
                }
                _ if is_over => action = TickAction::Preempt,
                _ => {}
            }
        }
        state.has_kicked = matches!(action, TickAction::Kick(_));
        Tick { action, cost }
    }
}

#[cfg(test)]
mod tests {
    use amdahl_topology::Topology;

    use super::*;
    use crate::policy;
    use crate::testing::{Toy, ToyTask};

    /// Each busy CPU woke an idle one at each of its ticks, so that idle CPUs got work twenty times as often as on the machine.
    #[test]
    fn a_cpu_kicks_once_in_as_many_milliseconds_as_there_are_cpus() {
        assert_eq!(kicks("4 core"), [0, 4, 8]);
        // Its sibling, too, once in two.
        assert_eq!(kicks("2 core x 2 thread"), [0, 1, 2, 4, 5, 6, 8, 9]);
    }

    /// In which of ten milliseconds.
    fn kicks(machine: &str) -> Vec<u64> {
        let machine = Machine::new(&Topology::synthetic(machine).unwrap());
        let mut toy = Toy::new(machine, policy("groups-apart=1").unwrap());
        for id in 0..2 {
            let last = Some(0);
            toy.wake(
                None,
                ToyTask {
                    last,
                    ..ToyTask::new(id)
                },
            );
        }
        let mut kicks = vec![];
        for ms in 0..10 {
            toy.view_mut().now_ns = ms * 1_000_000;
            let (state, view) = toy.state_mut(0);
            let tick = Periodic.tick(state, view, 0, Some(1_000));
            if matches!(tick.action, TickAction::Kick(_)) {
                kicks.push(ms);
            }
        }
        kicks
    }
}
