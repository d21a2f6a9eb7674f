//! The face of all policies.

use crate::answer::{Conserving, Cost, Idle, Tick, Waking, Woken};
use crate::{CpuId, CpuState, Machine, Queues, View};

/// Where tasks run. Every answer is a function of what it is given: no clock, no system call, no thread.
///
/// Whoever carries out the answers (a pool, a simulator) does this:
///
/// 1. Lays out its queues as [`queues`](Self::queues) says, and keeps a [`CpuState`] for each CPU.
/// 2. When a task becomes ready, calls [`wake`](Self::wake) with the state of the CPU that the waker runs on, puts
///    the task into the queue, takes `notify` out of the idle CPUs and wakes it.
/// 3. When a CPU has nothing to run, puts it into the idle CPUs and calls [`idle`](Self::idle) with attempt 0; if
///    what that says fails (the queue has become empty, or has nothing that may run here), again with attempt 1, 2
///    and so on, until the answer is to sleep. When the CPU has found something to run, calls [`ran`](Self::ran).
/// 4. Every few ms calls [`tick`](Self::tick) on each CPU that runs something. A task that is
///    [preempted](crate::TickAction::Preempt) goes through `wake` like one that becomes ready.
/// 5. On [`Woken::Ask`] and [`IdleAction::Ask`](crate::IdleAction::Ask), calls [`dispatch`](Self::dispatch) on the
///    dispatcher for the first task in the inbox, and goes on until the inbox is empty or no CPU is free.
///
/// An answer never names a CPU that is offline or that the task may not run on, as far as the view tells.
pub trait Policy: Send + Sync {
    /// The name by which [`policy`](crate::policy) makes it.
    fn name(&self) -> &str;

    /// The queues that it wants.
    fn queues(&self, machine: &Machine) -> Queues;

    /// Where a task that has become ready goes.
    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken;

    /// What `cpu` does that has nothing to run. `attempt` counts the answers of this search that failed; after at
    /// most as many as there are queues, for each part of a composed policy, the answer is to sleep.
    fn idle(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, attempt: u32) -> Idle;

    /// Notes that the CPU of `state` runs something after it was idle. `woken_ns` is the time since it was notified,
    /// 0 if it found its work without.
    fn ran(&self, state: &mut CpuState, now_ns: u64, woken_ns: u64);

    /// What `cpu` does at a tick. `ran_ns` is for how long its task has been running without interruption; `None`
    /// if it is idle and was [kicked](crate::TickAction::Kick).
    fn tick(&self, state: &mut CpuState, view: &dyn View, cpu: CpuId, ran_ns: Option<u64>) -> Tick;

    /// Which CPU gets `task`, the first one of the inbox. `state` is the dispatcher's.
    fn dispatch(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Assigned {
        let _ = (state, view, task);
        Assigned {
            cpu: None,
            cost: Cost::default(),
        }
    }

    /// Whether a CPU that makes a task ready may as well keep it: idle CPUs find it there however far away they are, and
    /// all that [`wake`](Self::wake) would add is to tell one of them. Whoever carries out the answers may then leave the
    /// task with its waker, and ask only whom to tell.
    fn may_keep(&self, machine: &Machine) -> bool {
        let _ = machine;
        false
    }

    /// What CPUs look at that look out for work before they sleep.
    fn lookout(&self) -> Lookout {
        Lookout::Own
    }

    /// Whether CPUs are ever idle on `machine` while tasks wait.
    fn work_conserving(&self, machine: &Machine) -> Conserving;
}

/// What a CPU looks at, over and over, that [looks out](crate::IdleAction::Sleep) for work. Whoever uses a run queue
/// has to get its lines back from all that look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Lookout {
    /// The queue that serves it, and masks.
    #[default]
    Own,
    /// All queues, one after the other.
    All,
}

/// Whom the dispatcher gives a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The CPU into whose queue the task goes, and which is notified; `None`: it stays in the inbox until
    /// another CPU is free.
    pub cpu: Option<CpuId>,
    /// What the decision took.
    pub cost: Cost,
}
