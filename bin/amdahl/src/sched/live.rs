//! What the scheduler did so far, again and again.

use std::time::Duration;

use amdahl_probe::bpf::{Losses, Mappings, Part, Recorder, SCHED, Settings};
use amdahl_probe::clock;
use amdahl_report::schema::Source;
use amdahl_sched::Analysis;
use amdahl_sched::proc::CpuLook;
use amdahl_top::{By, Data};
use amdahl_topology::CpuSet;

use super::follow::Following;
use super::guests::Visits;
use super::record::{cut, sources, steal};
use super::{facts, polled, summary};
use crate::cli::Selection;
use crate::failure::Failure;
use crate::top::live::{Live, Look};
use crate::watch::{Follow, machine};

/// What the recorder is to record.
pub fn settings(cpus: &CpuSet) -> Settings {
    Settings {
        mappings: Mappings::Nothing,
        ..Settings::new(&SCHED, cpus.iter().collect())
    }
}

/// A recording.
pub struct Recorded {
    following: Following,
    sources: Vec<Source>,
    selection: Selection,
    visits: Visits,
    /// The CPUs when it began.
    looks: Vec<CpuLook>,
}

impl Recorded {
    /// Nothing has happened yet.
    pub fn new(
        selection: &Selection,
        recorder: &Recorder,
        cpus: &CpuSet,
    ) -> Result<Recorded, Failure> {
        let mut settings = amdahl_sched::Settings::new(machine::topology(cpus)?);
        settings.begin = Some(clock::monotonic());
        settings.tick_ns = facts::tick_ns();
        // The screen has none.
        settings.picture_cells = 0;
        let analysis = Analysis::new(settings);
        Ok(Recorded {
            following: Following::new(analysis, None, selection.system, cpus),
            sources: sources(recorder, selection.system),
            selection: selection.clone(),
            visits: Visits::new(),
            looks: facts::cpus_now(),
        })
    }
}

impl Follow for Recorded {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        self.following.attach(pid, threads);
    }

    fn take(&mut self, part: Part) {
        self.following.take(part);
    }
}

impl Live for Recorded {
    fn data(&mut self, by: By, _: f64, losses: Losses) -> Data {
        let outcome = self.following.analysis.outcome(clock::monotonic());
        let mut found = summary::result(&outcome, None);
        found.command = self.selection.whom();
        found.sources = self.sources.clone();
        found.totals.events_lost = losses.events;
        found.warnings.extend(losses.is_cut.then(cut));
        found.steal = steal(&self.looks, &facts::cpus_now());
        // To look for guests costs something.
        if by == By::Guest {
            let guests = self.visits.look(&self.selection, self.selection.pid);
            found.guests = summary::guests(&outcome, |row| {
                guests.guest_cpu(row.pid, row.tid, &row.name)
            });
        }
        Data::Sched(found)
    }
}

/// Sums from `/proc`.
pub struct Looked {
    sums: polled::Sums,
    selection: Selection,
    remedy: String,
    visits: Visits,
}

/// How often: a thread that lives shorter may be missed.
const PAUSE: Duration = Duration::from_millis(250);

impl Looked {
    /// Of whom `selection` says; `remedy` is what gives more.
    pub fn new(selection: &Selection, remedy: &str) -> Looked {
        Looked {
            sums: polled::Sums::new(),
            selection: selection.clone(),
            remedy: remedy.to_owned(),
            visits: Visits::new(),
        }
    }
}

impl Look for Looked {
    fn look(&mut self) -> Duration {
        self.sums.look(&self.selection, self.selection.pid);
        PAUSE
    }

    fn data(&mut self, by: By, seconds: f64) -> Data {
        let wall = Duration::from_secs_f64(seconds);
        // To look for guests costs something.
        let guests = match by {
            By::Guest => self.visits.look(&self.selection, self.selection.pid),
            _ => self.visits.known(),
        };
        let mut found = polled::result(&self.sums, guests, wall, self.remedy.clone());
        found.command = self.selection.whom();
        Data::Sched(found)
    }
}
