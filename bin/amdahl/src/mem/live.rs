//! Page faults and waits for the address-space lock so far, again and again.

use std::collections::HashMap;
use std::time::Duration;

use amdahl_mem::first_touch::Touches;
use amdahl_probe::bpf::{Losses, Mappings, Part, Recorder, Settings};
use amdahl_report::mem::schema::{FaultKind, FaultSite, Faults, MemResult, SCHEMA};
use amdahl_report::schema::Source;
use amdahl_top::{By, Data};
use amdahl_topology::CpuSet;

use super::follow::Followed;
use super::look::Looker;
use super::mapped::Mapped;
use super::{cut, sources, tlb_misses, warnings_of};
use crate::cli::Selection;
use crate::top::live::{Live, Look};
use crate::watch::{Follow, present, processes};

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
    command: Vec<String>,
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
        let mut followed = Followed::new(looker, 0);
        if selection.system {
            followed.tlb.count_all(cpus);
        }
        let mut sources = sources::recorded(&missing, holds);
        sources.extend(sources::not_asked(holds));
        Recorded {
            followed,
            sources,
            has_vmalloc: !missing.contains(&"alloc_vmap_area"),
            has_holds: holds,
            command: selection.whom(),
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
        let (tlb, tlb_source) = tlb_misses(&self.followed.tlb);
        let sources = self.sources.iter().cloned().chain([tlb_source]);
        let mut faults = self.followed.fault_tables(true);
        faults.lost = losses.events;
        let mut warnings = warnings_of(losses.stacks, &self.followed);
        warnings.extend(losses.is_cut.then(|| cut("")));
        warnings.extend(self.mapped.hints());
        let mut found = MemResult {
            schema: SCHEMA.to_owned(),
            amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: self.command.clone(),
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
pub struct Accounted {
    selection: Selection,
    /// At the first look, and now.
    faults: HashMap<u32, [Counted; 2]>,
    names: HashMap<u32, String>,
    source: Source,
    is_first: bool,
    mapped: Mapped,
}

/// Minor and major faults of a process.
type Counted = [u64; 2];

/// How often: one that lives shorter may be missed.
const PAUSE: Duration = Duration::from_millis(500);
/// Processes that are kept.
const PROCESSES_MAX: usize = 100_000;

impl Accounted {
    /// Of whom `selection` says. `why` says why BPF is not used, and `remedy` what helps.
    pub fn new(selection: &Selection, why: &str, remedy: &str) -> Accounted {
        Accounted {
            selection: selection.clone(),
            faults: HashMap::new(),
            names: HashMap::new(),
            source: Source {
                what: "page faults".to_owned(),
                how: "/proc".to_owned(),
                missing: format!(
                    "Only how many each process had{why}: no code, no kinds, no times, no waits for mmap_lock and \
                     no holds of it, no first uses by node, no TLB misses, nothing of vmalloc."
                ),
                remedy: remedy.to_owned(),
            },
            is_first: true,
            mapped: Mapped::new(selection),
        }
    }

    fn kinds(&self) -> [u64; 2] {
        let mut sums = [0_u64; 2];
        for [before, now] in self.faults.values() {
            for (sum, (now, before)) in sums.iter_mut().zip(now.iter().zip(before)) {
                *sum = sum.saturating_add(now.saturating_sub(*before));
            }
        }
        sums
    }
}

fn counted(pid: u32) -> Option<Counted> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace();
    let minor = fields.nth(7)?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some([minor, major])
}

impl Look for Accounted {
    fn look(&mut self) -> Duration {
        for (pid, _) in present(&self.selection, self.selection.pid) {
            let Some(now) = counted(pid) else {
                continue;
            };
            if self.faults.len() >= PROCESSES_MAX && !self.faults.contains_key(&pid) {
                continue;
            }
            // One that is new has had all its faults since the first look.
            let first = if self.is_first { now } else { [0; 2] };
            self.faults.entry(pid).or_insert([first, now])[1] = now;
            self.names
                .entry(pid)
                .or_insert_with(|| processes::comm(pid, pid));
        }
        self.is_first = false;
        PAUSE
    }

    fn data(&mut self, by: By, seconds: f64) -> Data {
        let kinds = ["minor", "major"].into_iter().zip(self.kinds());
        let kinds: Vec<FaultKind> = kinds
            .map(|(kind, count)| FaultKind {
                kind: kind.to_owned(),
                count,
                ..FaultKind::default()
            })
            .collect();
        let mut sites = Vec::new();
        for (&pid, [before, now]) in &self.faults {
            for (at, kind) in kinds.iter().enumerate() {
                let count = now[at].saturating_sub(before[at]);
                if count > 0 {
                    sites.push(FaultSite {
                        kind: kind.kind.clone(),
                        count,
                        pid,
                        process: self.names.get(&pid).cloned().unwrap_or_default(),
                        ..FaultSite::default()
                    });
                }
            }
        }
        sites.sort_by_key(|site| (std::cmp::Reverse(site.count), site.pid));
        sites.truncate(500);
        let count = kinds.iter().map(|kind| kind.count).sum();
        let listed: u64 = sites.iter().map(|site| site.count).sum();
        let mut found = MemResult {
            schema: SCHEMA.to_owned(),
            amdahl_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: self.selection.whom(),
            duration_s: seconds,
            faults: Faults {
                count,
                kinds,
                left_out: count - listed,
                sites,
                ..Faults::default()
            },
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
