//! Recorded scheduling made a workload again.
//!
//! Of each thread the stretches of computing stay as long as they were, and so do sleeps that a timer or a device
//! ended. A sleep that another recorded thread ended lasts until that thread gets there. So the replay
//! keeps who depends on whom, and leaves when it happens to the simulated machine.

use std::collections::HashMap;

use crate::program::{Kind, Named, Object, Op, Template, Time, VARS_FREE, Val, Workload};
use crate::random::Dist;
use crate::time::{Ns, TIME_MAX};

/// Threads shorter than this many events are as good as any others; there is a bound on all of them.
const OPS_MAX: usize = 20_000_000;

#[derive(Default)]
struct Thread {
    name: Option<String>,
    ops: Vec<Op>,
    /// Computed and not written down yet.
    computed: Ns,
    /// Since when it has been on a CPU.
    runs_since: Option<Ns>,
    /// Since when it has been asleep.
    sleeps_since: Option<Ns>,
    /// Made by a recorded thread, or when it was first seen.
    is_child: bool,
    first_seen: Ns,
    is_done: bool,
}

/// Collects what happened, in order of time.
#[derive(Default)]
pub struct Replay {
    threads: Vec<Thread>,
    by_id: HashMap<u32, usize>,
    begin: Option<Ns>,
    times: Vec<Time>,
    known_times: HashMap<Ns, u32>,
    ops: usize,
    is_cut: bool,
}

impl Replay {
    /// Nothing so far.
    pub fn new() -> Replay {
        Replay::default()
    }

    fn thread(&mut self, id: u32, now: Ns) -> usize {
        let begin = *self.begin.get_or_insert(now);
        let threads = &mut self.threads;
        *self.by_id.entry(id).or_insert_with(|| {
            threads.push(Thread {
                first_seen: now.saturating_sub(begin).min(TIME_MAX),
                ..Thread::default()
            });
            threads.len() - 1
        })
    }

    fn time(&mut self, ns: Ns) -> u32 {
        let ns = ns.min(TIME_MAX);
        let times = &mut self.times;
        *self.known_times.entry(ns).or_insert_with(|| {
            times.push(Time::Dist(Dist::Const(ns)));
            times.len() as u32 - 1
        })
    }

    fn push(&mut self, thread: usize, op: Op) {
        self.ops += 1;
        if self.ops > OPS_MAX {
            self.is_cut = true;
            return;
        }
        self.threads[thread].ops.push(op);
    }

    /// Writes down what a thread has computed until now.
    fn flush(&mut self, thread: usize, now: Ns) {
        let state = &mut self.threads[thread];
        if let Some(since) = &mut state.runs_since {
            state.computed += now.saturating_sub(*since);
            *since = now;
        }
        let computed = std::mem::take(&mut state.computed);
        if computed > 0 {
            let time = self.time(computed);
            self.push(thread, Op::Compute(time));
        }
    }

    /// What a thread is called.
    pub fn name(&mut self, id: u32, name: &str, now: Ns) {
        let thread = self.thread(id, now);
        self.threads[thread].name = Some(name.to_owned());
    }

    /// A thread got a CPU.
    pub fn on(&mut self, id: u32, now: Ns) {
        let thread = self.thread(id, now);
        let state = &mut self.threads[thread];
        // Who woke it was not seen: it slept for so long.
        let unseen = state.sleeps_since.take();
        state.runs_since = Some(now);
        if let Some(since) = unseen {
            self.sleep(thread, since, now);
        }
    }

    /// A thread left its CPU; `sleeps` if it waits for something, `ends` if it is gone.
    pub fn off(&mut self, id: u32, now: Ns, sleeps: bool, ends: bool) {
        let thread = self.thread(id, now);
        let state = &mut self.threads[thread];
        if let Some(since) = state.runs_since.take() {
            state.computed += now.saturating_sub(since);
        }
        if ends {
            self.flush(thread, now);
            self.threads[thread].is_done = true;
            // The kernel gives the number to another thread some time.
            self.by_id.remove(&id);
        } else if sleeps {
            self.threads[thread].sleeps_since = Some(now);
        }
    }

    fn sleep(&mut self, thread: usize, since: Ns, now: Ns) {
        self.flush(thread, now);
        let time = self.time(now.saturating_sub(since));
        self.push(thread, Op::Sleep(time));
    }

    /// A thread was woken, by another one or else by a timer or device.
    pub fn woken(&mut self, id: u32, by: Option<u32>, now: Ns) {
        let thread = self.thread(id, now);
        let Some(since) = self.threads[thread].sleeps_since.take() else {
            return;
        };
        let waker = by.and_then(|by| self.by_id.get(&by).copied());
        match waker.filter(|&waker| self.threads[waker].runs_since.is_some() && waker != thread) {
            Some(waker) => {
                self.flush(waker, now);
                self.push(waker, Op::Resume(Object::one(thread as u32)));
                self.flush(thread, now);
                self.push(thread, Op::Suspend(Object::one(thread as u32)));
            }
            None => self.sleep(thread, since, now),
        }
    }

    /// A thread made another one.
    pub fn forked(&mut self, parent: u32, child: u32, now: Ns) {
        self.by_id.remove(&child);
        let (maker, made) = (self.by_id.get(&parent).copied(), self.thread(child, now));
        let Some(maker) = maker.filter(|&maker| self.threads[maker].runs_since.is_some()) else {
            return;
        };
        self.flush(maker, now);
        self.threads[made].is_child = true;
        self.push(
            maker,
            Op::Spawn {
                template: made as u32,
                count: Val::constant(1),
                is_process: false,
            },
        );
    }

    /// The workload, and whether it is only a part because the recording was too long. `None` if there is no thread.
    pub fn finish(mut self, name: &str, now: Ns) -> Option<(Workload, bool)> {
        for thread in 0..self.threads.len() {
            if !self.threads[thread].is_done {
                self.flush(thread, now);
            }
        }
        if self.threads.iter().all(|thread| thread.ops.is_empty()) {
            return None;
        }
        let mut w = Workload {
            name: name.to_owned(),
            vars: usize::from(VARS_FREE),
            ..Workload::default()
        };
        w.times = self.times;
        w.notices = vec![0; self.threads.len()];
        for (index, thread) in (0..).zip(self.threads) {
            let name = thread.name.unwrap_or_else(|| format!("thread {index}"));
            w.names[Kind::Notice as usize].push(Named {
                name: format!("wake-up of {name}"),
                base: index,
                len: 1,
                is_array: false,
            });
            w.templates.push(Template {
                name,
                count: u32::from(!thread.is_child),
                entry: w.ops.len() as u32,
                start: Time::Dist(Dist::Const(if thread.is_child {
                    0
                } else {
                    thread.first_seen
                })),
                is_daemon: false,
                is_process: true,
                nice: 0,
                mask: None,
                node: None,
                memory_permille: 0,
            });
            w.ops.extend(thread.ops);
            w.ops.push(Op::Exit);
        }
        Some((w, self.is_cut))
    }
}
