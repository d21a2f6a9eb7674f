//! Run queues: by virtual run time, as fair schedulers have them.

use crate::program::NONE;

/// A waiting task.
#[derive(Clone, Copy)]
struct Entry {
    /// Virtual run time; among equal ones the order of arrival.
    key: (u64, u32),
    task: u32,
}

/// A binary heap.
#[derive(Default)]
pub(crate) struct RunQueue {
    heap: Vec<Entry>,
    arrivals: u32,
    /// Never goes back; those who come from elsewhere or from sleep are placed by it.
    pub floor: u64,
    /// How many of its CPUs run something.
    pub busy: u32,
    /// How many of its CPUs look out for work.
    pub pollers: u32,
    /// How many of its CPUs are online.
    pub online: u32,
    /// The bit in the mask of overloaded queues is set.
    pub is_overloaded: bool,
    /// How many that wait may not run everywhere.
    pub pinned: u32,
    /// Its lock is held until then by those who came so far.
    pub held_until: u64,
    /// CPU that wrote to it last.
    pub line: u32,
}

impl RunQueue {
    pub fn new() -> RunQueue {
        RunQueue {
            line: NONE,
            ..RunQueue::default()
        }
    }

    pub fn len(&self) -> u32 {
        self.heap.len() as u32
    }

    /// The virtual run time of the next one.
    pub fn first(&self) -> Option<u64> {
        self.heap.first().map(|entry| entry.key.0)
    }

    /// O(log waiting); O(1) when the task goes last.
    pub fn push(&mut self, key: u64, task: u32) {
        self.arrivals = self.arrivals.wrapping_add(1);
        let entry = Entry {
            key: (key, self.arrivals),
            task,
        };
        self.heap.push(entry);
        self.up(self.heap.len() - 1);
    }

    /// The next one that may run on the queue's own CPU. O(log waiting) as long as the first one may.
    pub fn pop(&mut self, may_go: impl FnMut(u32) -> bool) -> Option<u32> {
        match self.pinned {
            0 if self.heap.is_empty() => None,
            0 => Some(self.take(0)),
            _ => self.steal(may_go),
        }
    }

    /// The next one of those that `may_go`. O(log waiting) when the first one may, else O(waiting).
    pub fn steal(&mut self, may_go: impl FnMut(u32) -> bool) -> Option<u32> {
        let at = self.find(may_go)?;
        Some(self.take(at))
    }

    /// The same, and leaves it there. O(1) when the first one may.
    pub fn next(&self, may_go: impl FnMut(u32) -> bool) -> Option<u32> {
        self.find(may_go).map(|at| self.heap[at].task)
    }

    fn find(&self, mut may_go: impl FnMut(u32) -> bool) -> Option<usize> {
        if may_go(self.heap.first()?.task) {
            return Some(0);
        }
        (1..self.heap.len())
            .filter(|&i| may_go(self.heap[i].task))
            .min_by_key(|&i| self.heap[i].key)
    }

    fn take(&mut self, at: usize) -> u32 {
        let taken = self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.down(at);
            self.up(at);
        }
        taken.task
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].key <= self.heap[at].key {
                break;
            }
            self.heap.swap(parent, at);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            for child in [left, right] {
                if child < self.heap.len() && self.heap[child].key < self.heap[least].key {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(least, at);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_least_goes_first_whoever_is_stolen(steps in prop::collection::vec((0u64..50, 0u32..4), 1..200)) {
            let mut queue = RunQueue::default();
            let mut model: Vec<(u64, u32)> = vec![];
            for (task, (key, what)) in (0..).zip(steps) {
                match what {
                    0 => {
                        let taken = queue.pop(|_| true);
                        let least = model.iter().copied().min();
                        prop_assert_eq!(taken, least.map(|(_, task)| task));
                        model.retain(|&(_, task)| Some(task) != taken);
                    }
                    1 => {
                        let taken = queue.steal(|task| task % 2 == 0);
                        let even = model.iter().copied().filter(|(_, task)| task % 2 == 0);
                        prop_assert_eq!(taken, even.min().map(|(_, task)| task));
                        model.retain(|&(_, task)| Some(task) != taken);
                    }
                    _ => {
                        queue.push(key, task);
                        model.push((key, task));
                    }
                }
                prop_assert_eq!(queue.len() as usize, model.len());
            }
        }
    }
}
