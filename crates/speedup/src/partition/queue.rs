//! Run queues: who is runnable behind a busy CPU, and for how long.

use std::cmp::Reverse;

use super::waits::Waiting;
use super::{ChargeKey, Look, Partition, State};
use crate::cause::Cause;
use crate::event::{CpuId, Ns, StackId, Tid, Waker};

/// An idle CPU takes this long to start a thread; one that is queued for less is better off where
/// it is.
pub(crate) const START_NS: Ns = 50_000;

/// Threads in the order in which they came: what is charged first gets the places that are left. Who leaves leaves a
/// hole, so that nobody has to be looked for or moved; holes are closed when there are more of them than threads.
#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: Vec<Option<Tid>>,
    threads: usize,
}

/// So few slots are not worth a look.
const SLOTS_MIN: usize = 16;

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.threads == 0
    }

    fn iter(&self) -> impl Iterator<Item = Tid> + '_ {
        self.slots.iter().copied().flatten()
    }

    /// Puts a thread at the end. Returns its slot.
    fn push(&mut self, tid: Tid) -> usize {
        self.slots.push(Some(tid));
        self.threads += 1;
        self.slots.len() - 1
    }

    /// Takes out who is in `slot`; tells `moved` who is in another one now. O(1), amortised.
    fn remove(&mut self, slot: usize, mut moved: impl FnMut(Tid, usize)) {
        self.slots[slot] = None;
        self.threads -= 1;
        while self.slots.last() == Some(&None) {
            self.slots.pop();
        }
        if self.slots.len() > SLOTS_MIN.max(2 * self.threads) {
            self.slots.retain(Option::is_some);
            for (slot, tid) in self.iter().enumerate() {
                moved(tid, slot);
            }
        }
    }
}

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
        if !self.watched.contains_key(&cpu) {
            return self.leave_cpus(tid, cpu, ending, waker, from);
        }
        let cpu_idle = self.is_idle(cpu);
        let slot = self.queues.entry(cpu).or_default().push(tid);
        let now = self.now;
        let thread = self.thread(tid, cpu);
        thread.slot = slot;
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

    /// A thread that is counted nowhere goes on where nothing is seen of it, and has no place here until it is back.
    fn leave_cpus(
        &mut self,
        tid: Tid,
        cpu: CpuId,
        ending: Option<Waiting>,
        waker: Option<Waker>,
        from: Option<StackId>,
    ) {
        if let Some(waiting) = ending {
            self.charge_wait(tid, waiting, waker, from);
        }
        let thread = self.thread(tid, cpu);
        thread.cpu = cpu;
        thread.state = State::Unseen;
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
        let flips = queue.iter().filter(
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
        let (cpu, slot) = (self.threads[&tid].cpu, self.threads[&tid].slot);
        if let Some(queue) = self.queues.get_mut(&cpu) {
            let threads = &mut self.threads;
            queue.remove(slot, |tid, slot| {
                threads.get_mut(&tid).expect("it is queued").slot = slot;
            });
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{Blocked, Event, Occupant, Off};

    proptest! {
        #[test]
        fn who_leaves_is_gone_and_the_others_keep_their_order(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400),
        ) {
            let (mut queue, mut slots) = (Queue::default(), [0; 400]);
            let mut naive: Vec<Tid> = Vec::new();
            for (tid, (leaves, who)) in steps.into_iter().enumerate() {
                if leaves && !naive.is_empty() {
                    let tid = naive.remove(who.index(naive.len()));
                    queue.remove(slots[tid as usize], |tid, slot| slots[tid as usize] = slot);
                } else {
                    naive.push(tid as Tid);
                    slots[tid] = queue.push(tid as Tid);
                }
                prop_assert!(queue.iter().eq(naive.iter().copied()));
                prop_assert_eq!(queue.is_empty(), naive.is_empty());
                prop_assert!(queue.slots.len() <= SLOTS_MIN + 2 * naive.len());
                for &tid in &naive {
                    prop_assert_eq!(queue.slots[slots[tid as usize]], Some(tid));
                }
            }
        }

        /// What lets a CPU that stays busy, or idle, leave its queue alone.
        #[test]
        fn queued_is_who_waits_there_as_its_cpu_says(
            events in prop::collection::vec(any_event(), 0..300),
        ) {
            let mut partition = Partition::new(0, &[(0, Occupant::Idle), (1, Occupant::Idle)]);
            for (ts, event) in events.into_iter().enumerate() {
                partition.feed(&at(event, 30_000 * ts as Ns));
                let mut queued = 0;
                for (&cpu, queue) in &partition.queues {
                    for tid in queue.iter() {
                        let thread = &partition.threads[&tid];
                        prop_assert_eq!((thread.cpu, queue.slots[thread.slot]), (cpu, Some(tid)));
                        let State::Queued { behind, .. } = thread.state else {
                            panic!("{tid} is {:?}", thread.state);
                        };
                        prop_assert_eq!(behind, !partition.is_idle(cpu));
                        queued += 1;
                    }
                }
                let states = partition.threads.values();
                let waiting = states.filter(|thread| matches!(thread.state, State::Queued { .. }));
                prop_assert_eq!(waiting.count(), queued);
            }
        }

        /// The whole queue was gone through at each switch, and again for each thread that left it.
        #[test]
        fn the_result_is_that_of_looking_through_the_queue_at_each_switch(
            events in prop::collection::vec(any_event(), 0..300),
        ) {
            let cpus = [(0, Occupant::Idle), (1, Occupant::Idle)];
            let [mut partition, mut naive] = [(); 2].map(|()| Partition::new(0, &cpus));
            let mut now = 0;
            for (ts, event) in events.into_iter().enumerate() {
                now = 30_000 * ts as Ns;
                let event = at(event, now);
                partition.feed(&event);
                naive.feed(&event);
                if let Event::Switch { cpu, next, .. } = event {
                    naive.requeue(cpu, next == Occupant::Idle && cpu < 2);
                }
            }
            let [found, expected] = [partition, naive].map(|partition| partition.finish(now + 1));
            prop_assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        }
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let occupant = prop_oneof![
            Just(Occupant::Idle),
            (1..9u32).prop_map(Occupant::Workload),
            (90..92u32).prop_map(Occupant::Other),
        ];
        let off = prop_oneof![
            3 => Just(Off::Preempted),
            1 => Just(Off::Yielded),
            1 => Just(Off::Exited),
            1 => Just(Off::Blocked(Blocked::default())),
        ];
        let (ts, tid, cpu) = (0, 1..9u32, 0..3u32);
        prop_oneof![
            6 => (cpu.clone(), occupant.clone(), off, occupant)
                .prop_map(move |(cpu, prev, off, next)| Event::Switch { ts, cpu, prev, off, next }),
            3 => tid.clone().prop_map(move |tid| Event::Wake {
                ts,
                tid,
                waker: Waker::Timer,
                from: None,
            }),
            1 => (tid.clone(), cpu.clone()).prop_map(move |(tid, cpu)| Event::Migrate { ts, tid, cpu }),
            2 => (tid.clone(), cpu.clone()).prop_map(move |(child, cpu)| Event::Fork {
                ts,
                parent: 1,
                child,
                pid: 1,
                cpu,
            }),
            1 => (tid.clone(), cpu).prop_map(move |(tid, cpu)| Event::Runnable { ts, tid, cpu }),
            1 => tid.prop_map(move |tid| Event::Exit { ts, tid }),
            1 => Just(Event::Gap { ts, until: 0, window: 40_000 }),
        ]
    }

    fn at(mut event: Event, now: Ns) -> Event {
        match &mut event {
            Event::Gap { ts, until, .. } => (*ts, *until) = (now, now + 20_000),
            Event::Switch { ts, .. }
            | Event::Wake { ts, .. }
            | Event::Migrate { ts, .. }
            | Event::Fork { ts, .. }
            | Event::Runnable { ts, .. }
            | Event::Exit { ts, .. } => *ts = now,
            _ => {}
        }
        event
    }

    /// At each switch all who were queued were looked at: with thousands of threads an event took milliseconds.
    #[test]
    fn a_cpu_that_stays_busy_leaves_its_queue_alone() {
        let switch = |ts, prev, next| Event::Switch {
            ts,
            cpu: 0,
            prev: Occupant::Workload(prev),
            off: Off::Preempted,
            next: Occupant::Workload(next),
        };
        let mut partition = Partition::new(0, &[(0, Occupant::Workload(1))]);
        partition.feed(&switch(10, 1, 2));
        // Whoever looks at this one panics: there is no such thread.
        partition.queues.get_mut(&0).expect("a queue").push(77);
        for ts in 2..9 {
            let (prev, next) = if ts % 2 == 0 { (2, 1) } else { (1, 2) };
            partition.feed(&switch(10 * ts, prev, next));
        }
    }
}
