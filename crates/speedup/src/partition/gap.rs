//! Stretches in which nothing was recorded: what is known of their ends, and what stands for them.
//!
//! The window after a gap stands for it: time in the window counts as much more as makes up for the gap. The nearest
//! window, not all of them: a phase of the program that was recorded in full must not stand for one that was not.

use super::waits::{Tier, Waiting};
use super::{Partition, State};
use crate::event::{CpuId, Ns, Occupant, Off, Tid, Waker};
use crate::wait::Wait;

/// How much of the run an instant stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scale {
    /// Nanoseconds that one stands for besides itself, until `until`.
    more: f64,
    until: Ns,
}

impl Scale {
    /// Nanoseconds of the run that one nanosecond stands for now.
    pub(super) fn factor(self) -> f64 {
        1.0 + self.more
    }

    /// What the time from `now` to `ts` stands for.
    pub(super) fn stands_for(&mut self, now: Ns, ts: Ns) -> f64 {
        let all = ts.saturating_sub(now) as f64;
        if self.more == 0.0 {
            return all;
        }
        let scaled = ts.min(self.until).saturating_sub(now) as f64;
        let stands_for = all + scaled * self.more;
        if ts >= self.until {
            *self = Scale::default();
        }
        stands_for
    }

    /// From `until` on the next `window` nanoseconds stand for a gap that began at `now`, and for what the window before
    /// it was to stand for but was too short.
    fn after_gap(self, now: Ns, until: Ns, window: Ns) -> Scale {
        let due = self.more * self.until.saturating_sub(now) as f64;
        let gap = until.saturating_sub(now) as f64;
        let window = window.max(1);
        Scale {
            more: (gap + due) / window as f64,
            until: until.saturating_add(window),
        }
    }
}

impl Partition {
    /// Nothing is known from now to `until`.
    pub(super) fn gap(&mut self, until: Ns, window: Ns) {
        let from = self.now;
        if until <= from {
            return;
        }
        // Who has passed its exit makes its last switch in the gap, unless the window after it shows otherwise.
        let ending = self.threads.iter().filter(|(_, thread)| thread.is_ending);
        let ending: Vec<Tid> = ending.map(|(&tid, _)| tid).collect();
        for tid in ending {
            self.leave(tid);
        }
        let moving = self.threads.iter().filter(|(_, thread)| {
            matches!(
                thread.state,
                State::Running | State::Queued { .. } | State::Unseen
            )
        });
        let moving: Vec<Tid> = moving.map(|(&tid, _)| tid).collect();
        for &tid in &moving {
            self.leave(tid);
            self.set_unseen(tid);
        }
        let cpus: Vec<(CpuId, Occupant)> = self
            .watched
            .iter()
            .map(|(&cpu, state)| (cpu, state.occupant))
            .collect();
        for (cpu, occupant) in cpus {
            // Who of the workload has a CPU all through a window is sampled there.
            let next = match occupant {
                Occupant::Workload(_) => Occupant::Idle,
                other => other,
            };
            self.switch(from, cpu, Occupant::Idle, Off::Exited, next);
            if let Some(state) = self.watched.get_mut(&cpu) {
                state.since = until;
            }
        }
        self.scale = self.scale.after_gap(from, until, window);
        self.serial_rate = 0.0;
        self.placement_rate = 0.0;
        self.out.gaps_ns += until - from;
        self.now = until;
        self.resumed = until;
        // Who is neither found on a CPU nor in a queue, and is not woken in the window, sleeps.
        for tid in moving {
            if self.threads[&tid].last.is_some() {
                self.suppose_asleep(tid);
            }
        }
    }

    pub(super) fn found_on(&mut self, cpu: CpuId, by: Occupant) {
        if let Occupant::Workload(tid) = by {
            self.found_awake(tid);
        }
        self.switch(self.now, cpu, Occupant::Idle, Off::Exited, by);
    }

    pub(super) fn found_runnable(&mut self, tid: Tid, cpu: CpuId) {
        self.found_awake(tid);
        let now = self.now;
        let thread = self.thread(tid, cpu);
        thread.queued_at = now;
        thread.yielded = false;
        self.enqueue(tid, cpu, None, None, None);
    }

    pub(super) fn found_asleep(&mut self, tid: Tid) {
        let now = self.now;
        let thread = self.thread(tid, 0);
        match &mut thread.state {
            // The same wait as before the gap, or one like it. How long it was by then is not known: a gap alone does not make
            // it one that stands back.
            State::Waiting(waiting) => {
                waiting.since = now;
                let waiting = *waiting;
                if waiting.tier == Tier::Patient {
                    let tier = self.tier(tid, waiting.wait, now);
                    self.change_tier(tid, waiting, tier);
                }
            }
            State::Unseen | State::Gone => self.suppose_asleep(tid),
            State::Running | State::Queued { .. } => {}
        }
    }

    /// A thread that runs is on its way to its last switch, and is counted until then, or until a gap.
    pub(super) fn exit(&mut self, tid: Tid) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        thread.is_ending = true;
        if !matches!(thread.state, State::Running) {
            self.found_awake(tid);
            self.leave(tid);
        }
    }

    fn set_unseen(&mut self, tid: Tid) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.state = State::Unseen;
        }
    }

    /// A thread whose wait ended unseen is taken to have been woken by whoever woke it last.
    fn found_awake(&mut self, tid: Tid) {
        let Some(thread) = self.threads.get(&tid) else {
            return;
        };
        let waker: Option<Waker> = thread.last.map(|(_, waker)| waker);
        if let State::Waiting(waiting) = thread.state {
            self.count_wait(&waiting, -1);
            self.charge_wait(tid, waiting, waker, None);
            self.set_unseen(tid);
        } else {
            self.leave(tid);
        }
    }

    /// A thread that is counted nowhere sleeps as it did last, as far as anything is known.
    fn suppose_asleep(&mut self, tid: Tid) {
        let last = self.threads[&tid].last.map(|(waiting, _)| waiting);
        let wait = last.map_or(Wait::Unknown, |last| last.wait);
        let tier = self.tier(tid, wait, self.now);
        let waiting = Waiting {
            wait,
            tier,
            mark: self.integral[tier as usize],
            carried: 0.0,
            since: self.now,
            place: last.map_or(0, |last| last.place),
            object: last.map_or(0, |last| last.object),
            owner: last.and_then(|last| last.owner),
            // What is waited here is spread over the stacks of the place.
            stack: None,
        };
        self.begin_wait(tid, waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_stands_for_the_gap_before_it() {
        let mut scale = Scale::default();
        assert_eq!(scale.stands_for(0, 100), 100.0);
        scale = scale.after_gap(100, 400, 100);
        assert_eq!(scale.factor(), 4.0);
        assert_eq!(scale.stands_for(400, 450), 200.0);
        // Half of the window is over, and with it half of the gap; the rest stands for itself.
        assert_eq!(scale.stands_for(450, 700), 50.0 + 150.0 + 200.0);
        assert_eq!(scale.factor(), 1.0);
        assert_eq!(scale.stands_for(700, 800), 100.0);
    }

    #[test]
    fn what_a_short_window_could_not_stand_for_the_next_one_does() {
        let mut scale = Scale::default().after_gap(0, 100, 100);
        assert_eq!(scale.stands_for(100, 150), 100.0);
        scale = scale.after_gap(150, 200, 100);
        assert_eq!(scale.stands_for(200, 400), 200.0 + 50.0 + 50.0);
    }
}
