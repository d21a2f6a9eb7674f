//! The tables of a result as one table of comma-separated values (RFC 4180).
//!
//! The first column, `table`, says what a row is:
//!
//! | `table` | row |
//! |---|---|
//! | `process` | memory of a process: `bytes`, of them `huge_bytes`; `detail_bytes` could be in huge pages; `count` mappings |
//! | `obstacle` | `what` keeps `bytes` of `count` mappings in small pages; `gain` huge pages could replace `detail_count` small ones |
//! | `mapping` | a mapping at `where` (hexadecimal); `what` its first obstacle, `bytes` in memory, of them `huge_bytes`; `gain` small pages that huge ones could replace |
//! | `mapping-size` | of the mapping at `where`: `bytes` in pages of `what` bytes; `detail_bytes` of the mapping were looked at |
//! | `mapping-node` | of the mapping at `where`: `bytes` on node `what`, `count` small pages used first there |
//! | `page-size` | pages of `what` bytes on the machine: `count` given, `refused`, `in_use`; `detail` the switch |
//! | `pool` | hugetlb pages of `what` bytes: `count`, of them `free` |
//! | `free` | free memory of zone `detail` of node `what`: `bytes`, `count` huge pages; `share` in smaller pieces, `fragmentation` |
//! | `machine` | memory of the machine, `what` of it: `bytes`, `huge_bytes`; `huge pages`: `count` given meanwhile, `refused`; `movable` blocks: `share` |
//! | `fault` | page faults of a kind; of all, `what` is empty |
//! | `fault-site` | the same at one place |
//! | `mmap-lock-wait`, `mmap-lock-hold` | by operation |
//! | `mmap-lock-stranger`, `mmap-lock-stranger-wait` | holds and waits of who is not watched |
//! | `mmap-lock-site` | waits at one place |
//! | `tlb` | misses of the side `what`: `count`, `per_thousand` instructions; `share` of the time that was counted |
//! | `node` | memory of a node, `count` small pages used first there |
//! | `numa` | `remote` accesses, `concentration` of memory: `share` |
//! | `vmalloc-sum` | ranges `allocated`, `given back`, `refused`, `purges`, `purged`: `count`, `bytes` |
//! | `vmalloc` | who allocated |
//!
//! What a table does not have, or is not known, is empty.

use super::schema::{LockRow, MemResult};
use super::terminal::{place, whose};
use crate::cell::field;

const HEADER: &str = "table,what,detail,pid,process,count,bytes,seconds,max_s,where,p99_s,huge_bytes,detail_bytes,\
detail_count,gain,refused,in_use,free,share,fragmentation,per_thousand";

/// One row.
#[derive(Default)]
struct Row<'a> {
    table: &'a str,
    what: &'a str,
    detail: &'a str,
    pid: Option<u32>,
    process: &'a str,
    count: Option<u64>,
    bytes: Option<u64>,
    seconds: Option<f64>,
    max_s: Option<f64>,
    place: String,
    p99_s: Option<f64>,
    huge_bytes: Option<u64>,
    detail_bytes: Option<u64>,
    detail_count: Option<u64>,
    gain: Option<u64>,
    refused: Option<u64>,
    in_use: Option<u64>,
    free: Option<u64>,
    share: Option<f64>,
    fragmentation: Option<f64>,
    per_thousand: Option<f64>,
}

impl Row<'_> {
    fn line(&self) -> String {
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        let time = |s: Option<f64>| s.map_or(String::new(), |s| format!("{s:.9}"));
        let share = |s: Option<f64>| s.map_or(String::new(), |s| format!("{s:.6}"));
        let cells = [
            field(self.table),
            field(self.what),
            field(self.detail),
            number(self.pid.map(u64::from)),
            field(self.process),
            number(self.count),
            number(self.bytes),
            time(self.seconds),
            time(self.max_s),
            field(&self.place),
            time(self.p99_s),
            number(self.huge_bytes),
            number(self.detail_bytes),
            number(self.detail_count),
            number(self.gain),
            number(self.refused),
            number(self.in_use),
            number(self.free),
            share(self.share),
            share(self.fragmentation),
            share(self.per_thousand),
        ];
        cells.join(",") + "\r\n"
    }
}

/// All rows with a header, lines ended by CR LF.
pub fn render(result: &MemResult) -> String {
    let mut out = format!("{HEADER}\r\n");
    let mut push = |row: Row<'_>| out.push_str(&row.line());
    memory(result, &mut push);
    machine(result, &mut push);
    faults(result, &mut push);
    lock(result, &mut push);
    tlb(result, &mut push);
    numa(result, &mut push);
    vmalloc(result, &mut push);
    out
}

/// Takes the rows.
type Push<'a> = &'a mut dyn FnMut(Row<'_>);

/// Of those who are watched.
fn memory(result: &MemResult, push: Push<'_>) {
    for p in &result.processes {
        push(Row {
            table: "process",
            pid: Some(p.pid),
            process: &p.name,
            count: Some(p.mappings),
            bytes: Some(p.resident_bytes),
            huge_bytes: Some(p.huge_bytes),
            detail_bytes: Some(p.obstructed_bytes),
            ..Row::default()
        });
    }
    for o in &result.huge.obstacles {
        push(Row {
            table: "obstacle",
            what: &o.id,
            detail: &o.remedy,
            count: Some(o.mappings),
            bytes: Some(o.bytes),
            detail_count: Some(o.pages),
            gain: Some(o.huge_pages),
            ..Row::default()
        });
    }
    for m in &result.huge.mappings {
        let detail = if m.name.is_empty() {
            &m.backing
        } else {
            &m.name
        };
        let of_it = |table| Row {
            table,
            detail,
            pid: Some(m.pid),
            process: &m.process,
            place: m.start.clone(),
            ..Row::default()
        };
        push(Row {
            what: m.obstacles.first().map_or("", |(id, _)| id),
            bytes: Some(m.resident_bytes),
            huge_bytes: Some(m.huge_bytes),
            gain: Some(m.gain_pages),
            ..of_it("mapping")
        });
        for (size, &bytes) in &m.sizes {
            push(Row {
                what: &size.to_string(),
                bytes: Some(bytes),
                detail_bytes: Some(m.sizes_seen_bytes),
                ..of_it("mapping-size")
            });
        }
        let nodes: std::collections::BTreeSet<u32> =
            m.nodes.keys().chain(m.touched.keys()).copied().collect();
        for node in nodes {
            push(Row {
                what: &node.to_string(),
                bytes: m.nodes.get(&node).copied(),
                count: m.touched.get(&node).copied(),
                ..of_it("mapping-node")
            });
        }
    }
}

/// Of the whole machine.
fn machine(result: &MemResult, push: Push<'_>) {
    let huge = &result.huge;
    for size in &huge.sizes {
        push(Row {
            table: "page-size",
            what: &size.bytes.to_string(),
            detail: &size.anonymous,
            count: size.given,
            refused: size.refused,
            in_use: size.in_use,
            ..Row::default()
        });
    }
    for pool in &huge.pools {
        push(Row {
            table: "pool",
            what: &pool.bytes.to_string(),
            count: Some(pool.pages),
            free: Some(pool.free),
            ..Row::default()
        });
    }
    for zone in &huge.free {
        push(Row {
            table: "free",
            what: &zone.node.to_string(),
            detail: &zone.name,
            count: Some(zone.huge_pages),
            bytes: Some(zone.free_bytes),
            share: Some(zone.unusable),
            fragmentation: zone.fragmentation,
            ..Row::default()
        });
    }
    if let Some(of) = &huge.machine {
        for (what, bytes, huge_bytes) in [
            ("anonymous", of.anonymous_bytes, of.anonymous_huge_bytes),
            ("shmem", of.shmem_bytes, of.shmem_huge_bytes),
        ] {
            push(Row {
                table: "machine",
                what,
                bytes: Some(bytes),
                huge_bytes: Some(huge_bytes),
                ..Row::default()
            });
        }
    }
    if huge.given.is_some() || huge.refused.is_some() {
        push(Row {
            table: "machine",
            what: "huge pages",
            count: huge.given,
            refused: huge.refused,
            ..Row::default()
        });
    }
    if huge.movable.is_some() {
        push(Row {
            table: "machine",
            what: "movable",
            share: huge.movable,
            ..Row::default()
        });
    }
}

fn faults(result: &MemResult, push: Push<'_>) {
    let faults = &result.faults;
    let is_timed = faults.is_timed;
    if !faults.kinds.is_empty() {
        push(Row {
            table: "fault",
            count: Some(faults.count),
            seconds: is_timed.then_some(faults.seconds),
            detail_count: faults.accounted,
            ..Row::default()
        });
    }
    for k in &faults.kinds {
        push(Row {
            table: "fault",
            what: &k.kind,
            count: Some(k.count),
            seconds: is_timed.then_some(k.seconds),
            max_s: is_timed.then_some(k.max_s),
            ..Row::default()
        });
    }
    for s in &faults.sites {
        push(Row {
            table: "fault-site",
            what: &s.kind,
            detail: &s.object,
            pid: Some(s.pid),
            process: &s.process,
            count: Some(s.count),
            seconds: is_timed.then_some(s.seconds),
            max_s: is_timed.then_some(s.max_s),
            place: place(&s.code, &s.syscall),
            ..Row::default()
        });
    }
}

fn lock(result: &MemResult, push: Push<'_>) {
    let lock = &result.mmap_lock;
    let waits = lock.waits.iter().map(|row| ("mmap-lock-wait", row));
    let holds = lock.holds.iter().map(|row| ("mmap-lock-hold", row));
    for (table, row) in waits.chain(holds) {
        let row: &LockRow = row;
        push(Row {
            table,
            what: &row.operation,
            detail: &row.mode,
            count: Some(row.count),
            seconds: Some(row.seconds),
            max_s: Some(row.max_s),
            p99_s: row.p99_s,
            ..Row::default()
        });
    }
    for s in &lock.strangers {
        for (table, count, seconds, max_s) in [
            ("mmap-lock-stranger", s.count, s.seconds, s.max_s),
            (
                "mmap-lock-stranger-wait",
                s.waits,
                s.waited_s,
                s.waited_max_s,
            ),
        ] {
            if count == 0 {
                continue;
            }
            push(Row {
                table,
                what: &s.operation,
                detail: &s.mode,
                process: &s.process,
                count: Some(count),
                seconds: Some(seconds),
                max_s: Some(max_s),
                place: whose(s),
                ..Row::default()
            });
        }
    }
    for s in &lock.sites {
        push(Row {
            table: "mmap-lock-site",
            what: &s.operation,
            detail: &s.mode,
            pid: Some(s.pid),
            process: &s.process,
            count: Some(s.count),
            seconds: Some(s.seconds),
            max_s: Some(s.max_s),
            place: place(&s.code, ""),
            ..Row::default()
        });
    }
}

fn tlb(result: &MemResult, push: Push<'_>) {
    let Some(tlb) = &result.tlb else { return };
    for (what, count, per_thousand) in [
        ("instructions", Some(tlb.instructions), None),
        ("data", tlb.data_misses, tlb.data_per_thousand),
        (
            "instruction",
            tlb.instruction_misses,
            tlb.instruction_per_thousand,
        ),
    ] {
        push(Row {
            table: "tlb",
            what,
            count: count.map(|count| count.round() as u64),
            share: Some(tlb.counted),
            per_thousand,
            ..Row::default()
        });
    }
}

fn numa(result: &MemResult, push: Push<'_>) {
    let Some(numa) = &result.numa else { return };
    for n in &numa.nodes {
        push(Row {
            table: "node",
            what: &n.node.to_string(),
            count: Some(n.touched),
            bytes: Some(n.bytes),
            ..Row::default()
        });
    }
    for (what, share) in [
        ("remote", numa.remote),
        ("concentration", Some(numa.concentration)),
    ] {
        push(Row {
            table: "numa",
            what,
            share,
            ..Row::default()
        });
    }
}

fn vmalloc(result: &MemResult, push: Push<'_>) {
    let Some(all) = &result.vmalloc else { return };
    for (what, count, bytes) in [
        ("allocated", all.allocs, Some(all.bytes)),
        ("refused", all.failed, None),
        ("given back", all.frees, None),
        ("purges", all.purges, None),
        ("purged", all.purged, Some(all.lazy_bytes_max)),
    ] {
        push(Row {
            table: "vmalloc-sum",
            what,
            count: Some(count),
            bytes,
            ..Row::default()
        });
    }
    for s in &all.sites {
        push(Row {
            table: "vmalloc",
            what: &s.syscall,
            pid: Some(s.pid),
            process: &s.process,
            count: Some(s.count),
            bytes: Some(s.bytes),
            ..Row::default()
        });
    }
}
