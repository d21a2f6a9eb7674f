//! From the parts of a recording to what became of a run's capacity, while the run goes on.

use std::sync::mpsc::Receiver;

use amdahl_probe::bpf::{Counts, Decoded, Decoder, Events, Part, Recorder, RecorderError, keep_up};
use amdahl_probe::clock;
use amdahl_speedup::event::{Blocked, CpuId, Event, Ns, Occupant, Off, StackTable};
use amdahl_speedup::partition::{Partition, RunPartition};
use amdahl_speedup::snapshot::{State, ThreadState};
use amdahl_topology::CpuSet;

/// The run that is analysed.
pub struct Run<'a> {
    /// Its CPUs.
    pub cpus: &'a CpuSet,
    /// Its begin.
    pub from: Ns,
    /// Who is there when it begins.
    pub who: Who,
    /// Stretches to keep for a trace.
    pub stretches: usize,
}

/// Who is there when a run begins.
pub enum Who {
    /// Its first process, which has just been forked.
    Started(u32),
    /// Threads that were there before, as a look at them shortly after the begin found them.
    Found(Vec<ThreadState>),
}

/// Parts become events, and those are added up and forgotten.
pub struct Analysis<'a> {
    run: Run<'a>,
    decoder: &'a mut Decoder,
    decoded: Decoded,
    /// There is none before the first part, which tells who ran in the beginning.
    partition: Option<Partition>,
    /// Stacks that the partition knows.
    learned: usize,
    spent: Ns,
}

/// The outcome.
pub struct Analysed {
    /// Where the capacity went.
    pub partition: RunPartition,
    /// Stacks and names.
    pub decoded: Decoded,
    /// CPU seconds that it took.
    pub seconds: f64,
    /// Share of the run that the partition accounts for.
    pub covered: f64,
    /// Share of the run after which the memory for events was used up; 1 if it was not.
    pub cut: f64,
}

impl<'a> Analysis<'a> {
    /// Of a run that has just begun; `stacks` are those that the threads found wait in.
    pub fn new(run: Run<'a>, stacks: StackTable, decoder: &'a mut Decoder) -> Analysis<'a> {
        Analysis {
            run,
            decoder,
            decoded: Decoded::after(stacks),
            partition: None,
            learned: 0,
            spent: 0,
        }
    }

    /// Follows a recording until `wait` returns, and ends it. Besides what that returned there are
    /// the last part and what is known at the end.
    pub fn follow_during<T>(
        &mut self,
        recorder: &mut Recorder,
        parts: Receiver<Part>,
        wait: impl FnOnce() -> T,
    ) -> Result<(T, Part, Counts), RecorderError> {
        std::thread::scope(|scope| {
            let following = std::thread::Builder::new()
                .name("amdahl-analyse".into())
                .spawn_scoped(scope, move || self.follow(&parts))
                .map_err(|source| RecorderError::System {
                    what: "start a thread",
                    source,
                })?;
            let waited = wait();
            let counts = recorder.end();
            let last = following.join().expect("the analysis does not panic");
            Ok((waited, last, counts?))
        })
    }

    /// Takes all parts but the last one, which it returns: when the run ended is not known yet.
    fn follow(&mut self, parts: &Receiver<Part>) -> Part {
        keep_up();
        let mut last = None;
        for part in parts {
            if let Some(before) = last.replace(part) {
                self.take(before, Ns::MAX);
            }
        }
        last.unwrap_or_default()
    }

    fn take(&mut self, part: Part, to: Ns) {
        let begun = clock::thread_cpu();
        let events = self.decoder.decode(part, &mut self.decoded);
        let (run, decoded) = (&self.run, &self.decoded);
        let first = self.partition.is_none().then(|| occupants(run, &events));
        let partition = self.partition.get_or_insert_with(|| {
            let occupants = first.as_deref().unwrap_or_default();
            Partition::new(run.from, occupants).keep_stretches(run.stretches)
        });
        partition.learn(&decoded.stacks[self.learned..]);
        self.learned = decoded.stacks.len();
        if let Some(occupants) = first {
            beginning(run, &occupants, |event| partition.feed(&event));
        }
        events.for_each(decoded, |event| {
            if let Event::Gap { ts, until, window } = *event {
                let (ts, until) = (ts.max(run.from), until.min(to));
                if ts < until {
                    partition.feed(&Event::Gap { ts, until, window });
                }
            } else if event.ts() >= run.from && event.ts() <= to {
                partition.feed(event);
            }
        });
        partition.compact();
        self.decoded.forget_names(|| partition.told(), |_| false);
        self.spent += clock::thread_cpu() - begun;
    }

    /// Takes the last part of a run that ended at `to`, throttled for `throttled` until then.
    pub fn finish(mut self, last: Part, to: Ns, throttled: Ns, counts: &Counts) -> Analysed {
        // A clock may stand still during a very short run.
        let (from, end) = (self.run.from, to.max(self.run.from + 1));
        let to = counts.cut.map_or(end, |cut| cut.clamp(from + 1, end));
        let cut = (to - from) as f64 / (end - from) as f64;
        self.take(last, to);
        let begun = clock::thread_cpu();
        let mut partition = self.partition.expect("a part was taken");
        for &(cpu, count) in counts.lost.iter().filter(|&&(_, count)| count > 0) {
            partition.feed(&Event::Lost { ts: to, cpu, count });
        }
        if throttled > 0 {
            partition.feed(&Event::Throttled {
                ts: to,
                window: to - from,
                ns: (throttled as f64 * cut) as Ns,
            });
        }
        let partition = partition.finish(to);
        self.decoded.close();
        Analysed {
            decoded: self.decoded,
            seconds: (self.spent + clock::thread_cpu() - begun) as f64 * 1e-9,
            covered: cut * partition.accounted(),
            cut,
            partition,
        }
    }
}

fn occupants(run: &Run<'_>, events: &Events) -> Vec<(CpuId, Occupant)> {
    let found = events.occupants_at(run.from);
    let occupant = |cpu| found.get(&cpu).copied().unwrap_or(Occupant::Idle);
    run.cpus.iter().map(|cpu| (cpu, occupant(cpu))).collect()
}

/// A CPU that no machine has: where threads were before anybody looked.
const NOWHERE: CpuId = CpuId::MAX;

/// Feeds who is there when the run begins; `occupants` are those of the CPUs, as far as switches tell.
fn beginning(run: &Run<'_>, occupants: &[(CpuId, Occupant)], mut feed: impl FnMut(Event)) {
    let ts = run.from;
    let joins = |child, pid, cpu| Event::Fork {
        ts,
        parent: 0,
        child,
        pid,
        cpu,
    };
    let threads = match &run.who {
        Who::Started(pid) => return feed(joins(*pid, *pid, run.cpus.first().unwrap_or(0))),
        Who::Found(threads) => threads,
    };
    let mut free: Vec<CpuId> = occupants
        .iter()
        .filter(|(_, by)| *by == Occupant::Idle)
        .map(|&(cpu, _)| cpu)
        .collect();
    for (place, thread) in (0..).zip(threads) {
        let tid = thread.tid;
        feed(joins(tid, thread.pid, thread.cpu));
        let by = Occupant::Workload(tid);
        let had = occupants.iter().find(|(_, occupant)| *occupant == by);
        let free_at = free.iter().position(|&cpu| cpu == thread.cpu);
        match (&thread.state, had, free_at) {
            (_, Some(&(cpu, _)), _) => feed(Event::Occupied { ts, cpu, by }),
            // Who never leaves a CPU meets no switch: it looks as if the CPU was idle.
            (State::Runnable, None, Some(at)) => {
                let cpu = free.swap_remove(at);
                feed(Event::Occupied { ts, cpu, by });
            }
            (State::Runnable, None, None) => {}
            (State::Waiting(waiting), None, _) => {
                feed(Event::Switch {
                    ts,
                    cpu: NOWHERE,
                    prev: by,
                    off: Off::Blocked(Blocked {
                        // Of its own: what is known of a place holds for all who wait there.
                        place: u64::MAX - place,
                        ..waiting.blocked
                    }),
                    next: Occupant::Idle,
                });
                let cpu = thread.cpu;
                feed(Event::Migrate { ts, tid, cpu });
            }
            (State::Stopped, None, _) => feed(Event::Exit { ts, tid }),
        }
    }
}

#[cfg(test)]
mod tests {
    use amdahl_speedup::cause::Cause;
    use amdahl_speedup::snapshot::Waiting;

    use super::*;

    const NS: Ns = 1_000_000_000;

    fn thread(tid: u32, cpu: CpuId, state: State) -> ThreadState {
        ThreadState {
            tid,
            pid: 7,
            state,
            cpu,
            cpu_ns: 0,
            queued_ns: 0,
            turns: 0,
            user_ns: 0,
            system_ns: 0,
        }
    }

    fn sleeping() -> State {
        State::Waiting(Waiting {
            blocked: Blocked {
                syscall: Some(syscalls::Sysno::clock_nanosleep as u32),
                ..Blocked::default()
            },
            is_readable: true,
            wchan: "".into(),
            reach: Default::default(),
        })
    }

    /// A second in which nothing is seen to happen.
    fn quiet(occupants: &[(CpuId, Occupant)], threads: Vec<ThreadState>) -> RunPartition {
        let cpus: CpuSet = occupants.iter().map(|&(cpu, _)| cpu).collect();
        let run = Run {
            cpus: &cpus,
            from: NS,
            who: Who::Found(threads),
            stretches: 0,
        };
        let mut partition = Partition::new(NS, occupants);
        beginning(&run, occupants, |event| partition.feed(&event));
        partition.finish(2 * NS)
    }

    fn off_cpu(partition: &RunPartition, cause: Cause) -> f64 {
        let charges = partition.off.iter().filter(|(key, _)| key.cause == cause);
        charges.map(|(_, charge)| charge.ns).sum()
    }

    #[test]
    fn who_never_leaves_its_cpu_has_it_from_the_beginning() {
        let idle = [(0, Occupant::Idle), (1, Occupant::Idle)];
        let partition = quiet(&idle, vec![thread(8, 1, State::Runnable)]);
        assert_eq!((partition.on_cpu_ns, partition.idle_ns), (1e9, 1e9));
        assert_eq!(partition.processes[&8], 7);
        // Switches tell more than the look, which comes a little later.
        let busy = [(0, Occupant::Workload(8)), (1, Occupant::Other(9))];
        let partition = quiet(&busy, vec![thread(8, 1, sleeping())]);
        assert_eq!((partition.on_cpu_ns, partition.idle_ns), (1e9, 0.0));
    }

    #[test]
    fn who_sleeps_on_sleeps_from_the_beginning() {
        let idle = [(0, Occupant::Idle)];
        let partition = quiet(&idle, vec![thread(8, 0, sleeping())]);
        assert_eq!(partition.idle_ns, 1e9);
        assert_eq!(off_cpu(&partition, Cause::Sleep), 1e9);
        assert_eq!(off_cpu(&partition, Cause::Serial), 0.0);
    }

    #[test]
    fn who_is_stopped_is_nowhere() {
        let idle = [(0, Occupant::Idle)];
        let partition = quiet(&idle, vec![thread(8, 0, State::Stopped)]);
        assert_eq!((partition.on_cpu_ns, partition.idle_ns), (0.0, 1e9));
    }
}
