//! Page faults and waits for the address-space lock so far, again and again.

use std::time::Duration;

use amdahl_mem::first_touch::Touches;
use amdahl_probe::bpf::{Losses, Mappings, Part, Recorder, Settings};
use amdahl_report::mem::schema::{MemResult, SCHEMA};
use amdahl_report::schema::Source;
use amdahl_top::{By, Data};
use amdahl_topology::CpuSet;

use super::accounted::Accounted;
use super::follow::Followed;
use super::look::Looker;
use super::mapped::Mapped;
use super::{cut, sources, tlb_misses, warnings_of};
use crate::cli::Selection;
use crate::top::live::{Live, Look};
use crate::watch::Follow;

/// What the recorder is to record.
pub fn settings(cpus: &CpuSet, holds: bool) -> Settings {
    Settings {
        mappings: Mappings::All,
        ..Settings::new(sources::programs(holds), cpus.iter().collect())
    }
}

/// Whom the recording is of. It never looks.
pub fn looker(selection: &Selection) -> Looker {
    Looker::new(selection)
}

/// A recording.
pub struct Recorded<'a> {
    followed: Followed<'a>,
    sources: Vec<Source>,
    has_vmalloc: bool,
    has_holds: bool,
    selection: Selection,
    mapped: Mapped,
}

impl<'a> Recorded<'a> {
    /// Nothing has happened yet. With `holds` the recorder tells how long `mmap_lock` is held.
    pub fn new(
        selection: &Selection,
        recorder: &Recorder,
        cpus: &CpuSet,
        looker: &'a Looker,
        holds: bool,
    ) -> Recorded<'a> {
        let missing: Vec<&str> = recorder.missing().collect();
        let mut followed = Followed::new(looker, &missing, 0);
        if selection.system {
            followed.tlb.count_all(cpus);
        }
        let mut sources = sources::recorded(&missing, holds);
        sources.extend(sources::hidden_names());
        sources.push(sources::not_live());
        Recorded {
            followed,
            sources,
            has_vmalloc: !missing.contains(&"alloc_vmap_area"),
            has_holds: holds,
            selection: selection.clone(),
            mapped: Mapped::new(selection),
        }
    }
}

impl Follow for Recorded<'_> {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        self.followed.attach(pid, threads);
    }

    fn take(&mut self, part: Part) {
        self.followed.take(part);
    }
}

impl Live for Recorded<'_> {
    fn data(&mut self, by: By, seconds: f64, losses: Losses) -> Data {
        let (tlb, tlb_source) = tlb_misses(&self.followed.tlb, &self.selection);
        let sources = self.sources.iter().cloned().chain([tlb_source]);
        let mut faults = self.followed.fault_tables(true);
        faults.lost = losses.events;
        let mut warnings = warnings_of(losses.stacks, &self.followed);
        warnings.extend(losses.is_cut.then(|| cut("")));
        let mut found = MemResult {
            schema: SCHEMA.to_owned(),
            amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: self.selection.whom(),
            duration_s: seconds,
            faults,
            warnings,
            mmap_lock: self.followed.lock_tables(self.has_holds),
            vmalloc: self.has_vmalloc.then(|| self.followed.vmalloc_table()),
            tlb,
            sources: sources.collect(),
            ..MemResult::default()
        };
        // Looking takes the lock that is watched: only for who wants to see it.
        if by == By::Mapping {
            self.mapped.tell(&self.followed.touches, &mut found);
        } else {
            self.mapped.of_the_machine(&mut found);
        }
        Data::Mem(found)
    }
}

/// What the kernel accounts for each process: read from `/proc`.
pub struct Looked {
    selection: Selection,
    accounted: Accounted,
    source: Source,
    mapped: Mapped,
}

impl Looked {
    /// At whom `selection` says. `why` says why BPF is not used, and `remedy` what helps.
    pub fn new(selection: &Selection, why: &str, remedy: &str) -> Looked {
        Looked {
            selection: selection.clone(),
            accounted: Accounted::new(selection),
            source: Source {
                what: "page faults".to_owned(),
                how: "/proc".to_owned(),
                missing: format!(
                    "Only how many each process had{why}: no code, no kinds, no times, no waits for mmap_lock and \
                     no holds of it, no first uses by node, no TLB misses, nothing of vmalloc."
                ),
                remedy: remedy.to_owned(),
            },
            mapped: Mapped::new(selection),
        }
    }
}

impl Look for Looked {
    fn look(&mut self) -> Duration {
        self.accounted.look()
    }

    fn data(&mut self, by: By, seconds: f64) -> Data {
        let mut found = MemResult {
            schema: SCHEMA.to_owned(),
            amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: self.selection.whom(),
            duration_s: seconds,
            faults: self.accounted.faults(),
            sources: vec![self.source.clone()],
            ..MemResult::default()
        };
        if by == By::Mapping {
            self.mapped.tell(&Touches::default(), &mut found);
        } else {
            self.mapped.of_the_machine(&mut found);
        }
        Data::Mem(found)
    }
}
