//! How a team lets its threads go: at barriers, where a region begins, for tasks, and where it is cancelled.

use amdahl_phantom_page::coarse_now_ns;

use super::start::{Start, Told};
use super::{CONTENTION, Team};
use crate::gate::Gate;
use crate::meeting::Meeting;
use crate::release::{Rest, open_all, pass_on};
use crate::sync::{Line, Ordering, fence};
use crate::tree::FAN_IN;
use crate::worker;

/// Threads that wait at the same gates: those of a leaf of the team's tree at barriers, [`FAN_IN`] by their numbers at docks.
#[derive(Debug)]
pub(crate) struct Group {
    /// Opened at the end of a barrier.
    pub(crate) barrier: Gate,
    /// Opened when a region begins.
    pub(crate) dock: Gate<Told>,
    pub(super) barrier_rest: Line<Rest>,
    dock_rest: Line<Rest>,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            barrier: Gate::new(),
            dock: Gate::default(),
            barrier_rest: Line(Rest::none()),
            dock_rest: Line(Rest::none()),
        }
    }
}

impl Team {
    /// Of the docks.
    fn groups(&self) -> &[Box<Group>] {
        &self.groups[..(self.nthreads as usize).div_ceil(FAN_IN)]
    }

    /// Of the barriers.
    pub(super) fn barriers(&self) -> &[Box<Group>] {
        &self.groups[..self.tree.leaves()]
    }

    fn barrier_at(&self, leaf: u32) -> (&Gate, &Rest) {
        let group = &self.groups[leaf as usize];
        (&group.barrier, &group.barrier_rest)
    }

    fn dock_at(&self, group: u32) -> (&Gate<Told>, &Rest) {
        let group = &self.groups[group as usize];
        (&group.dock, &group.dock_rest)
    }

    pub(super) fn go_on(&self, meeting: Meeting, leaf: u32) {
        match meeting {
            Meeting::End => self.master_gate.open(),
            Meeting::Barrier => {
                self.share_is_over();
                let gate = |leaf| self.barrier_at(leaf);
                open_all(&self.tree, leaf, || self.is_disturbed(), gate, |()| {});
            }
        }
    }

    /// The calling thread, of this leaf, was let go at a barrier: lets others go, if that is left to it.
    #[inline]
    pub(super) fn pass_barrier(&self, leaf: u32) {
        pass_on(&self.tree, leaf, |leaf| self.barrier_at(leaf), |()| {});
    }

    /// The others begin a region.
    pub(super) fn open_docks(&self, start: Start) {
        let groups = self.groups();
        if groups.len() <= FAN_IN {
            for group in groups {
                group.dock.word.tell(&start);
                group.dock.open();
            }
        } else {
            let gate = |group| self.dock_at(group);
            let tell = |told: &Told| told.tell(&start);
            open_all(&self.dock_tree, 0, || self.is_disturbed(), gate, tell);
        }
    }

    /// A worker begins a region.
    #[inline]
    pub(super) fn pass_dock(&self, id: usize, start: &Start) {
        if self.nthreads as usize > FAN_IN * FAN_IN {
            let group = (id / FAN_IN) as u32;
            let tell = |told: &Told| told.tell(start);
            pass_on(&self.dock_tree, group, |group| self.dock_at(group), tell);
        }
    }

    /// Whether those who were let go may be late to let others go, since somebody else has their CPU.
    fn is_disturbed(&self) -> bool {
        #[cfg(test)]
        if super::tests::IS_CALM.load(Ordering::Relaxed) {
            return false;
        }
        worker::are_crowded() || CONTENTION.is_expected(coarse_now_ns())
    }

    /// Wakes up to `count` threads that sleep at a barrier or behind the region's end, for `count` tasks that were
    /// made ready before. One load for each group of threads if nobody sleeps. Returns whether anybody did.
    pub fn wake_for_tasks(&self, count: u32) -> bool {
        // Pairs with the fence in `Gate::sleep`.
        fence(Ordering::SeqCst);
        let mut left = count;
        let barriers = self.barriers().iter().map(|group| &group.barrier);
        // Only who really slept counts: others are at work, or are leaving, after a larger region even the team.
        let mut is_enough = |sleepers: u32, ring: &dyn Fn(u32) -> u32| {
            if sleepers != 0 {
                left = left.saturating_sub(ring(left));
            }
            left == 0
        };
        let _ = barriers
            .chain([&self.master_gate])
            .any(|gate| is_enough(gate.sleepers(), &|count| gate.ring(count)))
            || self
                .groups()
                .iter()
                .any(|group| is_enough(group.dock.sleepers(), &|count| group.dock.ring(count)));
        left != count
    }

    /// `cancel parallel`: whoever waits at a barrier that may be cancelled goes to the end of the region.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        for group in self.barriers() {
            group.barrier.ring(u32::MAX);
        }
    }
}
