//! The tables as a result.

use std::collections::{BTreeSet, HashMap};

use amdahl_mem::fault;
use amdahl_mem::mmap_lock::{Mode, Operation, Row, Stranger};
use amdahl_mem::tally::Tally;
use amdahl_probe::bpf::wire::kind;
use amdahl_report::mem::schema::{
    Code, FaultKind, FaultSite, Faults, LockRow, LockSite, LockStranger, MmapLock, Vmalloc,
    VmallocSite,
};
use amdahl_report::schema::SampleRow;
use amdahl_speedup::event::{CallStack, Frame};
use amdahl_speedup::wait::{is_libc, is_runtime};

use super::follow::Followed;
use super::names::Names;
use crate::java;
use crate::watch::processes;

/// Places in the code that are listed.
const SITES_MAX: usize = 500;
/// Places whose code is looked up, for those that turn out to be the same.
const NAMED_MAX: usize = 4_000;
/// Frames of a stack that are kept.
const FRAMES_MAX: usize = 256;

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// Name of a system call, `call 999` for one that is not known.
fn syscall_name(number: Option<u32>) -> String {
    let Some(number) = number else {
        return String::new();
    };
    match syscalls::Sysno::new(number as usize) {
        Some(known) => known.name().to_owned(),
        None => format!("call {number}"),
    }
}

pub(super) fn code(stack: Option<&CallStack>) -> Code {
    let Some(stack) = stack else {
        return Code::default();
    };
    let named = |frame: &&Frame| !frame.symbol.is_empty() && frame.symbol != "[unknown]";
    let frames = || stack.user.iter().filter(named);
    let own = frames()
        .find(|frame| !is_runtime(frame) && !is_libc(frame))
        .or_else(|| frames().next());
    let own = own.cloned().unwrap_or_default();
    Code {
        symbol: own.symbol,
        module: own.module,
        file: own.file,
        line: own.line,
        // Inlined functions may make many of few.
        stack: stack
            .user
            .iter()
            .take(FRAMES_MAX)
            .map(|frame| frame.symbol.clone())
            .collect(),
    }
}

impl Followed<'_> {
    /// The name of a process; of one that was not watched only if it still lives.
    fn process(&self, pid: u32) -> String {
        let known = self.names.get(pid).map(str::to_owned);
        known.unwrap_or_else(|| processes::comm(pid, pid))
    }

    /// Page faults; what is listed has the most time.
    pub fn fault_tables(&mut self, is_timed: bool) -> Faults {
        let kinds: Vec<FaultKind> = self
            .faults
            .kinds()
            .map(|(kind, tally)| FaultKind {
                kind: kind.id().to_owned(),
                count: tally.count,
                seconds: seconds(tally.ns),
                max_s: seconds(tally.max_ns),
            })
            .collect();
        let sites: Vec<(fault::Site, Tally, String)> = self
            .faults
            .sites()
            .into_iter()
            .map(|(site, tally, name)| (site, tally, name.map(|name| name.to_string())))
            .map(|(site, tally, name)| (site, tally, name.unwrap_or_default()))
            .collect();
        self.java = java::Seen::default();
        let mut merged: Vec<FaultSite> = Vec::new();
        let mut known: HashMap<(fault::Site, String, CodeKey), usize> = HashMap::new();
        for (site, tally, object) in sites.into_iter().take(NAMED_MAX) {
            let stack = self.places.code(kind::FAULT, site.place);
            stack.iter().for_each(|stack| self.java.see(stack));
            let code = code(stack.as_ref());
            let key = fault::Site { place: 0, ..site };
            let key = (key, object.clone(), CodeKey::of(&code));
            if let Some(&at) = known.get(&key) {
                let same = &mut merged[at];
                same.count = same.count.saturating_add(tally.count);
                same.seconds += seconds(tally.ns);
                same.max_s = same.max_s.max(seconds(tally.max_ns));
                continue;
            }
            known.insert(key, merged.len());
            merged.push(FaultSite {
                kind: site.kind.map_or(String::new(), |kind| kind.id().to_owned()),
                count: tally.count,
                seconds: seconds(tally.ns),
                max_s: seconds(tally.max_ns),
                pid: site.pid,
                process: self.process(site.pid),
                object,
                syscall: syscall_name(site.syscall),
                code,
            });
        }
        merged.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(b.count.cmp(&a.count)));
        merged.truncate(SITES_MAX);
        let count = kinds.iter().map(|kind| kind.count).sum();
        let listed: u64 = merged.iter().map(|site| site.count).sum();
        Faults {
            count,
            seconds: kinds.iter().map(|kind| kind.seconds).sum(),
            is_timed,
            kinds,
            sites: merged,
            left_out: count - listed,
            ..Faults::default()
        }
    }

    /// The address-space lock.
    pub fn lock_tables(&mut self, has_holds: bool) -> MmapLock {
        let sites = self.lock.sites().into_iter().take(SITES_MAX);
        let sites: Vec<_> = sites.collect();
        let sites = sites.into_iter().map(|(site, tally)| LockSite {
            operation: site.operation.id().to_owned(),
            mode: mode(site.mode),
            count: tally.count,
            seconds: seconds(tally.ns),
            max_s: seconds(tally.max_ns),
            pid: site.pid,
            process: self.names.get(site.pid).unwrap_or_default().to_owned(),
            code: code(self.places.code(kind::MMAP_WAIT, site.place).as_ref()),
        });
        let sites = sites.collect();
        MmapLock {
            waits: rows(self.lock.waits_by_operation()),
            has_holds,
            holds: rows(self.lock.holds_by_operation()),
            strangers: self.strangers(),
            sites,
        }
    }

    /// Holds and waits of those who are not watched, together for all that have one name: a tool may run again and again.
    fn strangers(&self) -> Vec<LockStranger> {
        let mut rows = Strangers {
            names: &self.names,
            rows: Vec::new(),
            known: HashMap::new(),
        };
        for (stranger, tally) in self.lock.strangers_holds() {
            let row = rows.of(stranger);
            row.count = row.count.saturating_add(tally.count);
            row.seconds += seconds(tally.ns);
            row.max_s = row.max_s.max(seconds(tally.max_ns));
        }
        for (stranger, tally) in self.lock.strangers_waits() {
            let row = rows.of(stranger);
            row.waits = row.waits.saturating_add(tally.count);
            row.waited_s += seconds(tally.ns);
            row.waited_max_s = row.waited_max_s.max(seconds(tally.max_ns));
        }
        let mut rows = rows.rows;
        let most = |row: &LockStranger| row.seconds + row.waited_s;
        rows.sort_by(|a, b| most(b).total_cmp(&most(a)));
        rows.truncate(SITES_MAX);
        rows
    }

    /// The kernel's own address ranges.
    pub fn vmalloc_table(&self) -> Vmalloc {
        let all = &self.vmalloc;
        let page = rustix::param::page_size() as u64;
        let sites = all.sites().take(SITES_MAX);
        Vmalloc {
            allocs: all.allocs,
            bytes: all.bytes,
            failed: all.failed,
            frees: all.frees,
            purges: all.purges,
            purged: all.purged,
            lazy_bytes_max: all.lazy_pages_max.saturating_mul(page),
            sites: sites
                .map(|(site, count, bytes, max_bytes)| VmallocSite {
                    pid: site.pid,
                    process: self.process(site.pid),
                    syscall: syscall_name(site.syscall),
                    count,
                    bytes,
                    max_bytes,
                })
                .collect(),
        }
    }
}

/// What of a stranger makes a row of its own.
type StrangerKey = (Operation, Mode, String, u32);

/// Rows of strangers while they are added up.
struct Strangers<'a> {
    names: &'a Names,
    rows: Vec<LockStranger>,
    known: HashMap<StrangerKey, (usize, BTreeSet<u32>)>,
}

impl Strangers<'_> {
    /// Where holds and waits of this one are added up.
    fn of(&mut self, stranger: Stranger) -> &mut LockStranger {
        let named = |pid: u32| self.names.get(pid).unwrap_or_default().to_owned();
        let Stranger {
            operation,
            mode: as_what,
            pid,
            of,
        } = stranger;
        let process = named(pid);
        let key = (operation, as_what, process.clone(), of);
        let (at, pids) = self.known.entry(key).or_insert_with(|| {
            self.rows.push(LockStranger {
                operation: operation.id().to_owned(),
                mode: mode(as_what),
                process,
                of_pid: of,
                of_process: named(of),
                ..LockStranger::default()
            });
            (self.rows.len() - 1, BTreeSet::new())
        });
        pids.insert(pid);
        let row = &mut self.rows[*at];
        row.processes = pids.len() as u64;
        row
    }
}

/// What tells two places in the code apart.
#[derive(PartialEq, Eq, Hash)]
struct CodeKey(Vec<String>, Option<u32>);

impl CodeKey {
    fn of(code: &Code) -> CodeKey {
        CodeKey(code.stack.clone(), code.line)
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Read => "read".to_owned(),
        Mode::Write => "write".to_owned(),
    }
}

fn rows(rows: Vec<(Operation, Mode, &Row)>) -> Vec<LockRow> {
    let row = |(operation, of, row): (Operation, Mode, &Row)| LockRow {
        operation: operation.id().to_owned(),
        mode: mode(of),
        count: row.tally.count,
        seconds: seconds(row.tally.ns),
        max_s: seconds(row.tally.max_ns),
        p99_s: row.p99_ns().map(seconds),
    };
    rows.into_iter().map(row).collect()
}

/// The stacks of faults and waits, for `samples.parquet` and the flame graph.
pub fn sample_rows(faults: &Faults, lock: &MmapLock) -> Vec<SampleRow> {
    let row = |cause: String, pid: u32, process: &str, count: u64, s: f64, code: &Code| SampleRow {
        pid,
        process: process.to_owned(),
        cause,
        charged_ns: (s * 1e9) as u64,
        count,
        symbol: code.symbol.clone(),
        file: code.file.clone().unwrap_or_default(),
        line: code.line.unwrap_or(0),
        stack: code.stack.join(";"),
        ..SampleRow::default()
    };
    let faults = faults.sites.iter().map(|s| {
        row(
            s.kind.clone(),
            s.pid,
            &s.process,
            s.count,
            s.seconds,
            &s.code,
        )
    });
    let waits = lock.sites.iter().map(|s| {
        let cause = format!("mmap-lock-{}", s.operation);
        row(cause, s.pid, &s.process, s.count, s.seconds, &s.code)
    });
    faults.chain(waits).collect()
}
