//! Waits for locks so far, again and again.

use amdahl_locks::{GroupBy, Table};
use amdahl_probe::bpf::{Losses, Part, Recorder, Settings, lock_constants};
use amdahl_probe::clock;
use amdahl_report::schema::Source;
use amdahl_top::{By, Data};
use amdahl_topology::CpuSet;

use super::follow::{Follower, name};
pub use super::unprivileged::Polling;
use super::{cut_source, programs, recorded_sources, result, sums_within, target, without};
use crate::cli::{LocksBy, Selection};
use crate::failure::Failure;
use crate::java;
use crate::top::live::{Live, Look};
use crate::watch::{Follow, Present};

fn by(by: By) -> LocksBy {
    match by {
        By::Thread => LocksBy::Thread,
        By::Process => LocksBy::Process,
        By::Lock => LocksBy::Lock,
        By::Stack => LocksBy::Stack,
        By::Site | By::Kind | By::Mapping | By::Cpu | By::Guest => LocksBy::Site,
    }
}

/// What the recorder is to record, with `owners` also how long `mmap_lock` is held.
pub fn settings(cpus: &CpuSet, owners: bool) -> Settings {
    Settings {
        constants: lock_constants(),
        ..Settings::new(programs(owners), cpus.iter().collect())
    }
}

/// A recording.
pub struct Recorded {
    follower: Follower,
    sources: Vec<Source>,
    target: String,
}

impl Recorded {
    /// Nothing has happened yet.
    pub fn new(
        selection: &Selection,
        recorder: &Recorder,
        owners: bool,
    ) -> Result<Recorded, Failure> {
        let cleared = recorder.clear_waits();
        let waits = cleared.and_then(|()| recorder.wait_table());
        let waits = waits.map_err(|error| Failure::machine(error.to_string()))?;
        let memory = selection.memory_bytes();
        let limits = sums_within(memory);
        Ok(Recorded {
            follower: Follower::new(waits, without(selection), 0, limits, memory),
            sources: recorded_sources(recorder, owners),
            target: target(selection),
        })
    }
}

impl Follow for Recorded {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        self.follower.attach(pid, threads);
    }

    fn look_back(&mut self, present: &Present) {
        self.follower.look_back(present);
    }

    fn take(&mut self, part: Part) {
        self.follower.take(part);
    }
}

impl Live for Recorded {
    fn data(&mut self, of: By, seconds: f64, losses: Losses) -> Data {
        let (tracker, decoded) = (&self.follower.tracker, &self.follower.decoded);
        let names = |tid| name(decoded, tid);
        let grouped = GroupBy::from(by(of));
        let open = self.follower.open(clock::monotonic());
        let table = Table::with_open(tracker, tracker.tally(), &open, grouped, &names);
        let mut found = result::result(&table, by(of));
        (found.seconds, found.events) = (seconds, self.follower.events);
        found.events_lost += losses.events;
        found.stacks_lost = losses.stacks;
        found.sources = self.sources.clone();
        found.sources.extend(losses.is_cut.then(cut_source));
        found.warnings.extend(self.follower.warnings());
        found.warnings.extend(java::notice(&decoded.stacks));
        result::note_goroutines(&mut found, "bpf");
        found.target = self.target.clone();
        Data::Locks(found)
    }
}

impl Look for Polling {
    fn look(&mut self) -> std::time::Duration {
        self.step()
    }

    fn data(&mut self, of: By, seconds: f64) -> Data {
        let mut found = self.result(by(of));
        found.seconds = seconds;
        Data::Locks(found)
    }
}
