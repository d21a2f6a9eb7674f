//! A woken task's way in Linux: near to its waker or near to where it ran, then an idle CPU around there.

use crate::answer::{Cost, Waking, Woken};
use crate::compose::{Reach, WakePart};
use crate::find::{home, idle_for, idle_within, to_cpu, usable};
use crate::{CpuId, CpuState, Distance, Flips, Machine, Queues, View};

/// How to find an idle CPU in the last-level cache of a CPU that is busy itself.
pub trait Search: Send + Sync {
    /// An idle CPU in the cache of `target` that `task` may use. Adds to `cost` what it looked at.
    fn search(
        &self,
        state: &mut CpuState,
        view: &dyn View,
        task: &Waking,
        target: CpuId,
        cost: &mut Cost,
    ) -> Option<CpuId>;

    /// What it does not see.
    fn misses(&self) -> &'static str;
}

/// Chooses between the CPU where the task ran and that of its waker, and lets `S` search for an idle CPU around the
/// one chosen; if there is none, the task waits there. A new task goes to the LLC with the most idle CPUs.
///
/// # Source
/// `select_task_rq_fair`, `wake_affine`, `wake_wide` and `select_idle_sibling` of Linux, in outline. Loads are
/// numbers of tasks here, where the kernel has averages over time.
///
/// # Cost model
/// O(1) besides the search. A new task: O(CPUs).
///
/// # Known bad case
/// Whatever the search does not see: the task waits on a busy CPU beside an idle one.
#[derive(Clone, Copy, Debug)]
pub struct Affine<S> {
    /// The search.
    pub search: S,
}

impl<S: Search> WakePart for Affine<S> {
    fn queues(&self, machine: &Machine) -> Queues {
        Queues::per_cpu(machine)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        let Some(home) = home(state, view, task) else {
            return Woken::Nowhere;
        };
        let mut cost = Cost::default();
        if task.preempted {
            return Woken::Queue {
                queue: view.queues().of(home),
                notify: None,
                cost,
            };
        }
        if task.new {
            let cpu = place_new(view, task, home, &mut cost);
            return to_cpu(view, cpu, cost);
        }
        let target = target(view, task, home, &mut cost);
        let known = view.machine().cpus();
        let recent = task
            .recent
            .filter(|&cpu| cpu < known && cpu != home && cpu != target);
        for cpu in [target, home].into_iter().chain(recent) {
            cost.examined += 1;
            let near = view.machine().distance(cpu, target) <= Distance::Llc;
            if near && idle_for(view, task, cpu) {
                return to_cpu(view, cpu, cost);
            }
        }
        let found = self.search.search(state, view, task, target, &mut cost);
        to_cpu(view, found.unwrap_or(target), cost)
    }

    fn reach(&self, _: &Machine) -> Reach {
        Reach {
            distance: None,
            misses: self.search.misses(),
        }
    }
}

/// `home` (where the task ran) or the waker's CPU.
fn target(view: &dyn View, task: &Waking, home: CpuId, cost: &mut Cost) -> CpuId {
    let machine = view.machine();
    let waker = task.waker.filter(|&waker| waker < machine.cpus());
    let Some(waker) = waker.filter(|&waker| waker != home && usable(view, task, waker)) else {
        return home;
    };
    let llc = machine.llc_cpus(machine.llc(waker)).len() as u32;
    if Flips::are_wide(task.waker_flips, task.wakee_flips, llc) {
        return home;
    }
    cost.examined += 2;
    cost.remote += u32::from(machine.distance(waker, home) > Distance::Llc);
    let (home_idle, waker_idle) = (view.idle().test(home), view.idle().test(waker));
    let load = |cpu| view.waiting(view.queues().of(cpu)) + u32::from(view.running(cpu));
    if waker_idle && machine.llc(waker) == machine.llc(home) {
        return if home_idle { home } else { waker };
    }
    if task.sync && load(waker) <= 1 {
        return waker;
    }
    if home_idle {
        return home;
    }
    // As `wake_affine_weight`, the usual imbalance of 117 % halved for the CPU where the task ran.
    let sync = u32::from(task.sync && load(waker) > 0);
    let (at_waker, at_home) = (load(waker) - sync + 1, load(home));
    if at_waker * 100 < at_home * 108 {
        waker
    } else {
        home
    }
}

/// As `find_idlest_group` and `find_idlest_cpu`: the LLC with the largest share of idle CPUs, and if none has any that
/// with the fewest tasks for each CPU; the nearest of those that differ little. In it an idle CPU, or one with the
/// fewest tasks. O(CPUs): it happens once in the life of a task.
fn place_new(view: &dyn View, task: &Waking, home: CpuId, cost: &mut Cost) -> CpuId {
    let machine = view.machine();
    let load = |cpu| view.waiting(view.queues().of(cpu)) + u32::from(view.running(cpu));
    let mut least: Option<(u32, u32)> = None;
    for llc in machine.llcs_outward(home) {
        let cpus = machine.llc_cpus(llc);
        let (mut usable_cpus, mut idle, mut tasks) = (0, 0, 0);
        for cpu in cpus.clone().filter(|&cpu| usable(view, task, cpu)) {
            usable_cpus += 1;
            idle += u32::from(view.idle().test(cpu));
            tasks += load(cpu);
        }
        cost.examined += cpus.len() as u32;
        cost.remote += u32::from(llc != machine.llc(home)) * cpus.len() as u32;
        if usable_cpus == 0 {
            continue;
        }
        // In sixteenths: busy CPUs, and without idle ones tasks. A difference of one is left alone.
        let busy = match idle {
            0 => 16 + 16 * tasks / usable_cpus,
            _ => 16 * (usable_cpus - idle) / usable_cpus,
        };
        if least.is_none_or(|(_, other)| busy + 1 < other) {
            least = Some((llc, busy));
        }
    }
    let least = least.map_or(machine.llc(home), |(llc, _)| llc);
    let cpus = machine.llc_cpus(least);
    if let Some(idle) = idle_within(view, task, cpus.clone(), home, cost) {
        return idle;
    }
    cpus.filter(|&cpu| usable(view, task, cpu))
        .min_by_key(|&cpu| load(cpu))
        .unwrap_or(home)
}
