//! Follows a recording: parts to events, to the analysis, to the disk.

use amdahl_probe::bpf::Part;
use amdahl_probe::bpf::wire::Slot;
use amdahl_probe::clock;
use amdahl_sched::Analysis;
use amdahl_sched::event::{Event, Ns};
use amdahl_sched::recording::{FolderError, FolderWriter};
use amdahl_topology::CpuSet;

use super::decode::Decoder;
use super::facts;
use crate::watch::Follow;

/// What becomes of the events.
pub struct Following {
    pub analysis: Analysis,
    pub writer: Option<FolderWriter>,
    /// Why the events are not on disk any more.
    pub failure: Option<FolderError>,
    decoder: Decoder,
    cpus: CpuSet,
    /// Known once somebody is watched; what came before is left out.
    begin: Option<Ns>,
}

impl Following {
    pub fn new(
        analysis: Analysis,
        writer: Option<FolderWriter>,
        is_everyone: bool,
        cpus: &CpuSet,
    ) -> Following {
        Following {
            analysis,
            writer,
            failure: None,
            decoder: Decoder::new(is_everyone, cpus.clone()),
            cpus: cpus.clone(),
            begin: None,
        }
    }

    fn give(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            self.analysis.event(&event);
            if let Some(writer) = &mut self.writer
                && let Err(error) = writer.add(event)
            {
                // The tables are worth having without the events.
                self.failure.get_or_insert(error);
                self.writer = None;
            }
        }
    }
}

impl Follow for Following {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        let begin = self.begin.unwrap_or_else(clock::monotonic);
        if self.begin.replace(begin).is_none() {
            // To get ready took some time, which is nobody's.
            self.analysis.begin_at(begin);
            if let Some(writer) = &mut self.writer {
                writer.begin_at(begin);
            }
            visit(&self.cpus);
        }
        let is_kernel = facts::is_kernel(pid);
        let mut events = Vec::new();
        for (tid, name) in threads {
            self.decoder
                .attach(begin, pid, *tid, name, is_kernel, &mut events);
        }
        // Facts have no time of their own: they hold from the beginning on.
        self.give(&mut events);
    }

    fn take(&mut self, part: Part) {
        // In order of time over all CPUs: who is new on one is seen on another at once.
        let begin = self.begin.unwrap_or(0);
        let slots = part.slots.iter().flatten();
        let mut slots: Vec<&Slot> = slots.filter(|slot| slot.ts >= begin).collect();
        slots.sort_by_key(|slot| slot.ts);
        let mut events = Vec::with_capacity(64);
        for slot in slots {
            self.decoder.slot(slot, &mut events);
            self.give(&mut events);
        }
    }
}

/// Runs on each CPU for a moment, so that its first switch tells at once who was there: of a CPU that idles on nothing
/// would be known otherwise.
fn visit(cpus: &CpuSet) {
    let Ok(before) = amdahl_topology::allowed() else {
        return;
    };
    let me = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    for cpu in cpus.intersection(&before).iter() {
        // A CPU that is not allowed is known later.
        let _ = amdahl_topology::set_allowed(me, &CpuSet::from_iter([cpu]));
    }
    let _ = amdahl_topology::set_allowed(me, &before);
}
