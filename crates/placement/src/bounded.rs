//! A wake-up search of a few CPUs that goes on where the last one ended.

use crate::affine::Search;
use crate::answer::{Cost, Waking};
use crate::find::usable;
use crate::{CpuId, CpuState, View};

/// Looks at no fewer CPUs than a core has and no more than two have, from a cursor of the searching CPU on, which
/// stays where the search ended: so the small windows still go around the whole cache. Before that it looks for a core
/// of which all threads are idle, if [`idle_core`](Self::idle_core) is on and there may be one.
///
/// # Source
/// S. Mazumdar, "Optimizing select_idle_cpu" and "scheduler scalability" (linux-kernel, 2018 and 2019, version 3).
///
/// # Cost model
/// O(threads of a core), however large the cache; the search for an idle core is O(LLC).
///
/// # Known bad case
/// Few idle CPUs: most searches miss them, and the tail of latencies grows (schbench with 44 tasks on 88
/// CPUs: 99 % within 513 us before, 208 us with the search for an idle core, 4130 us without).
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    /// Whether to look for an idle core first.
    pub idle_core: bool,
}

impl Bounded {
    /// The fewest and the most CPUs that a search looks at around `target`, for cores of `threads` hardware
    /// threads: cores' worth, one and two, where a core counts as at least two.
    pub fn window(threads: u32) -> (u32, u32) {
        let floor = threads.max(2);
        (floor, 2 * floor)
    }
}

/// What a search for an idle core has found.
pub(crate) enum Core {
    /// A CPU of an idle one.
    Idle(CpuId),
    /// None, but this CPU was idle.
    Cpu(CpuId),
    Nothing,
}

/// Looks at each CPU of the cache until it has found an idle core.
pub(crate) fn idle_core(view: &dyn View, task: &Waking, target: CpuId, cost: &mut Cost) -> Core {
    let machine = view.machine();
    let cpus = machine.llc_cpus(machine.llc(target));
    let mut fallback = None;
    let mut cpu = machine.siblings(target).start;
    for _ in 0..machine.core(cpus.end - 1) - machine.core(cpus.start) + 1 {
        let core = machine.siblings(cpu);
        let mut all_idle = true;
        let mut found = None;
        for cpu in core.clone() {
            cost.examined += 1;
            if !view.idle().test(cpu) {
                all_idle = false;
            } else if found.is_none() && usable(view, task, cpu) {
                found = Some(cpu);
            }
        }
        if all_idle && let Some(found) = found {
            return Core::Idle(found);
        }
        fallback = fallback.or(found);
        cpu = if core.end == cpus.end {
            cpus.start
        } else {
            core.end
        };
    }
    view.no_idle_core(machine.llc(target));
    fallback.map_or(Core::Nothing, Core::Cpu)
}

impl Search for Bounded {
    fn search(
        &self,
        state: &mut CpuState,
        view: &dyn View,
        task: &Waking,
        target: CpuId,
        cost: &mut Cost,
    ) -> Option<CpuId> {
        let machine = view.machine();
        let llc = machine.llc(target);
        // As in the kernel of its time, an idle CPU that the search for a core has seen is forgotten.
        if self.idle_core
            && view.has_idle_core(llc)
            && let Core::Idle(cpu) = idle_core(view, task, target, cost)
        {
            return Some(cpu);
        }
        let cpus = machine.llc_cpus(llc);
        let (floor, limit) = Bounded::window(machine.siblings(target).len() as u32);
        // As many as the idle time pays for, within the bounds.
        let worth = state.scan_worth(cpus.end - cpus.start);
        let window = worth.clamp(floor.into(), limit.into()) as usize;
        let from = match cpus.contains(&state.cursor) {
            true => state.cursor,
            false => target,
        };
        let mut seen = 0;
        let found = machine.scan_from(from).take(window).find(|&cpu| {
            seen += 1;
            state.cursor = cpu;
            view.idle().test(cpu) && usable(view, task, cpu)
        });
        // The next search begins behind what this one saw.
        state.cursor = machine.scan_from(state.cursor).nth(1).unwrap_or(target);
        cost.examined += seen;
        state.note_scan(seen);
        found
    }

    fn misses(&self) -> &'static str {
        "the only idle CPU is outside of the window"
    }
}
