//! Pipes, barriers, conditions, notices, shared lines and devices: where tasks meet.

use std::collections::VecDeque;

use amdahl_openmp::contention::Contention;
use amdahl_openmp::policy::{self, Next, Patience, Situation};
use amdahl_placement::{Partner, SpinFacts, Spinner};

use super::Engine;
use super::interpret::After;
use super::state::{Mode, Use, Wait};
use crate::costs::Costs;
use crate::program::{BarrierSpec, NONE, PipeSpec, PipeSpin, Waits};
use crate::time::{NEVER, Ns};

fn copy_cost(costs: &Costs, bytes: u32) -> Ns {
    u64::from(bytes) * costs.copy_kib / 1024
}

/// Those who wait, the first first.
pub(crate) type Waiters = VecDeque<u32>;

/// What a wait of `amdahl-openmp` spins before it decides: its first turns.
const FIRST_LOOK: Ns = 1_000;

/// How long `amdahl-openmp` spins before it sleeps.
fn patience(is_crowded: bool, is_contended: bool) -> Ns {
    let situation = |waited_ns| Situation {
        waited_ns,
        alone_ns: waited_ns,
        turns: policy::FIRST_TURNS,
        is_crowded,
        // Handing a CPU on within a team is not simulated.
        may_yield: false,
        is_contended,
        // Nor are quotas.
        is_rationed: false,
        // The queues know who waits for a CPU, but not for whom the others wait.
        is_awaited_here: false,
        // A turn that is passed on a virtual CPU is not passed on the host's.
        may_pass: false,
    };
    // How many of a team spin at once is not simulated.
    let may_spin = || true;
    let sleeps = |waited: &Ns| Patience::Adaptive.next(situation(*waited), may_spin) == Next::Sleep;
    let looks = [FIRST_LOOK, policy::SHORT_NS, policy::LONG_NS];
    looks.into_iter().find(sleeps).unwrap_or(policy::LONG_NS)
}

pub(crate) struct Barrier {
    pub spec: BarrierSpec,
    pub waiters: Waiters,
    /// What those who meet here have noticed.
    contention: Contention,
    pub passed: u64,
    pub waited: Ns,
}

impl Barrier {
    pub fn new(spec: BarrierSpec) -> Barrier {
        Barrier {
            spec,
            waiters: Waiters::new(),
            contention: Contention::new(),
            passed: 0,
            waited: 0,
        }
    }
}

pub(crate) struct Pipe {
    pub spec: PipeSpec,
    pub filled: u32,
    pub readers: Waiters,
    pub writers: Waiters,
    /// What readers and writers have learnt of their waits.
    spinners: [Spinner; 2],
    /// CPU that used it last, and until when its lock is held.
    line: u32,
    held_until: Ns,
    /// CPU that wrote into it last.
    writer: u32,
    pub bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

impl Pipe {
    pub fn new(spec: PipeSpec) -> Pipe {
        Pipe {
            spec,
            filled: 0,
            readers: Waiters::new(),
            writers: Waiters::new(),
            spinners: Default::default(),
            line: NONE,
            held_until: 0,
            writer: NONE,
            bytes: 0,
            reads: 0,
            writes: 0,
        }
    }
}

impl Engine<'_> {
    /// A system call that uses the pipe's lock, which others may hold.
    pub(super) fn pipe_cost(&mut self, cpu: u32, pipe: u32, bytes: u32) -> Ns {
        let ready = self.s.now + self.s.cpus[cpu as usize].debt + self.costs.syscall;
        let distance = self.s.distance(self.pipes[pipe as usize].line, cpu);
        let state = &mut self.pipes[pipe as usize];
        let copy = copy_cost(self.costs, bytes);
        let hold = self.line_cost[distance] + self.costs.pipe + copy;
        let waiting = state.held_until.saturating_sub(ready);
        state.held_until = ready + waiting + hold;
        state.line = cpu;
        self.costs.syscall + waiting + hold
    }

    pub(super) fn read(&mut self, cpu: u32, id: u32, pipe: u32, bytes: u32) -> After {
        let state = &mut self.pipes[pipe as usize];
        let taken = bytes.min(state.filled);
        if taken == 0 && bytes > 0 {
            let spin = self.pipe_spin(pipe, true);
            self.pipes[pipe as usize].readers.push_back(id);
            return self.wait_for(cpu, id, Wait::PipeData(pipe), spin);
        }
        let more = taken.saturating_sub(self.tasks[id as usize].bytes_left);
        let lines = u64::from(state.spec.lines);
        let distance = self.s.distance(state.writer, cpu);
        self.charge(cpu, copy_cost(self.costs, more), Use::System);
        self.charge(cpu, lines * self.line_cost[distance], Use::Stall);
        let state = &mut self.pipes[pipe as usize];
        let was_full = state.filled >= state.spec.capacity;
        state.filled -= taken;
        state.bytes += u64::from(taken);
        state.reads += 1;
        let has_more = state.filled > 0;
        if state.spec.low_water == state.spec.capacity {
            if was_full || !state.writers.is_empty() {
                self.wake_one(cpu, pipe, false, false);
            }
        } else if state.filled <= state.spec.low_water {
            for _ in 0..state.writers.len() {
                self.wake_one(cpu, pipe, false, true);
            }
        }
        if has_more {
            // As the kernel's pipes: who was woken alone passes it on.
            self.wake_one(cpu, pipe, true, false);
        }
        self.pipe_waited(id, pipe, true);
        self.tasks[id as usize].wait = Wait::Nothing;
        After::Next
    }

    /// How long who is about to wait at a side of a pipe spins.
    fn pipe_spin(&mut self, pipe: u32, is_reader: bool) -> Ns {
        let state = &mut self.pipes[pipe as usize];
        if let PipeSpin::Fixed(ns) = state.spec.spin {
            return ns;
        }
        let side = match is_reader {
            true => &state.readers,
            false => &state.writers,
        };
        // Two of one side gain nothing.
        if side.iter().any(|&id| self.tasks[id as usize].is_spinning) {
            return 0;
        }
        let facts = SpinFacts {
            partner: match self.s.online.count() {
                1 => Partner::Waiting,
                _ => Partner::Unknown,
            },
            wanted: false,
        };
        state.spinners[usize::from(is_reader)].length_ns(facts)
    }

    /// A task has got what it waited for, if it waited.
    fn pipe_waited(&mut self, id: u32, pipe: u32, is_reader: bool) {
        let task = &self.tasks[id as usize];
        let wait = match is_reader {
            true => Wait::PipeData(pipe),
            false => Wait::PipeRoom(pipe),
        };
        let state = &mut self.pipes[pipe as usize];
        if task.wait != wait || state.spec.spin != PipeSpin::Adaptive {
            return;
        }
        let latency = (task.woken_after != NEVER).then_some(task.woken_after);
        let until = (self.s.now - task.wait_since).saturating_sub(latency.unwrap_or(0));
        state.spinners[usize::from(is_reader)].waited(until, latency);
    }

    pub(super) fn write(&mut self, cpu: u32, id: u32, pipe: u32) -> After {
        let left = self.tasks[id as usize].bytes_left;
        let state = &mut self.pipes[pipe as usize];
        let put = left.min(state.spec.capacity - state.filled);
        let was_empty = state.filled == 0;
        state.filled += put;
        state.writes += u64::from(put == left);
        state.writer = cpu;
        self.tasks[id as usize].bytes_left = left - put;
        if was_empty && put > 0 {
            // The hint says that the writer is about to sleep; a pipe always gives it.
            self.wake_one(cpu, pipe, true, true);
        }
        if put < left {
            let spin = self.pipe_spin(pipe, false);
            self.pipes[pipe as usize].writers.push_back(id);
            return self.wait_for(cpu, id, Wait::PipeRoom(pipe), spin);
        }
        let state = &self.pipes[pipe as usize];
        if state.spec.low_water == state.spec.capacity && state.filled < state.spec.capacity {
            // As among readers: who was woken alone passes on what it left.
            self.wake_one(cpu, pipe, false, false);
        }
        self.pipe_waited(id, pipe, false);
        self.tasks[id as usize].wait = Wait::Nothing;
        After::Next
    }

    fn wake_one(&mut self, cpu: u32, pipe: u32, is_reader: bool, sync: bool) {
        let state = &mut self.pipes[pipe as usize];
        let waiters = if is_reader {
            &mut state.readers
        } else {
            &mut state.writers
        };
        let Some(id) = waiters.pop_front() else {
            return;
        };
        let after = self.line_to(cpu, id);
        self.grant(id, cpu, after, false, sync);
    }

    /// A line from `cpu` to where a task spins.
    fn line_to(&self, cpu: u32, id: u32) -> Ns {
        self.line_cost[self.s.distance(cpu, self.tasks[id as usize].cpu)]
    }

    pub(super) fn arrive_at(&mut self, cpu: u32, id: u32, barrier: u32, parties: u32) -> After {
        let now = self.s.now;
        let waits = self.barriers[barrier as usize].spec.waits;
        if waits == Waits::Openmp {
            let lost = std::mem::take(&mut self.tasks[id as usize].lost);
            self.notice(barrier, lost);
        }
        let state = &mut self.barriers[barrier as usize];
        if (state.waiters.len() as u32) + 1 < parties {
            state.waiters.push_back(id);
            let spin = match waits {
                Waits::Spin | Waits::Stubborn => state.spec.spin,
                Waits::Openmp => {
                    let is_crowded = parties > self.s.online.count();
                    patience(is_crowded, state.contention.is_expected(now))
                }
            };
            let after = self.wait_for(cpu, id, Wait::Barrier(barrier), spin);
            self.tasks[id as usize].is_stubborn = waits == Waits::Stubborn;
            return after;
        }
        state.passed += 1;
        let mut waiters = std::mem::take(&mut state.waiters);
        let mut spinners = 0;
        for id in waiters.drain(..) {
            self.barriers[barrier as usize].waited += now - self.tasks[id as usize].wait_since;
            // Those who spin read the line one after the other.
            let line = self.line_to(cpu, id);
            spinners += u64::from(self.tasks[id as usize].is_spinning);
            self.grant(
                id,
                cpu,
                line + spinners * self.line_cost[1] / 4,
                true,
                false,
            );
        }
        // The allocation is kept for the next round.
        self.barriers[barrier as usize].waiters = waiters;
        After::Next
    }

    /// A member of a team lost its CPU for so long: whoever spins looks at what others noticed, and sleeps.
    fn notice(&mut self, barrier: u32, lost: Ns) {
        let now = self.s.now;
        let state = &mut self.barriers[barrier as usize];
        let was_expected = state.contention.is_expected(now);
        state.contention.lost(now, lost);
        if was_expected || !state.contention.is_expected(now) {
            return;
        }
        for at in 0..state.waiters.len() {
            let id = self.barriers[barrier as usize].waiters[at];
            let task = &mut self.tasks[id as usize];
            let cpu = task.cpu;
            let runs = {
                let state = &self.s.cpus[cpu as usize];
                state.task == id && state.mode == Mode::Running
            };
            if task.is_spinning && runs {
                let until = task.wait_since + patience(false, true);
                task.spin_until = task.spin_until.min(until.max(now + FIRST_LOOK));
                self.plan_segment(cpu);
            }
        }
    }

    /// A task that has just lost its CPU: whether it sleeps rather than spin again later.
    pub(super) fn gives_up(&mut self, id: u32) -> bool {
        let task = &self.tasks[id as usize];
        if !task.is_spinning || task.spin_until == NEVER || task.is_stubborn {
            return false;
        }
        self.stop_spinning(id);
        if let Wait::PipeData(pipe) | Wait::PipeRoom(pipe) = self.tasks[id as usize].wait {
            let is_reader = matches!(self.tasks[id as usize].wait, Wait::PipeData(_));
            self.pipes[pipe as usize].spinners[usize::from(is_reader)].lost_cpu();
        }
        if let Wait::Barrier(barrier) = self.tasks[id as usize].wait
            && self.barriers[barrier as usize].spec.waits == Waits::Openmp
        {
            // It finds a gap in its time when it runs again, of about a slice.
            self.notice(barrier, self.costs.slice);
        }
        true
    }

    pub(super) fn await_condition(
        &mut self,
        cpu: u32,
        id: u32,
        condition: u32,
        lock: Option<u32>,
    ) -> After {
        if self.tasks[id as usize].step == 0 {
            if let Some(lock) = lock {
                self.release(cpu, id, lock);
            }
            self.tasks[id as usize].step = 1;
            self.conditions[condition as usize].push_back(id);
            return self.wait_for(cpu, id, Wait::Condition(condition), 0);
        }
        match lock {
            Some(lock) => self.acquire(cpu, id, lock, false),
            None => After::Next,
        }
    }

    pub(super) fn signal(&mut self, cpu: u32, condition: u32, is_all: bool) {
        while let Some(id) = self.conditions[condition as usize].pop_front() {
            self.tasks[id as usize].wait = Wait::Nothing;
            self.grant(id, cpu, 0, false, false);
            if !is_all {
                return;
            }
        }
    }

    pub(super) fn suspend(&mut self, cpu: u32, id: u32, notice: u32) -> After {
        let (left, waiters) = &mut self.notices[notice as usize];
        if *left > 0 {
            *left -= 1;
            return After::Next;
        }
        waiters.push_back(id);
        self.wait_for(cpu, id, Wait::Notice(notice), 0)
    }

    pub(super) fn resume(&mut self, cpu: u32, notice: u32) {
        let (left, waiters) = &mut self.notices[notice as usize];
        match waiters.pop_front() {
            Some(id) => self.grant(id, cpu, 0, true, false),
            None => *left += 1,
        }
    }

    /// A write to a line that many CPUs write to: one after the other.
    pub(super) fn touch(&mut self, cpu: u32, line: u32) {
        let ready = self.s.now + self.s.cpus[cpu as usize].debt;
        let distance = self.s.distance(self.lines[line as usize].owner, cpu);
        let cost = self.line_cost[distance];
        let state = &mut self.lines[line as usize];
        let waiting = state.free.saturating_sub(ready);
        state.free = ready + waiting + cost;
        state.owner = cpu;
        state.touches += 1;
        state.waited += waiting;
        self.charge(cpu, waiting + cost, Use::Stall);
    }

    /// A request to a device, which serves a few at a time in order of arrival.
    pub(super) fn request(&mut self, cpu: u32, id: u32, device: u32, time: u32) -> After {
        let spec = self.devices[device as usize].spec;
        let service = if time == NONE {
            spec.service.draw(&mut self.tasks[id as usize].rng)
        } else {
            self.draw(id, self.w.times[time as usize])
        };
        let now = self.s.now;
        let state = &mut self.devices[device as usize];
        let mut first = state.free.peek_mut().expect("it has a server");
        let start = first.0.max(now);
        let end = start.saturating_add(service).min(NEVER - 1);
        first.0 = end;
        drop(first);
        state.requests += 1;
        state.waited = state.waited.saturating_add(start - now);
        state.busy = state.busy.saturating_add(end - start);
        self.tasks[id as usize].wait = Wait::Device(device);
        self.task_events.set(id, end);
        self.block(cpu);
        After::Away
    }
}
