//! Jobs of a pool that stay with who makes them ready, where the policy lets them ([`Policy::may_keep`]), as `amdahl-pool` does.
//!
//! [`Policy::may_keep`]: amdahl_placement::Policy::may_keep

use amdahl_placement::{Waking, Woken};

use super::Engine;
use super::place::may_run;
use super::state::{Mode, Phase, Use};
use crate::program::NONE;
use crate::time::Ns;

/// Tasks that wake each other run in a row on one worker so often, until others have their turn: the pool's `IN_A_ROW`.
const IN_A_ROW: u32 = 16;
/// A worker that has begun nothing for so long is stuck: somebody else shall take what comes next on it. The pool's watch looks so often.
const STUCK: Ns = 10_000_000;

impl Engine<'_> {
    /// Whether the job `id` stays with the worker `by`, whose job makes it ready.
    pub(super) fn is_kept_by(&self, id: u32, by: Option<u32>) -> Option<u32> {
        let mask = self.tasks[id as usize].mask;
        by.filter(|&by| {
            let is_at_work = matches!(self.s.cpus[by as usize].mode, Mode::Running | Mode::Between);
            self.keeps && is_at_work && may_run(mask, &self.masks, by)
        })
    }

    /// Leaves a job that is ready with the worker `by`. One that was woken comes next there, and nobody is told: who wakes is often about to
    /// wait. Who was to come next queues up.
    pub(super) fn keep(&mut self, id: u32, by: u32, is_new: bool) {
        let queue = self.s.cpus[by as usize].queue;
        let has_others = self.s.queues[queue as usize].len() > 0;
        let state = &mut self.s.cpus[by as usize];
        let queued = if is_new || has_others && state.in_a_row >= IN_A_ROW {
            id
        } else {
            std::mem::replace(&mut state.next, id)
        };
        if queued != NONE {
            self.enqueue(queued, queue);
            self.tell(by);
        }
    }

    /// The job that comes next on `cpu`, if there is one.
    pub(super) fn take_next(&mut self, cpu: u32) -> Option<u32> {
        let state = &mut self.s.cpus[cpu as usize];
        let next = std::mem::replace(&mut state.next, NONE);
        if next == NONE {
            state.in_a_row = 0;
            return None;
        }
        state.in_a_row += 1;
        Some(next)
    }

    /// Somebody waits at the worker `from`: an idle one is told, whom the policy would tell of something new.
    fn tell(&mut self, from: u32) {
        if self.s.idle.is_empty() {
            return;
        }
        let task = Waking {
            waker: Some(from),
            new: true,
            ..Waking::default()
        };
        let state = &mut self.states[from as usize];
        let Woken::Queue {
            notify: Some(target),
            cost,
            ..
        } = self.policy.wake(state, &self.s, &task)
        else {
            return;
        };
        self.counts.examined += u64::from(cost.examined);
        let took = self.price(cost);
        self.charge(from, took, Use::Search);
        self.notify(target, Some(from));
    }

    /// At a tick: what comes next on a worker that does not get on is queued for others.
    pub(super) fn release_next(&mut self, cpu: u32, ran: Ns) {
        if !self.keeps || ran < STUCK || self.s.idle.is_empty() {
            return;
        }
        let queue = self.s.cpus[cpu as usize].queue;
        if let Some(next) = self.take_next(cpu) {
            self.enqueue(next, queue);
        }
        if self.s.queues[queue as usize].len() > 0 {
            self.tell(cpu);
        }
    }

    /// Who was to come next on a CPU that goes away is as homeless as who runs there.
    pub(super) fn next_of(&mut self, cpu: u32) -> Option<u32> {
        let next = self.take_next(cpu)?;
        debug_assert_eq!(self.tasks[next as usize].phase, Phase::Ready);
        Some(next)
    }
}
