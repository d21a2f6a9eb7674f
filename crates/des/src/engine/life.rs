//! Tasks come and go: spawn, join, exit, jobs of a graph.

use std::collections::VecDeque;

use super::interpret::After;
use super::lock::Lock;
use super::state::{Phase, Task, Use, Wait};
use super::{End, Engine, Graph, Process};
use crate::program::{GraphSpec, LockKind, LockSpec, NONE, VAR_COUNT, VAR_INDEX, VAR_JOB};
use crate::random::Rng;
use crate::time::{NEVER, Ns};

/// 1024 / weight in 1/1024: each step of niceness is a factor of 1.25, as in the kernel.
fn share(nice: i8) -> u64 {
    (0..nice.unsigned_abs()).fold(1024, |share, _| {
        if nice > 0 {
            share * 5 / 4
        } else {
            (share * 4 / 5).max(1)
        }
    })
}

/// The `i`-th graph as a run begins. What its jobs take does not depend on who does them.
pub(super) fn graph(spec: &GraphSpec, seed: u64, i: u64) -> Graph {
    let mut rng = Rng::new(seed, u64::MAX - 1 - i);
    let work = spec.work.iter().map(|dist| dist.draw(&mut rng)).collect();
    let mut missing = vec![0; spec.work.len()];
    for &successor in spec.successors.iter().flatten() {
        missing[successor as usize] += 1;
    }
    let ready: VecDeque<u32> = (0..)
        .zip(&missing)
        .filter(|&(_, &missing)| missing == 0)
        .map(|(job, _)| job)
        .collect();
    Graph {
        work,
        ready,
        is_done: vec![false; missing.len()],
        untaken: missing.len(),
        undone: missing.len(),
        missing,
        waiters: VecDeque::new(),
    }
}

impl Engine<'_> {
    pub(super) fn new_process(&mut self) -> u32 {
        if let Some(process) = self.free_processes.pop() {
            return process;
        }
        self.locks.push(Lock::new(LockSpec {
            kind: LockKind::Semaphore,
            spin: 0,
            keeps_cpu: false,
        }));
        self.processes.push(Process {
            lock: self.locks.len() as u32 - 1,
            tasks: 0,
        });
        self.processes.len() as u32 - 1
    }

    pub(super) fn new_task(&mut self, template: u32, index: u32, process: u32, parent: u32) -> u32 {
        let spec = &self.w.templates[template as usize];
        // Not by the serial of a child: that depends on when others make theirs.
        let seed = match self.tasks.get_mut(parent as usize) {
            Some(parent) => {
                parent.made += 1;
                parent.seed.child(parent.made)
            }
            None => Rng::new(self.seed, u64::from(self.serial)),
        };
        let task = Task {
            pc: spec.entry,
            phase: Phase::Blocked,
            step: 0,
            is_granted: false,
            is_spinning: false,
            is_stubborn: false,
            lost: 0,
            keeps_cpu: 0,
            wait: Wait::Nothing,
            cpu: NONE,
            queue: NONE,
            template,
            process,
            parent,
            parent_serial: self
                .tasks
                .get(parent as usize)
                .map_or(0, |parent| parent.serial),
            serial: self.serial,
            children: 0,
            work: 0,
            vruntime: 0,
            share: share(spec.nice),
            nice: spec.nice,
            use_: Use::User,
            is_fixed: false,
            remote_rate: {
                // Time of memory grows, the rest stays.
                let memory = u64::from(spec.memory_permille.min(1000));
                let slower =
                    memory * 1000 / u64::from(self.costs.remote_memory_permille) + 1000 - memory;
                1024 * 1000 / slower
            },
            node: spec.node.unwrap_or(NONE),
            mask: spec.mask.unwrap_or(NONE),
            wait_since: 0,
            ready_since: self.s.now,
            since: self.s.now,
            woken_at: NEVER,
            woken_after: NEVER,
            spin_until: 0,
            bytes_left: 0,
            graph: NONE,
            rng: seed,
            seed,
            made: 0,
            flips: Default::default(),
            recent: NONE,
            ran: 0,
            waited: 0,
            slept: 0,
            spun: 0,
            started: NEVER,
            migrations: 0,
            switches: 0,
        };
        self.serial += 1;
        self.alive += 1;
        self.counts.alive_max = self.counts.alive_max.max(self.alive);
        self.awaited += u64::from(!spec.is_daemon);
        self.processes[process as usize].tasks += 1;
        self.sums[template as usize].started += 1;
        let vars = self.w.vars;
        let id = match self.free.pop() {
            Some(id) => {
                self.tasks[id as usize] = task;
                self.vars[id as usize * vars..][..vars].fill(0);
                id
            }
            None => {
                self.tasks.push(task);
                self.vars.resize(self.tasks.len() * vars, 0);
                self.task_events.grow(self.tasks.len());
                self.tasks.len() as u32 - 1
            }
        };
        self.vars[id as usize * vars + VAR_INDEX as usize] = i64::from(index);
        self.vars[id as usize * vars + VAR_COUNT as usize] = i64::from(spec.count);
        id
    }

    pub(super) fn space(&self, id: u32) -> u32 {
        self.processes[self.tasks[id as usize].process as usize].lock
    }

    /// One child in each step, as each costs time.
    pub(super) fn spawn(
        &mut self,
        cpu: u32,
        id: u32,
        template: u32,
        count: u32,
        is_process: bool,
        step: u8,
    ) -> After {
        if step == 0 {
            self.tasks[id as usize].bytes_left = count;
        }
        if step > 0 {
            let made = count - self.tasks[id as usize].bytes_left;
            if self.alive >= u64::from(self.limits.tasks) {
                self.end = Some(End::TaskLimit);
            } else {
                self.make(cpu, id, template, made, is_process);
            }
            self.tasks[id as usize].bytes_left -= 1;
        }
        if self.tasks[id as usize].bytes_left == 0 {
            return After::Next;
        }
        let cost = if is_process {
            self.costs.fork
        } else {
            self.costs.spawn
        };
        self.tasks[id as usize].step = 1;
        self.start_segment(cpu, cost, Use::System, true);
        After::Later
    }

    fn make(&mut self, cpu: u32, id: u32, template: u32, index: u32, is_process: bool) {
        let process = if is_process {
            self.new_process()
        } else {
            self.tasks[id as usize].process
        };
        let child = self.new_task(template, index, process, id);
        self.counts.forks += 1;
        self.tasks[id as usize].children += 1;
        // It inherits the job and the niceness of a maker that is nicer.
        let (graph, nice) = (self.tasks[id as usize].graph, self.tasks[id as usize].nice);
        let vars = self.w.vars;
        let job = self.vars[id as usize * vars + VAR_JOB as usize];
        self.vars[child as usize * vars + VAR_JOB as usize] = job;
        let task = &mut self.tasks[child as usize];
        task.graph = graph;
        if nice > task.nice {
            task.nice = nice;
            task.share = share(nice);
        }
        self.wake(child, Some(cpu), false);
    }

    pub(super) fn join(&mut self, cpu: u32, id: u32) -> After {
        if self.tasks[id as usize].children == 0 {
            self.tasks[id as usize].wait = Wait::Nothing;
            return After::Next;
        }
        self.wait_for(cpu, id, Wait::Children, 0)
    }

    pub(super) fn exit(&mut self, cpu: u32, id: u32) {
        let now = self.s.now;
        self.leave(cpu);
        let task = &mut self.tasks[id as usize];
        task.phase = Phase::Gone;
        let (template, process, parent, serial) =
            (task.template, task.process, task.parent, task.parent_serial);
        self.fold(id);
        let sums = &mut self.sums[template as usize];
        sums.ended += 1;
        sums.last_end = now;
        self.alive -= 1;
        let space = &mut self.processes[process as usize];
        space.tasks -= 1;
        if space.tasks == 0 {
            self.free_processes.push(process);
        }
        if parent != NONE
            && self.tasks[parent as usize].serial == serial
            && self.tasks[parent as usize].phase != Phase::Gone
        {
            self.tasks[parent as usize].children -= 1;
            if self.tasks[parent as usize].children == 0
                && self.tasks[parent as usize].wait == Wait::Children
            {
                self.grant(parent, cpu, 0, true, false);
            }
        }
        self.free.push(id);
        if !self.w.templates[template as usize].is_daemon {
            self.awaited -= 1;
            if self.awaited == 0 && self.w.duration.is_none() {
                self.end.get_or_insert(End::Done);
                return;
            }
        }
        self.need_work(cpu);
    }

    /// Adds the times of a task to those of its template.
    pub(super) fn fold(&mut self, id: u32) {
        let task = &self.tasks[id as usize];
        let sums = &mut self.sums[task.template as usize];
        let ran_min = if sums.ran == 0 && sums.ran_max == 0 {
            Ns::MAX
        } else {
            sums.ran_min
        };
        sums.ran_min = ran_min.min(task.ran);
        sums.ran_max = sums.ran_max.max(task.ran);
        sums.ran += task.ran;
        sums.waited += task.waited;
        sums.slept += task.slept;
        sums.spun += task.spun;
        sums.switches += u64::from(task.switches);
        sums.migrations += u64::from(task.migrations);
    }

    pub(super) fn give_way(&mut self, cpu: u32, id: u32) -> After {
        let queue = self.s.cpus[cpu as usize].queue;
        if self.s.queues[queue as usize].len() == 0 && self.s.cpus[cpu as usize].next == NONE {
            return After::Next;
        }
        let task = &mut self.tasks[id as usize];
        task.is_granted = true;
        task.vruntime += (self.costs.slice * task.share) >> 10;
        self.preempt(cpu, queue);
        After::Away
    }

    pub(super) fn set_nice(&mut self, id: u32, nice: i8, is_children: bool) {
        if !is_children {
            self.renice(id, nice);
            return;
        }
        let serial = self.tasks[id as usize].serial;
        for child in 0..self.tasks.len() as u32 {
            let task = &self.tasks[child as usize];
            if task.phase != Phase::Gone && task.parent == id && task.parent_serial == serial {
                self.renice(child, nice);
            }
        }
    }

    /// What a task has run ahead of its queue was counted by its old weight: it is counted anew, as the kernel's
    /// `reweight_entity` does since 6.6. Else a task that becomes important waits as long as it would have before.
    fn renice(&mut self, id: u32, nice: i8) {
        let (queue, is_queued) = {
            let task = &self.tasks[id as usize];
            (task.queue, task.phase == Phase::Ready)
        };
        let task = &mut self.tasks[id as usize];
        let (old, new) = (task.share, share(nice));
        (task.nice, task.share) = (nice, new);
        if queue == NONE {
            return;
        }
        let floor = self.s.queues[queue as usize].floor;
        let ahead = task.vruntime.saturating_sub(floor);
        task.vruntime = task.vruntime.min(floor) + ahead * new / old.max(1);
        let vruntime = task.vruntime;
        if is_queued
            && self.s.queues[queue as usize]
                .steal(|other| other == id)
                .is_some()
        {
            self.s.queues[queue as usize].push(vruntime, id);
        }
    }

    pub(super) fn take_job(&mut self, cpu: u32, id: u32, graph: u32, done: u32) -> After {
        self.tasks[id as usize].wait = Wait::Nothing;
        let state = &mut self.graphs[graph as usize];
        if let Some(job) = state.ready.pop_front() {
            state.untaken -= 1;
            let late = if state.untaken == 0 {
                std::mem::take(&mut state.waiters)
            } else {
                VecDeque::new()
            };
            let var = id as usize * self.w.vars + VAR_JOB as usize;
            self.vars[var] = i64::from(job);
            self.tasks[id as usize].graph = graph;
            for waiter in late {
                // No job will come for them.
                self.grant(waiter, cpu, 0, false, false);
            }
            return After::Next;
        }
        if state.untaken == 0 {
            return After::Goto(done);
        }
        state.waiters.push_back(id);
        self.wait_for(cpu, id, Wait::Job(graph), 0)
    }

    pub(super) fn finish_job(&mut self, cpu: u32, id: u32) {
        let graph = self.tasks[id as usize].graph;
        if graph == NONE {
            return;
        }
        let job = self.vars[id as usize * self.w.vars + VAR_JOB as usize] as usize;
        let w = self.w;
        let Some(successors) = w.graphs[graph as usize].successors.get(job) else {
            return;
        };
        let state = &mut self.graphs[graph as usize];
        // A child has the job of its parent, and a program may say it twice.
        if std::mem::replace(&mut state.is_done[job], true) {
            return;
        }
        state.undone -= 1;
        for &successor in successors {
            let state = &mut self.graphs[graph as usize];
            let missing = &mut state.missing[successor as usize];
            *missing -= 1;
            if *missing > 0 {
                continue;
            }
            state.ready.push_back(successor);
            if let Some(waiter) = state.waiters.pop_front() {
                self.grant(waiter, cpu, 0, false, false);
            }
        }
    }
}
