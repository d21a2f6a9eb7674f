//! From the parts of a recording to what became of a run's capacity, while the run goes on.

use std::sync::mpsc::Receiver;

use amdahl_probe::bpf::{Counts, Decoded, Decoder, Events, Part, Recorder, RecorderError, keep_up};
use amdahl_probe::clock;
use amdahl_speedup::event::{Event, Ns};
use amdahl_speedup::partition::{Partition, RunPartition};
use amdahl_topology::CpuSet;

/// The run that is analysed.
pub struct Run<'a> {
    /// Its CPUs.
    pub cpus: &'a CpuSet,
    /// Its begin.
    pub from: Ns,
    /// Its first process; 0 if there are several from the beginning.
    pub pid: u32,
    /// Stretches to keep for a trace.
    pub stretches: usize,
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
    /// Of a run that has just begun.
    pub fn new(run: Run<'a>, decoder: &'a mut Decoder) -> Analysis<'a> {
        Analysis {
            run,
            decoder,
            decoded: Decoded::default(),
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
        let partition = self.partition.get_or_insert_with(|| begin(run, &events));
        partition.learn(&decoded.stacks[self.learned..]);
        self.learned = decoded.stacks.len();
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

fn begin(run: &Run<'_>, events: &Events) -> Partition {
    let occupants: Vec<_> = run
        .cpus
        .iter()
        .map(|cpu| (cpu, events.occupant_at(cpu, run.from)))
        .collect();
    let mut partition = Partition::new(run.from, &occupants).keep_stretches(run.stretches);
    if run.pid != 0 {
        partition.feed(&Event::Fork {
            ts: run.from,
            parent: 0,
            child: run.pid,
            pid: run.pid,
            cpu: run.cpus.first().unwrap_or(0),
        });
    }
    partition
}
