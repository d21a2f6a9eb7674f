//! The sums of `phantom.bpf.c`, made from events by the same rules: for recorded and simulated scheduling, and as the
//! reference of what the kernel side has to do.

use rustc_hash::FxHashMap;

use crate::sums::{CpuLine, Totals, Who};

/// What the scheduler tells. Thread 0 is a CPU's idle thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A CPU goes over from one thread to another.
    Switch {
        /// Where.
        cpu: u32,
        /// Who leaves.
        prev: u32,
        /// It could have gone on.
        is_runnable: bool,
        /// Who comes.
        next: u32,
    },
    /// A sleeping thread is put into a run queue.
    Wake {
        /// CPU whose event it is, which need not be that of the queue.
        cpu: u32,
        /// Who.
        tid: u32,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Off,
    Waits,
    Runs,
}

/// Adds up events.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    lines: Vec<CpuLine>,
    ours: FxHashMap<u32, State>,
}

impl Tally {
    /// For CPUs with numbers below `cpus`.
    pub fn new(cpus: u32) -> Tally {
        Tally {
            lines: vec![CpuLine::default(); cpus as usize],
            ours: FxHashMap::default(),
        }
    }

    /// Makes a thread one of ours.
    pub fn add(&mut self, tid: u32) {
        self.ours.entry(tid).or_default();
    }

    /// A thread is ours.
    pub fn has(&self, tid: u32) -> bool {
        self.ours.contains_key(&tid)
    }

    /// Takes an event; those of one CPU in their order. Events of CPUs that there are not are left out.
    pub fn take(&mut self, at_ns: u64, event: Event) {
        match event {
            Event::Switch {
                cpu,
                prev,
                is_runnable,
                next,
            } => self.switch(at_ns, cpu, (prev, is_runnable), next),
            Event::Wake { cpu, tid } => {
                let Some(line) = self.lines.get_mut(cpu as usize) else {
                    return;
                };
                if let Some(state) = self.ours.get_mut(&tid)
                    && *state == State::Off
                {
                    *state = State::Waits;
                    begin(line, at_ns);
                }
            }
        }
    }

    fn switch(&mut self, at_ns: u64, cpu: u32, (prev, is_runnable): (u32, bool), next: u32) {
        let Some(line) = self.lines.get_mut(cpu as usize) else {
            return;
        };
        let ran = match line.since_ns {
            0 => 0,
            since => at_ns.saturating_sub(since),
        };
        match self.ours.get_mut(&prev) {
            Some(state) if prev != 0 => {
                line.run_ns = line.run_ns.saturating_add(ran);
                // Its wait counts already if it was woken while it ran and nobody knew that it did.
                let waited = *state == State::Waits;
                *state = if is_runnable {
                    State::Waits
                } else {
                    State::Off
                };
                match (is_runnable, waited) {
                    (true, false) => begin(line, at_ns),
                    (false, true) => end(line, at_ns),
                    _ => {}
                }
            }
            _ if prev == 0 => line.idle_ns = line.idle_ns.saturating_add(ran),
            _ => {}
        }
        line.who = match self.ours.get_mut(&next) {
            _ if next == 0 => Who::Nobody,
            Some(state) => {
                if *state == State::Waits {
                    end(line, at_ns);
                }
                *state = State::Runs;
                Who::Ours
            }
            None => Who::Other,
        };
        line.since_ns = at_ns;
    }

    /// The sums at `now_ns`, idling only of `allowed` CPUs.
    pub fn totals(&self, now_ns: u64, allowed: impl Fn(u32) -> bool) -> Totals {
        let lines = self.lines.iter().enumerate();
        Totals::at(
            now_ns,
            lines.map(|(cpu, line)| (*line, allowed(cpu as u32))),
        )
    }
}

fn begin(line: &mut CpuLine, at_ns: u64) {
    line.waits_ns = line.waits_ns.wrapping_sub(at_ns as i64);
    line.waiting = line.waiting.wrapping_add(1);
}

fn end(line: &mut CpuLine, at_ns: u64) {
    line.waits_ns = line.waits_ns.wrapping_add(at_ns as i64);
    line.waiting = line.waiting.wrapping_sub(1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Estimator, Reading, Settings};

    /// A scheduler without rules: at each step somebody does something that is possible. It knows the truth.
    struct Chaos {
        now: u64,
        /// Who runs on each CPU.
        cpus: Vec<u32>,
        /// Threads that could run; all others sleep or run.
        queue: Vec<u32>,
        tally: Tally,
        run_ns: u64,
        wait_ns: u64,
        idle_ns: u64,
    }

    const THREADS: u32 = 12;
    /// Threads up to this one are ours.
    const OURS: u32 = 5;

    impl Chaos {
        fn new(cpus: usize) -> Chaos {
            let mut tally = Tally::new(cpus as u32);
            for tid in 1..=OURS {
                tally.add(tid);
            }
            // Each CPU's first event, from which on its state is known.
            for cpu in 0..cpus as u32 {
                tally.take(
                    1,
                    Event::Switch {
                        cpu,
                        prev: 0,
                        is_runnable: true,
                        next: 0,
                    },
                );
            }
            Chaos {
                now: 1,
                cpus: vec![0; cpus],
                queue: Vec::new(),
                tally,
                run_ns: 0,
                wait_ns: 0,
                idle_ns: 0,
            }
        }

        fn pass(&mut self, ns: u64) {
            let is_ours = |tid: &&u32| (1..=OURS).contains(*tid);
            self.now += ns;
            self.run_ns += ns * self.cpus.iter().filter(is_ours).count() as u64;
            self.idle_ns += ns * self.cpus.iter().filter(|tid| **tid == 0).count() as u64;
            self.wait_ns += ns * self.queue.iter().filter(is_ours).count() as u64;
        }

        fn wake(&mut self, on: usize, tid: u32) {
            // One that runs may be told of, too: it was woken before it slept.
            let is_off = !self.queue.contains(&tid) && !self.cpus.contains(&tid);
            let cpu = (on % self.cpus.len()) as u32;
            self.tally.take(self.now, Event::Wake { cpu, tid });
            if is_off {
                self.queue.push(tid);
            }
        }

        fn switch(&mut self, on: usize, is_runnable: bool, whom: usize) {
            let cpu = on % self.cpus.len();
            let prev = self.cpus[cpu];
            let next = if self.queue.is_empty() || whom == 0 {
                0
            } else {
                self.queue.swap_remove(whom % self.queue.len())
            };
            if prev != 0 && is_runnable {
                self.queue.push(prev);
            }
            self.cpus[cpu] = next;
            self.tally.take(
                self.now,
                Event::Switch {
                    cpu: cpu as u32,
                    prev,
                    is_runnable,
                    next,
                },
            );
        }
    }

    proptest! {
        /// At any time, in the middle of whatever goes on, the sums are the truth; and so are the estimates made of them.
        #[test]
        fn sums_are_exact_at_any_time(
            cpus in 1..5_usize,
            steps in prop::collection::vec((1..50_000_000_u64, any::<bool>(), 0..8_usize, any::<bool>(), 0..16_usize), 1..300),
        ) {
            let mut chaos = Chaos::new(cpus);
            let mut estimator = Estimator::new(Settings { window_ns: 1 });
            let mut before = (chaos.now, 0, 0, 0);
            for (ns, is_wake, on, is_runnable, whom) in steps {
                chaos.pass(ns);
                let totals = chaos.tally.totals(chaos.now, |_| true);
                prop_assert_eq!((totals.run_ns, totals.wait_ns, totals.idle_ns), (chaos.run_ns, chaos.wait_ns, chaos.idle_ns));
                let estimate = estimator.tick(Reading {
                    at_ns: chaos.now,
                    run_ns: totals.run_ns,
                    wait_ns: Some(totals.wait_ns),
                    idle_ns: totals.idle_ns,
                    allowed: cpus as u32,
                    ..Reading::default()
                });
                if let Some(estimate) = estimate {
                    let span = (chaos.now - before.0) as f64;
                    let truth = |now: u64, before: u64| (now - before) as f64 / span;
                    let phantom = truth(chaos.wait_ns, before.2);
                    let runnable = truth(chaos.run_ns + chaos.idle_ns, before.1 + before.3);
                    prop_assert!((estimate.phantom_avg() - phantom).abs() < 1e-6);
                    prop_assert!((estimate.runnable_cpus() - runnable).abs() < 1e-6);
                }
                before = (chaos.now, chaos.run_ns, chaos.wait_ns, chaos.idle_ns);
                if is_wake {
                    chaos.wake(on, 1 + whom as u32 % THREADS);
                } else {
                    chaos.switch(on, is_runnable, whom);
                }
            }
        }

        /// Events that cannot be do no harm.
        #[test]
        fn any_events_are_taken(events in prop::collection::vec((any::<u64>(), any::<bool>(), 0..4_u32, 0..4_u32, any::<bool>(), 0..4_u32), 0..100)) {
            let mut tally = Tally::new(2);
            tally.add(1);
            tally.add(2);
            for (at_ns, is_wake, cpu, prev, is_runnable, next) in events {
                tally.take(at_ns, if is_wake { Event::Wake { cpu, tid: prev } } else { Event::Switch { cpu, prev, is_runnable, next } });
                let _ = tally.totals(at_ns, |cpu| cpu == 0);
            }
        }
    }
}
