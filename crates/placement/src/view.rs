//! What a policy may look at.

use amdahl_spread::{CpuMask, SparseMask};

use crate::{CpuId, Machine, QueueId, Queues};

/// The state of a machine, as a policy sees it: atomics of a running pool, the state of a simulator, a toy in tests.
///
/// Everything may be stale by the time it is read; an answer that comes of it may fail when it is carried out
/// (the task was taken meanwhile), and the policy is asked again. Who implements it keeps these promises, each to
/// its own accuracy; with exact ones the policies' own promises are exact:
///
/// - `idle` has the online CPUs that run nothing and to which nothing is on its way. Who carries out a
///   [`Woken::Queue`](crate::Woken::Queue) takes the notified CPU out of it; a CPU puts itself in before it asks
///   what to do, and asks again after that when it is about to sleep, or it would miss what came between.
/// - `overloaded` has the [lead](Queues::lead) of each queue that holds a task that none of the queue's own CPUs
///   is about to take: for a queue of one CPU, when the CPU runs and a task waits, or two wait.
pub trait View {
    /// The machine: always the same one. CPUs that are offline are in it.
    fn machine(&self) -> &Machine;

    /// The queues as [`Policy::queues`](crate::Policy::queues) laid them out.
    fn queues(&self) -> &Queues;

    /// How many tasks wait in `queue`; those that run are not among them.
    fn waiting(&self, queue: QueueId) -> u32;

    /// Whether `cpu` runs a task, or one is on its way to it.
    fn running(&self, cpu: CpuId) -> bool;

    /// CPUs that may be used: online, and in the CPU set of the program.
    fn online(&self) -> &CpuMask;

    /// Online CPUs that run nothing.
    fn idle(&self) -> &CpuMask;

    /// Queues with more tasks than they can run, by the first CPU of each.
    fn overloaded(&self) -> &SparseMask;

    /// How much of an LLC's time went into tasks recently, from 0 to 1024.
    fn utilisation(&self, llc: u32) -> u32;

    /// Time in ns, from any origin. Never goes back as seen by one CPU.
    fn now(&self) -> u64;

    /// Whether an LLC may have a core without any running thread: a hint that saves a search. As it stands it
    /// looks at the idle CPUs of the LLC; a flag such as the kernel's `has_idle_cores` is cheaper.
    fn has_idle_core(&self, llc: u32) -> bool {
        let machine = self.machine();
        let mut idle = self.idle().iter_within(machine.llc_cpus(llc));
        idle.any(|cpu| {
            machine
                .siblings(cpu)
                .all(|sibling| self.idle().test(sibling))
        })
    }

    /// A search for an idle core of the LLC has found none: whoever keeps a flag for
    /// [`has_idle_core`](Self::has_idle_core) clears it here, and sets it when a core becomes idle.
    fn no_idle_core(&self, llc: u32) {
        let _ = llc;
    }

    /// Whether `cpu` is the program's own to spin on: not when somebody else wants it (a competitor, a quota
    /// that runs out, a hypervisor that takes it away).
    fn may_spin(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        true
    }
}
