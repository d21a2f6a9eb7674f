//! Page faults and waits for the address-space lock.

use std::collections::BTreeMap;

use amdahl_report::mem::schema::{Code, MemResult};
use amdahl_report::plain::plain;

use super::locks::stack;
use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::seconds_text;
use crate::snapshot::By;

pub static COLUMNS: &[Column] = &[
    Column::text("what", 10, 0, "kind of fault, or who waited for mmap_lock"),
    Column::text("process", 9, 2, "whose"),
    Column::text("where", 14, 0, "the code that used the memory"),
    Column::text("object", 8, 6, "what is mapped there"),
    Column::figure("times", 7, 3, "faults, or waits"),
    Column::figure("total", 7, 1, "time of all together"),
    Column::figure("max", 7, 4, "the longest"),
    Column::figure("mean", 7, 5, "the usual one"),
];

/// Faults or waits with something in common.
#[derive(Clone, Debug, Default)]
struct Group<'a> {
    what: String,
    pid: u32,
    process: &'a str,
    object: &'a str,
    syscall: &'a str,
    code: Option<&'a Code>,
    /// Time of the part whose code is shown.
    costliest: f64,
    count: u64,
    seconds: f64,
    max_s: f64,
}

impl<'a> Group<'a> {
    fn add(&mut self, other: &Group<'a>) {
        if other.seconds >= self.costliest {
            (self.code, self.costliest) = (other.code, other.seconds);
            (self.object, self.syscall) = (other.object, other.syscall);
        }
        self.count = self.count.saturating_add(other.count);
        self.seconds += other.seconds;
        self.max_s = self.max_s.max(other.max_s);
    }
}

/// Each site of the result.
fn sites(result: &MemResult) -> Vec<Group<'_>> {
    let faults = result.faults.sites.iter().map(|site| Group {
        what: site.kind.clone(),
        pid: site.pid,
        process: &site.process,
        object: &site.object,
        syscall: &site.syscall,
        code: Some(&site.code),
        costliest: site.seconds,
        count: site.count,
        seconds: site.seconds,
        max_s: site.max_s,
    });
    let waits = result.mmap_lock.sites.iter().map(|site| Group {
        what: format!("mmap_lock {} {}", site.mode, site.operation),
        pid: site.pid,
        process: &site.process,
        code: Some(&site.code),
        costliest: site.seconds,
        count: site.count,
        seconds: site.seconds,
        max_s: site.max_s,
        ..Group::default()
    });
    faults.chain(waits).chain(holds(result)).collect()
}

/// What `mmap_lock` was held for; nobody's code: there is a sum for each operation.
fn holds(result: &MemResult) -> impl Iterator<Item = Group<'_>> {
    result.mmap_lock.holds.iter().map(|row| Group {
        what: format!("mmap_lock held {} {}", row.mode, row.operation),
        count: row.count,
        seconds: row.seconds,
        max_s: row.max_s,
        ..Group::default()
    })
}

/// All faults, waits and holds by their kind, also of sites that are not listed.
fn kinds(result: &MemResult) -> Vec<Group<'_>> {
    let faults = result.faults.kinds.iter().map(|kind| Group {
        what: kind.kind.clone(),
        count: kind.count,
        seconds: kind.seconds,
        max_s: kind.max_s,
        ..Group::default()
    });
    let waits = result.mmap_lock.waits.iter().map(|row| Group {
        what: format!("mmap_lock {} {}", row.mode, row.operation),
        count: row.count,
        seconds: row.seconds,
        max_s: row.max_s,
        ..Group::default()
    });
    let mut kinds: Vec<Group<'_>> = faults.chain(waits).chain(holds(result)).collect();
    for kind in &mut kinds {
        let of_kind = sites(result)
            .into_iter()
            .filter(|site| site.what == kind.what);
        let costliest = of_kind.max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        if let Some(site) = costliest {
            (kind.code, kind.object, kind.syscall) = (site.code, site.object, site.syscall);
        }
    }
    kinds
}

fn groups(result: &MemResult, by: By) -> Vec<Group<'_>> {
    match by {
        By::Kind => kinds(result),
        By::Process => {
            let mut groups: BTreeMap<(u32, bool), Group<'_>> = BTreeMap::new();
            for site in sites(result).into_iter().filter(|site| site.pid != 0) {
                let is_wait = site.what.starts_with("mmap_lock");
                let what = if is_wait { "mmap_lock" } else { "page faults" };
                let group = groups.entry((site.pid, is_wait)).or_insert_with(|| Group {
                    what: what.to_owned(),
                    pid: site.pid,
                    process: site.process,
                    ..Group::default()
                });
                group.add(&site);
            }
            groups.into_values().collect()
        }
        _ => sites(result),
    }
}

fn process(group: &Group<'_>) -> String {
    match (group.pid, group.process) {
        (0, _) => String::new(),
        (pid, "") => format!("[{pid}]"),
        (pid, name) => format!("{name} [{pid}]"),
    }
}

/// `fill table.c:12`; nothing of sums that are nobody's code.
fn place(code: Option<&Code>) -> String {
    let Some(code) = code else {
        return String::new();
    };
    if code.symbol.is_empty() {
        return "(unknown place)".to_owned();
    }
    match (&code.file, code.line) {
        (Some(file), Some(line)) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{} {file}:{line}", code.symbol)
        }
        _ => code.symbol.clone(),
    }
}

pub fn grid(result: &MemResult, by: By) -> Grid {
    let is_timed = result.faults.is_timed;
    let rows = groups(result, by).into_iter().enumerate();
    let rows = rows.map(|(index, group)| {
        let place = place(group.code);
        let is_wait = group.what.starts_with("mmap_lock");
        let time = |seconds: f64| {
            if is_timed || is_wait {
                Cell::Seconds(seconds)
            } else {
                Cell::Unknown
            }
        };
        Row {
            key: format!(
                "{}|{}|{}|{}|{place}",
                group.what, group.pid, group.object, group.syscall
            ),
            cells: vec![
                Cell::text(&group.what),
                Cell::text(&process(&group)),
                Cell::text(&place),
                Cell::text(group.object),
                Cell::Count(group.count),
                time(group.seconds),
                time(group.max_s),
                time(group.seconds / group.count.max(1) as f64),
            ],
            index,
            is_faint: false,
        }
    });
    Grid {
        columns: COLUMNS,
        rows: rows.collect(),
    }
}

/// Of the machine's anonymous memory.
fn huge_share(result: &MemResult) -> Option<f64> {
    let machine = result.huge.machine?;
    let all = machine.anonymous_bytes;
    (all > 0).then(|| machine.anonymous_huge_bytes.min(all) as f64 / all as f64)
}

/// What is in no row, not in those of its processes either.
pub fn left_out(result: &MemResult) -> Option<String> {
    let faults = result.faults.left_out;
    (faults > 0).then(|| format!("{faults} more page faults are in no row"))
}

pub fn headline(result: &MemResult) -> String {
    let waits: f64 = result.mmap_lock.waits.iter().map(|row| row.seconds).sum();
    let mut text = format!("{} page faults", result.faults.count);
    if result.faults.is_timed {
        text += &format!(" took {}", seconds_text(result.faults.seconds));
        text += &format!("; waited {} for mmap_lock", seconds_text(waits));
    }
    if let Some(share) = huge_share(result) {
        text += &format!("; {:.0} % of anonymous memory in huge pages", 100.0 * share);
        if let Some(refused) = result.huge.refused.filter(|&refused| refused > 0) {
            text += &format!(" ({refused} refused)");
        }
    }
    if let Some(tlb) = &result.tlb {
        let sides = [
            (tlb.data_per_thousand, "data"),
            (tlb.instruction_per_thousand, "code"),
        ];
        for (misses, side) in sides {
            if let Some(misses) = misses {
                text += &format!("; {misses:.2} TLB misses for {side} per 1000 instructions");
            }
        }
    }
    if let Some(vmalloc) = result.vmalloc.as_ref().filter(|all| all.allocs > 0) {
        text += &format!(
            "; vmalloc: {} ranges, {} times all CPUs interrupted",
            vmalloc.allocs, vmalloc.purges
        );
    }
    text
}

pub fn detail(result: &MemResult, by: By, index: usize) -> Vec<(usize, String)> {
    let groups = groups(result, by);
    let Some(group) = groups.get(index) else {
        return Vec::new();
    };
    let mut lines = vec![(0, group.what.clone())];
    for (label, text) in [
        ("of", process(group)),
        ("on", group.object.to_owned()),
        ("in system call", group.syscall.to_owned()),
    ] {
        if !text.is_empty() {
            lines.push((0, format!("{label} {text}")));
        }
    }
    lines.push((0, format!("in {}", place(group.code))));
    lines.push((0, String::new()));
    lines.push((
        0,
        format!(
            "{} times, {} together: mean {}, longest {}",
            group.count,
            seconds_text(group.seconds),
            seconds_text(group.seconds / group.count.max(1) as f64),
            seconds_text(group.max_s)
        ),
    ));
    stack(group.code.map_or(&[], |code| &code.stack), &mut lines);
    lines
        .into_iter()
        .map(|(indent, text)| (indent, plain(&text)))
        .collect()
}
