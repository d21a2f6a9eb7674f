//! From the parts of a recording to tables, while it goes on.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use amdahl_mem::fault::{Fault, Faults, Reason};
use amdahl_mem::first_touch::Touches;
use amdahl_mem::mapping::Backing;
use amdahl_mem::mmap_lock::{Doing, MmapLock, Mode, Operation, Site, Stranger};
use amdahl_mem::read;
use amdahl_mem::spaces::{Region, Spaces};
use amdahl_mem::vmalloc::{self, Vmalloc};
use amdahl_probe::bpf::wire::{Slot, flag, kind};
use amdahl_probe::bpf::{Part, Places};
use amdahl_probe::perf::{Counters, SideBand, Whose};
use amdahl_topology::{CpuSet, Topology};

use super::look::Looker;
use super::names::Names;
use super::sources;
use crate::java;
use crate::watch::later::Later;
use crate::watch::{Follow, processes};

/// Tables that grow with the recording.
pub struct Followed<'a> {
    looker: &'a Looker,
    /// Nodes of the CPUs.
    nodes: HashMap<u32, u32>,
    spaces: Spaces,
    /// What was mapped, not yet due.
    pending: Vec<SideBand>,
    later: Later,
    /// Mappings, forks and ends of which nobody has told.
    pub maps_lost: u64,
    /// Code of places.
    pub places: Places,
    /// Names of processes.
    pub names: Names,
    /// Java code in the last tables.
    pub java: java::Seen,
    /// Page faults.
    pub faults: Faults,
    /// First uses of memory.
    pub touches: Touches,
    /// The kernel tells what it allocates for a fault.
    tells_pages: bool,
    /// The address-space lock.
    pub lock: MmapLock,
    /// The kernel's own ranges.
    pub vmalloc: Vmalloc,
    /// Misses of TLBs.
    pub tlb: Tlb,
}

/// Counters of TLB misses.
#[derive(Default)]
pub struct Tlb {
    /// Of each process that was there in the beginning, or of all CPUs.
    pub counters: Vec<Counters>,
    /// Why there are none.
    pub refused: Option<std::io::Error>,
}

impl Tlb {
    /// Counts what all of `cpus` do.
    pub fn count_all(&mut self, cpus: &CpuSet) {
        let all: Vec<u32> = cpus.iter().collect();
        self.count(Whose::Cpus(&all));
    }

    /// Counts from now on.
    pub fn count(&mut self, whose: Whose<'_>) {
        if self.refused.is_some() {
            return;
        }
        match Counters::open(whose) {
            Ok(counters) => self.counters.push(counters),
            Err(error) => self.refused = Some(error),
        }
    }
}

impl<'a> Followed<'a> {
    /// Nothing has happened yet, and the tracepoints in `missing` are not to be had. Up to `later_bytes_max` of parts are
    /// left for [`Followed::finish`].
    pub fn new(looker: &'a Looker, missing: &[&str], later_bytes_max: usize) -> Followed<'a> {
        let topology = Topology::read().ok();
        let node = |topology: &Topology, node: u32| topology.kernel_node(node).unwrap_or(node);
        let nodes = topology.iter().flat_map(|topology| {
            let cpus = topology.cpus().iter();
            cpus.map(|cpu| (cpu.id, node(topology, cpu.node)))
        });
        Followed {
            looker,
            nodes: nodes.collect(),
            spaces: Spaces::default(),
            pending: Vec::new(),
            later: Later::new(later_bytes_max),
            maps_lost: 0,
            places: Places::default(),
            names: Names::default(),
            java: java::Seen::default(),
            faults: Faults::new(rustix::param::page_size() as u64),
            touches: Touches::default(),
            tells_pages: !missing.contains(&sources::ALLOCATED),
            lock: MmapLock::default(),
            vmalloc: Vmalloc::default(),
            tlb: Tlb::default(),
        }
    }

    /// Adds up what was left for later.
    pub fn finish(&mut self) {
        self.later.no_longer();
        self.add_up();
    }

    fn add_up(&mut self) {
        while let Some(part) = self.later.due() {
            self.add(part);
        }
    }

    fn map(&mut self, event: &SideBand) {
        match event {
            SideBand::Map {
                pid,
                start,
                len,
                path,
                shared,
                ..
            } => {
                let name: &str = if path == "//anon" { "" } else { path };
                let region = Region {
                    start: *start,
                    end: start.saturating_add(*len),
                    backing: Backing::of(name, u64::from(!name.is_empty()), || false),
                    is_shared: *shared,
                    name: Arc::from(name),
                };
                self.spaces.map(*pid, region);
            }
            SideBand::Exec { pid, .. } => self.spaces.exec(*pid),
            SideBand::Fork { parent, pid, .. } => self.spaces.fork(*parent, *pid),
            SideBand::Exit { pid, .. } => {
                self.spaces.exit(*pid);
                self.names.ended(*pid);
            }
            SideBand::Lost(count) => self.maps_lost = self.maps_lost.saturating_add(*count),
        }
    }

    fn slot(&mut self, slot: &Slot) {
        let is_ours = slot.other == std::process::id();
        match slot.kind {
            // What we do ourselves is none of the program's business.
            kind::FAULT | kind::MMAP_WAIT | kind::MMAP_HOLD | kind::VMALLOC if is_ours => {}
            kind::FAULT => self.fault(slot),
            kind::MMAP_WAIT | kind::MMAP_HOLD => self.mmap_lock(slot),
            kind::VMALLOC => self.vmalloc.add(vmalloc_event(slot)),
            kind::FORK if slot.tid == slot.syscall as u32 => self.name(slot),
            kind::COMM if slot.tid == slot.other => self.name(slot),
            _ => {}
        }
    }

    fn name(&mut self, slot: &Slot) {
        self.names.set(slot.tid, slot.comm());
        self.forget_names();
    }

    fn forget_names(&mut self) {
        let (faults, lock, vmalloc) = (&self.faults, &self.lock, &self.vmalloc);
        self.names.forget(|| {
            let strangers = [lock.strangers_holds(), lock.strangers_waits()];
            let strangers = strangers.into_iter().flatten();
            let mut told: HashSet<u32> = strangers.flat_map(|(s, _)| [s.pid, s.of]).collect();
            told.extend(faults.sites().into_iter().map(|(site, ..)| site.pid));
            told.extend(lock.sites().into_iter().map(|(site, _)| site.pid));
            told.extend(vmalloc.sites().map(|(site, ..)| site.pid));
            told
        });
    }

    fn fault(&mut self, slot: &Slot) {
        let has = |flag: u8| slot.flags & flag != 0;
        let error = slot.lock_kind;
        let fault = Fault {
            at: slot.ts,
            ns: slot.arg[1],
            pid: slot.other,
            tid: slot.tid,
            cpu: slot.cpu,
            address: slot.arg[0],
            reason: has(flag::FAULT_HAS_ERROR).then_some(Reason {
                present: error & 1 != 0,
                write: error & 2 != 0,
                fetch: error & 16 != 0,
            }),
            is_major: has(flag::FAULT_MAJOR),
            syscall: u32::try_from(slot.syscall).ok(),
            place: slot.place,
            allocated: self.tells_pages.then(|| pages(slot.unused)),
        };
        let region = self.spaces.find(fault.pid, fault.address);
        let kind = self.faults.add(&fault, region);
        let placed = fault.placed(kind);
        if placed > 0
            && let Some(&node) = self.nodes.get(&fault.cpu)
        {
            let start = region.map_or(0, |region| region.start);
            self.touches.add(fault.pid, start, node, placed);
        }
    }

    fn mmap_lock(&mut self, slot: &Slot) {
        let has = |flag: u8| slot.flags & flag != 0;
        let operation = Operation::of(Doing {
            is_fault: has(flag::MMAP_IN_FAULT),
            syscall: u32::try_from(slot.syscall).ok(),
            reads_proc: has(flag::MMAP_READS_PROC),
            is_kernel: has(flag::MMAP_KTHREAD),
        });
        let mode = if has(flag::MMAP_WRITE) {
            Mode::Write
        } else {
            Mode::Read
        };
        let (pid, place, ns) = (slot.other, slot.place, slot.arg[2]);
        let is_hold = slot.kind == kind::MMAP_HOLD;
        if has(flag::MMAP_STRANGER) {
            let stranger = Stranger {
                operation,
                mode,
                pid,
                of: place,
            };
            self.names.set_of_stranger(pid, || slot.comm());
            if is_hold {
                self.lock.hold_by_stranger(stranger, ns);
            } else {
                self.lock.wait_of_stranger(stranger, ns);
            }
            self.forget_names();
        } else if is_hold {
            self.lock.hold(operation, mode, ns);
        } else {
            let site = Site {
                operation,
                mode,
                pid,
                place,
            };
            self.lock.wait(site, ns);
        }
    }

    fn add(&mut self, mut part: Part) {
        self.places.learn(&mut part);
        self.pending.append(&mut part.side_band);
        self.pending.sort_by_key(SideBand::ts);
        let mut slots: Vec<&Slot> = part.slots.iter().flatten().collect();
        slots.sort_by_key(|slot| slot.ts);
        let pending = std::mem::take(&mut self.pending);
        let mut maps = pending.into_iter().peekable();
        for slot in slots {
            while let Some(event) = maps.next_if(|event| event.ts() <= slot.ts) {
                self.map(&event);
            }
            self.slot(slot);
        }
        // Whatever the next part tells of is later than this one.
        while let Some(event) = maps.next_if(|event| event.ts() <= part.until) {
            self.map(&event);
        }
        self.pending = maps.collect();
        let (faults, lock) = (&self.faults, &self.lock);
        self.places.forget(|| {
            let faults = faults.sites().into_iter();
            let faults = faults.map(|(site, ..)| (kind::FAULT, site.place));
            let waits = lock.sites().into_iter();
            let waits = waits.map(|(site, _)| (kind::MMAP_WAIT, site.place));
            faults.chain(waits).collect()
        });
    }
}

/// Small pages of an allocation of this order, plus one.
fn pages(order_and_one: u8) -> u64 {
    match order_and_one {
        0 => 0,
        order => 1u64.checked_shl(u32::from(order) - 1).unwrap_or(0),
    }
}

fn vmalloc_event(slot: &Slot) -> vmalloc::Event {
    let [first, second, _] = slot.arg;
    match slot.flags {
        flag::VMALLOC_FREE => vmalloc::Event::Free { lazy_pages: first },
        flag::VMALLOC_PURGE => vmalloc::Event::Purge {
            ranges: first,
            bytes: second,
        },
        _ => vmalloc::Event::Alloc {
            pid: slot.other,
            syscall: u32::try_from(slot.syscall).ok(),
            bytes: first,
            failed: second != 0,
        },
    }
}

impl Follow for Followed<'_> {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        self.looker.begin_at(pid);
        self.places.attach(pid);
        if !self.looker.is_system() {
            let tids: Vec<u32> = threads.iter().map(|&(tid, _)| tid).collect();
            self.tlb.count(Whose::Threads(&tids));
        }
        if let Some((_, name)) = threads.iter().find(|(tid, _)| *tid == pid) {
            self.names.set(pid, name.clone());
        }
        // One that has ended meanwhile has no faults either.
        for mapping in read::regions(Path::new("/proc"), pid).unwrap_or_default() {
            let region = Region {
                start: mapping.start,
                end: mapping.end,
                backing: mapping.backing(|_| false),
                is_shared: mapping.access.shared,
                name: Arc::from(mapping.name.as_str()),
            };
            self.spaces.map(pid, region);
        }
    }

    fn take(&mut self, mut part: Part) {
        for pid in self.places.look(&mut part) {
            // It has joined the control group.
            let threads = processes::threads(pid).into_iter();
            let named = threads.map(|tid| (tid, processes::comm(pid, tid)));
            self.attach(pid, &named.collect::<Vec<_>>());
        }
        self.later.push(part);
        self.add_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{ProbeKind, Selection};

    fn looker() -> Looker {
        Looker::new(&Selection {
            pid: Some(1),
            cgroup: None,
            system: false,
            duration: None,
            memory: 16,
            probe: ProbeKind::Bpf,
            quiet: true,
            command: Vec::new(),
        })
    }

    fn map(ts: u64, pid: u32) -> SideBand {
        SideBand::Map {
            ts,
            pid,
            start: 0x1000,
            len: 0x1000,
            file_offset: 0,
            device: 0,
            inode: 0,
            path: "//anon".to_owned(),
            executable: false,
            shared: false,
        }
    }

    /// The kernel tells of all processes. What it told waited for a slot of those that are watched: while they slept it
    /// piled up, and all of it was sorted again at every part.
    #[test]
    fn what_is_mapped_elsewhere_does_not_pile_up_while_the_watched_sleep() {
        let looker = looker();
        let mut followed = Followed::new(&looker, &[], 0);
        for round in 0..10u32 {
            let from = u64::from(round) * 100;
            let mut part = Part::default();
            // Told ahead of the slots: it belongs between those of the next part.
            part.side_band = vec![map(from + 110, 20 + round), map(from + 50, 40 + round)];
            part.until = from + 100;
            followed.add(part);
            assert_eq!(followed.pending, [map(from + 110, 20 + round)]);
            let is_mapped = |pid| followed.spaces.find(pid, 0x1800).is_some();
            assert!(is_mapped(40 + round) && !is_mapped(20 + round));
        }
    }
}
