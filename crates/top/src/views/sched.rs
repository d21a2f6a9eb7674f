//! What the scheduler does.

use std::collections::BTreeMap;

use amdahl_report::plain::plain;
use amdahl_report::sched::schema::{Latency, SchedResult, ThreadEntry, Wasted};

use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::seconds_text;
use crate::snapshot::By;

pub static COLUMNS: &[Column] = &[
    Column::text("thread", 12, 0, "its name"),
    Column::figure("tid", 7, 3, "its number; in rows of a process the process"),
    Column::figure("run", 7, 2, "time on CPUs"),
    Column::figure("wait", 7, 0, "time runnable and not running"),
    Column::figure(
        "wasted",
        7,
        1,
        "of that, while an allowed or another CPU idled",
    ),
    Column::figure(
        "p99",
        7,
        4,
        "99 of 100 waits for a CPU after a wake-up are not longer",
    ),
    Column::figure("max", 7, 5, "the longest of them"),
    Column::figure("slices", 7, 6, "stretches on a CPU"),
    Column::figure("preempt", 7, 7, "how often another thread took its CPU"),
    Column::figure("migr", 6, 8, "migrations from CPU to CPU"),
    Column::figure("cpu", 4, 9, "where it was last"),
];

/// A process: sums, and the largest of what does not add up.
fn add(sum: &mut ThreadEntry, row: &ThreadEntry) {
    sum.threads = sum.threads.saturating_add(row.threads);
    sum.run_s += row.run_s;
    sum.wait_s += row.wait_s;
    sum.wasted_s += row.wasted_s;
    sum.sleep_s += row.sleep_s;
    sum.iowait_s += row.iowait_s;
    sum.uninterruptible_s += row.uninterruptible_s;
    for (sum, row) in [
        (&mut sum.wake_latency, &row.wake_latency),
        (&mut sum.preempt_latency, &row.preempt_latency),
        (&mut sum.slices, &row.slices),
    ] {
        sum.count = sum.count.saturating_add(row.count);
        sum.total_s += row.total_s;
        sum.max_s = sum.max_s.max(row.max_s);
        sum.p99_s = sum.p99_s.max(row.p99_s);
        sum.p50_s = sum.p50_s.max(row.p50_s);
    }
    sum.preempted = sum.preempted.saturating_add(row.preempted);
    sum.yielded = sum.yielded.saturating_add(row.yielded);
    sum.blocked = sum.blocked.saturating_add(row.blocked);
    let (into, from) = (&mut sum.migrations, &row.migrations);
    into.core = into.core.saturating_add(from.core);
    into.llc = into.llc.saturating_add(from.llc);
    into.node = into.node.saturating_add(from.node);
    into.across = into.across.saturating_add(from.across);
    into.unknown = into.unknown.saturating_add(from.unknown);
}

fn entries(result: &SchedResult, by: By) -> Vec<ThreadEntry> {
    if by != By::Process {
        return result.threads.clone();
    }
    let mut processes: BTreeMap<(u32, &str), ThreadEntry> = BTreeMap::new();
    for row in &result.threads {
        // Of those without a process only the name is known.
        let name = if row.pid == 0 { row.name.as_str() } else { "" };
        let sum = processes
            .entry((row.pid, name))
            .or_insert_with(|| ThreadEntry {
                tid: row.pid,
                pid: row.pid,
                name: row.name.clone(),
                is_kernel: row.is_kernel,
                ..ThreadEntry::default()
            });
        if row.tid == row.pid {
            sum.name.clone_from(&row.name);
        }
        add(sum, row);
    }
    processes.into_values().collect()
}

fn name(row: &ThreadEntry) -> String {
    match row.threads {
        0 | 1 => row.name.clone(),
        many => format!("{} ({many})", row.name),
    }
}

pub fn grid(result: &SchedResult, by: By) -> Grid {
    let rows = entries(result, by).into_iter().enumerate();
    let rows = rows.map(|(index, row)| {
        let of_wakes = |seconds: f64| match row.wake_latency.count {
            0 => Cell::Unknown,
            _ => Cell::Seconds(seconds),
        };
        Row {
            key: format!("{}|{}|{}", row.pid, row.tid, row.name),
            cells: vec![
                Cell::text(&name(&row)),
                match row.tid {
                    0 => Cell::Unknown,
                    tid => Cell::Number(tid.into()),
                },
                Cell::Seconds(row.run_s),
                Cell::Seconds(row.wait_s),
                Cell::Seconds(row.wasted_s),
                of_wakes(row.wake_latency.p99_s),
                of_wakes(row.wake_latency.max_s),
                Cell::Count(row.slices.count),
                Cell::Count(row.preempted),
                Cell::Count(row.migrations.total()),
                row.last_cpu
                    .map_or(Cell::Unknown, |cpu| Cell::Number(cpu.into())),
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

pub fn headline(result: &SchedResult) -> String {
    let busy: f64 = result.cpus.iter().map(|cpu| cpu.run_s).sum();
    let idle: f64 = result.cpus.iter().map(|cpu| cpu.idle_s).sum();
    let mut text = format!("CPUs busy {:.0}%", 100.0 * busy / (busy + idle).max(1e-9));
    if result.has_events() {
        text += &wasted(&result.wasted);
        text += &format!(
            "; wake-up to run p99 {}, longest {}; {} migrations",
            seconds_text(result.wake_latency.p99_s),
            seconds_text(result.wake_latency.max_s),
            result.totals.migrations
        );
    }
    text
}

/// What is in no row, not in those of its processes either.
pub fn left_out(result: &SchedResult) -> Option<String> {
    let rest = &result.threads_elsewhere;
    (rest.threads > 0).then(|| {
        format!(
            "{} more threads are in no row: {} on CPUs, {} waiting for one",
            rest.threads,
            seconds_text(rest.run_s),
            seconds_text(rest.wait_s)
        )
    })
}

/// Idle time while threads waited, and the parts that its reasons have in it, the largest first.
fn wasted(wasted: &Wasted) -> String {
    let total = wasted.total_s();
    let mut text = format!(", wasted {}", seconds_text(total));
    let mut parts = wasted
        .by_reason()
        .map(|(id, seconds)| (reason(id), (100.0 * seconds / total).round()));
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut parts = parts
        .iter()
        .filter(|(_, percent)| *percent >= 1.0)
        .peekable();
    if parts.peek().is_some() {
        text.push(':');
    }
    for (reason, percent) in parts {
        text += &format!(" {reason} {percent:.0}%");
    }
    text
}

/// Why a CPU idled while a thread waited, in a word that is short.
pub fn reason(id: &str) -> &str {
    match id {
        "placement" => "wake-up",
        _ => id,
    }
}

pub fn detail(result: &SchedResult, by: By, index: usize) -> Vec<(usize, String)> {
    let entries = entries(result, by);
    let Some(row) = entries.get(index) else {
        return Vec::new();
    };
    let mut lines = vec![
        (
            0,
            format!("{} [{}] of process {}", name(row), row.tid, row.pid),
        ),
        (0, String::new()),
        (
            0,
            format!(
                "on CPUs {}; waited {} for one, {} of it while a CPU idled; asleep {}, {} of it for \
                 block I/O, {} uninterruptibly",
                seconds_text(row.run_s),
                seconds_text(row.wait_s),
                seconds_text(row.wasted_s),
                seconds_text(row.sleep_s),
                seconds_text(row.iowait_s),
                seconds_text(row.uninterruptible_s)
            ),
        ),
        (
            0,
            format!(
                "left a CPU {} times preempted, {} times yielding, {} times to sleep",
                row.preempted, row.yielded, row.blocked
            ),
        ),
    ];
    for (what, latency) in [
        ("from wake-up to run", &row.wake_latency),
        ("from preemption to run", &row.preempt_latency),
        ("stretches on a CPU", &row.slices),
    ] {
        if latency.count > 0 {
            lines.push((0, format!("{what}: {}", distribution(latency))));
        }
    }
    let moves = &row.migrations;
    lines.push((
        0,
        format!(
            "migrations: {} within a core, {} within a cache, {} within a node, {} across nodes",
            moves.core, moves.llc, moves.node, moves.across
        ),
    ));
    wakers(result, row, &mut lines);
    lines
        .into_iter()
        .map(|(indent, text)| (indent, plain(&text)))
        .collect()
}

fn distribution(latency: &Latency) -> String {
    format!(
        "{} times, p50 {}, p99 {}, longest {}",
        latency.count,
        seconds_text(latency.p50_s),
        seconds_text(latency.p99_s),
        seconds_text(latency.max_s)
    )
}

/// Wake-ups are known by name.
fn wakers(result: &SchedResult, row: &ThreadEntry, lines: &mut Vec<(usize, String)>) {
    let of_row = result.wakers.iter().filter(|waker| waker.woken == row.name);
    let mut is_first = true;
    for waker in of_row.take(20) {
        if std::mem::take(&mut is_first) {
            lines.push((0, String::new()));
            lines.push((0, "Who woke threads of this name:".to_owned()));
        }
        let text = format!(
            "{} times {}: ran after {}, at most {}",
            waker.count,
            waker.waker,
            seconds_text(waker.latency_mean_s),
            seconds_text(waker.latency_max_s)
        );
        lines.push((2, text));
    }
}
