//! Searches that several policies use.

use std::ops::Range;

use crate::answer::{Cost, Waking, Woken};
use crate::{CpuId, CpuState, Distance, View};

/// Whether `task` may run on `cpu` now.
pub(crate) fn usable(view: &dyn View, task: &Waking, cpu: CpuId) -> bool {
    view.online().test(cpu) && task.may_run_on(cpu)
}

/// Whether `cpu` could run `task` at once.
pub(crate) fn idle_for(view: &dyn View, task: &Waking, cpu: CpuId) -> bool {
    view.idle().test(cpu) && usable(view, task, cpu)
}

/// Around a range once, from `from` if it is inside.
pub(crate) fn around(range: Range<CpuId>, from: CpuId) -> [Range<CpuId>; 2] {
    let from = if range.contains(&from) {
        from
    } else {
        range.start
    };
    [from..range.end, range.start..from]
}

/// An idle CPU of `range` that `task` may use, `from` or the next one after it. O(range / 64), and one step for
/// each idle CPU that the task may not use.
pub(crate) fn idle_within(
    view: &dyn View,
    task: &Waking,
    range: Range<CpuId>,
    from: CpuId,
    cost: &mut Cost,
) -> Option<CpuId> {
    cost.words += (range.end - range.start).div_ceil(64);
    let spans = around(range, from).into_iter();
    let mut idle = spans.flat_map(|span| view.idle().iter_within(span));
    idle.find(|&cpu| {
        cost.examined += 1;
        usable(view, task, cpu)
    })
}

/// The same in the cache of `near`, and if none is there in others, the nearest first, as far as `reach`.
pub(crate) fn idle_outward(
    view: &dyn View,
    task: &Waking,
    near: CpuId,
    reach: Distance,
    cost: &mut Cost,
) -> Option<CpuId> {
    let machine = view.machine();
    let limit = machine.cpus_within(near, reach);
    if reach < Distance::Llc {
        return idle_within(view, task, limit, near, cost);
    }
    for llc in machine.llcs_outward(near) {
        let cpus = machine.llc_cpus(llc);
        if !limit.contains(&cpus.start) {
            // Near ones come first: all others are too far as well.
            break;
        }
        let before = cost.examined;
        let found = idle_within(view, task, cpus, near, cost);
        if llc != machine.llc(near) {
            cost.remote += 1 + cost.examined - before;
            cost.examined += 1;
        }
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The CPU that `task` would go to if nothing else were known: where it ran, else where its waker is, else where the
/// cursor stands; or the nearest to that which it may use. `None` if there is no such CPU. O(1) unless it may not use
/// the first; O(CPUs) then.
pub(crate) fn home(state: &CpuState, view: &dyn View, task: &Waking) -> Option<CpuId> {
    let cpus = view.machine().cpus();
    let known = [task.last, task.waker].into_iter().flatten();
    let near = known.chain([state.cursor % cpus]).find(|&cpu| cpu < cpus)?;
    nearest(view, task, near)
}

/// `near`, or the nearest CPU to it that `task` may use.
pub(crate) fn nearest(view: &dyn View, task: &Waking, near: CpuId) -> Option<CpuId> {
    if usable(view, task, near) {
        return Some(near);
    }
    let machine = view.machine();
    let cpus = machine.llcs_outward(near);
    cpus.flat_map(|llc| around(machine.llc_cpus(llc), near))
        .flatten()
        .find(|&cpu| usable(view, task, cpu))
}

/// Into the queue of `cpu`, which is told.
pub(crate) fn to_cpu(view: &dyn View, cpu: CpuId, cost: Cost) -> Woken {
    Woken::Queue {
        queue: view.queues().of(cpu),
        notify: Some(cpu),
        cost,
    }
}
