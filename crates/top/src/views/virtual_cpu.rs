//! CPUs of guests that run on this machine.

use amdahl_report::plain::plain;
use amdahl_report::sched::schema::{GuestEntry, SchedResult};

use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::seconds_text;

pub static COLUMNS: &[Column] = &[
    Column::text("guest", 10, 0, "what runs it"),
    Column::figure("pid", 7, 2, "its process"),
    Column::figure("cpu", 4, 0, "the guest's number of the CPU"),
    Column::figure("run", 7, 1, "time that it ran"),
    Column::figure(
        "phantom",
        8,
        0,
        "time that the guest takes for running while the CPU waits in a run queue here",
    ),
    Column::figure(
        "blocked",
        7,
        1,
        "the same, blocked in this machine's kernel",
    ),
    Column::figure(
        "phan%",
        6,
        0,
        "phantom and blocked, as a share of them and of the time that it ran",
    ),
    Column::figure("p99", 7, 3, "99 of 100 waits in a run queue are not longer"),
    Column::figure("max", 7, 4, "the longest of them"),
    Column::figure("preempt", 7, 5, "how often another thread took its CPU"),
];

fn share(guest: &GuestEntry) -> Cell {
    let phantom = guest.phantom_s + guest.blocked_s;
    let all = phantom + guest.run_s;
    if all > 0.0 {
        Cell::Share(phantom / all)
    } else {
        Cell::Unknown
    }
}

pub fn grid(result: &SchedResult) -> Grid {
    let rows = result.guests.iter().enumerate();
    let rows = rows.map(|(index, guest)| Row {
        key: format!("{}|{}", guest.pid, guest.tid),
        cells: vec![
            Cell::text(&guest.vmm),
            Cell::Number(guest.pid.into()),
            guest
                .guest_cpu
                .map_or(Cell::Unknown, |cpu| Cell::Number(cpu.into())),
            Cell::Seconds(guest.run_s),
            Cell::Seconds(guest.phantom_s),
            Cell::Seconds(guest.blocked_s),
            share(guest),
            Cell::Seconds(guest.phantom_p99_s),
            Cell::Seconds(guest.phantom_max_s),
            Cell::Count(guest.preempted),
        ],
        index,
        is_faint: false,
    });
    Grid {
        columns: COLUMNS,
        rows: rows.collect(),
    }
}

pub fn detail(result: &SchedResult, index: usize) -> Vec<(usize, String)> {
    let Some(guest) = result.guests.get(index) else {
        return Vec::new();
    };
    let cpu = guest
        .guest_cpu
        .map_or("A CPU".to_owned(), |cpu| format!("CPU {cpu}"));
    let lines = [
        format!(
            "{cpu} of a guest of {}: thread {} of process {}",
            guest.vmm, guest.tid, guest.pid
        ),
        String::new(),
        format!(
            "ran {}, preempted {} times",
            seconds_text(guest.run_s),
            guest.preempted
        ),
        format!(
            "phantom {} in run queues: p99 {}, longest {}",
            seconds_text(guest.phantom_s),
            seconds_text(guest.phantom_p99_s),
            seconds_text(guest.phantom_max_s)
        ),
        format!(
            "phantom {} blocked in this machine's kernel: longest {}",
            seconds_text(guest.blocked_s),
            seconds_text(guest.blocked_max_s)
        ),
    ];
    lines.iter().map(|text| (0, plain(text))).collect()
}
