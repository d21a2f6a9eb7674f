//! Events to stretches for Perfetto: who ran where, and who waited to run.

use amdahl_report::schema::Slice;
use amdahl_report::trace::Names;
use amdahl_sched::event::{CpuId, Event, Ns, Off, Tid};
use amdahl_sched::recording::{FolderError, FolderReader};
use rustc_hash::FxHashMap;

/// Stretches that a trace is written with: some 60 MB of text before compression.
pub const SLICES_MAX: usize = 300_000;

/// Stretches of the first events of a recording.
pub struct Slices {
    slices: Vec<Slice>,
    names: Names,
    is_cut: bool,
}

#[derive(Default)]
struct Builder {
    begin: Ns,
    /// Who runs, and since when.
    cpus: FxHashMap<CpuId, (Tid, Ns)>,
    /// Who waits since when, and why.
    waiting: FxHashMap<Tid, (Ns, &'static str)>,
    who: FxHashMap<Tid, (Tid, String)>,
    slices: Vec<Slice>,
    names: Names,
}

impl Slices {
    /// Reads parts until there are `max` stretches.
    pub fn new(parts: FolderReader, max: usize) -> Result<Slices, FolderError> {
        let (mut builder, mut is_cut, mut is_first) = (Builder::default(), false, true);
        for part in parts {
            let part = part?;
            if std::mem::take(&mut is_first) {
                // Parts that gave way leave a gap in front.
                builder.begin = part.events.first().map_or(part.meta.begin, Event::ts);
            }
            for event in &part.events {
                if builder.slices.len() >= max {
                    is_cut = true;
                    break;
                }
                builder.event(event);
            }
            if is_cut {
                break;
            }
        }
        let Builder { slices, names, .. } = builder;
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
        self.slices.push(Slice {
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
    use super::*;

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
