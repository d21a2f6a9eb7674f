//! The tables of a result as one table of comma-separated values (RFC 4180).
//!
//! Columns: `table` (`obstacle`, `mapping`, `fault`, `fault-site`, `mmap-lock-wait`,
//! `mmap-lock-hold`, `mmap-lock-stranger`, `mmap-lock-site`, `node`, `vmalloc`), `what`, `detail`, `pid`, `process`,
//! `count`, `bytes`, `seconds`, `max_s`, `where`. What a table does not have is empty.

use super::schema::{LockRow, MemResult};
use super::terminal::{place, whose};
use crate::cell::field;

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
}

/// All rows with a header, lines ended by CR LF.
pub fn render(result: &MemResult) -> String {
    let mut out = "table,what,detail,pid,process,count,bytes,seconds,max_s,where\r\n".to_owned();
    let mut push = |row: Row<'_>| {
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        let time = |s: Option<f64>| s.map_or(String::new(), |s| format!("{s:.9}"));
        let cells = [
            field(row.table),
            field(row.what),
            field(row.detail),
            number(row.pid.map(u64::from)),
            field(row.process),
            number(row.count),
            number(row.bytes),
            time(row.seconds),
            time(row.max_s),
            field(&row.place),
        ];
        out.push_str(&cells.join(","));
        out.push_str("\r\n");
    };
    for o in &result.huge.obstacles {
        let (count, bytes) = (Some(o.mappings), Some(o.bytes));
        push(Row {
            table: "obstacle",
            what: &o.id,
            detail: &o.remedy,
            count,
            bytes,
            ..Row::default()
        });
    }
    for m in &result.huge.mappings {
        push(Row {
            table: "mapping",
            what: m.obstacles.first().map_or("", |(id, _)| id),
            detail: if m.name.is_empty() {
                &m.backing
            } else {
                &m.name
            },
            pid: Some(m.pid),
            process: &m.process,
            bytes: Some(m.resident_bytes),
            place: m.start.clone(),
            ..Row::default()
        });
    }
    let is_timed = result.faults.is_timed;
    for k in &result.faults.kinds {
        push(Row {
            table: "fault",
            what: &k.kind,
            count: Some(k.count),
            seconds: is_timed.then_some(k.seconds),
            max_s: is_timed.then_some(k.max_s),
            ..Row::default()
        });
    }
    for s in &result.faults.sites {
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
    let lock = |table, row: &LockRow, push: &mut dyn FnMut(Row<'_>)| {
        push(Row {
            table,
            what: &row.operation,
            detail: &row.mode,
            count: Some(row.count),
            seconds: Some(row.seconds),
            max_s: Some(row.max_s),
            ..Row::default()
        });
    };
    for row in &result.mmap_lock.waits {
        lock("mmap-lock-wait", row, &mut push);
    }
    for row in &result.mmap_lock.holds {
        lock("mmap-lock-hold", row, &mut push);
    }
    for s in &result.mmap_lock.strangers {
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
    for s in &result.mmap_lock.sites {
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
    for n in result.numa.iter().flat_map(|numa| &numa.nodes) {
        let node = n.node.to_string();
        let (count, bytes) = (Some(n.touched), Some(n.bytes));
        push(Row {
            table: "node",
            what: &node,
            count,
            bytes,
            ..Row::default()
        });
    }
    for s in result.vmalloc.iter().flat_map(|all| &all.sites) {
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
    out
}
