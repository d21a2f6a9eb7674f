//! So that nobody starves: a worker that always has something to do looks elsewhere now and then, as those of the Go
//! runtime and of tokio look at the global queue.

use std::cell::Cell;

use crate::deque::Steal;
use crate::job::JobRef;
use crate::registry::Slot;
use crate::sync::Ordering;
use crate::worker::{Work, Worker};

/// Every so many jobs; a prime, as tokio's, so that it falls in step with nothing.
const EVERY: u32 = 61;

/// So many places are looked at in one turn, most of them empty.
const LOOKS: usize = 8;

/// Whose turn it is: the worker's own, then another place's, and so on.
#[derive(Default)]
pub(crate) struct Turns {
    jobs: Cell<u32>,
    /// How many those were at the last turn.
    taken_at: Cell<u32>,
    /// Whether the own queue and the oldest of the own deque come first, or others.
    is_others: Cell<bool>,
    /// The slot that is looked at next.
    at: Cell<u32>,
    /// What it had begun when its private part was seen; it gets another turn.
    had_begun: Cell<Option<u32>>,
}

impl Turns {
    /// One more job.
    #[inline]
    pub(crate) fn began(&self) {
        self.jobs.set(self.jobs.get().wrapping_add(1));
    }

    /// Whether it is a turn: once after every so many jobs, however often a worker looks for one that has none.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let jobs = self.jobs.get();
        jobs.is_multiple_of(EVERY) && self.taken_at.replace(jobs) != jobs
    }
}

impl Worker {
    /// A turn: what would starve below newer entries of the own deque, or behind somebody who does not get on.
    #[cold]
    pub(crate) fn take_turn(&self) -> Option<Work> {
        if self.is_guest() {
            // It waits for one thing, and what it does beside that delays it.
            return self.oldest();
        }
        let is_others = self.turns.is_others.get();
        self.turns.is_others.set(!is_others);
        if is_others {
            self.of_another().or_else(|| self.oldest())
        } else {
            self.oldest().or_else(|| self.of_another())
        }
    }

    /// The first of the own queue or of the inbox, or the oldest entry of the own deque.
    fn oldest(&self) -> Option<Work> {
        let registry = self.registry();
        let queue = registry.layout.of(self.cpu);
        let queues = [Some(queue), registry.layout.inbox()];
        let listed = queues
            .into_iter()
            .flatten()
            .find_map(|queue| registry.queues[queue.index()].pop());
        let job = listed.or_else(|| got(self.slot().deque.steal()));
        job.map(Work::Job)
    }

    /// From the next place that has something, of all slots and their queues in turn. Each has one after
    /// at most four times `EVERY` jobs for each slot.
    fn of_another(&self) -> Option<Work> {
        let registry = self.registry();
        let turns = &self.turns;
        for _ in 0..LOOKS {
            let at = turns.at.get();
            let slot = &registry.slots[at as usize];
            let had_begun = turns.had_begun.take();
            let found = self.of_slot(at, slot, had_begun);
            if found.is_none() && turns.had_begun.get().is_some() {
                return None;
            }
            turns.at.set((at + 1) % registry.slots.len() as u32);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn of_slot(&self, at: u32, slot: &Slot, had_begun: Option<u32>) -> Option<Work> {
        let registry = self.registry();
        if at == self.index {
            return None;
        }
        if registry.is_worker(at) {
            if let Some(work) = slot.bound.give(self.cpu) {
                return Some(Work::Bound(work));
            }
            let queue = registry.layout.of(at);
            let is_own = queue == registry.layout.of(self.cpu);
            if !registry.is_conserving() && !is_own && !registry.is_left(queue) {
                return None;
            }
            if let Some(job) = registry.queues[queue.index()].pop() {
                return Some(Work::Job(job));
            }
        } else if !registry.is_taken(at) {
            return None;
        }
        if let Some(job) = got(slot.deque.steal()) {
            return Some(Work::Job(job));
        }
        // What its owner alone sees is taken if that has begun nothing since the last turn.
        if slot.deque.len() == 0 && slot.next.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let begun = slot.begun.load(Ordering::Relaxed);
        if had_begun != Some(begun) {
            if had_begun.is_none() {
                self.turns.had_begun.set(Some(begun));
            }
            return None;
        }
        let job = slot.take_next();
        job.or_else(|| got(slot.deque.force(self.index as u16 + 1)))
            .map(Work::Job)
    }
}

fn got(found: Steal<crate::job::Job>) -> Option<JobRef> {
    match found {
        Steal::Got(job) => Some(JobRef(job)),
        _ => None,
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use amdahl_topology::Topology;

    use super::*;
    use crate::{Pool, SimulatedCpus};

    /// Looks without a job were counted, so that a turn came before what was urgent, now and then.
    #[test]
    fn a_turn_comes_after_jobs_however_often_one_looks() {
        let turns = Turns::default();
        let due = || (0..200).filter(|_| turns.is_due()).count();
        assert_eq!(due(), 0);
        let mut dues = 0;
        for job in 1..=3 * EVERY {
            turns.began();
            let is_due = due();
            assert_eq!(is_due == 1, job % EVERY == 0, "job {job}");
            dues += is_due;
        }
        assert_eq!(dues, 3);
    }

    /// Of which one worker may run. While `control` is locked the watch does not look who is stuck.
    fn pool(cpus: u32, policy: &str) -> Pool {
        let cpus = SimulatedCpus::new(Topology::synthetic(&format!("{cpus} core")).unwrap());
        cpus.set_quota(Some(1.0));
        let pool = Pool::builder().cpus(cpus).follows_load(false);
        pool.policy(policy).build().unwrap()
    }

    /// Each of two queues that nobody else may take from has one worker beyond the limit, and not four.
    #[test]
    fn a_limit_holds_where_workers_share_a_queue_of_their_own() {
        let pool = pool(8, "groups-apart=4");
        let _unwatched = pool.registry.control.lock();
        let running = Arc::new(AtomicU32::new(0));
        for _ in 0..5 {
            let one = |_| {
                let running = running.clone();
                pool.spawn(move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    (0..200).for_each(|_| std::thread::yield_now());
                    running.fetch_sub(1, Ordering::SeqCst);
                    now
                })
            };
            let jobs: Vec<_> = (0..100).map(one).collect();
            let most = jobs.into_iter().map(|job| job.join().unwrap()).max();
            assert!(most <= Some(2), "{most:?} ran at a time");
        }
    }

    /// Each job that was given from outside woke a worker that had no place, and slept again at once.
    #[test]
    fn jobs_wake_nobody_who_has_no_place() {
        for policy in [
            "steal=machine",
            "single",
            "groups-apart=1",
            "groups-apart=2",
        ] {
            let pool = pool(2, policy);
            let unwatched = pool.registry.control.lock();
            let (has_begun, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
            let long = {
                let (told, ends) = (has_begun.clone(), is_over.clone());
                pool.spawn(move || {
                    told.store(true, Ordering::Release);
                    while !ends.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                })
            };
            while !has_begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let sleeps_over = || {
                while pool.state().sleeping == 0 {
                    std::thread::yield_now();
                }
                let waits = pool.waits();
                let idle = waits.iter().find(|waits| waits.what == "idle worker");
                idle.map_or(0, |idle| idle.count.times)
            };
            let before = sleeps_over();
            let jobs: Vec<_> = (0..100).map(|_| pool.spawn(|| ())).collect();
            let after = sleeps_over();
            is_over.store(true, Ordering::Release);
            assert_eq!(after, before, "{policy}");
            drop(unwatched);
            long.join().unwrap();
            jobs.into_iter().for_each(|job| job.join().unwrap());
        }
    }
}
