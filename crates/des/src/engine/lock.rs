//! Locks: who gets one, and what the hand-over costs.
//!
//! The costs follow S. Boyd-Wickizer, M. F. Kaashoek, R. Morris and N. Zeldovich, "Non-scalable locks
//! are dangerous" (Linux Symposium 2012): with a ticket lock all waiters read the line again at each
//! release, one after the other, so the next holder sees it after half of them on average; a queued
//! lock (Mellor-Crummey and Scott, TOCS 1991) moves one line to one waiter.

use super::Engine;
use super::interpret::After;
use super::state::{Mode, Phase, Use, Wait};
use super::waiting::{Waiter, Waiting};
use crate::program::{LockKind, LockSpec, NONE};
use crate::time::{NEVER, Ns};

/// How many waiters are looked at to find how far they are away.
const SAMPLE: usize = 16;

pub(crate) struct Lock {
    pub spec: LockSpec,
    /// Who holds it alone. Another task may have its number when it has ended, but not its serial.
    pub owner: u32,
    owner_serial: u32,
    /// How many hold it together.
    pub readers: u32,
    /// CPU that wrote to it last.
    line: u32,
    waiting: Waiting,
    pub acquired: u64,
    pub contended: u64,
    pub waited: Ns,
    pub waited_max: Ns,
    pub held: Ns,
    held_since: Ns,
    /// Sum of the hand-overs' costs.
    pub handed: Ns,
}

impl Lock {
    pub fn new(spec: LockSpec) -> Lock {
        Lock {
            spec,
            owner: NONE,
            owner_serial: 0,
            readers: 0,
            line: NONE,
            waiting: Waiting::default(),
            acquired: 0,
            contended: 0,
            waited: 0,
            waited_max: 0,
            held: 0,
            held_since: 0,
            handed: 0,
        }
    }

    fn is_free_for(&self, is_shared: bool) -> bool {
        self.owner == NONE && (is_shared || self.readers == 0)
    }

    /// Who comes may go before those that wait.
    fn may_barge(&self) -> bool {
        matches!(self.spec.kind, LockKind::TestAndSet | LockKind::Mutex)
    }

    fn hold(&mut self, id: u32, serial: u32, is_shared: bool, now: Ns) {
        self.acquired += 1;
        if self.readers == 0 {
            self.held_since = now;
        }
        if is_shared {
            self.readers += 1;
        } else {
            (self.owner, self.owner_serial) = (id, serial);
        }
    }

    fn note_wait(&mut self, waited: Ns) {
        self.waited += waited;
        self.waited_max = self.waited_max.max(waited);
    }
}

impl Engine<'_> {
    fn is_on_cpu(&self, id: u32) -> bool {
        let task = &self.tasks[id as usize];
        task.phase == Phase::OnCpu
            && self.s.cpus[task.cpu as usize].mode == Mode::Running
            && self.s.cpus[task.cpu as usize].task == id
    }

    /// Who holds it alone and has not ended.
    pub(super) fn owner(&self, lock: u32) -> Option<u32> {
        let state = &self.locks[lock as usize];
        let task = self.tasks.get(state.owner as usize)?;
        (task.phase != Phase::Gone && task.serial == state.owner_serial).then_some(state.owner)
    }

    /// What an atomic operation on the lock's line costs `cpu`, which owns it then.
    fn lock_line(&mut self, lock: u32, cpu: u32) -> Ns {
        let distance = self.s.distance(self.locks[lock as usize].line, cpu);
        self.locks[lock as usize].line = cpu;
        self.line_cost[distance]
    }

    pub(super) fn acquire(&mut self, cpu: u32, id: u32, lock: u32, is_shared: bool) -> After {
        let now = self.s.now;
        let is_shared = is_shared
            && matches!(
                self.locks[lock as usize].spec.kind,
                LockKind::ReaderWriter | LockKind::Semaphore
            );
        let line = self.lock_line(lock, cpu);
        self.charge(cpu, line, Use::Stall);
        let state = &mut self.locks[lock as usize];
        self.tasks[id as usize].keeps_cpu += u32::from(state.spec.keeps_cpu);
        if state.is_free_for(is_shared) && (state.may_barge() || state.waiting.line().is_empty()) {
            if self.tasks[id as usize].wait == Wait::Lock(lock) {
                // It was woken for it.
                state.note_wait(now - self.tasks[id as usize].wait_since);
                self.tasks[id as usize].wait = Wait::Nothing;
            }
            let serial = self.tasks[id as usize].serial;
            state.hold(id, serial, is_shared, now + self.s.cpus[cpu as usize].debt);
            return After::Next;
        }
        let was_woken = self.tasks[id as usize].wait == Wait::Lock(lock);
        state.contended += u64::from(!was_woken);
        let (kind, is_owned, spin) = (state.spec.kind, state.owner != NONE, state.spec.spin);
        let spin = match kind.spins() {
            true => NEVER,
            // There is no point in spinning for an owner that does not run.
            false if is_owned && !self.owner(lock).is_some_and(|owner| self.is_on_cpu(owner)) => 0,
            false => spin,
        };
        // Who was woken and found somebody faster is first in line again.
        let is_spinner = kind == LockKind::Mutex && spin > 0;
        let waiting = &mut self.locks[lock as usize].waiting;
        waiting.push(id, is_shared, was_woken, is_spinner);
        let since = self.tasks[id as usize].wait_since;
        self.tasks[id as usize].step = 1;
        let after = self.wait_for(cpu, id, Wait::Lock(lock), spin);
        if was_woken {
            self.tasks[id as usize].wait_since = since;
        }
        after
    }

    pub(super) fn release(&mut self, cpu: u32, id: u32, lock: u32) {
        let now = self.s.now;
        let line = self.lock_line(lock, cpu);
        self.charge(cpu, line, Use::Stall);
        let serial = self.tasks[id as usize].serial;
        let state = &mut self.locks[lock as usize];
        if (state.owner, state.owner_serial) == (id, serial) {
            state.owner = NONE;
        } else if state.readers > 0 {
            state.readers -= 1;
        } else {
            // Unlocking what is not locked does nothing.
            return;
        }
        if state.spec.keeps_cpu {
            let task = &mut self.tasks[id as usize];
            task.keeps_cpu = task.keeps_cpu.saturating_sub(1);
            if task.keeps_cpu == 0 {
                let cpu = &mut self.s.cpus[cpu as usize];
                if std::mem::take(&mut cpu.must_resched) {
                    cpu.resched_at = now;
                }
            }
        }
        let state = &mut self.locks[lock as usize];
        if state.readers > 0 {
            return;
        }
        state.held += now.saturating_sub(state.held_since);
        self.hand_over(lock, cpu);
    }

    /// The lock is free: the next one gets it, or is woken to try.
    fn hand_over(&mut self, lock: u32, cpu: u32) {
        match self.locks[lock as usize].spec.kind {
            LockKind::TestAndSet => {
                let waiters = self.locks[lock as usize].waiting.line().iter().enumerate();
                let spinners = waiters.filter(|(_, waiter)| self.spins(waiter.id));
                let candidates: Vec<usize> = spinners.map(|(at, _)| at).collect();
                if candidates.is_empty() {
                    return;
                }
                let winner = candidates[self.rng.below(candidates.len() as u64) as usize];
                // The release waits behind the attempts of all who spin, half of them on average.
                let storm = self.far(lock, cpu) * candidates.len() as u64 / 2;
                self.give_at(lock, winner, cpu, storm);
            }
            LockKind::Ticket => {
                let waiters = self.locks[lock as usize].waiting.line().len() as u64;
                if waiters == 0 {
                    return;
                }
                let storm = self.far(lock, cpu) * (waiters - 1) / 2;
                self.give_at(lock, 0, cpu, storm);
            }
            LockKind::Queued => {
                if !self.locks[lock as usize].waiting.line().is_empty() {
                    self.give_at(lock, 0, cpu, 0);
                }
            }
            LockKind::ReaderWriter | LockKind::Semaphore => self.give_in_order(lock, cpu),
            LockKind::Mutex => {
                // A spinner takes it at once; else the first sleeper is woken and tries again.
                let mut spinners = self.locks[lock as usize].waiting.spinners().iter();
                let spinner = spinners.position(|waiter| self.spins(waiter.id));
                let waiting = &mut self.locks[lock as usize].waiting;
                if let Some(at) = spinner {
                    let waiter = waiting.take_spinner(at);
                    self.give(lock, waiter, cpu, 0);
                } else if let Some(first) = waiting.take_first() {
                    self.grant(first.id, cpu, 0, false, false);
                }
            }
        }
    }

    /// One writer, or all readers up to the next writer.
    fn give_in_order(&mut self, lock: u32, cpu: u32) {
        let mut storm = 0;
        while let Some(first) = self.locks[lock as usize].waiting.line().front() {
            if !self.locks[lock as usize].is_free_for(first.is_shared) {
                return;
            }
            // Each reader has to write to the counter that they share.
            storm = self.give_at(lock, 0, cpu, storm);
        }
    }

    /// Whether it spins on a CPU.
    fn spins(&self, id: u32) -> bool {
        self.tasks[id as usize].is_spinning && self.is_on_cpu(id)
    }

    /// A task that spun sleeps now.
    pub(super) fn stop_spinning(&mut self, id: u32) {
        self.tasks[id as usize].is_spinning = false;
        if let Wait::Lock(lock) = self.tasks[id as usize].wait {
            self.locks[lock as usize].waiting.give_up(id);
        }
    }

    /// What a line costs on average to go from `cpu` to a waiter.
    fn far(&self, lock: u32, cpu: u32) -> Ns {
        let waiters = self.locks[lock as usize].waiting.line();
        let looked = waiters.len().min(SAMPLE);
        let sum: Ns = waiters
            .iter()
            .take(SAMPLE)
            .map(|waiter| self.tasks[waiter.id as usize].cpu)
            .map(|to| self.line_cost[self.s.distance(cpu, to)])
            .sum();
        sum / looked.max(1) as u64
    }

    /// Gives the lock to the waiter at `at` in line.
    fn give_at(&mut self, lock: u32, at: usize, cpu: u32, storm: Ns) -> Ns {
        let waiter = self.locks[lock as usize].waiting.take(at);
        self.give(lock, waiter, cpu, storm)
    }

    /// Gives the lock to a waiter that was taken out, who has it after the hand-over, whose cost is returned.
    fn give(&mut self, lock: u32, waiter: Waiter, cpu: u32, storm: Ns) -> Ns {
        let now = self.s.now;
        let Waiter { id, is_shared, .. } = waiter;
        let to = self.tasks[id as usize].cpu;
        let distance = self.s.distance(cpu, to);
        let cost = self.line_cost[distance] + storm;
        let waited = now + cost - self.tasks[id as usize].wait_since;
        let state = &mut self.locks[lock as usize];
        state.note_wait(waited);
        state.handed += cost;
        state.line = to;
        state.hold(id, self.tasks[id as usize].serial, is_shared, now);
        self.grant(id, cpu, cost, true, false);
        cost
    }

    /// A spinner that had lost its CPU has it again: the lock may be free.
    pub(super) fn try_again(&mut self, lock: u32, id: u32, cpu: u32) -> bool {
        let now = self.s.now;
        let state = &mut self.locks[lock as usize];
        // The line may be long.
        if !state.is_free_for(true) {
            return false;
        }
        let mut line = state.waiting.line().iter();
        let Some(at) = line.position(|waiter| waiter.id == id) else {
            return false;
        };
        let is_shared = state.waiting.line()[at].is_shared;
        if !state.is_free_for(is_shared) || (at > 0 && !state.may_barge()) {
            return false;
        }
        state.waiting.take(at);
        state.note_wait(now - self.tasks[id as usize].wait_since);
        state.hold(id, self.tasks[id as usize].serial, is_shared, now);
        let line = self.lock_line(lock, cpu);
        self.charge(cpu, line, Use::Stall);
        let task = &mut self.tasks[id as usize];
        task.is_spinning = false;
        task.is_granted = true;
        true
    }
}
