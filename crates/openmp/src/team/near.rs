//! Who is near to whom in a team, as far as that is known, and who waits for this CPU.

use std::sync::atomic::AtomicU32 as StdAtomicU32;

use super::{Member, Team};
use crate::places::Topology;
use crate::sync::{AtomicU64, Ordering};
use crate::tree::{FAN_IN, Spot, Tree};
use crate::{icv, rseq};

/// Written by the member's thread. A hint: nothing depends on it but where others wait.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Meetings that it has come to, of all regions of the team.
    meetings: AtomicU64,
    /// The CPU on which it was seen last, plus 1; 0 if that is not known.
    cpu: StdAtomicU32,
}

/// What is near to what.
fn machine() -> &'static Topology {
    #[cfg(test)]
    if super::tests::IS_CALM.load(Ordering::Relaxed) {
        return super::tests::machine();
    }
    icv::near()
}

impl Member {
    /// The CPU that it runs on: one of its place, or where it was seen last.
    fn cpu(&self) -> Option<u32> {
        let place = self.place.checked_sub(1);
        let of_place = place.and_then(|place| icv::globals().places.as_ref()?.get(place)?.first());
        of_place.or_else(|| self.progress.cpu.load(Ordering::Relaxed).checked_sub(1))
    }

    /// The member's thread begins to work, or goes on after it has waited.
    #[inline]
    pub(super) fn works(&self) {
        let cpu = rseq::cpu().map_or(0, |cpu| cpu + 1);
        if self.progress.cpu.load(Ordering::Relaxed) != cpu {
            self.progress.cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// The member's thread has come to the meeting of that number.
    #[inline]
    pub(super) fn comes_to(&self, meeting: u64) {
        self.progress.meetings.store(meeting, Ordering::Relaxed);
    }
}

impl Team {
    pub(super) fn set_tree(&mut self, tree: Tree) {
        while self.groups.len() < tree.leaves() {
            self.groups.push(Box::default());
        }
        self.barrier_arrivals.grow(&tree);
        self.end_arrivals.grow(&tree);
        self.few.reset();
        self.few_since = self.region.load(Ordering::Relaxed);
        self.tree = tree;
    }

    /// Before a region: who is near to whom. Teams of one leaf need not know.
    #[inline]
    pub(super) fn arrange(&mut self, has_moved: bool) {
        let threads = self.nthreads as usize;
        // It may have had another size since its last region.
        let is_resized = self.tree.threads() != threads;
        if threads > FAN_IN {
            self.arrange_many(is_resized, has_moved);
        } else if is_resized {
            self.set_tree(Tree::by_number(threads));
        }
    }

    /// Threads that are bound are where they are bound to. Others are looked for where they were seen last, after 1, 2, 4 ...
    /// regions: that costs a line of each.
    #[cold]
    fn arrange_many(&mut self, is_resized: bool, has_moved: bool) {
        const MOST_REGIONS: u64 = 1024;
        let threads = self.nthreads as usize;
        let groups = threads.div_ceil(FAN_IN);
        if groups > FAN_IN && self.dock_tree.leaves() != groups {
            self.dock_tree = Tree::of_leaves(groups);
        }
        let region = self.region.load(Ordering::Relaxed);
        let is_due = region >= self.next_look;
        if !(is_resized || has_moved || is_due) {
            return;
        }
        if is_due {
            self.next_look = region + region.clamp(1, MOST_REGIONS);
        }
        let machine = machine();
        if machine.is_one_cache() {
            if is_resized {
                self.set_tree(Tree::by_number(threads));
            }
            return;
        }
        let mut before = Spot::default();
        let spots: Vec<Spot> = self.members[..threads]
            .iter()
            .map(|member| {
                // Of whom nothing is known: where its neighbour is.
                before = member.cpu().map_or(before, |cpu| machine.spot(cpu));
                before
            })
            .collect();
        if is_resized || spots != self.spots {
            self.set_tree(Tree::of(&spots));
            self.spots = spots;
        }
    }

    /// Whether somebody who is awaited by member `id` was last seen on the CPU that the caller is on: then it waits
    /// for this CPU. O(1): only the own leaf is looked at.
    pub(crate) fn is_awaited_here(&self, id: usize) -> bool {
        let Some(here) = rseq::cpu() else {
            return false;
        };
        let mine = self.members[id].progress.meetings.load(Ordering::Relaxed);
        let near = self.tree.members(self.tree.leaf(id));
        near.iter().any(|&id| {
            let member = &self.members[id as usize];
            member.progress.cpu.load(Ordering::Relaxed) == here + 1
                && member.progress.meetings.load(Ordering::Relaxed) < mine
        })
    }
}
