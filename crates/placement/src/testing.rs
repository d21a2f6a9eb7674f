//! A toy that carries out a policy's answers one event at a time, and checks each: for tests of policies, and of
//! whatever else carries them out.
//!
//! ```
//! use amdahl_placement::testing::{Toy, ToyTask};
//! use amdahl_placement::{Distance, Machine, policy};
//! use amdahl_topology::Topology;
//!
//! let machine = Machine::new(&Topology::synthetic("1 llc x 2 core")?);
//! let mut toy = Toy::new(machine, policy("groups-apart=1")?);
//! toy.wake(Some(0), ToyTask::new(1));
//! toy.wake(Some(0), ToyTask::new(2));
//! // Nobody takes the second task out of the first CPU's group.
//! assert_eq!(toy.left_waiting(Distance::Remote), Some((1, 2)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use amdahl_spread::{CpuMask, SparseMask};

use crate::{
    CpuId, CpuState, Distance, IdleAction, Machine, Policy, QueueId, Queues, TickAction, View,
    Waking, Woken,
};

/// A task of a [`Toy`].
#[derive(Clone, Debug)]
pub struct ToyTask {
    /// Tells it apart.
    pub id: u64,
    /// As [`Waking::allowed`].
    pub allowed: Option<Arc<CpuMask>>,
    /// As [`Waking::home_node`].
    pub home_node: Option<u32>,
    /// Where it ran last; `None` if it is new.
    pub last: Option<CpuId>,
}

impl ToyTask {
    /// A new task that may run anywhere.
    pub fn new(id: u64) -> Self {
        ToyTask {
            id,
            allowed: None,
            home_node: None,
            last: None,
        }
    }

    fn waking(&self, waker: Option<CpuId>) -> Waking<'_> {
        Waking {
            waker,
            last: self.last,
            allowed: self.allowed.as_deref(),
            home_node: self.home_node,
            new: self.last.is_none(),
            ..Waking::default()
        }
    }

    /// Whether its mask has `cpu`.
    pub fn may_run_on(&self, cpu: CpuId) -> bool {
        self.waking(None).may_run_on(cpu)
    }
}

/// What the policy sees of a [`Toy`]. All of it is exact.
#[derive(Debug)]
pub struct ToyView {
    machine: Machine,
    queues: Queues,
    waiting: Vec<VecDeque<ToyTask>>,
    running: Vec<Option<ToyTask>>,
    /// On their way to the CPU's next look.
    notified: VecDeque<CpuId>,
    online: CpuMask,
    idle: CpuMask,
    overloaded: SparseMask,
    /// Says what [`View::utilisation`] is, for all LLCs; `None`: the share of CPUs that run something now.
    pub utilisation: Option<u32>,
    /// Says what [`View::now`] is.
    pub now_ns: u64,
}

impl View for ToyView {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn queues(&self) -> &Queues {
        &self.queues
    }

    fn waiting(&self, queue: QueueId) -> u32 {
        self.waiting[queue.index()].len() as u32
    }

    fn running(&self, cpu: CpuId) -> bool {
        self.running[cpu as usize].is_some() || self.notified.contains(&cpu)
    }

    fn online(&self) -> &CpuMask {
        &self.online
    }

    fn idle(&self) -> &CpuMask {
        &self.idle
    }

    fn overloaded(&self) -> &SparseMask {
        &self.overloaded
    }

    fn utilisation(&self, llc: u32) -> u32 {
        let cpus = self.machine.llc_cpus(llc);
        let all = cpus.len() as u32;
        let busy = cpus
            .filter(|&cpu| self.running[cpu as usize].is_some())
            .count() as u32;
        self.utilisation.unwrap_or(busy * 1024 / all)
    }

    fn now(&self) -> u64 {
        self.now_ns
    }
}

impl ToyView {
    /// Makes the bit of a queue what [`View::overloaded`] says.
    fn note(&self, queue: QueueId) {
        let Some(lead) = self.queues.lead(queue) else {
            return;
        };
        // Free CPUs that any of the tasks will do for take as many, in whichever order they come.
        let tasks = &self.waiting[queue.index()];
        let takers = self.queues.cpus(queue).filter(|&cpu| {
            let free = self.online.test(cpu) && self.running[cpu as usize].is_none();
            free && tasks.iter().all(|task| task.may_run_on(cpu))
        });
        let left = tasks.len() > takers.count();
        let changed = match left {
            true => self.overloaded.set(lead),
            false => self.overloaded.clear(lead),
        };
        changed.expect("the mask has all CPUs");
    }

    fn set(mask: &CpuMask, cpu: CpuId, on: bool) {
        let changed = if on { mask.set(cpu) } else { mask.clear(cpu) };
        changed.expect("the mask has all CPUs");
    }

    /// Takes tasks that `cpu` may run out of a queue.
    fn take(
        &mut self,
        from: QueueId,
        cpu: CpuId,
        count: u32,
        home: Option<u32>,
    ) -> VecDeque<ToyTask> {
        let queue = &mut self.waiting[from.index()];
        let mut taken = VecDeque::new();
        let mut at = 0;
        while at < queue.len() && (taken.len() as u32) < count {
            let task = &queue[at];
            let belongs = home.is_none() || task.home_node.is_none() || task.home_node == home;
            match belongs && task.may_run_on(cpu) {
                true => taken.extend(queue.remove(at)),
                false => at += 1,
            }
        }
        self.note(from);
        taken
    }
}

/// A machine, a policy, and tasks that run until somebody says that they do not.
pub struct Toy {
    policy: Box<dyn Policy>,
    view: ToyView,
    states: Vec<CpuState>,
    /// Who may run on no CPU that is online.
    stranded: Vec<ToyTask>,
}

/// Who runs what, and how many tasks wait where.
impl fmt::Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = |task: &Option<ToyTask>| task.as_ref().map(|task| task.id);
        let running: Vec<_> = self.view.running.iter().map(ids).collect();
        let waiting: Vec<_> = self.view.waiting.iter().map(VecDeque::len).collect();
        f.debug_struct("Toy")
            .field("policy", &self.policy.name())
            .field("running", &running)
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

impl Toy {
    /// All CPUs are online and idle.
    pub fn new(machine: Machine, policy: Box<dyn Policy>) -> Self {
        let cpus = machine.cpus();
        let queues = policy.queues(&machine);
        let all = || {
            let mask = CpuMask::new(cpus).expect("a machine has a CPU");
            (0..cpus).for_each(|cpu| ToyView::set(&mask, cpu, true));
            mask
        };
        Toy {
            policy,
            states: (0..cpus).map(CpuState::new).collect(),
            view: ToyView {
                waiting: vec![VecDeque::new(); queues.len()],
                running: vec![None; cpus as usize],
                notified: VecDeque::new(),
                online: all(),
                idle: all(),
                overloaded: SparseMask::new(cpus).expect("a machine has a CPU"),
                utilisation: None,
                now_ns: 0,
                machine,
                queues,
            },
            stranded: vec![],
        }
    }

    /// What the policy sees.
    pub fn view(&self) -> &ToyView {
        &self.view
    }

    /// The same, to set the time and the utilisation.
    pub fn view_mut(&mut self) -> &mut ToyView {
        &mut self.view
    }

    /// What the policy remembers of `cpu`.
    pub fn state_mut(&mut self, cpu: CpuId) -> (&mut CpuState, &ToyView) {
        (&mut self.states[cpu as usize], &self.view)
    }

    /// The task that runs on `cpu`.
    pub fn running(&self, cpu: CpuId) -> Option<&ToyTask> {
        self.view.running[cpu as usize].as_ref()
    }

    /// How many tasks there are, whatever they do.
    pub fn tasks(&self) -> usize {
        let waiting: usize = self.view.waiting.iter().map(VecDeque::len).sum();
        waiting + self.view.running.iter().flatten().count() + self.stranded.len()
    }

    /// `task` becomes ready.
    ///
    /// # Panics
    /// As all that follow, if the policy gives an answer that is not allowed.
    pub fn wake(&mut self, waker: Option<CpuId>, task: ToyTask) {
        self.place(waker, task);
        self.settle();
    }

    /// The task on `cpu` blocks or ends.
    pub fn stop(&mut self, cpu: CpuId) -> Option<ToyTask> {
        let mut task = self.view.running[cpu as usize].take()?;
        task.last = Some(cpu);
        self.become_free(cpu);
        self.settle();
        Some(task)
    }

    /// A tick on `cpu`, whose task has been running for `ran_ns`; an idle one that is kicked ticks too.
    pub fn tick(&mut self, cpu: CpuId, ran_ns: u64) {
        let busy = self.view.running[cpu as usize].is_some();
        self.tick_once(cpu, busy.then_some(ran_ns));
        self.settle();
    }

    /// `cpu` goes; its tasks become ready again. Or it comes back.
    pub fn set_online(&mut self, cpu: CpuId, online: bool) {
        if self.view.online.test(cpu) == online {
            return;
        }
        ToyView::set(&self.view.online, cpu, online);
        let queue = self.view.queues.of(cpu);
        if online {
            self.become_free(cpu);
            for task in std::mem::take(&mut self.stranded) {
                self.place(None, task);
            }
        } else {
            ToyView::set(&self.view.idle, cpu, false);
            self.view.notified.retain(|&notified| notified != cpu);
            let mut homeless: Vec<_> = self.view.running[cpu as usize].take().into_iter().collect();
            homeless
                .iter_mut()
                .for_each(|task| task.last = task.last.or(Some(cpu)));
            // Nobody serves the queue any more, or nobody who may run some of it.
            homeless.extend(std::mem::take(&mut self.view.waiting[queue.index()]));
            self.view.note(queue);
            if let Some(inbox) = self.view.queues.inbox() {
                homeless.extend(std::mem::take(&mut self.view.waiting[inbox.index()]));
            }
            for task in homeless {
                self.place(None, task);
            }
        }
        // A new dispatcher has the others' free CPUs.
        if let Some(dispatcher) = self.view.online.first() {
            self.dispatch(dispatcher);
        }
        self.settle();
    }

    /// An idle CPU, and a task that waits at a CPU as near as `within` although it may run there.
    pub fn left_waiting(&self, within: Distance) -> Option<(CpuId, u64)> {
        let idle = self.view.idle.iter();
        idle.into_iter().find_map(|cpu| {
            let near = self.view.machine.cpus_within(cpu, within);
            let queues = self.view.waiting.iter().zip(0..);
            let in_reach = queues.filter(|&(_, queue)| {
                let cpus = self.view.queues.cpus(QueueId(queue));
                cpus.is_empty() || cpus.start < near.end && near.start < cpus.end
            });
            let mut tasks = in_reach.flat_map(|(tasks, _)| tasks);
            let task = tasks.find(|task| task.may_run_on(cpu))?;
            Some((cpu, task.id))
        })
    }

    fn usable(&self, task: &ToyTask, cpu: CpuId) -> bool {
        self.view.online.test(cpu) && task.may_run_on(cpu)
    }

    fn place(&mut self, waker: Option<CpuId>, task: ToyTask) {
        self.place_again(waker, task, false);
    }

    fn place_again(&mut self, waker: Option<CpuId>, task: ToyTask, preempted: bool) {
        let by = waker.unwrap_or(0) as usize;
        let waking = Waking {
            preempted,
            ..task.waking(waker)
        };
        let woken = self.policy.wake(&mut self.states[by], &self.view, &waking);
        match woken {
            Woken::Queue { queue, notify, .. } => {
                let serves = self.view.queues.cpus(queue);
                assert!(
                    serves.clone().any(|cpu| self.usable(&task, cpu)),
                    "task {} may not run on any of the CPUs {serves:?}",
                    task.id
                );
                if let Some(cpu) = notify {
                    assert!(self.usable(&task, cpu), "task {} and CPU {cpu}", task.id);
                }
                self.view.waiting[queue.index()].push_back(task);
                self.view.note(queue);
                notify.into_iter().for_each(|cpu| self.notify(cpu));
            }
            Woken::Ask { dispatcher, .. } => {
                assert!(self.view.online.test(dispatcher));
                let inbox = self.view.queues.inbox().expect("who asks has an inbox");
                self.view.waiting[inbox.index()].push_back(task);
                self.dispatch(dispatcher);
            }
            Woken::Nowhere => {
                let cpus = 0..self.view.machine.cpus();
                assert!(!cpus.clone().any(|cpu| self.usable(&task, cpu)));
                self.stranded.push(task);
            }
        }
    }

    fn notify(&mut self, cpu: CpuId) {
        if self.view.idle.test(cpu) {
            ToyView::set(&self.view.idle, cpu, false);
            self.view.notified.push_back(cpu);
        }
    }

    fn dispatch(&mut self, dispatcher: CpuId) {
        let Some(inbox) = self.view.queues.inbox() else {
            return;
        };
        // A task whose CPUs are all busy must not hold up those behind it.
        let mut at = 0;
        while let Some(task) = self.view.waiting[inbox.index()].get(at) {
            let waking = task.waking(None);
            let state = &mut self.states[dispatcher as usize];
            let Some(cpu) = self.policy.dispatch(state, &self.view, &waking).cpu else {
                at += 1;
                continue;
            };
            assert!(self.view.idle.test(cpu) && self.usable(task, cpu));
            let task = self.view.waiting[inbox.index()].remove(at);
            self.view.waiting[cpu as usize].extend(task);
            self.view.note(QueueId(cpu));
            self.notify(cpu);
        }
    }

    fn become_free(&mut self, cpu: CpuId) {
        let own = self.view.queues.of(cpu);
        self.view.note(own);
        ToyView::set(&self.view.idle, cpu, true);
        self.notify(cpu);
    }

    /// Lets the notified CPUs look for work until all have some or sleep.
    fn settle(&mut self) {
        while let Some(cpu) = self.view.notified.pop_front() {
            if self.view.running[cpu as usize].is_none() {
                ToyView::set(&self.view.idle, cpu, true);
                self.look_for_work(cpu);
            }
        }
    }

    fn look_for_work(&mut self, cpu: CpuId) {
        let limit = 8 * (self.view.queues.len() as u32 + 1);
        for attempt in 0.. {
            assert!(attempt <= limit, "CPU {cpu} searches for ever");
            let state = &mut self.states[cpu as usize];
            let idle = self.policy.idle(state, &self.view, cpu, attempt);
            let own = self.view.queues.of(cpu);
            let mut taken = match idle.action {
                IdleAction::Take(queue) => {
                    assert_eq!(queue, own, "only the own queue is taken from");
                    self.view.take(queue, cpu, 1, None)
                }
                IdleAction::Steal { from, count, home } => {
                    assert!(from != own && count > 0);
                    self.view.take(from, cpu, count, home)
                }
                IdleAction::Ask { dispatcher, .. } => {
                    assert!(dispatcher != cpu && self.view.online.test(dispatcher));
                    return self.dispatch(dispatcher);
                }
                IdleAction::Sleep { .. } => return,
            };
            if let Some(task) = taken.pop_front() {
                self.view.waiting[own.index()].extend(taken);
                self.run(cpu, task);
                return;
            }
        }
    }

    fn run(&mut self, cpu: CpuId, task: ToyTask) {
        assert!(self.usable(&task, cpu));
        self.view.running[cpu as usize] = Some(task);
        ToyView::set(&self.view.idle, cpu, false);
        let now = self.view.now_ns;
        self.policy.ran(&mut self.states[cpu as usize], now, 0);
        self.view.note(self.view.queues.of(cpu));
    }

    fn tick_once(&mut self, cpu: CpuId, ran_ns: Option<u64>) {
        // A CPU that was kicked is awake, and so no longer among the idle ones, when it looks.
        let is_kicked = ran_ns.is_none() && self.view.idle.test(cpu);
        if is_kicked {
            ToyView::set(&self.view.idle, cpu, false);
        }
        let state = &mut self.states[cpu as usize];
        let tick = self.policy.tick(state, &self.view, cpu, ran_ns);
        if is_kicked {
            ToyView::set(&self.view.idle, cpu, true);
        }
        let own = self.view.queues.of(cpu);
        match tick.action {
            TickAction::Keep => (),
            TickAction::Preempt => {
                let task = self.view.running[cpu as usize].clone();
                let mut task = task.expect("only a running task is preempted");
                task.last = Some(cpu);
                self.place_again(Some(cpu), task, true);
                self.view.running[cpu as usize] = None;
                self.become_free(cpu);
            }
            TickAction::Balance { from, count, home } => {
                assert!(from != own && count > 0);
                let taken = self.view.take(from, cpu, count, home);
                self.view.waiting[own.index()].extend(taken);
                self.view.note(own);
                self.notify(cpu);
            }
            TickAction::Kick(idle) => {
                assert!(ran_ns.is_some(), "an idle CPU kicks nobody");
                assert!(idle != cpu && self.view.idle.test(idle));
                self.tick_once(idle, None);
            }
        }
    }
}
