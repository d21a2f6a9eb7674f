//! Wake-ups and moves: the policy's answers carried out.

use amdahl_placement::{Assigned, TickAction, Waking, Woken};
use amdahl_spread::CpuMask;

use super::state::{Cpu, Mode, Phase, Use, Wait};
use super::{Engine, full_capacity};
use crate::program::{Change, NONE};
use crate::time::NEVER;

/// Who takes tasks from another queue.
#[derive(Clone, Copy)]
pub(super) enum Pull {
    /// A CPU that has nothing to run.
    Idle,
    /// One that evens queues out.
    Tick,
}

impl Engine<'_> {
    /// A blocked task becomes ready. `by` is the CPU whose task woke it, if it was a task.
    pub(super) fn wake(&mut self, id: u32, by: Option<u32>, sync: bool) {
        let now = self.s.now;
        let task = &mut self.tasks[id as usize];
        debug_assert_eq!(task.phase, Phase::Blocked);
        let is_new =
            task.cpu == NONE && task.ran == 0 && task.woken_at == NEVER && task.started == NEVER;
        if is_new {
            task.started = now;
        } else {
            task.slept += now - task.since;
        }
        task.phase = Phase::Ready;
        task.ready_since = now;
        task.woken_at = now;
        self.counts.wakeups += 1;
        if let Some(by) = by {
            self.charge(by, self.costs.wake, Use::System);
            let waker = self.s.cpus[by as usize].task;
            if waker != NONE {
                let waker = &mut self.tasks[waker as usize];
                waker.flips.woke(u64::from(id), now);
                waker.recent = by;
            }
        }
        self.place(id, by, sync, is_new);
    }

    /// Asks the policy where a ready task goes, and puts it there.
    pub(super) fn place(&mut self, id: u32, by: Option<u32>, sync: bool, is_new: bool) {
        self.place_as(id, by, sync, is_new, false);
    }

    fn place_as(&mut self, id: u32, by: Option<u32>, sync: bool, is_new: bool, is_preempted: bool) {
        let task = &self.tasks[id as usize];
        let last = (task.cpu != NONE).then_some(task.cpu);
        // A timer or device interrupts the CPU on which the task last ran.
        let at = by
            .or(last)
            .filter(|&cpu| self.s.cpus[cpu as usize].mode != Mode::Offline);
        if let Some(by) = self.is_kept_by(id, by).filter(|_| !is_preempted) {
            return self.keep(id, by, is_new);
        }
        let waker_flips = by
            .map(|cpu| self.s.cpus[cpu as usize].task)
            .filter(|&task| task != NONE);
        let waking = Waking {
            waker: at,
            last,
            allowed: (task.mask != NONE).then(|| &self.masks[task.mask as usize]),
            sync,
            new: is_new,
            preempted: is_preempted,
            home_node: (task.node != NONE).then_some(task.node),
            recent: (task.recent != NONE).then_some(task.recent),
            waker_flips: waker_flips
                .map(|waker| self.tasks[waker as usize].flips)
                .unwrap_or_default(),
            wakee_flips: task.flips,
        };
        let nobody = self.states.len() - 1;
        let state = &mut self.states[at.map_or(nobody, |cpu| cpu as usize)];
        let woken = self.policy.wake(state, &self.s, &waking);
        let (queue, notify, cost) = match woken {
            Woken::Queue {
                queue,
                notify,
                cost,
            } => (queue.0, notify, cost),
            Woken::Ask { dispatcher, cost } => {
                self.dispatcher = dispatcher;
                (
                    self.inbox.expect("who has a dispatcher has an inbox"),
                    Some(dispatcher),
                    cost,
                )
            }
            _ => {
                // As the kernel does: a task whose CPUs are all gone may run anywhere.
                assert!(
                    self.tasks[id as usize].mask != NONE,
                    "a CPU is always online"
                );
                self.tasks[id as usize].mask = NONE;
                self.counts.affinity_broken += 1;
                self.place_as(id, by, sync, is_new, is_preempted);
                return;
            }
        };
        let task = &mut self.tasks[id as usize];
        if notify == Some(task.recent) {
            // Next time the other one, as the kernel has it.
            task.recent = task.cpu;
        }
        self.counts.examined += u64::from(cost.examined);
        let took = self.price(cost);
        match (by, at) {
            (Some(by), _) => {
                self.charge(by, took, Use::Search);
                let lock = self.queue_cost(queue, by);
                self.charge(by, lock, Use::System);
            }
            (None, Some(at)) => self.interrupt(at, took, Use::Search),
            (None, None) => {}
        }
        self.enqueue(id, queue);
        // A CPU whose task's turn is over looks into its queue by itself.
        if let Some(target) = notify.filter(|&target| !is_preempted || Some(target) != by) {
            self.notify(target, by);
        }
    }

    /// Tells `target` that there is something for it; `by` is the CPU whose task does.
    pub(super) fn notify(&mut self, target: u32, by: Option<u32>) {
        let mut after = 0;
        if let Some(by) = by {
            // Who looks out for work needs no interrupt.
            let looks = matches!(
                self.s.cpus[target as usize].mode,
                Mode::Polling | Mode::Searching
            );
            if by != target && !looks {
                self.charge(by, self.costs.ipi, Use::System);
            }
            // What comes late in a long row of wake-ups comes late.
            after = self.s.cpus[by as usize].debt;
        }
        self.kick(target, by.unwrap_or(target), after);
    }

    /// The running task has had its turn: it becomes ready again.
    fn end_turn(&mut self, cpu: u32) {
        let id = self.s.cpus[cpu as usize].task;
        self.counts.preemptions += 1;
        self.leave(cpu);
        if self.gives_up(id) {
            self.tasks[id as usize].phase = Phase::Blocked;
        } else {
            let task = &mut self.tasks[id as usize];
            task.phase = Phase::Ready;
            task.ready_since = self.s.now;
            self.place_as(id, Some(cpu), false, false, true);
        }
        self.need_work(cpu);
    }

    pub(super) fn enqueue(&mut self, id: u32, queue: u32) {
        let floor = self.s.queues[queue as usize].floor;
        let task = &mut self.tasks[id as usize];
        if task.queue == NONE {
            task.vruntime = floor;
        } else if task.queue != queue {
            let lag = task.vruntime as i64 - self.s.queues[task.queue as usize].floor as i64;
            let most = self.costs.slice as i64;
            task.vruntime = floor.saturating_add_signed(lag.clamp(-most, most));
        }
        // Who has slept for long does not get all of it back.
        task.vruntime = task
            .vruntime
            .max(floor.saturating_sub(self.costs.slice / 2));
        task.queue = queue;
        let state = &mut self.s.queues[queue as usize];
        state.push(task.vruntime, id);
        state.pinned += u32::from(task.mask != NONE);
        self.s.queued += 1;
        self.s.note_overload(queue);
    }

    /// The next task of `queue` that may run on `cpu`.
    pub(super) fn take(&mut self, queue: u32, cpu: u32) -> Option<u32> {
        let (tasks, masks) = (&self.tasks, &self.masks);
        let id =
            self.s.queues[queue as usize].pop(|id| may_run(tasks[id as usize].mask, masks, cpu))?;
        self.taken(id, queue);
        let lock = self.queue_cost(queue, cpu);
        self.charge(cpu, lock, Use::Switch);
        Some(id)
    }

    fn taken(&mut self, id: u32, queue: u32) {
        let state = &mut self.s.queues[queue as usize];
        state.pinned -= u32::from(self.tasks[id as usize].mask != NONE);
        self.s.note_overload(queue);
    }

    /// Takes up to `count` tasks from a queue that serves others; all but the first go into the own queue.
    pub(super) fn steal(
        &mut self,
        cpu: u32,
        from: u32,
        count: u32,
        home: Option<u32>,
        pull: Pull,
    ) -> Option<u32> {
        let own = self.s.cpus[cpu as usize].queue;
        let mut first = None;
        let lock = self.queue_cost(from, cpu);
        self.charge(cpu, lock, Use::Search);
        for _ in 0..count {
            let (tasks, masks) = (&self.tasks, &self.masks);
            let may_go = |id: u32| {
                let task = &tasks[id as usize];
                may_run(task.mask, masks, cpu)
                    && (home.is_none() || task.node == NONE || Some(task.node) == home)
            };
            let Some(id) = self.s.queues[from as usize].steal(may_go) else {
                break;
            };
            self.taken(id, from);
            self.charge(cpu, self.costs.pull, Use::Search);
            match pull {
                Pull::Idle => {
                    self.counts.steals += 1;
                    self.s.cpus[cpu as usize].steals += 1;
                }
                Pull::Tick => self.counts.balanced += 1,
            }
            if first.is_none() {
                first = Some(id);
            } else {
                self.enqueue(id, own);
            }
        }
        first
    }

    pub(super) fn act_on_tick(&mut self, cpu: u32, action: TickAction) {
        let own = self.s.cpus[cpu as usize].queue;
        match action {
            TickAction::Preempt if !self.is_kept(cpu) => {
                self.end_turn(cpu);
                return;
            }
            TickAction::Balance { from, count, home } => {
                if let Some(id) = self.steal(cpu, from.0, count, home, Pull::Tick) {
                    self.enqueue(id, own);
                }
            }
            TickAction::Kick(idle) => {
                self.s.cpus[idle as usize].must_balance = true;
                self.kick(idle, cpu, 0);
            }
            _ => {}
        }
        self.plan_segment(cpu);
    }

    /// A CPU that a tick woke so that it pulls.
    pub(super) fn balance_idle(&mut self, cpu: u32) {
        let tick = self
            .policy
            .tick(&mut self.states[cpu as usize], &self.s, cpu, None);
        let took = self.price(tick.cost);
        self.charge(cpu, took, Use::Search);
        if let TickAction::Balance { from, count, home } = tick.action {
            let own = self.s.cpus[cpu as usize].queue;
            if let Some(id) = self.steal(cpu, from.0, count, home, Pull::Tick) {
                self.enqueue(id, own);
            }
        }
    }

    /// The dispatcher begins to assign the next task of the inbox for which a CPU is free, if there is one.
    pub(super) fn dispatch_next(&mut self, cpu: u32) -> bool {
        let (true, Some(inbox)) = (cpu == self.dispatcher, self.inbox) else {
            return false;
        };
        let mut took = 0;
        // Masks of whose CPUs none is free. Who may run there only holds up nobody else.
        let mut busy: Vec<u32> = vec![];
        let (id, target) = loop {
            let next = self.s.queues[inbox as usize]
                .next(|id| !busy.contains(&self.tasks[id as usize].mask));
            let Some(id) = next else {
                self.charge(cpu, took, Use::Search);
                return false;
            };
            let assigned = self.ask_dispatcher(cpu, id);
            self.counts.examined += u64::from(assigned.cost.examined);
            took += self.price(assigned.cost);
            if let Some(target) = assigned.cpu {
                break (id, target);
            }
            let mask = self.tasks[id as usize].mask;
            if mask == NONE {
                // No CPU is free at all.
                self.charge(cpu, took, Use::Search);
                return false;
            }
            busy.push(mask);
        };
        self.s.queues[inbox as usize].steal(|other| other == id);
        self.taken(id, inbox);
        took += self.queue_cost(inbox, cpu) + self.costs.wake + self.costs.ipi + self.costs.assign;
        // The CPU is spoken for as soon as it is chosen.
        if self.s.idle.test(target) {
            self.s.set_idle(target, false);
        }
        if self.s.idle.test(cpu) {
            self.s.set_idle(cpu, false);
        }
        self.set_mode(cpu, Mode::Dispatching, Use::System);
        let state = &mut self.s.cpus[cpu as usize];
        state.assigning = (id, target);
        let debt = std::mem::take(&mut state.debt);
        state.used[Use::System as usize] -= debt as i64;
        self.cpu_events.set(cpu, self.s.now + took + debt);
        self.counts.dispatched += 1;
        true
    }

    /// Where the policy of the dispatcher `cpu` assigns a task of the inbox.
    fn ask_dispatcher(&mut self, cpu: u32, id: u32) -> Assigned {
        let task = &self.tasks[id as usize];
        let waking = Waking {
            last: (task.cpu != NONE).then_some(task.cpu),
            allowed: (task.mask != NONE).then(|| &self.masks[task.mask as usize]),
            new: task.cpu == NONE,
            home_node: (task.node != NONE).then_some(task.node),
            wakee_flips: task.flips,
            ..Waking::default()
        };
        self.policy
            .dispatch(&mut self.states[cpu as usize], &self.s, &waking)
    }

    /// The task is assigned.
    pub(super) fn dispatched(&mut self, cpu: u32) {
        let (id, target) = self.s.cpus[cpu as usize].assigning;
        if self.s.cpus[target as usize].mode == Mode::Offline {
            self.place(id, None, false, false);
        } else {
            let queue = self.s.cpus[target as usize].queue;
            self.enqueue(id, queue);
            self.kick(target, cpu, 0);
        }
        self.need_work(cpu);
    }

    /// A timer or a device has fired.
    pub(super) fn timer(&mut self, id: u32) {
        let task = &mut self.tasks[id as usize];
        if task.wait != Wait::Start {
            task.is_granted = true;
            let cpu = task.cpu;
            self.interrupt(cpu, self.costs.interrupt, Use::Interrupt);
        }
        self.wake(id, None, false);
    }

    /// The machine changes.
    pub(super) fn change(&mut self) {
        let (_, change) = self.w.changes[self.changes];
        self.changes += 1;
        match change {
            Change::Frequency(mask, permille) => {
                for cpu in self.members(mask) {
                    let full = full_capacity(&self.s.machine, cpu, self.costs);
                    let is_running = self.s.cpus[cpu as usize].mode == Mode::Running;
                    if is_running {
                        self.settle(cpu);
                    }
                    self.s.cpus[cpu as usize].capacity = (full * u64::from(permille) / 1000).max(1);
                    if is_running {
                        self.plan_segment(cpu);
                    }
                }
            }
            Change::Online(mask) => {
                for cpu in self.members(mask) {
                    if self.s.cpus[cpu as usize].mode == Mode::Offline {
                        self.s.online.set(cpu).expect("the mask has all CPUs");
                        let queue = self.s.cpus[cpu as usize].queue;
                        self.s.queues[queue as usize].online += 1;
                        self.set_mode(cpu, Mode::Waking, Use::Idle);
                        self.s.note_overload(queue);
                        self.need_work(cpu);
                    }
                }
                // One of them may be the dispatcher from now on: the policy says it of a task that is placed.
                if let Some(inbox) = self.inbox
                    && let Some(first) = self.s.queues[inbox as usize].pop(|_| true)
                {
                    self.taken(first, inbox);
                    self.place_again(first);
                }
            }
            Change::Offline(mask) => {
                for cpu in self.members(mask) {
                    self.offline(cpu);
                }
            }
        }
    }

    fn members(&self, mask: u32) -> Vec<u32> {
        self.masks[mask as usize].iter().collect()
    }

    /// What runs and waits there goes elsewhere. The last CPU stays.
    fn offline(&mut self, cpu: u32) {
        let mode = self.s.cpus[cpu as usize].mode;
        if mode == Mode::Offline || self.s.online.count() == 1 {
            return;
        }
        self.s.online.clear(cpu).expect("the mask has all CPUs");
        if self.s.idle.test(cpu) {
            self.s.set_idle(cpu, false);
        }
        let mut homeless = vec![];
        match mode {
            Mode::Running => {
                self.settle(cpu);
                let id = self.s.cpus[cpu as usize].task;
                self.leave(cpu);
                if self.gives_up(id) {
                    self.tasks[id as usize].phase = Phase::Blocked;
                } else {
                    homeless.push(id);
                }
            }
            Mode::Switching => {
                let state = &mut self.s.cpus[cpu as usize];
                homeless.push(std::mem::replace(&mut state.task, NONE));
            }
            Mode::Dispatching => {
                let (id, target) = self.s.cpus[cpu as usize].assigning;
                homeless.push(id);
                // It was taken out of the idle CPUs for the task that will not come.
                let is_free = |state: &Cpu| matches!(state.mode, Mode::Idle | Mode::Polling);
                if self.s.cpus.get(target as usize).is_some_and(is_free) {
                    self.s.set_idle(target, true);
                }
            }
            _ => {}
        }
        homeless.extend(self.next_of(cpu));
        self.set_mode(cpu, Mode::Offline, Use::Offline);
        let state = &mut self.s.cpus[cpu as usize];
        // Nobody will pay what was not paid.
        let debt = std::mem::take(&mut state.debt);
        state.used[Use::Offline as usize] -= debt as i64;
        let queue = state.queue;
        self.cpu_events.set(cpu, NEVER);
        let of_queue = &mut self.s.queues[queue as usize];
        of_queue.online -= 1;
        // Who was on the way to a task of a queue that others serve, too, was the one who was told of it.
        let mut left = match (of_queue.online, mode) {
            (0, _) => usize::MAX,
            (_, Mode::Waking | Mode::Searching) => 1,
            _ => 0,
        };
        while left > 0
            && let Some(id) = self.s.queues[queue as usize].pop(|_| true)
        {
            self.taken(id, queue);
            homeless.push(id);
            left -= 1;
        }
        // Whoever is left may be the dispatcher alone, which runs tasks itself then: the policy says so of each.
        if let Some(inbox) = self.inbox {
            while let Some(id) = self.s.queues[inbox as usize].pop(|_| true) {
                self.taken(id, inbox);
                homeless.push(id);
            }
        }
        // In a queue that others serve, too, may be tasks that none of these may run.
        for other in 0..self.s.queues.len() as u32 {
            let (tasks, masks, online) = (&self.tasks, &self.masks, &self.s.online);
            let is_stranded = |id: u32| {
                let mask = tasks[id as usize].mask;
                mask != NONE && !masks[mask as usize].iter().any(|cpu| online.test(cpu))
            };
            if self.s.queues[other as usize].pinned == 0 {
                continue;
            }
            while let Some(id) = self.s.queues[other as usize].steal(is_stranded) {
                let state = &mut self.s.queues[other as usize];
                state.pinned -= 1;
                homeless.push(id);
            }
            self.s.note_overload(other);
        }
        self.s.note_overload(queue);
        for id in homeless {
            self.place_again(id);
        }
    }

    /// A task that has lost its CPU or its queue.
    fn place_again(&mut self, id: u32) {
        let now = self.s.now;
        let task = &mut self.tasks[id as usize];
        if task.phase == Phase::Ready {
            // It goes on waiting in another queue.
            let waited = now - task.ready_since;
            task.waited += waited;
            task.lost += waited;
            if task.is_spinning && task.is_stubborn {
                task.spin_until = task.spin_until.saturating_add(waited);
            }
        }
        task.phase = Phase::Ready;
        task.ready_since = now;
        self.place(id, None, false, false);
    }
}

#[inline]
pub(super) fn may_run(mask: u32, masks: &[CpuMask], cpu: u32) -> bool {
    mask == NONE || masks[mask as usize].test(cpu)
}
