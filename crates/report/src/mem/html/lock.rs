//! The address-space lock.

use maud::{Markup, html};

use super::{place, process, table};
use crate::html::figure::{count, foreign, time};
use crate::mem::schema::{LockRow, LockStranger, MemResult};

pub(super) fn draw(result: &MemResult) -> Markup {
    let lock = &result.mmap_lock;
    let sites: Vec<Vec<Markup>> = lock
        .sites
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let at = |field: &str| format!("mmap_lock.sites.{i}.{field}");
            vec![
                place(&s.code, ""),
                html! { (foreign(&s.operation)) " " (foreign(&s.mode)) },
                count(&at("count"), s.count),
                time(&at("seconds"), s.seconds),
                time(&at("max_s"), s.max_s),
                process(&s.process, s.pid),
            ]
        })
        .collect();
    let titles = [
        ("Where", false),
        ("Operation", false),
        ("Waits", true),
        ("Time", true),
        ("Longest", true),
        ("Process", false),
    ];
    html! {
        p { "Every change of the address space takes this lock alone; faults and readers of /proc share it." }
        (rows("Waits by operation of the waiter", "mmap_lock.waits", &lock.waits))
        @if lock.has_holds { (rows("How long it was held, by operation", "mmap_lock.holds", &lock.holds)) }
        @if !lock.strangers.is_empty() { (strangers(&lock.strangers)) }
        @if !sites.is_empty() { (table("Waits by code", &titles, &sites)) }
    }
}

fn strangers(strangers: &[LockStranger]) -> Markup {
    let rows: Vec<Vec<Markup>> = strangers
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let at = |field: &str| format!("mmap_lock.strangers.{i}.{field}");
            vec![
                foreign(&s.process),
                html! { (foreign(&s.operation)) " " (foreign(&s.mode)) },
                count(&at("processes"), s.processes),
                count(&at("count"), s.count),
                time(&at("seconds"), s.seconds),
                time(&at("max_s"), s.max_s),
                count(&at("waits"), s.waits),
                time(&at("waited_s"), s.waited_s),
                time(&at("waited_max_s"), s.waited_max_s),
                process(&s.of_process, s.of_pid),
            ]
        })
        .collect();
    let titles = [
        ("By", false),
        ("Operation", false),
        ("Processes", true),
        ("Holds", true),
        ("Held", true),
        ("Longest", true),
        ("Waits", true),
        ("Waited", true),
        ("Longest", true),
        ("Whose lock", false),
    ];
    table(
        "Holds and waits of others than who is watched",
        &titles,
        &rows,
    )
}

fn rows(label: &str, path: &str, rows: &[LockRow]) -> Markup {
    let rows: Vec<Vec<Markup>> = rows
        .iter()
        .enumerate()
        .map(|(i, row)| {
            let at = |field: &str| format!("{path}.{i}.{field}");
            vec![
                html! { (foreign(&row.operation)) },
                foreign(&row.mode),
                count(&at("count"), row.count),
                time(&at("seconds"), row.seconds),
                row.p99_s.map_or(html! {}, |s| time(&at("p99_s"), s)),
                time(&at("max_s"), row.max_s),
            ]
        })
        .collect();
    let titles = [
        ("Operation", false),
        ("Mode", false),
        ("Times", true),
        ("Time", true),
        ("99 % below", true),
        ("Longest", true),
    ];
    table(label, &titles, &rows)
}
