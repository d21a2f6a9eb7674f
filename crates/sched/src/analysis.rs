//! Events to states of threads and CPUs.

mod queue;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use amdahl_topology::{CpuSet, Topology};
use rustc_hash::FxHashMap;

use crate::chain::Chains;
use crate::distance::{Distance, distance};
use crate::event::{CpuId, Event, Ns, Off, Tid, Waker};
use crate::histogram::Histogram;
use crate::names::{Name, Names};
use crate::outcome::{CpuRow, Outcome, ThreadRow, Totals};
use crate::picture::Picture;
use crate::threads::{State, Threads};
use crate::timelines::{Doing, Timelines};
use crate::wakers::{Wakers, waker_name};
use crate::wasted::{Class, Wasted};
use queue::Cpu;

/// CPUs at most; events of further ones are refused.
const CPUS_MAX: usize = 1 << 14;
/// A woken thread is in the queue of the CPU where it ran last unless a migration is told this soon.
const PLACING_NS: Ns = 5_000;

/// How to analyse.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The machine of the events.
    pub topology: Topology,
    /// Length of a scheduler tick.
    pub tick_ns: Ns,
    /// When recording began, if that is known.
    pub begin: Option<Ns>,
    /// Cells of the picture over all CPUs and of the timelines over all threads, at most; 0 where nobody looks at them.
    pub picture_cells: usize,
}

impl Settings {
    /// A tick of 4 ms, pictures of 200,000 cells.
    pub fn new(topology: Topology) -> Settings {
        Settings {
            topology,
            tick_ns: 4_000_000,
            begin: None,
            picture_cells: 200_000,
        }
    }
}

/// Takes events in order of time. One that comes late counts as happening now.
#[derive(Debug)]
pub struct Analysis {
    settings: Settings,
    begin: Option<Ns>,
    now: Ns,
    cpus: FxHashMap<CpuId, Cpu>,
    threads: Threads,
    wasted: Wasted,
    wakers: Wakers,
    chains: Chains,
    picture: Picture,
    timelines: Timelines,
    placing: VecDeque<(Ns, Tid)>,
    totals: Totals,
    wake_wait: Histogram,
    preempt_wait: Histogram,
    slices: Histogram,
    migrations: [u64; 5],
    names: Names,
    nobody: [Name; 3],
}

impl Analysis {
    /// Nothing has happened yet.
    pub fn new(settings: Settings) -> Analysis {
        let wakers = [Waker::Timer, Waker::Interrupt, Waker::Thread(0)];
        let mut names = Names::default();
        Analysis {
            begin: settings.begin,
            now: settings.begin.unwrap_or(0),
            cpus: FxHashMap::default(),
            threads: Threads::new(names.get("")),
            wasted: Wasted::new(settings.tick_ns),
            wakers: Wakers::default(),
            chains: Chains::default(),
            picture: Picture::new(settings.begin.unwrap_or(0), settings.picture_cells),
            timelines: Timelines::new(settings.begin.unwrap_or(0), settings.picture_cells),
            placing: VecDeque::new(),
            totals: Totals::default(),
            wake_wait: Histogram::default(),
            preempt_wait: Histogram::default(),
            slices: Histogram::default(),
            migrations: [0; 5],
            nobody: wakers.map(|waker| names.get(waker_name(waker))),
            names,
            settings,
        }
    }

    /// The recording begins now, whatever the settings say. To be told before any event.
    pub fn begin_at(&mut self, begin: Ns) {
        debug_assert_eq!(self.totals.events, 0, "it has begun");
        (self.begin, self.now) = (Some(begin), begin);
        self.picture = Picture::new(begin, self.settings.picture_cells);
        self.timelines = Timelines::new(begin, self.settings.picture_cells);
    }

    /// One event. O(log CPUs + log threads), and the columns of the pictures that a stretch fills.
    pub fn event(&mut self, event: &Event) {
        if self.begin.is_none() {
            self.begin_at(event.ts());
        }
        self.now = self.now.max(event.ts());
        self.totals.events += 1;
        self.settle_placing();
        match *event {
            Event::Switch {
                cpu,
                prev,
                off,
                next,
                ..
            } => self.switch(cpu, prev, off, next),
            Event::Waking {
                tid,
                waker,
                last_cpu,
                ..
            } => self.waking(tid, waker, last_cpu),
            Event::Migrate { tid, from, to, .. } => self.migrate(tid, from, to),
            Event::Fork {
                parent,
                child,
                pid,
                cpu,
                ..
            } => self.fork(parent, child, pid, cpu),
            Event::Thread {
                tid,
                pid,
                is_kernel,
                ref name,
                ..
            } => {
                self.name(tid, pid, is_kernel, name);
            }
            Event::Allowed { tid, ref cpus, .. } => self.allow(tid, cpus.as_ref()),
            Event::Lost { cpu, count, .. } => self.lost(cpu, count),
        }
        for (tid, ns) in self.wasted.take_settled() {
            if let Some(thread) = self.threads.get_mut(tid) {
                thread.row.wasted_ns += ns;
            }
        }
    }

    /// The picture so far, with what lasts at `end` up to then. O(CPUs + cells).
    pub fn picture(&self, end: Ns) -> Picture {
        let end = end.max(self.now);
        let mut picture = self.picture.clone();
        for (&id, cpu) in &self.cpus {
            if let Some(tid) = cpu.current.filter(|&tid| tid != 0) {
                picture.add(id, tid, cpu.since, end);
            }
        }
        picture
    }

    /// What threads did so far, with what lasts at `end` up to then. O(threads + cells).
    pub fn timelines(&self, end: Ns) -> Timelines {
        let end = end.max(self.now);
        let mut timelines = self.timelines.clone();
        for (tid, since) in self.running() {
            if let Some(thread) = self.threads.get(tid) {
                timelines.go_on(thread, Doing::Running, since, end);
            }
        }
        for thread in self.threads.living() {
            if let Some((doing, since)) = off_cpu(thread.state) {
                timelines.go_on(thread, doing, since, end);
            }
        }
        timelines
    }

    /// The tables, with what lasts at `end` counted up to then. The analysis can go on afterwards.
    /// O(threads + CPUs + pairs).
    pub fn outcome(&self, end: Ns) -> Outcome {
        let end = end.max(self.now);
        let running = self.running();
        let mut cpus: Vec<CpuRow> = Vec::with_capacity(self.cpus.len());
        let wasted = self.wasted.table(end);
        for (&id, cpu) in &self.cpus {
            let mut row = cpu.row_until(id, end);
            row.idle_wasted_ns = 0;
            cpus.push(row);
        }
        cpus.sort_unstable_by_key(|row| row.cpu);
        for pair in &wasted.pairs {
            if let Ok(i) = cpus.binary_search_by_key(&pair.idle, |row| row.cpu) {
                // Idle time that turned out to be somebody's is not wasted.
                let row = &mut cpus[i];
                row.idle_wasted_ns = row.idle_ns.min(row.idle_wasted_ns + pair.ns);
            }
        }
        let threads = self.threads.rows(|thread, row| {
            let since = running.get(&row.tid).copied();
            row.run_ns += since.map_or(0, |since| end.saturating_sub(since));
            match thread.state {
                State::Waiting {
                    since,
                    is_woken: true,
                }
                | State::Placing { since } => {
                    row.wake_wait.add(end.saturating_sub(since));
                }
                State::Waiting {
                    since,
                    is_woken: false,
                } => {
                    row.preempt_wait.add(end.saturating_sub(since));
                }
                State::Sleeping {
                    since,
                    in_iowait,
                    uninterruptible,
                } => row.slept(end.saturating_sub(since), in_iowait, uninterruptible),
                State::Unknown | State::Running => {}
            }
        });
        Outcome {
            begin: self.begin.unwrap_or(end),
            end,
            totals: Totals {
                wakeups_elsewhere: self.wakers.others,
                ..self.totals
            },
            threads,
            cpus,
            wake_wait: self.wake_wait.clone(),
            preempt_wait: self.preempt_wait.clone(),
            slices: self.slices.clone(),
            migrations: self.migrations,
            wasted,
            wakers: self.wakers.rows(),
            chains: self.chains.longest(),
        }
    }

    /// Who runs, and since when.
    fn running(&self) -> FxHashMap<Tid, Ns> {
        let cpus = self.cpus.values();
        let running =
            cpus.filter_map(|cpu| Some((cpu.current.filter(|&tid| tid != 0)?, cpu.since)));
        running.collect()
    }

    fn switch(&mut self, cpu: CpuId, prev: Tid, off: Off, next: Tid) {
        self.totals.switches += 1;
        if !self.know_cpu(cpu) {
            return;
        }
        self.leave(cpu, prev);
        if prev != 0 {
            self.off(cpu, prev, off);
        }
        if next != 0 {
            self.on(cpu, next);
        }
        let state = self.cpus.get_mut(&cpu).expect("it was made above");
        state.current = Some(next);
        state.since = self.now;
        state.row.switches += 1;
        let is_preemption = prev != 0 && matches!(off, Off::Preempted);
        state.row.preemptions += u64::from(is_preemption);
        self.refresh(cpu);
    }

    /// `prev` has run on `cpu` until now.
    fn leave(&mut self, cpu: CpuId, prev: Tid) {
        let begin = self.begin.unwrap_or(self.now);
        let state = self.cpus.get_mut(&cpu).expect("the caller made it");
        state.count(self.now);
        let is_expected = state.current.is_none_or(|tid| tid == prev);
        // Before the first switch on a CPU whoever leaves then was there.
        if state.current.is_none() && !state.has_gap {
            state.since = begin;
        }
        let since = if state.has_gap { self.now } else { state.since };
        state.has_gap = false;
        let unseen = state.current.filter(|&tid| !is_expected && tid != 0);
        self.totals.mended += u64::from(!is_expected);
        let ns = self.now - since.min(self.now);
        if prev == 0 {
            state.row.idle_ns += ns;
        } else {
            state.row.run_ns += ns;
        }
        // The switch in between was not seen. Who came then is taken to have been there all the time.
        if let Some(thread) = unseen.and_then(|tid| self.threads.get_mut(tid))
            && thread.state == State::Running
            && thread.cpu == Some(cpu)
        {
            thread.state = State::Unknown;
        }
        if prev != 0 {
            self.dequeue(prev);
            if let Some(thread) = self.threads.entry(prev) {
                thread.row.run_ns += ns;
                thread.row.slices.add(ns);
                self.timelines.add(thread, Doing::Running, since, self.now);
            }
            self.slices.add(ns);
            self.picture.add(cpu, prev, since, self.now);
        }
    }

    /// A thread has left its CPU.
    fn off(&mut self, cpu: CpuId, tid: Tid, off: Off) {
        let now = self.now;
        let Some(thread) = self.threads.entry(tid) else {
            self.totals.refused += 1;
            return;
        };
        thread.cpu = Some(cpu);
        match off {
            Off::Preempted | Off::Yielded => {
                thread.row.preempted += u64::from(off == Off::Preempted);
                thread.row.yielded += u64::from(off == Off::Yielded);
                thread.state = State::Waiting {
                    since: now,
                    is_woken: false,
                };
                self.enqueue(cpu, tid);
            }
            Off::Blocked {
                in_iowait,
                uninterruptible,
            } => {
                thread.row.blocked += 1;
                thread.state = State::Sleeping {
                    since: now,
                    in_iowait,
                    uninterruptible,
                };
                self.chains.ended(now, tid, &thread.name, &thread.episode);
            }
            Off::Exited => {
                self.chains.ended(now, tid, &thread.name, &thread.episode);
                thread.state = State::Unknown;
                // Of strangers only the end would be counted.
                self.totals.exits += u64::from(thread.row.pid != 0);
                self.threads.retire(tid);
            }
        }
    }

    /// A thread comes onto a CPU.
    fn on(&mut self, cpu: CpuId, tid: Tid) {
        let now = self.now;
        self.dequeue(tid);
        let Some(thread) = self.threads.entry(tid) else {
            self.totals.refused += 1;
            return;
        };
        if let Some((doing @ Doing::Waiting, since)) = off_cpu(thread.state) {
            self.timelines.add(thread, doing, since, now);
        }
        let waited = match thread.state {
            State::Waiting { since, is_woken } => Some((now.saturating_sub(since), is_woken)),
            State::Placing { since } => Some((now.saturating_sub(since), true)),
            // Its wake-up was not seen.
            State::Unknown | State::Running | State::Sleeping { .. } => None,
        };
        thread.state = State::Running;
        thread.cpu = Some(cpu);
        thread.episode.run(now);
        let Some((ns, is_woken)) = waited else {
            return;
        };
        if is_woken {
            thread.row.wake_wait.add(ns);
            self.wake_wait.add(ns);
            if let Some(waker) = thread.waker.take() {
                self.wakers
                    .add(waker, thread.name.clone(), ns, thread.woken_to_other_llc);
            }
        } else {
            thread.row.preempt_wait.add(ns);
            self.preempt_wait.add(ns);
        }
        if let Some(state) = self.cpus.get_mut(&cpu) {
            state.row.wait.add(ns);
        }
    }

    fn waking(&mut self, tid: Tid, waker: Waker, last_cpu: CpuId) {
        if tid == 0 || !self.know_cpu(last_cpu) {
            return;
        }
        let now = self.now;
        let by = match waker {
            Waker::Thread(by) => self.threads.get(by).map(|thread| (by, thread)),
            _ => None,
        };
        let name = match (waker, by) {
            (Waker::Timer, _) => self.nobody[0].clone(),
            (Waker::Interrupt, _) => self.nobody[1].clone(),
            (_, Some((_, by))) => by.name.clone(),
            (_, None) => self.nobody[2].clone(),
        };
        // Who wakes itself before it sleeps, or is woken again, keeps the place it has.
        let is_awake = self
            .threads
            .get(tid)
            .is_some_and(|thread| !matches!(thread.state, State::Unknown | State::Sleeping { .. }));
        if is_awake {
            return;
        }
        let by = by.map(|(by, thread)| (by, &thread.name, &thread.episode));
        let episode = self.chains.woken(now, waker, by);
        let Some(thread) = self.threads.entry(tid) else {
            self.totals.refused += 1;
            return;
        };
        self.totals.wakeups += 1;
        if let State::Sleeping {
            since,
            in_iowait,
            uninterruptible,
        } = thread.state
        {
            let ns = now.saturating_sub(since);
            thread.row.slept(ns, in_iowait, uninterruptible);
        }
        if let Some((doing, since)) = off_cpu(thread.state) {
            self.timelines.add(thread, doing, since, now);
        }
        thread.state = State::Placing { since: now };
        thread.cpu = Some(last_cpu);
        thread.episode = episode;
        thread.waker = Some(name);
        thread.woken_to_other_llc = false;
        self.placing.push_back((now, tid));
    }

    /// Threads whose queue nobody has told stay where they were.
    fn settle_placing(&mut self) {
        while let Some(&(at, tid)) = self.placing.front() {
            if at + PLACING_NS > self.now {
                break;
            }
            self.placing.pop_front();
            let Some(thread) = self.threads.get_mut(tid) else {
                continue;
            };
            if thread.state == (State::Placing { since: at }) {
                thread.state = State::Waiting {
                    since: at,
                    is_woken: true,
                };
                if let Some(cpu) = thread.cpu {
                    self.enqueue(cpu, tid);
                }
            }
        }
    }

    fn migrate(&mut self, tid: Tid, from: CpuId, to: CpuId) {
        if tid == 0 || from == to || !self.know_cpu(to) {
            return;
        }
        let distance = distance(&self.settings.topology, from, to);
        self.totals.migrations += 1;
        self.migrations[distance as usize] += 1;
        self.dequeue(tid);
        let Some(thread) = self.threads.entry(tid) else {
            self.totals.refused += 1;
            return;
        };
        thread.cpu = Some(to);
        thread.row.migrations[distance as usize] += 1;
        match thread.state {
            State::Placing { since } => {
                thread.row.migrations_at_wake += 1;
                thread.woken_to_other_llc = distance > Distance::Llc;
                thread.state = State::Waiting {
                    since,
                    is_woken: true,
                };
                self.enqueue(to, tid);
            }
            State::Waiting { .. } => self.enqueue(to, tid),
            State::Unknown | State::Running | State::Sleeping { .. } => {}
        }
    }

    fn fork(&mut self, parent: Tid, child: Tid, pid: Tid, cpu: CpuId) {
        if child == 0 || !self.know_cpu(cpu) {
            return;
        }
        let now = self.now;
        // The number may be that of a thread whose end was not seen.
        self.dequeue(child);
        self.threads.retire(child);
        let by = self.threads.get(parent);
        let name = by.map_or_else(|| self.nobody[2].clone(), |by| by.name.clone());
        let is_kernel = by.is_some_and(|by| by.row.is_kernel);
        let class = by.map_or(Class::ANY, |by| by.class);
        let by = by.map(|thread| (parent, &thread.name, &thread.episode));
        let episode = self.chains.woken(now, Waker::Thread(parent), by);
        let Some(thread) = self.threads.entry(child) else {
            self.totals.refused += 1;
            return;
        };
        self.totals.forks += 1;
        thread.name = name;
        thread.row.pid = pid;
        thread.row.is_kernel = is_kernel;
        thread.class = class;
        thread.cpu = Some(cpu);
        thread.episode = episode;
        thread.state = State::Waiting {
            since: now,
            is_woken: true,
        };
        self.enqueue(cpu, child);
    }

    fn name(&mut self, tid: Tid, pid: Tid, is_kernel: bool, name: &str) {
        if tid == 0 {
            return;
        }
        let Some(thread) = self.threads.entry(tid) else {
            self.totals.refused += 1;
            return;
        };
        thread.row.pid = pid;
        thread.row.is_kernel = is_kernel;
        if *thread.name != *name {
            thread.name = self.names.get(name);
        }
    }

    fn allow(&mut self, tid: Tid, cpus: Option<&CpuSet>) {
        if tid == 0 {
            return;
        }
        let class = cpus.map_or(Class::ANY, |cpus| self.wasted.class(cpus));
        let Some(thread) = self.threads.entry(tid) else {
            self.totals.refused += 1;
            return;
        };
        thread.class = class;
        if let (State::Waiting { .. }, Some(cpu)) = (thread.state, thread.cpu) {
            self.dequeue(tid);
            self.enqueue(cpu, tid);
        }
    }

    /// Nothing is known of the CPU and of those in its queue until they are seen again.
    fn lost(&mut self, cpu: CpuId, count: u64) {
        self.totals.lost = self.totals.lost.saturating_add(count);
        if !self.know_cpu(cpu) {
            return;
        }
        let waiting: Vec<Tid> = self.cpus[&cpu].waiting().collect();
        for tid in waiting {
            self.dequeue(tid);
            if let Some(thread) = self.threads.get_mut(tid) {
                thread.state = State::Unknown;
            }
        }
        let state = self.cpus.get_mut(&cpu).expect("it was made above");
        state.row.lost = state.row.lost.saturating_add(count);
        state.has_gap = true;
        let current = state.current.take();
        if let Some(thread) = current.and_then(|tid| self.threads.get_mut(tid)) {
            thread.state = State::Unknown;
        }
        self.refresh(cpu);
    }

    /// Makes the CPU if it was not seen before; false if there are too many.
    fn know_cpu(&mut self, id: CpuId) -> bool {
        if self.cpus.contains_key(&id) {
            return true;
        }
        if self.cpus.len() >= CPUS_MAX {
            self.totals.refused += 1;
            return false;
        }
        let begin = self.begin.unwrap_or(self.now);
        self.cpus
            .insert(id, Cpu::new(&self.settings.topology, id, begin));
        true
    }
}

/// What a thread does that is in this state, and since when; `None` if it runs or that is not known.
fn off_cpu(state: State) -> Option<(Doing, Ns)> {
    match state {
        State::Placing { since } | State::Waiting { since, .. } => Some((Doing::Waiting, since)),
        State::Sleeping {
            since,
            uninterruptible: true,
            ..
        } => Some((Doing::Blocked, since)),
        State::Sleeping { since, .. } => Some((Doing::Asleep, since)),
        State::Unknown | State::Running => None,
    }
}

/// Sums over all rows.
impl Outcome {
    /// Length of the recording.
    pub fn wall_ns(&self) -> Ns {
        self.end - self.begin
    }

    /// Rows of threads of the selection.
    pub fn selected(&self) -> impl Iterator<Item = &ThreadRow> {
        self.threads.iter().filter(|row| row.pid != 0)
    }
}
