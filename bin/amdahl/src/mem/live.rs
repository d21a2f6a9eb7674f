//! Page faults and waits for the address-space lock so far, again and again.

use std::cmp::Reverse;
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
    processes: Processes,
    source: Source,
    mapped: Mapped,
}

/// Minor and major faults of a process.
type Counted = [u64; 2];

/// What processes had since the first look.
#[derive(Default)]
struct Processes {
    /// By number and time of their beginning: numbers come again.
    all: HashMap<(u32, u64), Process>,
    /// Of those that are gone and have no entry any more.
    gone: Counted,
    looks: u64,
}

struct Process {
    before: Counted,
    now: Counted,
    name: String,
    /// The look at which it was there last.
    at: u64,
}

impl Process {
    fn faults(&self) -> Counted {
        let [minor, major] = self.now;
        let before = self.before;
        [
            minor.saturating_sub(before[0]),
            major.saturating_sub(before[1]),
        ]
    }
}

/// How often: one that lives shorter may be missed.
const PAUSE: Duration = Duration::from_millis(500);
/// Processes that are gone and are kept; of the half with fewer faults there are sums beyond.
const GONE_MAX: usize = 10_000;

impl Processes {
    fn begin_look(&mut self) {
        self.looks += 1;
    }

    /// A process that is there, with what it had in all its life.
    fn add(&mut self, pid: u32, began: u64, now: Counted, name: impl FnOnce() -> String) {
        let at = self.looks;
        let process = self.all.entry((pid, began)).or_insert_with(|| Process {
            // One that is new has had all its faults since the first look.
            before: if at == 1 { now } else { [0; 2] },
            now,
            name: name(),
            at,
        });
        (process.now, process.at) = (now, at);
    }

    fn end_look(&mut self) {
        // Who was missed once may only have been unreadable, and would count from its beginning when it is back.
        let is_gone = |process: &Process| process.at + 1 < self.looks;
        if self.all.len() <= GONE_MAX {
            return;
        }
        let gone = self.all.iter().filter(|(_, process)| is_gone(process));
        let mut gone: Vec<_> = gone
            .map(|(&key, process)| (Reverse(process.faults().iter().sum::<u64>()), key))
            .collect();
        if gone.len() <= GONE_MAX {
            return;
        }
        gone.sort_unstable();
        for (_, key) in gone.split_off(GONE_MAX / 2) {
            if let Some(process) = self.all.remove(&key) {
                add(&mut self.gone, process.faults());
            }
        }
    }

    fn sums(&self) -> Counted {
        let mut sums = self.gone;
        for process in self.all.values() {
            add(&mut sums, process.faults());
        }
        sums
    }
}

fn add(sums: &mut Counted, more: Counted) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}

impl Accounted {
    /// Of whom `selection` says. `why` says why BPF is not used, and `remedy` what helps.
    pub fn new(selection: &Selection, why: &str, remedy: &str) -> Accounted {
        Accounted {
            selection: selection.clone(),
            processes: Processes::default(),
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

/// When a process began, and its faults, as `/proc/PID/stat` tells.
fn counted(stat: &str) -> Option<(u64, Counted)> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace();
    let minor = fields.nth(7)?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    let began = fields.nth(9)?.parse().ok()?;
    Some((began, [minor, major]))
}

impl Look for Accounted {
    fn look(&mut self) -> Duration {
        self.processes.begin_look();
        for (pid, _) in present(&self.selection, self.selection.pid) {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            let Some((began, now)) = stat.ok().and_then(|stat| counted(&stat)) else {
                continue;
            };
            let name = || processes::comm(pid, pid);
            self.processes.add(pid, began, now, name);
        }
        self.processes.end_look();
        PAUSE
    }

    fn data(&mut self, by: By, seconds: f64) -> Data {
        let kinds = ["minor", "major"].into_iter().zip(self.processes.sums());
        let kinds: Vec<FaultKind> = kinds
            .map(|(kind, count)| FaultKind {
                kind: kind.to_owned(),
                count,
                ..FaultKind::default()
            })
            .collect();
        let mut sites = Vec::new();
        for (&(pid, _), process) in &self.processes.all {
            for (kind, count) in kinds.iter().zip(process.faults()) {
                if count > 0 {
                    sites.push(FaultSite {
                        kind: kind.kind.clone(),
                        count,
                        pid,
                        process: process.name.clone(),
                        ..FaultSite::default()
                    });
                }
            }
        }
        sites.sort_by_key(|site| (Reverse(site.count), site.pid));
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

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "42 (a) b) R 1 42 42 0 -1 4194304 95 3 7 0 0 0 0 0 20 0 1 0 7788 2469888 227";

    #[test]
    fn names_may_hold_anything() {
        assert_eq!(counted(STAT), Some((7788, [95, 7])));
        assert_eq!(counted("42 (a R 1"), None);
    }

    fn look(processes: &mut Processes, found: &[(u32, u64, Counted)]) {
        processes.begin_look();
        for &(pid, began, now) in found {
            processes.add(pid, began, now, String::new);
        }
        processes.end_look();
    }

    /// The totals fell when a number came again: those of the other process had been taken for its own.
    #[test]
    fn a_number_that_comes_again_is_another_process() {
        let mut processes = Processes::default();
        look(&mut processes, &[(7, 1, [100, 10])]);
        look(&mut processes, &[(7, 1, [140, 10])]);
        assert_eq!(processes.sums(), [40, 0]);
        look(&mut processes, &[(7, 9, [30, 2])]);
        assert_eq!(processes.sums(), [70, 2]);
    }

    /// After 100,000 processes all further ones were left out without a word.
    #[test]
    fn of_processes_that_are_gone_the_sums_are_kept() {
        let mut processes = Processes::default();
        let mut expected = [0, 0];
        look(&mut processes, &[]);
        for at in 0..1_200_u32 {
            let found: Vec<_> = (100 * at..100 * at + 100)
                .map(|pid| (pid, u64::from(at), [u64::from(pid % 7), 1]))
                .chain([(u32::MAX, 0, [u64::from(at), 0])])
                .collect();
            look(&mut processes, &found);
            for &(_, _, counts) in &found[..100] {
                add(&mut expected, counts);
            }
            let all = [expected[0] + u64::from(at), expected[1]];
            assert_eq!(processes.sums(), all);
            assert!(processes.all.len() <= GONE_MAX + 300);
        }
        assert!(processes.all.contains_key(&(u32::MAX, 0)));
    }
}
