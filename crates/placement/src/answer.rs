//! Questions to a policy, and its answers.

use std::ops::{Add, AddAssign};

use amdahl_spread::CpuMask;

use crate::{CpuId, Distance, Flips, QueueId};

/// A task that has become ready. What is not known stays as [`Default`] has it:
///
/// ```
/// # use amdahl_placement::Waking;
/// let task = Waking { waker: Some(3), last: Some(7), ..Waking::default() };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Waking<'a> {
    /// The CPU on which the waker runs; `None` for one outside of the machine's CPUs (a device, another program).
    pub waker: Option<CpuId>,
    /// Where the task ran last.
    pub last: Option<CpuId>,
    /// The CPUs that the task may run on; `None` for all.
    pub allowed: Option<&'a CpuMask>,
    /// The waker is about to sleep.
    pub sync: bool,
    /// The task has never run.
    pub new: bool,
    /// The task ran until now on `last`, which is `waker` too, and its turn is over.
    pub preempted: bool,
    /// The node where most of the task's memory is.
    pub home_node: Option<u32>,
    /// Where the task was when it last woke another one, which may be idle and have its data.
    pub recent: Option<CpuId>,
    /// How often the waker changes whom it wakes.
    pub waker_flips: Flips,
    /// The same of the task.
    pub wakee_flips: Flips,
}

impl Waking<'_> {
    /// Whether the task may run on `cpu`, online or not.
    pub fn may_run_on(&self, cpu: CpuId) -> bool {
        self.allowed.is_none_or(|allowed| allowed.test(cpu))
    }
}

/// Where a woken task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Woken {
    /// Into a queue.
    Queue {
        /// The queue.
        queue: QueueId,
        /// Who shall be told: an idle CPU that is to take the task, or the busy one whose queue it is, which
        /// may prefer the new task. `None`: somebody will come by it. It may be a CPU that the queue does not
        /// serve; then it steals.
        notify: Option<CpuId>,
        /// What the decision took.
        cost: Cost,
    },
    /// Into the [inbox](crate::Queues::inbox): this CPU calls [`Policy::dispatch`](crate::Policy::dispatch) for it.
    Ask {
        /// The CPU that assigns work.
        dispatcher: CpuId,
        /// What the decision took.
        cost: Cost,
    },
    /// Nowhere: no CPU that it may run on is online. Whoever asked keeps the task and asks again when the masks
    /// have changed.
    Nowhere,
}

/// What an idle CPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// What.
    pub action: IdleAction,
    /// What the decision took.
    pub cost: Cost,
}

/// What an idle CPU can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdleAction {
    /// Run the first task of this queue, which serves the CPU, that may run on it.
    Take(QueueId),
    /// Take tasks that wait in a queue that serves others.
    Steal {
        /// The queue.
        from: QueueId,
        /// How many at most; at least 1. The first one is run, the others go into the CPU's own queue.
        count: u32,
        /// Only tasks whose memory is on this node, or of which that is not known.
        home: Option<u32>,
    },
    /// Tell the dispatcher that this CPU is free, then sleep: a task comes into the CPU's own queue.
    Ask {
        /// The CPU that assigns work.
        dispatcher: CpuId,
        /// How long to look into the own queue before sleeping.
        spin_ns: u64,
    },
    /// There is nothing to do. Look out for work for `spin_ns` (0: not at all), then sleep until notified.
    Sleep {
        /// Spin that long at most.
        spin_ns: u64,
    },
}

/// What a CPU does at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// What.
    pub action: TickAction,
    /// What the decision took.
    pub cost: Cost,
}

/// What a CPU can do at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickAction {
    /// Go on.
    Keep,
    /// Another task's turn: the running one becomes ready ([`Waking::preempted`]) and is put where
    /// [`Policy::wake`](crate::Policy::wake) says, then the CPU does as an idle one.
    Preempt,
    /// Move waiting tasks into this CPU's queue.
    Balance {
        /// The queue to take them from.
        from: QueueId,
        /// How many at most; at least 1.
        count: u32,
        /// As in [`IdleAction::Steal`].
        home: Option<u32>,
    },
    /// Wake this idle CPU and let it call [`Policy::tick`](crate::Policy::tick) as idle.
    Kick(CpuId),
}

/// Who is left idle while somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conserving {
    /// No CPU stays idle while a task that may run on it waits in any queue.
    Yes,
    /// The same, as long as CPU and task are within the given distance.
    Within {
        /// CPUs that are farther apart do not help each other.
        distance: Distance,
        /// The known bad case.
        when: &'static str,
    },
    /// A CPU may be idle while a task waits beside it.
    No {
        /// The known bad case.
        when: &'static str,
    },
}

impl Conserving {
    /// How far the promise holds; `None` if there is none.
    pub fn distance(self) -> Option<Distance> {
        match self {
            Conserving::Yes => Some(Distance::Remote),
            Conserving::Within { distance, .. } => Some(distance),
            Conserving::No { .. } => None,
        }
    }
}

/// What a decision looked at: a simulator charges time for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cost {
    /// CPUs or queues whose state was looked at.
    pub examined: u32,
    /// How many of them are behind another last-level cache.
    pub remote: u32,
    /// Words of masks that were loaded; eight CPUs or 64 are in one.
    pub words: u32,
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            examined: self.examined + other.examined,
            remote: self.remote + other.remote,
            words: self.words + other.words,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}
