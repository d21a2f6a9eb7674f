//! Events to stretches for Perfetto: who ran where, and who waited to run.

use std::collections::VecDeque;

use amdahl_report::schema::Slice;
use amdahl_report::trace::Names;
use amdahl_sched::event::{CpuId, Event, Ns, Off, Tid};
use amdahl_sched::recording::{FolderError, FolderReader};
use rustc_hash::FxHashMap;

/// Stretches that a trace is written with that nobody asked for: some 60 MB of text before compression.
pub const SLICES_MAX: usize = 300_000;

/// Stretches of the first events of a recording.
pub struct Slices {
    slices: Vec<Slice>,
    names: Names,
    is_cut: bool,
}

/// All stretches of a recording, one part in memory at a time.
pub struct Stretches {
    parts: FolderReader,
    events: std::vec::IntoIter<Event>,
    builder: Builder,
    is_first: bool,
    failure: Option<FolderError>,
}

#[derive(Default)]
struct Builder {
    begin: Ns,
    /// Who runs, and since when.
    cpus: FxHashMap<CpuId, (Tid, Ns)>,
    /// Who waits since when, and why.
    waiting: FxHashMap<Tid, (Ns, &'static str)>,
    who: FxHashMap<Tid, (Tid, String)>,
    slices: VecDeque<Slice>,
    names: Names,
}

impl Slices {
    /// Reads parts until there are `max` stretches.
    pub fn new(parts: FolderReader, max: usize) -> Result<Slices, FolderError> {
        let mut all = Stretches::new(parts);
        let slices: Vec<Slice> = all.by_ref().take(max).collect();
        let is_cut = all.next().is_some();
        let names = std::mem::take(&mut all.builder.names);
        all.finish()?;
        Ok(Slices {
            slices,
            names,
            is_cut,
        })
    }

    /// There were more.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The stretches.
    pub fn into_slices(self) -> (Vec<Slice>, Names) {
        (self.slices, self.names)
    }
}

impl Stretches {
    /// Of these parts.
    pub fn new(parts: FolderReader) -> Stretches {
        Stretches {
            parts,
            events: Vec::new().into_iter(),
            builder: Builder::default(),
            is_first: true,
            failure: None,
        }
    }

    /// The error that has ended them, if it was one.
    pub fn finish(self) -> Result<(), FolderError> {
        self.failure.map_or(Ok(()), Err)
    }
}

impl Iterator for Stretches {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        loop {
            if let Some(slice) = self.builder.slices.pop_front() {
                return Some(slice);
            }
            if let Some(event) = self.events.next() {
                self.builder.event(&event);
                continue;
            }
            if self.failure.is_some() {
                return None;
            }
            match self.parts.next()? {
                Ok(part) => {
                    if std::mem::take(&mut self.is_first) {
                        // Parts that gave way leave a gap in front.
                        self.builder.begin = part.events.first().map_or(part.meta.begin, Event::ts);
                    }
                    self.events = part.events.into_iter();
                }
                Err(error) => self.failure = Some(error),
            }
        }
    }
}

/// Names of all threads of a recording.
pub fn names(parts: FolderReader) -> Result<Names, FolderError> {
    let mut builder = Builder::default();
    for part in parts {
        for event in &part?.events {
            if let Event::Thread { tid, pid, name, .. } = event {
                builder.name(*tid, *pid, name);
            }
        }
    }
    Ok(builder.names)
}

impl Builder {
    fn event(&mut self, event: &Event) {
        match *event {
            Event::Switch {
                ts,
                cpu,
                prev,
                off,
                next,
            } => self.switch(ts, cpu, prev, off, next),
            Event::Waking { ts, tid, .. } => {
                self.waiting.entry(tid).or_insert((ts, "run queue (woken)"));
            }
            Event::Fork { ts, child, .. } => {
                self.waiting.insert(child, (ts, "run queue (new)"));
            }
            Event::Thread {
                tid, pid, ref name, ..
            } => self.name(tid, pid, name),
            Event::Lost { cpu, .. } => {
                self.cpus.remove(&cpu);
                self.waiting.clear();
            }
            Event::Migrate { .. } | Event::Allowed { .. } => {}
        }
    }

    fn name(&mut self, tid: Tid, pid: Tid, name: &str) {
        self.who.insert(tid, (pid, name.to_owned()));
        // The pid of a stranger is not known.
        if pid != 0 {
            self.names.threads.insert((pid, tid), name.to_owned());
            if tid == pid {
                self.names.processes.insert(pid, name.to_owned());
            }
        }
    }

    fn switch(&mut self, ts: Ns, cpu: CpuId, prev: Tid, off: Off, next: Tid) {
        if let Some((tid, since)) = self.cpus.insert(cpu, (next, ts))
            && tid == prev
            && prev != 0
        {
            let (pid, label) = match self.who.get(&prev) {
                Some((pid, name)) => (*pid, name.clone()),
                None => (0, prev.to_string()),
            };
            self.push(Some(cpu), pid, prev, since, ts, label);
        }
        self.waiting.remove(&prev);
        match off {
            Off::Preempted => drop(self.waiting.insert(prev, (ts, "run queue (preempted)"))),
            Off::Yielded => drop(self.waiting.insert(prev, (ts, "run queue (yielded)"))),
            Off::Blocked { .. } | Off::Exited => {}
        }
        if let Some((since, label)) = self.waiting.remove(&next)
            && let Some(&(pid, _)) = self.who.get(&next)
            && pid != 0
            && next != 0
        {
            self.push(None, pid, next, since, ts, label.to_owned());
        }
    }

    fn push(&mut self, cpu: Option<CpuId>, pid: Tid, tid: Tid, from: Ns, to: Ns, label: String) {
        self.slices.push_back(Slice {
            cpu,
            pid,
            tid,
            start_ns: from.saturating_sub(self.begin),
            len_ns: to.saturating_sub(from),
            label,
        });
    }
}

#[cfg(test)]
mod tests {
    use amdahl_sched::recording::{Meta, PART_EVENTS_MAX, PartWriter};
    use amdahl_topology::Topology;

    use super::*;

    /// Those beyond five millions were left out without a word.
    #[test]
    fn a_trace_that_was_asked_for_has_all_stretches() {
        let mut writer = PartWriter::new(Meta {
            topology: Topology::synthetic("2 core").expect("a machine"),
            tick_ns: 4_000_000,
            begin: 0,
            is_everyone: true,
        });
        let (name, is_kernel) = ("five".into(), false);
        writer.add(Event::Thread {
            ts: 0,
            tid: 5,
            pid: 5,
            is_kernel,
            name,
        });
        // One event less than would fill it, and each but the first ends a stretch.
        for ts in 1..PART_EVENTS_MAX as Ns {
            writer.add(Event::Switch {
                ts,
                cpu: 0,
                prev: 5,
                off: Off::Exited,
                next: 5,
            });
        }
        let folder = tempfile::tempdir().expect("a folder");
        let part = |number| folder.path().join(format!("{number:06}.parquet"));
        let bytes = writer.write(Vec::new()).expect("a part");
        std::fs::write(part(1), bytes).expect("a file");
        for number in 2..=20 {
            std::fs::hard_link(part(1), part(number)).expect("a link");
        }
        let parts = || FolderReader::open(folder.path()).expect("parts");
        let mut all = Stretches::new(parts());
        let count = all.by_ref().count();
        assert_eq!(count, 20 * (PART_EVENTS_MAX - 1) - 1);
        assert!(all.finish().is_ok() && count > 5_000_000);
        assert_eq!(names(parts()).expect("names").processes[&5], "five");
        let some = Slices::new(parts(), 300_000).expect("stretches");
        assert!(some.is_cut() && some.into_slices().0.len() == 300_000);
        // A part that cannot be read is no end.
        std::fs::write(part(21), b"PAR1 nonsense PAR1").expect("a file");
        let mut all = Stretches::new(parts());
        assert_eq!((all.by_ref().count(), all.finish().is_err()), (count, true));
    }

    #[test]
    fn threads_run_and_wait_in_turn() {
        let mut builder = Builder::default();
        let blocked = Off::Blocked {
            in_iowait: false,
            uninterruptible: false,
        };
        for event in [
            Event::Thread {
                ts: 0,
                tid: 5,
                pid: 5,
                is_kernel: false,
                name: "five".into(),
            },
            Event::Switch {
                ts: 10,
                cpu: 1,
                prev: 0,
                off: Off::Preempted,
                next: 5,
            },
            Event::Switch {
                ts: 30,
                cpu: 1,
                prev: 5,
                off: Off::Preempted,
                next: 6,
            },
            Event::Switch {
                ts: 50,
                cpu: 1,
                prev: 6,
                off: blocked,
                next: 5,
            },
        ] {
            builder.event(&event);
        }
        let found: Vec<_> = builder
            .slices
            .iter()
            .map(|slice| {
                (
                    slice.cpu,
                    slice.tid,
                    slice.start_ns,
                    slice.len_ns,
                    slice.label.as_str(),
                )
            })
            .collect();
        let expected = [
            (Some(1), 5, 10, 20, "five"),
            (Some(1), 6, 30, 20, "6"),
            (None, 5, 30, 20, "run queue (preempted)"),
        ];
        assert_eq!(found, expected);
        assert_eq!(builder.names.processes[&5], "five");
    }
}
