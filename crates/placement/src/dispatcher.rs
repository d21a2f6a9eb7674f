//! One CPU that assigns work to all others.

use crate::answer::{Cost, IdleAction, Waking, Woken};
use crate::compose::{IdlePart, Pull, Reach, WakePart};
use crate::find::{home, idle_for, to_cpu, usable};
use crate::policy::Assigned;
use crate::{CpuId, CpuState, Machine, Queues, View};

/// Woken tasks go into the inbox of one CPU, the first that is online. It runs no tasks; it gives the first one of the
/// inbox to an idle CPU, and to the next that becomes idle. Nobody else takes the lock of a shared queue.
///
/// A task that may run nowhere else goes to the dispatcher all the same, and on a machine of one CPU all do.
///
/// # Source
/// NIX's asymmetric scheduler (lsub notes, January 2012): core 0 assigns work and takes interrupts.
///
/// # Cost model
/// A wake-up is O(1), an assignment O(CPUs / 64) on the dispatcher, one after the other. In between lies a
/// message there and one back.
///
/// # Known bad case
/// Many wake-ups: the dispatcher has a bounded rate, and each wake-up the latency of two messages. On 128 CPUs a
/// central dispatcher made of sched_ext got 171 for switching through pipes where Linux' own got 32,508. One CPU never works.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dispatcher;

/// The CPU that assigns work.
fn dispatcher(view: &dyn View) -> CpuId {
    view.online().first().unwrap_or(0)
}

impl WakePart for Dispatcher {
    fn queues(&self, machine: &Machine) -> Queues {
        Queues::with_inbox(machine)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        let dispatcher = dispatcher(view);
        let cost = Cost {
            examined: 1,
            ..Cost::default()
        };
        let Some(near) = home(state, view, task) else {
            return Woken::Nowhere;
        };
        // Where it ran, most tasks may run again; only what is bound to the dispatcher makes a search.
        let elsewhere = near != dispatcher
            || match task.allowed {
                None => view.online().iter_within(dispatcher + 1..u32::MAX).next(),
                Some(allowed) => allowed.iter().find(|&cpu| {
                    cpu != dispatcher && cpu < view.machine().cpus() && usable(view, task, cpu)
                }),
            }
            .is_some();
        match elsewhere {
            true => Woken::Ask { dispatcher, cost },
            false => to_cpu(view, dispatcher, cost),
        }
    }

    fn dispatch(&self, _: &mut CpuState, view: &dyn View, task: &Waking) -> Assigned {
        let (dispatcher, machine) = (dispatcher(view), view.machine());
        let mut cost = Cost {
            examined: 1,
            ..Cost::default()
        };
        let last = task.last.filter(|&last| last < machine.cpus());
        if let Some(last) = last.filter(|&last| last != dispatcher && idle_for(view, task, last)) {
            let cpu = Some(last);
            return Assigned { cpu, cost };
        }
        let cpu = machine
            .llcs_outward(last.unwrap_or(dispatcher))
            .find_map(|llc| {
                let cpus = machine.llc_cpus(llc);
                cost.words += (cpus.end - cpus.start).div_ceil(64);
                let mut idle = view.idle().iter_within(cpus);
                idle.find(|&cpu| {
                    cost.examined += 1;
                    cpu != dispatcher && usable(view, task, cpu)
                })
            });
        Assigned { cpu, cost }
    }

    fn reach(&self, machine: &Machine) -> Reach {
        match machine.cpus() {
            1 => Reach {
                distance: Some(crate::Distance::Remote),
                misses: "nothing",
            },
            _ => Reach {
                distance: None,
                misses: "the dispatcher runs no task, whatever waits",
            },
        }
    }
}

/// An idle CPU tells the [`Dispatcher`] that it is free, if somebody waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskDispatcher;

impl IdlePart for AskDispatcher {
    fn pull(&self, _: &mut CpuState, view: &dyn View, cpu: CpuId, named: u32) -> Pull {
        let dispatcher = dispatcher(view);
        let inbox = view.queues().inbox();
        let waits = inbox.is_some_and(|inbox| view.waiting(inbox) > 0);
        let ask = IdleAction::Ask {
            dispatcher,
            spin_ns: 0,
        };
        Pull {
            action: (named == 0 && waits && cpu != dispatcher).then_some(ask),
            cost: Cost {
                examined: 1,
                ..Cost::default()
            },
        }
    }

    fn reach(&self, _: &Machine) -> Reach {
        Reach {
            distance: Some(crate::Distance::Remote),
            misses: "nothing",
        }
    }
}
