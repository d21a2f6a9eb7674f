//! Programs: one operation after the other.

use super::state::{Phase, Use, Wait};
use super::{End, Engine};
use crate::program::{Object, Op, STACK, Step, Time, VAR_JOB, Val};
use crate::random::Dist;
use crate::time::{NEVER, Ns, TIME_MAX};

/// Operations that a task may do without any time passing.
const OPERATIONS_MAX: u32 = 1_000_000;

/// A loop whose operations only owe time pays at its end when it owes more than this.
const DEBT_MAX: Ns = 10_000;

/// What comes of an operation.
pub(super) enum After {
    /// The next one.
    Next,
    /// Another one.
    Goto(u32),
    /// The same one again, after the segment that was started.
    Later,
    /// The task is off the CPU or spins.
    Away,
}

impl Engine<'_> {
    pub(super) fn value(&mut self, id: u32, value: Val) -> i64 {
        match value.split() {
            Ok(number) => i64::from(number),
            Err(expression) => self.expression(id, expression),
        }
    }

    fn expression(&mut self, id: u32, expression: usize) -> i64 {
        let (start, len) = self.w.expressions[expression];
        let steps = &self.w.steps[start as usize..(start + len) as usize];
        let vars = id as usize * self.w.vars;
        let mut stack = [0i64; STACK];
        let mut top = 0;
        for &step in steps {
            match step {
                Step::Const(value) => {
                    stack[top] = value;
                    top += 1;
                }
                Step::Var(var) => {
                    stack[top] = self.vars[vars + var as usize];
                    top += 1;
                }
                Step::Number(number) => {
                    stack[top] = self.numbers[number as usize];
                    top += 1;
                }
                Step::Now => {
                    stack[top] = self.s.now as i64;
                    top += 1;
                }
                Step::Random => {
                    let bound = stack[top - 1].max(0) as u64;
                    stack[top - 1] = self.tasks[id as usize].rng.below(bound) as i64;
                }
                Step::Not => stack[top - 1] = i64::from(stack[top - 1] == 0),
                _ => {
                    let (a, b) = (stack[top - 2], stack[top - 1]);
                    top -= 1;
                    stack[top - 1] = binary(step, a, b);
                }
            }
        }
        stack[0]
    }

    fn index(&mut self, id: u32, object: Object) -> u32 {
        match object.split() {
            Ok(index) => index,
            Err(reference) => {
                let element = self.w.elements[reference];
                let index = self.value(id, element.index);
                element.base + index.rem_euclid(i64::from(element.len.max(1))) as u32
            }
        }
    }

    /// Draws a time for a task.
    pub(super) fn draw(&mut self, id: u32, time: Time) -> Ns {
        match time {
            Time::Dist(Dist::Const(ns)) => ns,
            Time::Dist(dist) => dist.draw(&mut self.tasks[id as usize].rng),
            Time::Val(value) => self.value(id, value).clamp(0, TIME_MAX as i64) as Ns,
            Time::Job => self.job_work(id),
        }
    }

    fn var(&mut self, id: u32, var: u8) -> &mut i64 {
        &mut self.vars[id as usize * self.w.vars + var as usize]
    }

    /// Runs the task on `cpu` from where it is until it computes, waits or ends.
    pub(super) fn proceed(&mut self, cpu: u32) {
        let id = self.s.cpus[cpu as usize].task;
        self.progress = self.s.now;
        let mut left = OPERATIONS_MAX;
        loop {
            let task = &mut self.tasks[id as usize];
            if task.is_granted {
                task.is_granted = false;
                task.wait = Wait::Nothing;
                task.pc += 1;
                task.step = 0;
            }
            left -= 1;
            if left == 0 {
                self.end = Some(End::Livelock(task.template));
                // What it did is counted up to here.
                self.start_segment(cpu, TIME_MAX, Use::System, true);
                return;
            }
            self.counts.operations += 1;
            let op = self.w.ops[task.pc as usize];
            let after = self.operate(id, cpu, op);
            let task = &mut self.tasks[id as usize];
            match after {
                After::Next => {
                    task.pc += 1;
                    task.step = 0;
                }
                After::Goto(to) => {
                    task.pc = to;
                    task.step = 0;
                }
                After::Later | After::Away => return,
            }
        }
    }

    /// A segment, after which the operation is at the given step.
    fn segment(&mut self, cpu: u32, id: u32, ns: Ns, use_: Use, step: u8) -> After {
        self.tasks[id as usize].step = step;
        if ns == 0 && self.s.cpus[cpu as usize].debt == 0 {
            // No event for nothing: the operation goes on at its new step.
            return self.again(cpu, id);
        }
        self.start_segment(cpu, ns, use_, use_ != Use::User);
        After::Later
    }

    fn again(&mut self, cpu: u32, id: u32) -> After {
        let op = self.w.ops[self.tasks[id as usize].pc as usize];
        self.operate(id, cpu, op)
    }

    /// Pays what is owed before something that others see, so that it happens at the right time.
    fn is_paying(&mut self, cpu: u32) -> bool {
        if self.s.cpus[cpu as usize].debt == 0 {
            return false;
        }
        self.start_segment(cpu, 0, Use::System, true);
        true
    }

    fn operate(&mut self, id: u32, cpu: u32, op: Op) -> After {
        let step = self.tasks[id as usize].step;
        match op {
            Op::Compute(time) if step == 0 => {
                let ns = self.draw(id, self.w.times[time as usize]);
                self.segment(cpu, id, ns, Use::User, 1)
            }
            Op::Occupy(time) if step == 0 => {
                let ns = self.draw(id, self.w.times[time as usize]);
                self.tasks[id as usize].step = 1;
                self.start_segment(cpu, ns, Use::User, true);
                After::Later
            }
            Op::Compute(_) | Op::Occupy(_) => After::Next,
            Op::Sleep(_) | Op::Period { .. } | Op::Io { .. } if step == 0 => {
                self.segment(cpu, id, self.costs.syscall, Use::System, 1)
            }
            Op::Sleep(time) => {
                let ns = self.draw(id, self.w.times[time as usize]);
                self.sleep_until(cpu, id, self.s.now + ns)
            }
            Op::Period {
                var,
                is_absolute,
                time,
            } => {
                let period = self.draw(id, self.w.times[time as usize]).max(1) as i64;
                let now = self.s.now as i64;
                let started = self.tasks[id as usize].started as i64;
                let next = self.var(id, var);
                if *next == 0 {
                    *next = started;
                }
                *next += period;
                if *next <= now {
                    if !is_absolute {
                        *next = now;
                    }
                    return After::Next;
                }
                let next = *next as Ns;
                self.sleep_until(cpu, id, next)
            }
            Op::Io { device, time } => {
                let device = self.index(id, device);
                self.request(cpu, id, device, time)
            }
            Op::Lock { lock, is_shared } => {
                if step == 0 && self.is_paying(cpu) {
                    return After::Later;
                }
                let lock = self.index(id, lock);
                self.acquire(cpu, id, lock, is_shared)
            }
            Op::LockSpace { is_shared } => {
                if step == 0 && self.is_paying(cpu) {
                    return After::Later;
                }
                let lock = self.space(id);
                self.acquire(cpu, id, lock, is_shared)
            }
            Op::Unlock(lock) => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                let lock = self.index(id, lock);
                self.release(cpu, id, lock);
                After::Next
            }
            Op::UnlockSpace => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                let lock = self.space(id);
                self.release(cpu, id, lock);
                After::Next
            }
            Op::Fault if step == 0 => self.segment(cpu, id, self.costs.fault, Use::System, 1),
            Op::Fault => After::Next,
            Op::Await { condition, lock } => {
                if step == 0 && self.is_paying(cpu) {
                    return After::Later;
                }
                let condition = self.index(id, condition);
                let lock = (lock != Object::NONE).then(|| self.index(id, lock));
                self.await_condition(cpu, id, condition, lock)
            }
            Op::Signal { condition, is_all } => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                let condition = self.index(id, condition);
                self.signal(cpu, condition, is_all);
                After::Next
            }
            Op::Barrier { barrier, parties } => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                let barrier = self.index(id, barrier);
                let parties = match self.value(id, parties) {
                    0 => self.barriers[barrier as usize].spec.parties,
                    parties => parties.clamp(1, i64::from(u32::MAX)) as u32,
                };
                self.arrive_at(cpu, id, barrier, parties)
            }
            Op::Put { number, value } => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                self.numbers[number as usize] = self.value(id, value);
                After::Next
            }
            Op::Resize { number, team } => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                self.numbers[number as usize] = i64::from(self.size_of(team));
                After::Next
            }
            Op::Read { pipe, bytes } => {
                let pipe = self.index(id, pipe);
                let bytes = self.value(id, bytes).clamp(0, i64::from(u32::MAX)) as u32;
                if step == 0 {
                    // What is there; what comes while it waits is copied when it has come.
                    let copied = bytes.min(self.pipes[pipe as usize].filled);
                    self.tasks[id as usize].bytes_left = copied;
                    let cost = self.pipe_cost(cpu, pipe, copied);
                    return self.segment(cpu, id, cost, Use::System, 1);
                }
                self.read(cpu, id, pipe, bytes)
            }
            Op::Write { pipe, bytes } => {
                let pipe = self.index(id, pipe);
                if step == 0 {
                    let bytes = self.value(id, bytes).clamp(0, i64::from(u32::MAX)) as u32;
                    self.tasks[id as usize].bytes_left = bytes;
                    let cost = self.pipe_cost(cpu, pipe, bytes);
                    return self.segment(cpu, id, cost, Use::System, 1);
                }
                self.write(cpu, id, pipe)
            }
            Op::Suspend(notice) => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                let notice = self.index(id, notice);
                self.suspend(cpu, id, notice)
            }
            Op::Resume(notice) => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                let notice = self.index(id, notice);
                self.resume(cpu, notice);
                After::Next
            }
            Op::Touch(line) => {
                let line = self.index(id, line);
                self.touch(cpu, line);
                After::Next
            }
            Op::Spawn {
                template,
                count,
                is_process,
            } => {
                let count = self.value(id, count).clamp(0, i64::from(u32::MAX)) as u32;
                self.spawn(cpu, id, template, count, is_process, step)
            }
            Op::Join => self.join(cpu, id),
            Op::Exec if step == 0 => self.segment(cpu, id, self.costs.exec, Use::System, 1),
            Op::Exec => After::Next,
            Op::Yield => {
                if step == 0 {
                    return self.segment(cpu, id, self.costs.syscall, Use::System, 1);
                }
                self.give_way(cpu, id)
            }
            Op::Nice { nice, is_children } => {
                self.set_nice(id, nice, is_children);
                After::Next
            }
            Op::Count { counter, amount } => {
                let amount = self.value(id, amount).max(0) as u64;
                let counter = &mut self.counters[counter as usize];
                *counter = counter.saturating_add(amount);
                After::Next
            }
            Op::Start { var } => {
                let at = (self.s.now + self.s.cpus[cpu as usize].debt) as i64;
                *self.var(id, var) = at;
                After::Next
            }
            Op::Stop { var, histogram } => {
                let at = self.s.now + self.s.cpus[cpu as usize].debt;
                let took = at.saturating_sub(*self.var(id, var) as u64);
                self.histograms[histogram as usize].saturating_record(took.max(1));
                After::Next
            }
            Op::Take { graph, done } => self.take_job(cpu, id, graph, done),
            Op::Finish => {
                if self.is_paying(cpu) {
                    return After::Later;
                }
                self.finish_job(cpu, id);
                After::Next
            }
            Op::Set { var, value } => {
                let value = self.value(id, value);
                *self.var(id, var) = value;
                After::Next
            }
            Op::Next { var, end, to } => {
                if self.s.cpus[cpu as usize].debt > DEBT_MAX && self.is_paying(cpu) {
                    return After::Later;
                }
                let end = *self.var(id, end);
                let var = self.var(id, var);
                *var = var.saturating_add(1);
                if *var < end {
                    After::Goto(to)
                } else {
                    After::Next
                }
            }
            Op::Jump(to) => {
                // A loop without any time of its own pays what it owes.
                if self.s.cpus[cpu as usize].debt > DEBT_MAX && self.is_paying(cpu) {
                    return After::Later;
                }
                After::Goto(to)
            }
            Op::Unless { value, to } => {
                if self.value(id, value) == 0 {
                    After::Goto(to)
                } else {
                    After::Next
                }
            }
            Op::Exit => {
                if step == 0 {
                    return self.segment(cpu, id, self.costs.exit, Use::System, 1);
                }
                self.exit(cpu, id);
                After::Away
            }
        }
    }

    fn sleep_until(&mut self, cpu: u32, id: u32, at: Ns) -> After {
        if at <= self.s.now {
            return After::Next;
        }
        self.tasks[id as usize].wait = Wait::Timer;
        self.task_events.set(id, at);
        self.block(cpu);
        After::Away
    }

    /// Waits, spinning first for as long as `spin` says.
    pub(super) fn wait_for(&mut self, cpu: u32, id: u32, wait: Wait, spin: Ns) -> After {
        let now = self.s.now;
        let task = &mut self.tasks[id as usize];
        task.wait = wait;
        task.wait_since = now;
        task.woken_after = NEVER;
        if spin == 0 {
            self.block(cpu);
            return After::Away;
        }
        let state = &mut self.s.cpus[cpu as usize];
        let debt = std::mem::take(&mut state.debt);
        state.used[Use::Spin as usize] -= debt as i64;
        task.is_spinning = true;
        task.is_stubborn = false;
        task.spin_until = if spin == NEVER {
            NEVER
        } else {
            now + debt + spin
        };
        self.account(cpu, Use::Spin);
        self.s.cpus[cpu as usize].settled = now;
        self.plan_segment(cpu);
        After::Away
    }

    /// The wait of a task is over: it goes on with the next operation, or does the same again.
    pub(super) fn grant(&mut self, id: u32, by: u32, after: Ns, is_final: bool, sync: bool) {
        let task = &mut self.tasks[id as usize];
        task.is_granted = is_final;
        if task.is_spinning {
            self.end_spin(id, after);
        } else if task.phase == Phase::Blocked {
            self.wake(id, Some(by), sync);
        }
    }

    fn job_work(&mut self, id: u32) -> Ns {
        let graph = self.tasks[id as usize].graph;
        let job = *self.var(id, VAR_JOB);
        let work = self
            .graphs
            .get(graph as usize)
            .and_then(|graph| graph.work.get(job as usize));
        work.copied().unwrap_or(0)
    }
}

pub(crate) fn binary(step: Step, a: i64, b: i64) -> i64 {
    match step {
        Step::Add => a.wrapping_add(b),
        Step::Sub => a.wrapping_sub(b),
        Step::Mul => a.wrapping_mul(b),
        Step::Div => {
            if b == 0 {
                0
            } else {
                a.wrapping_div_euclid(b)
            }
        }
        Step::Rem => {
            if b == 0 {
                0
            } else {
                a.wrapping_rem_euclid(b)
            }
        }
        Step::Lt => i64::from(a < b),
        Step::Le => i64::from(a <= b),
        Step::Eq => i64::from(a == b),
        Step::And => i64::from(a != 0 && b != 0),
        Step::Or => i64::from(a != 0 || b != 0),
        Step::Const(_) | Step::Var(_) | Step::Number(_) | Step::Now | Step::Random | Step::Not => {
            unreachable!("takes no two numbers")
        }
    }
}
