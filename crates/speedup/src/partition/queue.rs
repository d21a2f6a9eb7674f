//! Run queues: who is runnable behind a busy CPU, and for how long.

use std::cmp::Reverse;

use super::waits::Waiting;
use super::{ChargeKey, Look, Partition, State};
use crate::cause::Cause;
use crate::event::{CpuId, Ns, Occupant, StackId, Tid, Waker};

/// An idle CPU takes this long to start a thread; one that is queued for less is better off where
/// it is.
pub(crate) const START_NS: Ns = 50_000;

impl Partition {
    /// Puts a thread that is counted nowhere into the queue of `cpu`.
    pub(super) fn enqueue(
        &mut self,
        tid: Tid,
        cpu: CpuId,
        ending: Option<Waiting>,
        waker: Option<Waker>,
        from: Option<StackId>,
    ) {
        let cpu_idle = match self.watched.get(&cpu) {
            Some(state) => state.occupant == Occupant::Idle,
            None => false,
        };
        self.queues.entry(cpu).or_default().push(tid);
        let now = self.now;
        let thread = self.thread(tid, cpu);
        let (queued_at, yielded) = (thread.queued_at, thread.yielded);
        let behind = !cpu_idle;
        let ripe = behind && !yielded && now >= queued_at + START_NS;
        self.tally.behind += u64::from(behind);
        match ending {
            Some(waiting) if ripe => self.charge_wait(tid, waiting, waker, from),
            // A wake-up under way is still the cost of the wait.
            Some(waiting) => self.count_wait(&waiting, 1),
            None if !behind => self.tally.stranded += 1,
            None => {}
        }
        self.tally.ripe += u64::from(ripe);
        if behind && !ripe && !yielded {
            let when = queued_at + START_NS;
            self.reconsider
                .push(Reverse((when, Look::Queue, tid, queued_at)));
        }
        let placement = self.placement;
        let thread = self.thread(tid, cpu);
        thread.cpu = cpu;
        thread.placement_mark = placement;
        thread.state = State::Queued {
            ending: ending.filter(|_| !ripe),
            waker,
            from,
            behind,
            ripe,
        };
    }

    /// It waits in the queue for longer than an idle CPU would have taken.
    pub(super) fn ripen(&mut self, tid: Tid, since: Ns) {
        let Some(thread) = self.threads.get(&tid) else {
            return;
        };
        if let State::Queued {
            ending,
            waker,
            from,
            behind: true,
            ripe: false,
        } = thread.state
            && thread.queued_at == since
        {
            let cpu = thread.cpu;
            self.leave_queue_only(tid);
            self.enqueue(tid, cpu, ending, waker, from);
        }
    }

    pub(super) fn migrate(&mut self, tid: Tid, cpu: CpuId) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        match thread.state {
            State::Queued {
                ending,
                waker,
                from,
                ..
            } => {
                if thread.cpu == cpu {
                    return;
                }
                // Keep the wait that is being ended: only the queue changes.
                self.leave_queue_only(tid);
                self.enqueue(tid, cpu, ending, waker, from);
            }
            _ => thread.cpu = cpu,
        }
    }

    /// The CPU became busy or idle: its queue waits behind somebody now, or no longer.
    pub(super) fn requeue(&mut self, cpu: CpuId, idle: bool) {
        let Some(queue) = self.queues.get(&cpu) else {
            return;
        };
        let flips = queue.iter().copied().filter(
            |tid| matches!(self.threads[tid].state, State::Queued { behind, .. } if behind == idle),
        );
        let flips: Vec<Tid> = flips.collect();
        for tid in flips {
            let State::Queued {
                ending,
                waker,
                from,
                ..
            } = self.threads[&tid].state
            else {
                continue;
            };
            self.leave_queue_only(tid);
            self.enqueue(tid, cpu, ending, waker, from);
        }
    }

    pub(super) fn leave_queue_only(&mut self, tid: Tid) {
        let State::Queued {
            ending,
            behind,
            ripe,
            ..
        } = self.threads[&tid].state
        else {
            return;
        };
        let cpu = self.threads[&tid].cpu;
        if let Some(queue) = self.queues.get_mut(&cpu) {
            queue.retain(|&queued| queued != tid);
        }
        self.tally.behind -= u64::from(behind);
        if ripe {
            self.tally.ripe -= 1;
            self.charge_placement(tid);
        }
        match ending {
            Some(waiting) => self.count_wait(&waiting, -1),
            None if !behind => self.tally.stranded -= 1,
            None => {}
        }
    }

    fn charge_placement(&mut self, tid: Tid) {
        let mark = self.threads[&tid].placement_mark;
        let ns = self.placement - mark;
        if ns > 0.0 {
            let key = ChargeKey {
                cause: Cause::Placement,
                tid,
                stack: None,
                object: 0,
            };
            let charge = self.out.off.entry(key).or_default();
            charge.ns += ns;
            charge.count += 1;
        }
    }
}
