//! What CPUs do: stretches of time, switches, idling, searching.

use amdahl_placement::{Cost, IdleAction, Lookout, QueueId};

use super::place::Pull;
use super::state::{Cpu, Mode, Phase, Plan, Use, Wait};
use super::{End, Engine};
use crate::program::NONE;
use crate::time::{NEVER, Ns};

/// A spinner on whom nothing can wait any more is found out after this time without any progress.
const STUCK_AFTER: Ns = 1_000_000_000;

impl Engine<'_> {
    /// Adds the time that has passed to what it was used for.
    #[inline]
    pub(super) fn account(&mut self, cpu: u32, next: Use) {
        let now = self.s.now;
        let state = &mut self.s.cpus[cpu as usize];
        state.used[state.use_ as usize] += (now - state.since) as i64;
        state.since = now;
        state.use_ = next;
    }

    /// Goes over to another mode; who shares the core gets faster or slower by it.
    pub(super) fn set_mode(&mut self, cpu: u32, mode: Mode, use_: Use) {
        self.account(cpu, use_);
        let state = &mut self.s.cpus[cpu as usize];
        let old = std::mem::replace(&mut state.mode, mode);
        if old == mode {
            return;
        }
        let (core, llc, queue) = (state.core, state.llc, state.queue);
        let pollers = &mut self.s.queues[queue as usize].pollers;
        *pollers -= u32::from(old == Mode::Polling);
        *pollers += u32::from(mode == Mode::Polling);
        self.s.pollers -= u32::from(old == Mode::Polling);
        self.s.pollers += u32::from(mode == Mode::Polling);
        if old.has_task() != mode.has_task() {
            let load = &mut self.s.load[llc as usize];
            load.settle(self.s.now);
            let (busy, of_queue) = (&mut load.busy, &mut self.s.queues[queue as usize].busy);
            if mode.has_task() {
                *busy += 1;
                *of_queue += 1;
            } else {
                *busy -= 1;
                *of_queue -= 1;
            }
            self.s.note_overload(queue);
        }
        if old.is_active() != mode.is_active() {
            let active = &mut self.s.core_active[core as usize];
            *active = if mode.is_active() {
                *active + 1
            } else {
                *active - 1
            };
            if self.smt.len() > 2 {
                for sibling in self.s.machine.core_cpus(core) {
                    if sibling != cpu && self.s.cpus[sibling as usize].mode == Mode::Running {
                        self.settle(sibling);
                        self.plan_segment(sibling);
                    }
                }
            }
        }
    }

    /// Brings the work of the running task up to now.
    #[inline]
    pub(super) fn settle(&mut self, cpu: u32) {
        let now = self.s.now;
        let state = &mut self.s.cpus[cpu as usize];
        let passed = now - state.settled;
        state.settled = now;
        let task = &mut self.tasks[state.task as usize];
        task.ran += passed;
        task.vruntime += (passed * task.share) >> 10;
        if task.is_spinning {
            task.spun += passed;
        } else {
            task.work = task.work.saturating_sub(passed * state.rate);
        }
    }

    /// Plans the end of what is left of the segment, at the present speed.
    #[inline]
    pub(super) fn plan_segment(&mut self, cpu: u32) {
        let now = self.s.now;
        let state = &mut self.s.cpus[cpu as usize];
        let task = &self.tasks[state.task as usize];
        if task.is_spinning {
            state.end = task.spin_until;
        } else {
            let mut rate = 1024;
            if !task.is_fixed {
                let share = self.smt[self.s.core_active[state.core as usize] as usize];
                rate = (state.capacity * share) >> 10;
                if task.node != state.node {
                    rate = (rate * task.remote_rate) >> 10;
                }
                rate = rate.max(1);
            }
            state.rate = rate;
            state.end = now + task.work.div_ceil(rate);
        }
        let at = state.end.min(state.next_tick).min(state.resched_at);
        self.cpu_events.set(cpu, at);
    }

    /// Runs the task's present segment of `ns` at full speed.
    #[inline]
    pub(super) fn start_segment(&mut self, cpu: u32, ns: Ns, use_: Use, is_fixed: bool) {
        if self.s.cpus[cpu as usize].use_ != use_ {
            self.account(cpu, use_);
        }
        let state = &mut self.s.cpus[cpu as usize];
        let debt = std::mem::take(&mut state.debt);
        state.used[use_ as usize] -= debt as i64;
        state.settled = self.s.now;
        let task = &mut self.tasks[state.task as usize];
        task.use_ = use_;
        task.is_fixed = is_fixed;
        task.work = (ns + debt) << 10;
        self.plan_segment(cpu);
    }

    /// Time that the CPU has to spend before anything else goes on, counted as `use_`.
    #[inline]
    pub(super) fn charge(&mut self, cpu: u32, ns: Ns, use_: Use) {
        let state = &mut self.s.cpus[cpu as usize];
        state.debt += ns;
        state.used[use_ as usize] += ns as i64;
    }

    /// Time taken from whatever the CPU does at present: an interrupt.
    pub(super) fn interrupt(&mut self, cpu: u32, ns: Ns, use_: Use) {
        let state = &self.s.cpus[cpu as usize];
        match state.mode {
            Mode::Running if !self.tasks[state.task as usize].is_spinning => {
                self.settle(cpu);
                let state = &mut self.s.cpus[cpu as usize];
                state.used[use_ as usize] += ns as i64;
                state.used[state.use_ as usize] -= ns as i64;
                self.tasks[state.task as usize].work += ns * state.rate;
                self.plan_segment(cpu);
            }
            // Paid by who runs next.
            Mode::Running
            | Mode::Searching
            | Mode::Switching
            | Mode::Between
            | Mode::Dispatching => self.charge(cpu, ns, use_),
            // An idle CPU has the time.
            Mode::Idle | Mode::Waking | Mode::Polling | Mode::Offline => {}
        }
    }

    pub(super) fn price(&self, cost: Cost) -> Ns {
        let costs = self.costs;
        u64::from(cost.examined + cost.words) * costs.examine
            + u64::from(cost.remote) * costs.examine_remote
    }

    /// The cost of the lock of a run queue, waiting for others included, and of its lines.
    pub(super) fn queue_cost(&mut self, queue: u32, cpu: u32) -> Ns {
        let ready = self.s.now + self.s.cpus[cpu as usize].debt;
        let distance = self.s.distance(self.s.queues[queue as usize].line, cpu);
        let state = &mut self.s.queues[queue as usize];
        let mut hold = self.line_cost[distance] + self.costs.queue_hold;
        let lookers = match self.lookout {
            Lookout::Own => state.pollers,
            Lookout::All => self.s.pollers,
        };
        hold += u64::from(lookers) * self.costs.queue_poller;
        let waiting = state.held_until.saturating_sub(ready);
        if waiting > 0 && self.costs.queue_waiter > 0 {
            // As many wait as fit into the time for which it is taken, and at most all CPUs.
            let waiters = waiting / self.costs.queue_hold.max(1);
            hold += waiters.min(u64::from(self.s.machine.cpus())) * self.costs.queue_waiter / 2;
        }
        state.held_until = ready + waiting + hold;
        state.line = cpu;
        waiting + hold
    }

    /// The next event of a CPU.
    pub(super) fn cpu_event(&mut self, cpu: u32) {
        let now = self.s.now;
        let state = &mut self.s.cpus[cpu as usize];
        match state.mode {
            Mode::Running => {
                self.settle(cpu);
                let state = &mut self.s.cpus[cpu as usize];
                if state.end <= now {
                    self.segment_ended(cpu);
                } else if state.resched_at <= now {
                    state.resched_at = NEVER;
                    self.reconsider(cpu);
                } else {
                    self.tick(cpu);
                }
            }
            Mode::Switching => self.arrive(cpu),
            Mode::Searching => self.carry_out(cpu),
            Mode::Waking => self.need_work(cpu),
            Mode::Dispatching => self.dispatched(cpu),
            Mode::Polling => self.sleep(cpu),
            Mode::Between | Mode::Idle | Mode::Offline => self.cpu_events.set(cpu, NEVER),
        }
    }

    fn segment_ended(&mut self, cpu: u32) {
        let id = self.s.cpus[cpu as usize].task;
        if self.tasks[id as usize].is_spinning {
            // It has spun for long enough.
            self.stop_spinning(id);
            self.block(cpu);
            return;
        }
        self.tasks[id as usize].work = 0;
        self.proceed(cpu);
    }

    /// The task on `cpu` waits for what its `wait` says; another one runs.
    pub(super) fn block(&mut self, cpu: u32) {
        let id = self.s.cpus[cpu as usize].task;
        self.tasks[id as usize].phase = Phase::Blocked;
        self.leave(cpu);
        self.need_work(cpu);
    }

    /// The task on `cpu` is off it, whatever comes then.
    pub(super) fn leave(&mut self, cpu: u32) {
        let now = self.s.now;
        let state = &mut self.s.cpus[cpu as usize];
        let id = std::mem::replace(&mut state.task, NONE);
        state.mode = Mode::Between;
        state.end = NEVER;
        state.resched_at = NEVER;
        state.must_resched = false;
        let since = state.slice_start;
        let task = &mut self.tasks[id as usize];
        task.since = now;
        task.switches += 1;
        self.tracer.ran(cpu, task.template, task.serial, since, now);
        // As `min_vruntime`: that of who ran, unless somebody who waits is behind it.
        let queue = &mut self.s.queues[task.queue as usize];
        let first = queue.first().unwrap_or(u64::MAX);
        let floor = &mut queue.floor;
        *floor = (*floor).max(task.vruntime.min(first));
    }

    /// Takes the running task off and puts it into a queue: the CPU's own, or the inbox.
    pub(super) fn preempt(&mut self, cpu: u32, to: u32) {
        let id = self.s.cpus[cpu as usize].task;
        self.counts.preemptions += 1;
        self.leave(cpu);
        if self.gives_up(id) {
            self.tasks[id as usize].phase = Phase::Blocked;
        } else {
            let task = &mut self.tasks[id as usize];
            task.phase = Phase::Ready;
            task.ready_since = self.s.now;
            self.enqueue(id, to);
            if Some(to) == self.inbox && self.dispatcher != NONE {
                self.kick(self.dispatcher, cpu, 0);
            }
        }
        self.need_work(cpu);
    }

    /// The CPU has nothing to run: from its own queue, else as the policy says.
    pub(super) fn need_work(&mut self, cpu: u32) {
        if self.s.cpus[cpu as usize].mode == Mode::Offline {
            return;
        }
        if std::mem::take(&mut self.s.cpus[cpu as usize].must_balance) {
            self.balance_idle(cpu);
        }
        if self.dispatch_next(cpu) {
            return;
        }
        let queue = self.s.cpus[cpu as usize].queue;
        if let Some(task) = self.take_next(cpu).or_else(|| self.take(queue, cpu)) {
            self.switch_to(cpu, task);
            return;
        }
        let state = &mut self.s.cpus[cpu as usize];
        if state.mode.has_task() || state.mode == Mode::Waking {
            state.searches_failed = 0;
            if state.mode.has_task() {
                state.idle_since = self.s.now;
            }
        }
        if !self.s.idle.test(cpu) {
            self.s.set_idle(cpu, true);
        }
        self.search(cpu);
    }

    /// Asks the policy what an idle CPU does.
    pub(super) fn search(&mut self, cpu: u32) {
        self.set_mode(cpu, Mode::Searching, Use::Search);
        let attempt = self.s.cpus[cpu as usize].searches_failed;
        self.s.cpus[cpu as usize].seen = self.s.queued;
        let idle = self
            .policy
            .idle(&mut self.states[cpu as usize], &self.s, cpu, attempt);
        self.counts.searches += 1;
        self.counts.examined += u64::from(idle.cost.examined);
        let plan = match idle.action {
            IdleAction::Take(QueueId(queue)) => Plan::Take(queue),
            IdleAction::Steal { from, count, home } => Plan::Steal {
                from: from.0,
                count,
                home,
            },
            IdleAction::Ask {
                dispatcher,
                spin_ns,
            } => Plan::Ask {
                dispatcher,
                spin: spin_ns,
            },
            IdleAction::Sleep { spin_ns } => Plan::Sleep { spin: spin_ns },
            _ => Plan::Sleep { spin: 0 },
        };
        let took = self.price(idle.cost);
        self.s.cpus[cpu as usize].plan = plan;
        // A search that takes no time must still end when it only ever fails.
        let took = if took == 0 && attempt > 1000 {
            1_000
        } else {
            took
        };
        if took == 0 && self.s.cpus[cpu as usize].debt == 0 {
            self.carry_out(cpu);
            return;
        }
        let state = &mut self.s.cpus[cpu as usize];
        let debt = std::mem::take(&mut state.debt);
        state.used[Use::Search as usize] -= debt as i64;
        self.cpu_events.set(cpu, self.s.now + took + debt);
    }

    /// Does what the search has found, as far as it still can be done.
    pub(super) fn carry_out(&mut self, cpu: u32) {
        // What it was told while it searched is in none of its searches.
        if cpu == self.dispatcher && !self.s.idle.test(cpu) && self.dispatch_next(cpu) {
            return;
        }
        let own = self.s.cpus[cpu as usize].queue;
        if let Some(task) = self.take(own, cpu) {
            self.switch_to(cpu, task);
            return;
        }
        let found = match self.s.cpus[cpu as usize].plan {
            Plan::Take(queue) => self.take(queue, cpu),
            Plan::Steal { from, count, home } => self.steal(cpu, from, count, home, Pull::Idle),
            Plan::Ask { dispatcher, spin } => {
                self.fall_idle(cpu, spin);
                // Another one may have become it during the search.
                let known = self.dispatcher != NONE;
                let dispatcher = if known { self.dispatcher } else { dispatcher };
                self.kick(dispatcher, cpu, 0);
                return;
            }
            Plan::Sleep { spin } => {
                // Something was queued while it searched: it must not be missed.
                let state = &mut self.s.cpus[cpu as usize];
                if state.seen == self.s.queued || state.searches_failed > 1000 {
                    self.fall_idle(cpu, spin);
                } else {
                    state.searches_failed = 0;
                    self.search(cpu);
                }
                return;
            }
        };
        match found {
            Some(task) => self.switch_to(cpu, task),
            None => {
                self.s.cpus[cpu as usize].searches_failed += 1;
                self.search(cpu);
            }
        }
    }

    fn fall_idle(&mut self, cpu: u32, spin: Ns) {
        if !self.s.idle.test(cpu) {
            // It was notified while it searched, and somebody else was faster.
            self.s.set_idle(cpu, true);
        }
        if spin > 0 {
            self.set_mode(cpu, Mode::Polling, Use::Poll);
            self.cpu_events.set(cpu, self.s.now.saturating_add(spin));
        } else {
            self.sleep(cpu);
        }
    }

    pub(super) fn sleep(&mut self, cpu: u32) {
        self.set_mode(cpu, Mode::Idle, Use::Idle);
        self.s.cpus[cpu as usize].idle_entries += 1;
        self.cpu_events.set(cpu, NEVER);
    }

    /// Notifies `cpu`, `after` from now.
    pub(super) fn kick(&mut self, cpu: u32, by: u32, after: Ns) {
        let now = self.s.now;
        let distance = self.s.distance(by, cpu);
        let state = &mut self.s.cpus[cpu as usize];
        match state.mode {
            Mode::Idle => {
                let costs = self.costs;
                let is_deep = now - state.idle_since >= costs.deep_idle_after;
                let exit = if is_deep {
                    costs.deep_idle_exit
                } else {
                    costs.idle_exit
                };
                self.s.set_idle(cpu, false);
                self.set_mode(cpu, Mode::Waking, Use::Idle);
                self.cpu_events.set(cpu, now + after + exit);
            }
            Mode::Polling => {
                self.s.set_idle(cpu, false);
                self.set_mode(cpu, Mode::Waking, Use::Poll);
                self.cpu_events
                    .set(cpu, now + after + self.line_cost[distance]);
            }
            Mode::Searching => {
                if self.s.idle.test(cpu) {
                    self.s.set_idle(cpu, false);
                }
            }
            Mode::Running => {
                // The interrupt is the waker's cost, and in `after`.
                let at = now + after;
                if at < state.resched_at {
                    self.settle(cpu);
                    self.s.cpus[cpu as usize].resched_at = at;
                    self.plan_segment(cpu);
                }
            }
            Mode::Waking | Mode::Switching | Mode::Between | Mode::Dispatching | Mode::Offline => {}
        }
    }

    /// Goes over to `task`, which is in no queue any more.
    pub(super) fn switch_to(&mut self, cpu: u32, task: u32) {
        let now = self.s.now;
        let state = &self.s.cpus[cpu as usize];
        if !state.mode.has_task() {
            let woken = if state.mode == Mode::Waking {
                now - state.since
            } else {
                0
            };
            self.policy.ran(&mut self.states[cpu as usize], now, woken);
        }
        if self.s.idle.test(cpu) {
            self.s.set_idle(cpu, false);
        }
        self.set_mode(cpu, Mode::Switching, Use::Switch);
        let state = &mut self.s.cpus[cpu as usize];
        state.searches_failed = 0;
        state.task = task;
        state.switches += 1;
        let debt = std::mem::take(&mut state.debt);
        state.used[Use::Switch as usize] -= debt as i64;
        let entry = &mut self.tasks[task as usize];
        entry.phase = Phase::OnCpu;
        let waited = now - entry.ready_since;
        entry.waited += waited;
        // Whether it had slept or not, others had its CPU.
        entry.lost += waited;
        self.cpu_events
            .set(cpu, now + self.costs.context_switch + debt);
    }

    /// The switch is done: the task runs.
    fn arrive(&mut self, cpu: u32) {
        let now = self.s.now;
        self.set_mode(cpu, Mode::Running, Use::System);
        let state = &mut self.s.cpus[cpu as usize];
        let (id, node, queue) = (state.task, state.node, state.queue);
        state.slice_start = now;
        state.settled = now;
        state.end = now;
        state.resched_at = NEVER;
        state.tasks_run += 1;
        if state.next_tick <= now {
            // It did not tick while it idled.
            let period = self.costs.tick_period;
            state.next_tick += ((now - state.next_tick) / period + 1) * period;
        }
        let task = &mut self.tasks[id as usize];
        if task.woken_at != NEVER {
            let latency = now - task.woken_at;
            task.woken_at = NEVER;
            task.woken_after = latency;
            self.counts.wakeups_delivered += 1;
            self.wakeup.saturating_record(latency.max(1));
        }
        let from = std::mem::replace(&mut task.cpu, cpu);
        if task.node == NONE {
            // Memory goes where it is first touched.
            task.node = node;
        }
        if task.queue != queue {
            // Virtual time is that of a queue.
            let (old, new) = (
                self.s.queues[task.queue as usize].floor,
                self.s.queues[queue as usize].floor,
            );
            task.vruntime = (new + task.vruntime).saturating_sub(old);
            task.queue = queue;
        }
        if from != cpu && from != NONE {
            task.migrations += 1;
            let distance = self.s.distance(from, cpu);
            self.counts.migrations[distance] += 1;
            let lost = self.migration_cost[distance];
            self.charge(cpu, lost, Use::Stall);
        }
        let task = &mut self.tasks[id as usize];
        if task.is_spinning {
            if task.is_stubborn {
                let away = now - task.ready_since;
                task.spin_until = task.spin_until.saturating_add(away);
            }
            self.spin_on(cpu);
        } else if task.work > 0 {
            // It was interrupted in the middle of a segment.
            let (work, use_, is_fixed) = (task.work, task.use_, task.is_fixed);
            self.start_segment(cpu, 0, use_, is_fixed);
            self.tasks[id as usize].work += work;
            self.plan_segment(cpu);
        } else {
            self.proceed(cpu);
        }
    }

    /// Goes on spinning, or takes what has become free meanwhile.
    fn spin_on(&mut self, cpu: u32) {
        let id = self.s.cpus[cpu as usize].task;
        if let Wait::Lock(lock) = self.tasks[id as usize].wait
            && self.try_again(lock, id, cpu)
        {
            self.proceed(cpu);
            return;
        }
        self.account(cpu, Use::Spin);
        self.plan_segment(cpu);
    }

    /// What the task on `cpu` waits for has come, `after` a time.
    pub(super) fn end_spin(&mut self, id: u32, after: Ns) {
        let task = &mut self.tasks[id as usize];
        let cpu = task.cpu;
        let is_running = {
            let state = &self.s.cpus[cpu as usize];
            state.task == id && state.mode == Mode::Running
        };
        if is_running {
            self.settle(cpu);
            self.tasks[id as usize].is_spinning = false;
            self.start_segment(cpu, after, Use::Spin, true);
        } else {
            // It was preempted: it finds out when it runs again.
            task.is_spinning = false;
            task.work = 0;
        }
    }

    fn tick(&mut self, cpu: u32) {
        let now = self.s.now;
        let state = &mut self.s.cpus[cpu as usize];
        state.next_tick = now + self.costs.tick_period;
        let (ran, id) = (now - state.slice_start, state.task);
        if self.tasks[id as usize].is_spinning && now - self.progress > STUCK_AFTER {
            if self.is_stuck() {
                self.end = Some(End::Deadlock);
                return;
            }
            // All tasks were looked at: not at each tick.
            self.progress = now;
        }
        let tick = self
            .policy
            .tick(&mut self.states[cpu as usize], &self.s, cpu, Some(ran));
        let cost = self.costs.tick + self.price(tick.cost);
        self.interrupt(cpu, cost, Use::Interrupt);
        if self.tasks[id as usize].is_spinning {
            self.plan_segment(cpu);
        }
        self.release_next(cpu, ran);
        self.act_on_tick(cpu, tick.action);
    }

    /// Nothing but spinning goes on, and nothing else is planned or waits for a CPU. O(tasks).
    fn is_stuck(&self) -> bool {
        let spins = |cpu: &Cpu| match cpu.mode {
            Mode::Running => self.tasks[cpu.task as usize].is_spinning,
            Mode::Idle | Mode::Offline => true,
            _ => false,
        };
        self.task_events.is_empty()
            && self.changes >= self.w.changes.len()
            && self.s.cpus.iter().all(spins)
            && (self.tasks.iter()).all(|task| task.phase != Phase::Ready || task.is_spinning)
    }

    /// Who runs on `cpu` may not lose it now; it is asked again when it has given its locks back.
    pub(super) fn is_kept(&mut self, cpu: u32) -> bool {
        let state = &mut self.s.cpus[cpu as usize];
        let is_kept = self.tasks[state.task as usize].keeps_cpu > 0;
        state.must_resched |= is_kept;
        is_kept
    }

    /// Somebody else was queued: is it due before who runs?
    fn reconsider(&mut self, cpu: u32) {
        if self.is_kept(cpu) {
            return self.plan_segment(cpu);
        }
        let state = &self.s.cpus[cpu as usize];
        let task = &self.tasks[state.task as usize];
        let first = self.s.queues[state.queue as usize].first();
        let granted = (self.costs.wakeup_granularity * task.share) >> 10;
        match first {
            Some(first) if first + granted < task.vruntime => self.preempt(cpu, state.queue),
            _ => self.plan_segment(cpu),
        }
    }
}
