//! Who looks for work and who sleeps, and who wakes whom.

use amdahl_placement::CpuId;

use super::Registry;
use crate::counts::Counts;
use crate::sync::{Ordering, fence};

impl Registry {
    /// Wakes this sleeper if it is one, whatever the limit: the policy or the work asks for it.
    pub(crate) fn notify(&self, cpu: CpuId) -> bool {
        if !self.asleep.clear(cpu).unwrap_or(false) {
            return false;
        }
        let _ = self.idle.clear(cpu);
        self.counts.change(Counts::wake);
        self.steer(cpu);
        let slot = &self.slots[cpu as usize];
        // Release: pairs with the Acquire in `rise`, which must not leave what it has not entered.
        slot.is_counted.store(true, Ordering::Release);
        slot.parker.unpark_at(self.now_ns());
        self.wake_watch();
        true
    }

    /// Wakes one more sleeper if somebody should look for work and nobody does. Who calls on CPU `near` goes on
    /// there, so its worker, which may sleep beneath a guest, is the last choice.
    pub(crate) fn wake_any(&self, near: CpuId) {
        while self.counts.load().wants_waking() {
            match self.asleep.first_from(near + 1) {
                Some(cpu) if self.notify(cpu) => return,
                Some(_) => {}
                // About to sleep: it looks again after it has set its bit.
                None => return,
            }
        }
    }

    /// Whether this CPU runs something, by its own worker, which has a place for that.
    pub(crate) fn has_place(&self, cpu: CpuId) -> bool {
        self.is_there(cpu) && !self.idle.test(cpu)
    }

    /// A sleeper that would find a job, which may be none that wakes for any work: its queue's alone.
    pub(crate) fn sleeper_with_jobs(&self) -> Option<CpuId> {
        self.asleep.iter().find(|&cpu| self.has_jobs(cpu))
    }

    /// A range wants help: wakes a sleeper that may help, if there is a place and none looks for work by itself.
    pub(crate) fn wake_helper(&self, near: CpuId) {
        // Who looks may be of a node that has no place left.
        let is_looked_at = self.has_seeker() && !self.offers.wants_help_of_some();
        if is_looked_at || !self.counts.load().has_room() {
            return;
        }
        for cpu in self.asleep.iter_from(near + 1) {
            if self.may_help(cpu) && self.notify(cpu) {
                return;
            }
        }
    }

    /// Whether the worker of `cpu` would find a range to help with.
    pub(crate) fn may_help(&self, cpu: CpuId) -> bool {
        self.offers.wants_help_of(self.machine.node(cpu))
            && !self.slots[cpu as usize].is_waiting.load(Ordering::Relaxed)
            // Where one may run it is the caller.
            && self.counts.load().limit() > 1
    }

    /// Whether a worker looks for work that would help with a range.
    pub(crate) fn has_seeker(&self) -> bool {
        self.seekers.load(Ordering::Relaxed) > 0
    }

    /// Somebody has been counted among those awake, or as a guest.
    pub(crate) fn wake_watch(&self) {
        self.watch.wake();
    }

    pub(crate) fn begin_search(&self, cpu: CpuId) {
        let _ = self.idle.set(cpu);
        self.counts.change(Counts::search);
        self.seek(cpu);
    }

    fn seek(&self, cpu: CpuId) {
        if !self.slots[cpu as usize].is_waiting.load(Ordering::Relaxed) {
            self.seekers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn seek_no_more(&self, cpu: CpuId) {
        if !self.slots[cpu as usize].is_waiting.load(Ordering::Relaxed) {
            self.seekers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Wakes others if there is something for them. Its own worker calls, which goes on with something else.
    pub(crate) fn pass_on(&self, now: Counts, cpu: CpuId) {
        if now.wants_waking() && self.has_jobs(cpu) {
            self.wake_any(cpu);
        }
        if self.offers.wants_help() {
            self.wake_helper(cpu);
        }
    }

    /// The searcher `cpu` has found something: if it was the last, another one looks whether there is more.
    pub(crate) fn end_search(&self, cpu: CpuId) {
        let _ = self.idle.clear(cpu);
        self.seek_no_more(cpu);
        let (_, now) = self.counts.change(Counts::found);
        self.pass_on(now, cpu);
    }

    /// The searcher `cpu` will park. It must look for work once more after this.
    pub(crate) fn fall_asleep(&self, cpu: CpuId) {
        self.seek_no_more(cpu);
        self.take_off(cpu);
        self.counts.change(Counts::sleep);
        let _ = self.asleep.set(cpu);
        // Pairs with the fences of those who queue something and then look for sleepers.
        fence(Ordering::SeqCst);
    }

    /// The sleeper `cpu` goes on; it searches.
    pub(crate) fn rise(&self, cpu: CpuId) {
        if self.asleep.clear(cpu).unwrap_or(false) {
            self.counts.change(Counts::wake);
            self.wake_watch();
        } else {
            // Who cleared it counts, and may have been interrupted before.
            let is_counted = &self.slots[cpu as usize].is_counted;
            while !is_counted.swap(false, Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        self.land(cpu);
        let _ = self.idle.set(cpu);
        self.seek(cpu);
    }
}
