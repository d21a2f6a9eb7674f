//! Run queues as far as events tell of them.

use std::collections::BTreeSet;

use amdahl_topology::Topology;

use super::Analysis;
use crate::event::{CpuId, Ns, Tid};
use crate::outcome::CpuRow;
use crate::threads::State;
use crate::wasted::{Place, Waiter};

#[derive(Debug)]
pub(super) struct Cpu {
    place: Place,
    /// Who runs, 0 if nobody; `None` if that is not known.
    pub current: Option<Tid>,
    /// Since when.
    pub since: Ns,
    /// Events before the next switch were lost.
    pub has_gap: bool,
    /// Who waits, and since when.
    queue: BTreeSet<(Ns, Tid)>,
    /// The one of these that the CPU, idle still, is about to run.
    expected: Option<Tid>,
    /// The pairing was told that it idles.
    is_idle: bool,
    changed_at: Ns,
    pub row: CpuRow,
}

impl Cpu {
    pub fn new(topology: &Topology, id: CpuId, begin: Ns) -> Cpu {
        let place = match topology.cpu(id) {
            Some(cpu) => (cpu.node, cpu.llc, cpu.core, id),
            None => (u32::MAX, u32::MAX, u32::MAX, id),
        };
        Cpu {
            place,
            current: None,
            since: begin,
            has_gap: false,
            queue: BTreeSet::new(),
            expected: None,
            is_idle: false,
            changed_at: begin,
            row: CpuRow {
                cpu: id,
                ..CpuRow::default()
            },
        }
    }

    pub fn waiting(&self) -> impl Iterator<Item = Tid> + '_ {
        self.queue.iter().map(|&(_, tid)| tid)
    }

    /// Nobody runs, or nobody knows.
    fn is_free(&self) -> bool {
        self.current.is_none_or(|tid| tid == 0)
    }

    /// Who waits although the CPU is idle runs next; the others wait behind somebody.
    fn next_expected(&self) -> Option<Tid> {
        let first = self.queue.first().map(|&(_, tid)| tid);
        first.filter(|_| self.is_free())
    }

    /// Counts the queue's length up to `now`, before it changes.
    pub fn count(&mut self, now: Ns) {
        let ns = now.saturating_sub(self.changed_at);
        self.changed_at = now;
        let waiting = self.queue.len() as u64;
        self.row.queued_ns = self
            .row
            .queued_ns
            .saturating_add(ns.saturating_mul(waiting));
        if waiting > u64::from(self.is_free()) {
            self.row.overloaded_ns += ns;
        }
    }

    /// The row with what lasts still.
    pub fn row_until(&self, id: CpuId, end: Ns) -> CpuRow {
        let mut row = self.row.clone();
        row.cpu = id;
        let ns = end.saturating_sub(self.since);
        match self.current {
            Some(0) => row.idle_ns += ns,
            Some(_) => row.run_ns += ns,
            None => {}
        }
        let waited = end.saturating_sub(self.changed_at);
        let waiting = self.queue.len() as u64;
        row.queued_ns = row.queued_ns.saturating_add(waited.saturating_mul(waiting));
        if waiting > u64::from(self.is_free()) {
            row.overloaded_ns += waited;
        }
        row
    }
}

impl Analysis {
    /// Puts a waiting thread into the queue of `cpu`.
    pub(super) fn enqueue(&mut self, cpu: CpuId, tid: Tid) {
        let Some(thread) = self.threads.get(tid) else {
            return;
        };
        let State::Waiting { since, is_woken } = thread.state else {
            return;
        };
        let (class, is_kernel) = (thread.class, thread.row.is_kernel);
        let state = self.cpus.get_mut(&cpu).expect("the caller made it");
        state.count(self.now);
        state.queue.insert((since, tid));
        state.row.queued_max = state.row.queued_max.max(state.queue.len());
        // A per-CPU thread of the kernel does that CPU's work.
        if !(is_kernel && self.wasted.is_pinned(class)) {
            let waiter = Waiter::new(since, state.place, class, is_woken);
            if state.next_expected() != Some(tid) {
                self.wasted.wait(self.now, tid, waiter);
            }
        }
        self.refresh(cpu);
    }

    /// Takes a thread out of the queue in which it waits, if it does. Its state stays.
    pub(super) fn dequeue(&mut self, tid: Tid) {
        let Some(thread) = self.threads.get(tid) else {
            return;
        };
        let (State::Waiting { since, .. }, Some(cpu)) = (thread.state, thread.cpu) else {
            return;
        };
        let Some(state) = self.cpus.get_mut(&cpu) else {
            return;
        };
        state.count(self.now);
        state.queue.remove(&(since, tid));
        self.wasted.wait_no_more(self.now, tid);
        self.refresh(cpu);
    }

    /// Tells who waits for nothing and which CPU idles, after a change of one CPU.
    pub(super) fn refresh(&mut self, cpu: CpuId) {
        let state = self.cpus.get_mut(&cpu).expect("the caller made it");
        state.count(self.now);
        let expected = state.next_expected();
        let (place, is_idle) = (
            state.place,
            state.current == Some(0) && state.queue.is_empty(),
        );
        let before = std::mem::replace(&mut state.expected, expected);
        let was_idle = std::mem::replace(&mut state.is_idle, is_idle);
        if before != expected {
            if let Some(tid) = expected {
                self.wasted.wait_no_more(self.now, tid);
            }
            // Who was expected and is in the queue still waits behind another now.
            if let Some(tid) = before {
                self.wait_again(cpu, tid);
            }
        }
        match (was_idle, is_idle) {
            (false, true) => self.wasted.cpu_idle(self.now, place),
            (true, false) => self.wasted.cpu_busy(self.now, place),
            _ => {}
        }
    }

    fn wait_again(&mut self, cpu: CpuId, tid: Tid) {
        let Some(thread) = self.threads.get(tid) else {
            return;
        };
        let State::Waiting { since, is_woken } = thread.state else {
            return;
        };
        let state = &self.cpus[&cpu];
        let is_pinned_kernel = thread.row.is_kernel && self.wasted.is_pinned(thread.class);
        if state.queue.contains(&(since, tid)) && !is_pinned_kernel {
            let waiter = Waiter::new(since, state.place, thread.class, is_woken);
            self.wasted.wait(self.now, tid, waiter);
        }
    }
}
