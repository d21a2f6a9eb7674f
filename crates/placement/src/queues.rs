//! Which run queue serves which CPUs.

use std::ops::Range;

use crate::{CpuId, Machine};

/// Index of a run queue, from 0 without holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

impl QueueId {
    /// As an index into an array of queues.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which run queue serves which CPUs. Each CPU has one queue; that of several CPUs is a range of CPUs.
///
/// A dispatcher has one queue more, the [inbox](Self::inbox), which serves no CPU: tasks wait
/// there until they are assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    of_cpu: Box<[QueueId]>,
    /// First CPU of each queue, and the number of CPUs.
    bounds: Box<[CpuId]>,
    inbox: bool,
}

impl Queues {
    /// One queue for all CPUs.
    pub fn one(machine: &Machine) -> Self {
        Self::of_ranges(machine, std::iter::once(0..machine.cpus()))
    }

    /// A queue for each CPU; the queue of CPU c is `QueueId(c)`.
    pub fn per_cpu(machine: &Machine) -> Self {
        Self::of_ranges(machine, (0..machine.cpus()).map(|cpu| cpu..cpu + 1))
    }

    /// A queue for each CPU, and an inbox.
    pub fn with_inbox(machine: &Machine) -> Self {
        Queues {
            inbox: true,
            ..Self::per_cpu(machine)
        }
    }

    /// A queue for each `size` CPUs (0 counts as 1). A group does not reach beyond its last-level cache: the last
    /// one of each may be smaller.
    pub fn groups(machine: &Machine, size: u32) -> Self {
        let size = size.max(1);
        let of_llc = |llc| {
            let cpus = machine.llc_cpus(llc);
            let end = cpus.end;
            cpus.step_by(size as usize)
                .map(move |first| first..end.min(first.saturating_add(size)))
        };
        Self::of_ranges(machine, (0..machine.llcs()).flat_map(of_llc))
    }

    fn of_ranges(machine: &Machine, ranges: impl Iterator<Item = Range<CpuId>>) -> Self {
        let mut of_cpu = Vec::with_capacity(machine.cpus() as usize);
        let mut bounds = vec![];
        for (range, queue) in ranges.zip(0..) {
            bounds.push(range.start);
            of_cpu.extend(range.map(|_| QueueId(queue)));
        }
        bounds.push(machine.cpus());
        Queues {
            of_cpu: of_cpu.into(),
            bounds: bounds.into(),
            inbox: false,
        }
    }

    /// How many queues there are, the inbox included.
    pub fn len(&self) -> usize {
        self.bounds.len() - 1 + usize::from(self.inbox)
    }

    /// Never: a machine has at least one CPU.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The queue that serves `cpu`.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub fn of(&self, cpu: CpuId) -> QueueId {
        self.of_cpu[cpu as usize]
    }

    /// The CPUs that `queue` serves; none for the inbox.
    pub fn cpus(&self, queue: QueueId) -> Range<CpuId> {
        match self.bounds.get(queue.index()..=queue.index() + 1) {
            Some(&[first, end]) => first..end,
            _ => 0..0,
        }
    }

    /// The CPU whose bit in [`View::overloaded`](crate::View::overloaded) stands for `queue`: its first one. `None`
    /// for the inbox.
    pub fn lead(&self, queue: QueueId) -> Option<CpuId> {
        let cpus = self.cpus(queue);
        (!cpus.is_empty()).then_some(cpus.start)
    }

    /// Where tasks wait for the dispatcher.
    pub fn inbox(&self) -> Option<QueueId> {
        self.inbox.then(|| QueueId(self.bounds.len() as u32 - 1))
    }
}

#[cfg(test)]
mod tests {
    use amdahl_topology::Topology;

    use super::*;

    fn machine(description: &str) -> Machine {
        Machine::new(&Topology::synthetic(description).unwrap())
    }

    #[test]
    fn groups_end_at_the_cache() {
        let m = machine("2 llc x 5 core");
        let queues = Queues::groups(&m, 2);
        let ranges: Vec<_> = (0..queues.len() as u32)
            .map(|queue| queues.cpus(QueueId(queue)))
            .collect();
        assert_eq!(ranges, [0..2, 2..4, 4..5, 5..7, 7..9, 9..10]);
        assert_eq!((queues.of(4), queues.of(9)), (QueueId(2), QueueId(5)));
        assert_eq!(queues.lead(QueueId(4)), Some(7));
        assert_eq!(Queues::groups(&m, u32::MAX).len(), 2);
        assert_eq!(Queues::groups(&m, 0), Queues::per_cpu(&m));
    }

    #[test]
    fn the_inbox_serves_nobody() {
        let m = machine("3 core");
        let queues = Queues::with_inbox(&m);
        assert_eq!((queues.len(), queues.inbox()), (4, Some(QueueId(3))));
        assert_eq!(
            (queues.cpus(QueueId(3)), queues.lead(QueueId(3))),
            (0..0, None)
        );
        assert_eq!((Queues::one(&m).len(), Queues::one(&m).inbox()), (1, None));
    }
}
